//! `quire record` on this machine: what programs do is in the trace, and what goes wrong is one line.

use crate::memory_script;
use crate::recorder;
use crate::rules;
use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::memory_script::{PAGE, Step};
use lab::trace::{Access, Call, Event, EventKind, ForkKind, Header, PopulateCause, Tier, TraceReader};
use tempfile::TempDir;

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

/// A user without rights of its own.
const ORDINARY_USER: u32 = 65534;

struct Run {
    directory: TempDir,
    output: Output,
}

impl Run {
    /// Records into a directory that every user may write to.
    fn new(options: &[&str], command: &[&str], uid: Option<u32>) -> Run {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).expect("the directory is ours");
        let mut quire = Command::new(QUIRE);
        if let Some(uid) = uid {
            // Others may not reach the build directory.
            let copy = directory.path().join("quire");
            recorder::copy_program(QUIRE, &copy);
            quire = Command::new(copy);
            quire.uid(uid).gid(uid);
        }
        let trace = directory.path().join("t.qtrace");
        quire
            .current_dir(directory.path())
            .arg("record")
            .arg("-o")
            .arg(trace)
            .args(options)
            .arg("--")
            .args(command);
        let output = quire.output().expect("quire runs");
        Run { directory, output }
    }

    fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    fn trace(&self) -> (Header, Vec<Event>) {
        let path = self.directory.path().join("t.qtrace");
        let mut reader =
            TraceReader::open(&path).unwrap_or_else(|error| panic!("{error}: {}", self.stderr()));
        let events = reader.by_ref().collect::<Result<Vec<_>, _>>().expect("the trace is whole");
        (reader.header().clone(), events)
    }

    /// One line on standard error that contains this, a failure, and no file.
    fn assert_refused(&self, says: &[&str]) {
        let stderr = self.stderr();
        assert!(self.code().is_some_and(|code| code != 0), "{:?}: {stderr}", self.output.status);
        // An ordinary user is told, too, that settings are changed, and cannot know that another test is about it.
        let is_own = |line: &&str| !line.contains("a run has changed settings of the kernel");
        assert_eq!(stderr.lines().filter(is_own).count(), 1, "{stderr}");
        for part in says {
            assert!(stderr.contains(part), "{stderr:?} does not say {part:?}");
        }
        let left = std::fs::read_dir(self.directory.path()).expect("the directory is readable");
        let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(left.iter().all(|name| name == "quire"), "left behind: {left:?}");
    }
}

fn tiers() -> Vec<(&'static str, Tier)> {
    let tier = |name| if name == "user" { Tier::User } else { Tier::Privileged };
    recorder::tiers().into_iter().map(|name| (name, tier(name))).collect()
}

