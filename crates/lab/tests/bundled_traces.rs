//! The recordings in `traces/` keep the rules that a replayer relies on.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use lab::trace::{Event, EventKind, ForkKind, Layouts, Syscall, Tier, TraceReader, clone_flags};

/// Together they fit into a repository.
const MOST_BYTES: u64 = 10 << 20;

/// A single one is replayed in reasonable time.
const MOST_EVENTS: u64 = 1_500_000;

/// Below this nothing is ever mapped (`vm.mmap_min_addr`); Java, for one, probes address 0 on purpose.
const LOWEST_MAPPED: u64 = 0x1_0000;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces")
}

fn bundled() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory())
        .expect("the directory of traces is there")
        .map(|entry| entry.expect("the directory is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "qtrace"))
        .collect();
    paths.sort();
    paths
}

/// What has been seen of a trace.
#[derive(Default)]
struct Seen {
    layouts: Layouts,
    /// Threads that live, by process.
    threads: HashMap<u32, HashSet<u32>>,
    faults: u64,
    resolved: u64,
    probes: u64,
    unexplained: Vec<String>,
    processes: u64,
    last_fault: HashMap<u32, u64>,
    last_call: HashMap<u32, Syscall>,
}

impl Seen {
    fn event(&mut self, event: &Event) {
        self.tasks(event);
        self.layouts.apply(event);
        self.memory(event);
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
        assert!(known || may_be_new, "thread {tid} of {pid} has not started or has ended: {event:?}");
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
            EventKind::Lost { records } => panic!("{records} records lost"),
            _ => {}
        }
    }

    fn memory(&mut self, event: &Event) {
        let Event { time_ns, pid, tid, ref kind } = *event;
        match kind {
            EventKind::Fault { addr, duration_ns, .. } => {
                self.faults += 1;
                self.resolved += u64::from(duration_ns.is_some());
                self.last_fault.insert(tid, *addr);
                if *addr < LOWEST_MAPPED {
                    self.probes += 1;
                    assert_eq!(*duration_ns, None, "nothing is there to resolve it: {event:?}");
                } else if self.layouts.find(pid, *addr).is_none() {
                    self.unexplained.push(format!("{event:x?}"));
                }
            }
            EventKind::FaultAround { start, len } => {
                let fault = self.last_fault[&tid];
                let mapping = self.layouts.find(pid, fault).expect("the fault is in a mapping");
                assert!(mapping.file.is_some(), "only files are mapped around: {event:x?}");
                assert!(mapping.start <= *start && start + len <= mapping.end, "{event:x?} in {mapping:x?}");
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
            }
            EventKind::Populate { start, len, .. } => {
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
                assert!(self.last_call[&tid].ok(), "populated by a call that succeeded: {event:x?}");
            }
            EventKind::Syscall(call) => {
                let (enter, exit) = (call.enter_ns, call.enter_ns + call.duration_ns);
                assert!(enter <= time_ns && time_ns <= exit, "{event:x?} from {enter} to {exit}");
                if call.applied_at_entry() {
                    assert_eq!(time_ns, enter, "{event:x?}");
                }
                self.last_call.insert(tid, call.clone());
            }
            EventKind::Map { start, len, .. } => {
                assert!(*len > 0 && (start | len) % 4096 == 0, "{event:x?}");
            }
            _ => {}
        }
    }
}

fn check(path: &Path) {
    let name = path.file_name().expect("it has a name").to_string_lossy();
    let mut reader = TraceReader::open(path).expect("a bundled trace opens");
    let header = reader.header().clone();
    assert_eq!(header.totals.lost, 0, "{name} lost records");
    assert_eq!(header.tier, Tier::Privileged, "{name}");
    assert!(header.thp_disabled && !header.command.is_empty(), "{name}");
    assert!(
        !header.program.name.is_empty() && !header.program.version.is_empty(),
        "{name} has no name or version"
    );
    assert!(header.events <= MOST_EVENTS, "{name} has {} events", header.events);
    let mut seen = Seen::default();
    let mut last_ns = 0;
    for event in reader.by_ref() {
        let event = event.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(event.time_ns >= last_ns, "{name}: time runs backwards at {event:?}");
        last_ns = event.time_ns;
        seen.event(&event);
    }
    assert_eq!(reader.events_read(), header.events);
    assert!(seen.threads.is_empty(), "{name}: processes without an end: {:?}", seen.threads);
    assert!(
        seen.unexplained.is_empty(),
        "{name}: {} of {} faults outside the known mappings, the first: {:#?}",
        seen.unexplained.len(),
        seen.faults,
        &seen.unexplained[..seen.unexplained.len().min(5)]
    );
    assert!(seen.faults > 1000, "{name} has only {} faults", seen.faults);
    println!(
        "{name}: {} events, {} faults ({} not resolved, {} probes), {} processes, {} of {} faults without an event",
        header.events,
        seen.faults,
        seen.faults - seen.resolved,
        seen.probes,
        seen.processes,
        header.totals.kernel_faults.saturating_sub(seen.resolved),
        header.totals.kernel_faults
    );
}

#[test]
fn every_bundled_trace_keeps_the_rules() {
    let traces = bundled();
    assert!(traces.len() >= 7, "there are {} traces", traces.len());
    let bytes: u64 = traces.iter().map(|path| path.metadata().expect("it is there").len()).sum();
    assert!(bytes <= MOST_BYTES, "the traces have {bytes} bytes together");
    for path in &traces {
        check(path);
    }
}

/// The table in the directory names every trace, and nothing that is not there.
#[test]
fn the_table_is_complete() {
    let table = std::fs::read_to_string(directory().join("README.md")).expect("the directory has a README");
    let traces = bundled();
    let rows = table.lines().filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, traces.len(), "rows and traces");
    for path in traces {
        let header = TraceReader::open(&path).expect("it opens").header().clone();
        let name = path.file_name().expect("it has a name").to_string_lossy();
        let row = table.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("no row for {name}"));
        let size = path.metadata().expect("it is there").len();
        for part in [header.program.version.clone(), header.events.to_string(), size.to_string()] {
            assert!(row.contains(&part), "the row of {name} does not say {part}");
        }
    }
}
