//! Records what already runs: attaches to it, and lets go of it after a time.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::Resource;
use nix::unistd::Pid;
use procfs::process::{LimitValue, Process};

use super::assemble::Assembler;
use super::closing;
use super::collect::{self, Collected, Message};
use super::feed::Feed;
use super::options::{Interface, Source};
use super::overhead::{self, Governor};
use super::perf::Followed;
use super::present::{self, Zeroes};
use super::raw::{Raw, RawKind, now_ns};
use super::samplers::Samplers;
use super::signals::Signals;
use super::stop::Stopped;
use super::subject::{Found, Members, Subject, gone, not_traced};
use super::summary::{Attached, Recorded};
use super::{RecordError, proc_files, setup, target, tree};
use crate::host::thp;
use crate::output::{output_name, say};
use crate::trace::{Header, Limits, Program, Tier, Totals, TraceWriter};

/// A process is not kept stopped longer than this; what was not read by then counts as not present.
const LONGEST_STOP: Duration = Duration::from_secs(1);

/// Threads that have not stopped by then wait in the kernel, and change nothing meanwhile.
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// How often the recorder looks for processes that joined a control group.
const LOOK: Duration = Duration::from_millis(100);

/// What to attach to, and how.
#[derive(Clone, Debug)]
pub struct Attach {
    /// The trace's target; `-` is standard output.
    pub output: PathBuf,
    /// What to record.
    pub subject: Subject,
    /// How long; `None` until it ends or the recorder gets a signal.
    pub duration: Option<Duration>,
    /// The share of the program's time that recording may cost before it drops faults.
    pub max_overhead: f64,
    /// Bytes of each CPU's ring, a power of two of at least a page; `None` for the default.
    pub ring_bytes: Option<usize>,
    /// Name, if other than that of the process or control group, and version.
    pub name: Option<String>,
    /// Version of the program.
    pub version: String,
    /// Whether to leave the arguments out of the trace.
    pub no_arguments: bool,
    /// What to sample of the processes meanwhile.
    pub accesses: Source,
    /// What tells faults and calls. Of a control group perf does.
    pub interface: Interface,
}

/// Attaches to what runs, records it, and lets go of it.
///
/// # Errors
/// See [`RecordError`]. A regular file that is the output is then as it was before.
pub fn attach(options: &Attach) -> Result<Recorded, RecordError> {
    let target = target::open(&options.output)?;
    if !rustix::process::geteuid().is_root() {
        return Err(RecordError::NeedsRoot);
    }
    let found = options.subject.find()?;
    let signals = Signals::keep()?;
    let interface = match (&found, options.interface) {
        (Found::Process(_), interface) => interface,
        (Found::Cgroup(_), Interface::Bpf) => return Err(RecordError::ProgramsFollowThreads),
        (Found::Cgroup(_), _) => Interface::Perf,
    };
    setup::raise_open_files()?;
    let alone = overhead::alone();
    let mut feed = Feed::privileged(interface, options.ring_bytes, true)?;
    let (costs, held) = overhead::measure(&mut feed, &alone)?;
    let (sender, receiver) = mpsc::channel();
    let subject = &options.subject;
    let mut following = Following {
        subject,
        members: Members::default(),
        zeroes: Zeroes::find(),
        sender,
        attached: Attached::default(),
        unread: 0,
        waiting: 0,
    };
    following.start(&found, &mut feed)?;
    drop(held);
    say(format_args!(
        "quire: attached to {} processes; recording {}",
        following.attached.processes,
        options.duration.map_or("until Ctrl-C".to_owned(), |time| format!("for {time:?}, or until Ctrl-C"))
    ));
    let header = header(options, feed.ring_bytes(), feed.fault_around)?;
    let writer =
        TraceWriter::to(target, &header).map_err(|error| target::cannot_write(&options.output, error))?;
    let governor = Some(Governor::new(costs, options.max_overhead));
    let (heard_ns, end_ns) = (AtomicU64::new(collect::ALL_HEARD), AtomicU64::new(collect::GO_ON));
    let (collected, referenced, recorded_ns) = thread::scope(|scope| {
        let samplers = Samplers::start(scope, options.accesses, || living(subject), following.sender.clone());
        let collector = scope.spawn(|| {
            let assembler = Assembler::attached(writer);
            collect::run(feed, assembler, governor, receiver, &heard_ns, &end_ns)
        });
        let started_ns = now_ns();
        following.until_end(&found, &signals, options.duration, &heard_ns);
        let ended_ns = now_ns();
        let referenced = samplers.end();
        end_ns.store(ended_ns, Ordering::Release);
        let collected = collector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (collected, referenced, ended_ns - started_ns)
    });
    following.tell();
    let not_kept =
        |source| RecordError::NotKept { path: output_name(&options.output), source, program_exit_code: 0 };
    let Collected { writer, summary, grown_to, overhead, interface, events } = collected.map_err(not_kept)?;
    closing::leave(events);
    // It may have been attached to before that, one process after the other.
    let wall_ns = recorded_ns.max(summary.wall_ns());
    let totals = Totals { lost: summary.lost, wall_ns, kernel_faults: 0 };
    let written = writer.close(totals).map_err(not_kept)?;
    let attached = Some(Attached { before: summary.before, ..following.attached });
    let recorded = Recorded::of(0, Tier::Privileged, written, summary, totals, grown_to);
    Ok(Recorded { attached, interface, overhead, referenced, ..recorded })
}

