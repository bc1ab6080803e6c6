//! The rules of a trace that a replayer relies on.
//!
//! What the mappings show is judged as a reader does it: the place of an *unordered* call is found by
//! [`Settled`], and nothing is judged that depends on an order which the trace does not tell.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use lab::trace::{
    Call, Event, EventKind, ForkKind, Header, Layouts, Placed, Settled, Syscall, Tier, TraceReader,
    clone_flags, mmap_length,
};

/// Below this nothing is ever mapped (`vm.mmap_min_addr`); Java, for one, probes address 0 on purpose.
const LOWEST_MAPPED: u64 = 0x1_0000;

/// What a trace that keeps the rules contains.
pub(crate) struct Kept {
    pub(crate) header: Header,
    pub(crate) faults: u64,
    pub(crate) resolved: u64,
    /// Faults at addresses where nothing can ever be mapped.
    pub(crate) probes: u64,
    pub(crate) processes: u64,
    /// Events that are not judged by the mappings, since these depend on an unknown order.
    pub(crate) in_doubt: u64,
}

/// Reads a whole trace and checks every rule; panics at the first that is broken.
pub(crate) fn check(path: &Path) -> Kept {
    let (kept, living) = check_living(path);
    assert!(living.is_empty(), "processes without an end: {living:?}");
    kept
}

/// The same for a trace that ends before the recorded processes; returns those that live on as well.
pub(crate) fn check_living(path: &Path) -> (Kept, Vec<u32>) {
    let mut reader = TraceReader::open(path).expect("the trace opens");
    let header = reader.header().clone();
    let mut seen = Seen { path: path.to_owned(), tier: Some(header.tier), ..Seen::default() };
    let mut last_ns = 0;
    for event in reader.by_ref() {
        let event = event.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(event.time_ns >= last_ns, "time runs backwards at {event:?}");
        last_ns = event.time_ns;
        seen.event(event);
    }
    seen.end();
    assert_eq!(reader.events_read(), header.events);
    assert_eq!(header.totals.lost, 0, "records are lost");
    assert!(
        seen.unexplained.is_empty(),
        "{} of {} faults outside the known mappings, the first: {:#?}",
        seen.unexplained.len(),
        seen.faults,
        &seen.unexplained[..seen.unexplained.len().min(5)]
    );
    let Seen { faults, resolved, probes, processes, in_doubt, threads, .. } = seen;
    (Kept { header, faults, resolved, probes, processes, in_doubt }, threads.into_keys().collect())
}

/// What has been seen of a trace.
#[derive(Default)]
struct Seen {
    path: PathBuf,
    tier: Option<Tier>,
    settled: Settled,
    /// The mappings after the last event whose place is known.
    layouts: Layouts,
    /// Threads that live, by process.
    threads: HashMap<u32, HashSet<u32>>,
    faults: u64,
    resolved: u64,
    probes: u64,
    unexplained: Vec<String>,
    processes: u64,
    in_doubt: u64,
    last_fault: HashMap<u32, u64>,
    last_call: HashMap<u32, Syscall>,
}

impl Seen {
    fn event(&mut self, event: Event) {
        self.tasks(&event);
        time_of_call(&event);
        self.settled.push(event);
        self.take_placed();
    }

    fn end(&mut self) {
        self.settled.finish();
        self.take_placed();
    }

    /// Judges the events that have found their place by the mappings of that place.
    fn take_placed(&mut self) {
        while let Some(Placed { event, in_doubt, .. }) = self.settled.pop() {
            self.in_doubt += u64::from(in_doubt);
            if !in_doubt {
                self.placement(&event);
            }
            self.layouts.apply(&event);
            self.memory(&event, in_doubt);
        }
    }

    /// Forks come before their child's events, ends come last.
    fn tasks(&mut self, event: &Event) {
        let Event { pid, tid, ref kind, .. } = *event;
        if self.processes == 0 {
            assert!(matches!(kind, EventKind::Exec { .. }), "the first event starts the program: {event:?}");
            self.threads.insert(pid, HashSet::from([tid]));
            self.processes = 1;
        }
        let known = self.threads.get(&pid).is_some_and(|threads| threads.contains(&tid));
        // The thread that starts is new; one that execs may have taken over the number of the first thread.
        let may_be_new = matches!(kind, EventKind::ThreadStart { .. } | EventKind::Exec { .. });
        assert!(
            known || may_be_new,
            "thread {tid} of {pid} has not started, has ended, or has lost records: {event:?}\n{}",
            context(&self.path, event)
        );
        match kind {
            EventKind::Exec { .. } => drop(self.threads.insert(pid, HashSet::from([tid]))),
            EventKind::Fork { child_pid, child_tid, flags, kind } => {
                let before = self.threads.insert(*child_pid, HashSet::from([*child_tid]));
                assert!(before.is_none(), "process {child_pid} is forked twice: {event:?}");
                assert_eq!(*kind == ForkKind::SharedMemory, flags & clone_flags::VM != 0, "{event:?}");
                assert_eq!(flags & clone_flags::THREAD, 0, "{event:?}");
                self.processes += 1;
            }
            EventKind::ThreadStart { creator_tid, flags } => {
                let threads = self.threads.get_mut(&pid).expect("a thread starts in a living process");
                assert!(threads.contains(creator_tid) && threads.insert(tid), "{event:?}");
                assert_ne!(flags & clone_flags::THREAD, 0, "{event:?}");
            }
            EventKind::ThreadExit => {
                let threads = self.threads.get_mut(&pid).expect("a thread ends in a living process");
                assert!(threads.remove(&tid) && !threads.is_empty(), "{event:?}");
            }
            EventKind::ProcessExit { .. } => {
                let threads = self.threads.remove(&pid).expect("a process ends once");
                assert_eq!(threads, HashSet::from([tid]), "{event:?}");
            }
            EventKind::Lost { records } => panic!("{records} records lost\n{}", context(&self.path, event)),
            _ => {}
        }
    }