#[test]
fn a_tier_that_is_refused_says_how_to_get_it() {
    for name in ["privileged", "user"] {
        let run = Run::new(&["--quiet", "--tier", name], &["true"], None);
        if run.code() != Some(0) {
            run.assert_refused(&["run as root"]);
        }
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn faults(events: &[Event]) -> impl Iterator<Item = (&Event, u64, Access, bool)> {
    events.iter().filter_map(|event| match event.kind {
        EventKind::Fault { addr, access, protection, .. } => Some((event, addr, access, protection)),
        _ => None,
    })
}

#[test]
fn a_program_from_exec_to_exit() {
    for (name, tier) in tiers() {
        let run = Run::new(&["--tier", name, "--program-version", "1.2"], &["true", "an argument"], None);
        assert_eq!(run.code(), Some(0), "{}", run.stderr());
        let (header, events) = run.trace();
        assert_eq!((header.tier, header.thp_disabled, header.totals.lost), (tier, true, 0));
        assert_eq!(header.command, ["true", "an argument"]);
        assert_eq!((header.program.name.as_str(), header.program.version.as_str()), ("true", "1.2"));
        assert_eq!(header.faults.access, tier == Tier::Privileged);
        assert!(matches!(events[0].kind, EventKind::Exec { .. }), "{:?}", events[0]);
        let last = events.last().expect("there are events");
        let EventKind::ProcessExit { recorded_faults, .. } = last.kind else { panic!("{last:?}") };
        assert_eq!(recorded_faults, faults(&events).count() as u64);
        let silent = header.totals.kernel_faults - recorded_faults;
        assert!((1..200).contains(&silent), "{silent} faults without an event");
        assert!(run.stderr().contains("faults without an event"), "{}", run.stderr());
    }
}

#[test]
fn the_exit_code_is_the_programs() {
    for (tier, _) in tiers() {
        let code = |script| Run::new(&["--quiet", "--tier", tier], &["sh", "-c", script], None).code();
        assert_eq!(code("exit 7"), Some(7));
        assert_eq!(code("kill -KILL $$"), Some(128 + 9));
    }
}

#[test]
fn forks_and_programs_of_a_shell_script() {
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do (exit 3); done; /bin/true; /bin/true; x=$(echo a)";
    for (tier, _) in tiers() {
        let run = Run::new(&["--quiet", "--tier", tier], &["sh", "-c", script], None);
        let (header, events) = run.trace();
        assert_eq!(header.totals.lost, 0);
        let mut living = HashSet::from([events[0].pid]);
        let (mut forks, mut execs) = (0, 0);
        for event in &events {
            assert!(living.contains(&event.pid), "{event:?} of a process that does not live");
            match event.kind {
                EventKind::Fork { child_pid, kind, flags, .. } => {
                    forks += 1;
                    assert!(living.insert(child_pid));
                    assert_eq!(kind == ForkKind::SharedMemory, flags & 0x100 != 0);
                }
                EventKind::Exec { .. } => execs += 1,
                EventKind::ProcessExit { .. } => assert!(living.remove(&event.pid)),
                _ => {}
            }
        }
        assert_eq!((forks, execs), (13, 3), "tier {tier}");
        assert!(living.is_empty());
    }
}

/// The kernel numbers processes differently for each PID namespace.
#[test]
fn a_fork_has_its_flags_in_another_pid_namespace() {
    if !is_root() || !recorder::tiers().contains(&"privileged") {
        println!("skipped: a PID namespace and the kernel's tracepoints need root");
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let trace = directory.path().join("t.qtrace");
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--pid",
        "--fork",
        "--mount-proc",
        QUIRE,
        "record",
        "--quiet",
        "--tier",
        "privileged",
        "-o",
    ]);
    let output = unshare.arg(&trace).args(["--", "sh", "-c", "/bin/true; (:); :"]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let events: Vec<Event> =
        TraceReader::open(&trace).expect("a trace").collect::<Result<_, _>>().expect("it is whole");
    let flags = events.iter().filter_map(|event| match event.kind {
        EventKind::Fork { flags, kind, .. } => Some((flags, kind == ForkKind::SharedMemory)),
        _ => None,
    });
    let flags: Vec<(u64, bool)> = flags.collect();
    assert_eq!(flags.len(), 2);
    for (flags, shared) in flags {
        assert!(flags != 0 && shared == (flags & 0x100 != 0), "{flags:#x}");
    }
}

/// A program that tells where it does what; each step has to be in the trace as it was done.
#[test]
fn every_step_of_a_known_program_is_there() {
    let me = std::env::current_exe().expect("this test has a path");
    let me = me.to_str().expect("the path is text");
    for (name, tier) in tiers() {
        let command = ["env", "QUIRE_MEMORY_SCRIPT=1", me, "--exact", memory_script::TEST, "--nocapture"];
        let run = Run::new(&["--quiet", "--tier", name], &command, None);
        assert_eq!(run.code(), Some(0), "{}", run.stderr());
        let steps = Step::parse_all(&String::from_utf8_lossy(&run.output.stdout));
        assert_eq!(steps.len(), memory_script::STEPS, "{steps:?}");
        let (_, events) = run.trace();
        for step in &steps {
            check_step(step, &events, tier);
        }
    }
}

/// Threads that map, move and unmap at once are given each other's addresses again and again, and fork in between.
#[test]
fn threads_that_reuse_addresses() {
    let me = std::env::current_exe().expect("this test has a path");
    let me = me.to_str().expect("the path is text");
    for (name, tier) in tiers() {
        let command = ["env", "QUIRE_MEMORY_SCRIPT=threads", me, "--exact", memory_script::TEST];
        let run = Run::new(&["--quiet", "--tier", name], &command, None);
        assert_eq!(run.code(), Some(0), "{}", run.stderr());
        let kept = rules::check(&run.directory.path().join("t.qtrace"));
        assert_eq!(kept.processes, 1 + memory_script::THREADS as u64);
        assert_eq!(kept.header.tier, tier);
        // Even where calls overlap, most places are told or can be found.
        assert!(
            kept.in_doubt <= kept.header.events / 10,
            "{} of {} in doubt",
            kept.in_doubt,
            kept.header.events
        );
        assert!(kept.probes < kept.faults / 100, "{} of {} faults at no address", kept.probes, kept.faults);
        let silent = kept.header.totals.kernel_faults - kept.resolved;
        assert!(tier == Tier::User || silent < 100, "{silent} of {} faults without an event", kept.faults);
    }
}

fn check_step(step: &Step, events: &[Event], tier: Tier) {
    let called = |call: Call, args: &[u64], result: Option<i64>| {
        events.iter().any(|event| match &event.kind {
            EventKind::Syscall(seen) => {
                seen.call == call
                    && seen.args[..args.len()] == *args
                    && result.is_none_or(|result| seen.result == result)
            }
            _ => false,
        })
    };
    let populated = |cause: PopulateCause, start: u64, len: u64| {
        events.iter().any(|event| event.kind == EventKind::Populate { start, len, cause })
    };
    let found = match *step {
        Step::Map { at, len } => called(Call::Mmap, &[0, len, 3, 0x22], Some(at as i64)),
        Step::Write { at } => faults(events).any(|(_, addr, access, protection)| {
            let kinds = (Access::Write, false);
            addr / PAGE == at / PAGE && (tier == Tier::User || (access, protection) == kinds)
        }),
        Step::CopyOnWrite { at, pid } => faults(events).any(|(event, addr, access, protection)| {
            let kinds = (Access::Write, true);
            event.pid == pid
                && addr / PAGE == at / PAGE
                && (tier == Tier::User || (access, protection) == kinds)
        }),
        Step::Protect { at, len } => called(Call::Mprotect, &[at, len, 1], Some(0)),
        Step::Remap { from, len, to, new_len } => {
            called(Call::Mremap, &[from, len, new_len, 1], Some(to as i64))
        }
        Step::Discard { at, len } => called(Call::Madvise, &[at, len, 4], Some(0)),
        Step::Populate { at, len } => {
            called(Call::Madvise, &[at, len, 23], Some(0)) && populated(PopulateCause::PopulateWrite, at, len)
        }
        Step::Lock { at, len } => {
            called(Call::Mlock, &[at, len], Some(0)) && populated(PopulateCause::Mlock, at, len)
        }
        Step::Unmap { at, len } => called(Call::Munmap, &[at, len], Some(0)),
        Step::FailedUnmap { at } => called(Call::Munmap, &[at, PAGE], Some(-22)),
        Step::MapFile { at, len } => events.iter().any(|event| match &event.kind {
            EventKind::Syscall(seen) => {
                seen.call == Call::Mmap
                    && seen.result as u64 == at
                    && seen.args[1] == len
                    && seen.file.is_some_and(|file| file.inode != 0)
            }
            _ => false,
        }),
    };
    assert!(found, "{step:x?} is not in the trace of the tier {tier:?}");
}

#[test]
fn an_ordinary_user_gets_the_second_tier() {
    let uid = is_root().then_some(ORDINARY_USER);
    let paranoid =
        std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").expect("a kernel with perf events");
    let paranoid: i32 = paranoid.trim().parse().expect("a number");
    let refused = Run::new(&["--tier", "privileged"], &["true"], uid);
    refused.assert_refused(&["run as root"]);
    let run = Run::new(&[], &["sh", "-c", "exit 5"], uid);
    if paranoid > 2 {
        run.assert_refused(&["run as root", "perf_event_paranoid"]);
        return;
    }
    assert_eq!(run.code(), Some(5), "{}", run.stderr());
    assert!(run.stderr().contains("quire: recording as an ordinary user"), "{}", run.stderr());
    let (header, events) = run.trace();
    assert_eq!(header.tier, Tier::User);
    assert!(faults(&events).count() > 30);
    assert!(
        events.iter().any(|event| matches!(&event.kind, EventKind::Syscall(call) if call.call == Call::Mmap))
    );
}

#[test]
fn a_program_that_cannot_start() {
    for (tier, _) in tiers() {
        for program in ["no-such-program-anywhere", "/etc/passwd", "/"] {
            let run = Run::new(&["--tier", tier], &[program], None);
            run.assert_refused(&["cannot start", program, "PATH"]);
        }
    }
}

#[test]
fn an_output_that_cannot_be_written() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let touched = directory.path().join("touched");
    for (tier, _) in tiers() {
        for target in ["no/such/directory/t.qtrace", "."] {
            let output = Command::new(QUIRE)
                .current_dir(directory.path())
                .args(["record", "--tier", tier, "-o", target, "--", "touch"])
                .arg(&touched)
                .output()
                .expect("quire runs");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success());
            assert!(stderr.lines().count() == 1 && stderr.contains("cannot write"), "{stderr}");
            assert!(!Path::new(&touched).exists(), "the program ran although its trace can't be written");
        }
    }
}