/// The processes that the recording follows.
struct Following<'a> {
    subject: &'a Subject,
    members: Members,
    zeroes: Zeroes,
    sender: Sender<Message>,
    attached: Attached,
    /// Bytes of present pages that were not read.
    unread: u64,
    /// Threads that did not stop.
    waiting: usize,
}

impl Following<'_> {
    /// Opens the events, and looks at what is there.
    fn start(&mut self, found: &Found, feed: &mut Feed) -> Result<(), RecordError> {
        let Found::Cgroup(group) = found else {
            self.look(|threads| {
                for tid in threads {
                    feed.follow(Followed::Thread(*tid as i32))?;
                }
                feed.enable()
            })?;
            // It may have ended since it was found.
            return match (self.attached.processes, self.subject) {
                (0, Subject::Process(pid)) => Err(RecordError::Ended { pid: *pid }),
                _ => Ok(()),
            };
        };
        feed.follow(Followed::Cgroup(group)).map_err(|error| match error {
            RecordError::System { source, .. } => {
                RecordError::NoCgroup { path: self.subject.command().0.join(" "), source }
            }
            other => other,
        })?;
        feed.enable()?;
        self.look(|_| Ok(()))
    }

    /// Looks at all processes of the subject that are not known yet. Calls `within` while one is stopped, with
    /// its threads.
    fn look(
        &mut self,
        mut within: impl FnMut(&[u32]) -> Result<(), RecordError> + Send,
    ) -> Result<(), RecordError> {
        loop {
            let mut fresh = self.subject.processes();
            fresh.retain(|pid| self.members.is_unknown(*pid));
            if fresh.is_empty() {
                return Ok(());
            }
            for pid in fresh {
                let looked = self.look_at(pid, &mut within);
                self.members.know(pid);
                match (looked, self.subject) {
                    // A process that ends while it is looked at was hardly there.
                    (Err(RecordError::Ended { .. }), Subject::Cgroup(_)) => {}
                    (looked, _) => looked?,
                }
            }
        }
    }

    /// Stops a process, reads its memory, and lets it run on.
    fn look_at(
        &mut self,
        pid: i32,
        within: &mut (impl FnMut(&[u32]) -> Result<(), RecordError> + Send),
    ) -> Result<(), RecordError> {
        let zeroes = &mut self.zeroes;
        // Threads that do not stop are let go of when their tracer ends: this thread.
        let read = move || {
            let since = Instant::now();
            let process = Pid::from_raw(pid);
            let stopped =
                Stopped::all_of(process, since + LONGEST_WAIT).map_err(|errno| refused(pid, errno))?;
            let threads = stopped.threads();
            if threads.is_empty() {
                return Err(RecordError::Ended { pid });
            }
            within(&threads)?;
            let time_ns = now_ns();
            let read = present::read(process, threads, zeroes, since + LONGEST_STOP);
            let waiting = stopped.waiting.len();
            drop(stopped);
            let found = read.map_err(|source| gone(pid, source))?;
            if found.existing.mappings.is_empty() {
                return Err(RecordError::Ended { pid });
            }
            Ok((time_ns, found, waiting, since.elapsed()))
        };
        let joined = thread::scope(|scope| scope.spawn(read).join());
        let (time_ns, found, waiting, elapsed) =
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        self.attached.processes += 1;
        self.attached.stopped = self.attached.stopped.max(elapsed);
        self.unread += found.unread;
        self.waiting += waiting;
        let kind = RawKind::Existing(Box::new(found.existing));
        // The collector may have failed already; its error is reported when it is joined.
        let _ = self.sender.send(Message::Raw(Raw { time_ns, pid: pid as u32, tid: pid as u32, kind }));
        Ok(())
    }

    /// Returns when the time is over, a signal asks for it, or nothing is left to record.
    fn until_end(
        &mut self,
        found: &Found,
        signals: &Signals,
        duration: Option<Duration>,
        heard_ns: &AtomicU64,
    ) {
        let end = duration.and_then(|duration| Instant::now().checked_add(duration));
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || signals.asked().is_some() {
                return;
            }
            match found {
                Found::Process(process) => {
                    if wait_for(&[signals.as_fd(), process.as_fd()], left.unwrap_or(Duration::MAX))[1] {
                        return;
                    }
                }
                Found::Cgroup(_) => {
                    // What is younger than this waits for the processes that are looked at now.
                    heard_ns.store(now_ns(), Ordering::Release);
                    // Attaching to a process that joins may fail; then it is not recorded.
                    if let Err(error) = self.look(|_| Ok(())) {
                        say(format_args!("quire: a process that joined is not recorded: {error}"));
                    }
                    heard_ns.store(collect::ALL_HEARD, Ordering::Release);
                    if self.attached.processes > 0 && self.subject.processes().is_empty() {
                        return;
                    }
                    wait_for(&[signals.as_fd()], left.map_or(LOOK, |left| left.min(LOOK)));
                }
            }
        }
    }

    /// Says what is missing.
    fn tell(&self) {
        if self.unread > 0 {
            say(format_args!(
                "quire: {} bytes of present pages were not read within {LONGEST_STOP:?}, and count as not present",
                self.unread
            ));
        }
        if self.waiting > 0 {
            say(format_args!(
                "quire: {} threads waited in the kernel and did not stop; what they changed meanwhile is missing",
                self.waiting
            ));
        }
    }
}