    /// Where the kernel chose the address, nothing was mapped: what was there has been released by an earlier event.
    fn placement(&self, event: &Event) {
        const MAP_FIXED: u64 = 0x10;
        const MREMAP_FIXED: u64 = 2;
        let EventKind::Syscall(call) = &event.kind else { return };
        let chosen = match call.call {
            Call::Mmap => call.args[3] & MAP_FIXED == 0,
            Call::Mremap => call.args[3] & MREMAP_FIXED == 0 && call.result as u64 != call.args[0],
            _ => false,
        };
        let length = if call.call == Call::Mmap { mmap_length(call) } else { call.args[2] };
        if chosen && call.ok() {
            let (start, end) = (call.result as u64, call.result as u64 + length);
            let taken = self.layouts.mappings(event.pid).find(|taken| taken.start < end && start < taken.end);
            assert_eq!(taken, None, "{event:x?} maps what is mapped\n{}", context(&self.path, event));
        }
    }

    fn memory(&mut self, event: &Event, in_doubt: bool) {
        let Event { pid, tid, ref kind, .. } = *event;
        match kind {
            EventKind::Fault { addr, duration_ns, .. } => {
                self.faults += 1;
                // The user tier sees no others.
                self.resolved += u64::from(duration_ns.is_some() || self.tier == Some(Tier::User));
                self.last_fault.insert(tid, *addr);
                if *addr < LOWEST_MAPPED {
                    self.probes += 1;
                    assert_eq!(*duration_ns, None, "nothing is there to resolve it: {event:?}");
                } else if !in_doubt && self.layouts.find(pid, *addr).is_none() {
                    self.unexplained.push(format!("{event:x?}"));
                }
            }
            EventKind::FaultAround { start, len } => {
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
                if !in_doubt {
                    let fault = self.last_fault[&tid];
                    let mapping = self.layouts.find(pid, fault).expect("the fault is in a mapping");
                    assert!(mapping.file.is_some(), "only files are mapped around: {event:x?}");
                    assert!(
                        mapping.start <= *start && start + len <= mapping.end,
                        "{event:x?} in {mapping:x?}"
                    );
                }
            }
            EventKind::Populate { start, len, cause } if cause.is_before() => {
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
                let mapping = self.layouts.find(pid, *start).expect("pages are in a mapping");
                assert!(start + len <= mapping.end, "{event:x?} in {mapping:x?}");
            }
            EventKind::Populate { start, len, .. } => {
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
                assert!(self.last_call[&tid].ok(), "populated by a call that succeeded: {event:x?}");
            }
            EventKind::Syscall(call) => drop(self.last_call.insert(tid, call.clone())),
            EventKind::Map { start, len, .. } => {
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
            }
            _ => {}
        }
    }
}

/// A call stands between its entry and its exit; one whose place is not known, at its entry.
fn time_of_call(event: &Event) {
    let EventKind::Syscall(call) = &event.kind else { return };
    let (enter, exit) = (call.enter_ns, call.enter_ns + call.duration_ns);
    assert!(enter <= event.time_ns && event.time_ns <= exit, "{event:x?} from {enter} to {exit}");
    if call.unordered {
        assert_eq!(event.time_ns, enter, "{event:x?}");
    }
}

/// What a trace says of the thread of a bad event: forks and ends that concern its process or its parent, the events
/// just before and behind it, and the end of the trace.
fn context(path: &Path, bad: &Event) -> String {
    const BESIDE: usize = 8;
    let events: Vec<Event> = TraceReader::open(path).into_iter().flatten().map_while(Result::ok).collect();
    // The time of a call that was moved to its place is another one.
    let is_bad = |event: &Event| (event.tid, &event.kind) == (bad.tid, &bad.kind);
    let at = events.iter().position(is_bad).unwrap_or(0);
    let child_of = |event: &Event| match event.kind {
        EventKind::Fork { child_pid, .. } => Some(child_pid),
        _ => None,
    };
    let parent = events.iter().find(|event| child_of(event) == Some(bad.pid)).map(|event| event.pid);
    let concerns = |pid| Some(pid) == parent || pid == bad.pid;
    let told = events.iter().enumerate().filter(|(index, event)| {
        let is_life = matches!(
            event.kind,
            EventKind::Fork { .. }
                | EventKind::ThreadStart { .. }
                | EventKind::Exec { .. }
                | EventKind::ThreadExit
                | EventKind::ProcessExit { .. }
                | EventKind::Lost { .. }
        );
        is_life && (concerns(event.pid) || child_of(event) == Some(bad.pid))
            || index.abs_diff(at) <= BESIDE
            || index + 1 == events.len()
    });
    let lines = told.map(|(index, event)| format!("{index}: {event:x?}\n"));
    format!(
        "event {at} of {}, process {:x}, its parent {parent:x?}:\n{}",
        events.len(),
        bad.pid,
        lines.collect::<String>()
    )
}