#[test]
fn what_is_lost_is_counted_and_said() {
    // A fault a microsecond, by the hundred thousand, and more of them at once than there are processors: the thread that
    // empties the rings must wait for a processor, however idle the machine is otherwise.
    let faults = "dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null &";
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let together = format!("{} wait", faults.repeat(3 * processors));
    let program = ["sh", "-c", &together];
    for (tier, _) in tiers().into_iter().filter(|(_, tier)| *tier == Tier::Privileged) {
        let run = Run::new(&["--tier", tier, "--ring", "4K"], &program, None);
        assert_eq!(run.code(), Some(0), "{}", run.stderr());
        let (header, events) = run.trace();
        let lost: u64 = events
            .iter()
            .map(|event| if let EventKind::Lost { records } = event.kind { records } else { 0 })
            .sum();
        assert!(lost > 0, "a page of ring can't hold them");
        assert_eq!((header.totals.lost, header.ring_bytes), (lost, 4096));
        assert!(run.stderr().contains("--ring"), "{}", run.stderr());
    }
}

#[test]
fn a_request_to_end_is_passed_on() {
    for (tier, _) in tiers() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let trace = directory.path().join("t.qtrace");
        let mut quire = Command::new(QUIRE)
            .args(["record", "--quiet", "--tier", tier, "-o"])
            .arg(&trace)
            .args(["--", "sh", "-c", "echo ready; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("quire runs");
        let mut ready = [0; 5];
        std::io::Read::read_exact(quire.stdout.as_mut().expect("it is piped"), &mut ready)
            .expect("it starts");
        let pid = nix::unistd::Pid::from_raw(quire.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it lives");
        let status = quire.wait().expect("it ends");
        assert_eq!(status.code(), Some(128 + 15), "tier {tier}");
        assert!(TraceReader::open(&trace).expect("the trace is there").all(|event| event.is_ok()));
    }
}