/// The processes that are recorded now.
fn living(subject: &Subject) -> Vec<i32> {
    match subject {
        Subject::Process(pid) => {
            let below = tree::below(Pid::from_raw(*pid));
            below.iter().map(|member| member.pid.as_raw()).chain([*pid]).collect()
        }
        Subject::Cgroup(_) => subject.processes(),
    }
}

/// Why a process does not stop.
fn refused(pid: i32, errno: Errno) -> RecordError {
    match errno {
        Errno::ESRCH => RecordError::Ended { pid },
        _ => not_traced(pid).err().unwrap_or(RecordError::NotStopped { pid, source: errno.into() }),
    }
}

/// Which of them are ready, or the time is over.
fn wait_for(ready: &[std::os::fd::BorrowedFd<'_>], at_most: Duration) -> Vec<bool> {
    let mut polled: Vec<PollFd> = ready.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    // Rounded up, so that the time is over then.
    let at_most = i32::try_from(at_most.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
    let _ = poll(&mut polled, PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX));
    polled.iter().map(|fd| fd.any().unwrap_or(false)).collect()
}

fn header(options: &Attach, ring_bytes: usize, fault_around: bool) -> Result<Header, RecordError> {
    let (mut command, name) = options.subject.command();
    command.truncate(if options.no_arguments { 1 } else { command.len() });
    let process = options.subject.processes().first().and_then(|pid| Process::new(*pid).ok());
    let header = setup::header(Tier::Privileged, &[], fault_around)?;
    Ok(Header {
        command,
        ring_bytes: ring_bytes as u64,
        program: Program { name: options.name.clone().unwrap_or(name), version: options.version.clone() },
        thp_disabled: process.as_ref().is_some_and(|process| has_no_huge_pages(process.pid())),
        attached: true,
        limits: process.and_then(|process| limits(&process)).or(header.limits),
        ..header
    })
}

/// Whether the kernel gives the process single pages alone.
pub(super) fn has_no_huge_pages(pid: i32) -> bool {
    let never = |path: &std::path::Path| thp::selected(path).is_none_or(|value| value == "never");
    let global = thp::root().join("enabled");
    let sizes = thp::sizes(&thp::root());
    let inherits = |path: &std::path::Path| thp::selected(path).is_some_and(|value| value == "inherit");
    let is_off = |path: &PathBuf| never(path) || inherits(path) && never(&global);
    let all_off = if sizes.is_empty() { never(&global) } else { sizes.values().all(is_off) };
    let status = proc_files::text(format!("/proc/{pid}/status")).unwrap_or_default();
    all_off || status.lines().any(|line| line.split_whitespace().eq(["THP_enabled:", "0"]))
}

/// The memory limits of a process.
fn limits(process: &Process) -> Option<Limits> {
    let limits = process.limits().ok()?;
    let soft = |limit: procfs::process::Limit| match limit.soft_limit {
        LimitValue::Unlimited => Limits::NONE,
        LimitValue::Value(value) => value,
    };
    setup::limits(|resource| match resource {
        Resource::RLIMIT_AS => Some(soft(limits.max_address_space)),
        Resource::RLIMIT_DATA => Some(soft(limits.max_data_size)),
        Resource::RLIMIT_STACK => Some(soft(limits.max_stack_size)),
        Resource::RLIMIT_MEMLOCK => Some(soft(limits.max_locked_memory)),
        _ => None,
    })
}
