use super::*;
use crate::record::setup;
use crate::trace::{Event, Tier, Totals, TraceReader};

const PROGRAM: u32 = 10;

/// The trace of the records that `records` hands over, up to the time that it returns.
pub(super) fn trace(records: impl FnOnce(&mut Assembler) -> u64) -> Vec<Event> {
    let path = tempfile::NamedTempFile::new().expect("a temporary file").into_temp_path();
    let header = setup::header(Tier::Privileged, &[], true).expect("a header");
    let mut assembler = Assembler::new(TraceWriter::create(&path, &header).expect("a writer"));
    let end_ns = records(&mut assembler);
    let (writer, summary) = assembler.finish(end_ns).expect("a trace");
    writer.finish(Totals::default()).expect("it is written");
    let events: Vec<Event> =
        TraceReader::open(&path).expect("the trace opens").map(|event| event.expect("an event")).collect();
    assert_eq!(summary.lost, lost(&events).len() as u64);
    events
}

/// The processes of events that the trace lacks, one record each.
fn lost(events: &[Event]) -> Vec<u32> {
    let lost = events.iter().filter(|event| matches!(event.kind, EventKind::Lost { records: 1 }));
    lost.map(|event| event.pid).collect()
}

/// The kernel's records, each with the processor whose ring it is in; the next is at `now_ns`.
#[derive(Default)]
struct Kernel {
    now_ns: u64,
    rings: [Vec<Raw>; 2],
}

impl Kernel {
    fn tell(&mut self, cpu: usize, pid: u32, kind: RawKind) {
        self.rings[cpu].push(Raw { time_ns: self.now_ns, pid, tid: pid, kind });
    }

    fn starts_program(&mut self) {
        self.tell(0, PROGRAM, RawKind::Comm { exec: true, name: "program".into() });
    }

    fn forks(&mut self, cpu: usize, child: u32) {
        self.tell(cpu, PROGRAM, RawKind::Fork { child_pid: child, child_tid: child });
        self.tell(cpu, PROGRAM, RawKind::NewTask { flags: 17 });
    }

    fn faults(&mut self, cpu: usize, pid: u32) {
        self.tell(cpu, pid, RawKind::Fault { addr: 0x1000, error_code: 3, kernel_mode: true });
        self.tell(cpu, pid, RawKind::Resolved { addr: 0x1000, major: false });
    }

    /// The records of a ring up to now; they are read.
    fn read(&mut self, cpu: usize) -> Vec<Raw> {
        let now_ns = self.now_ns;
        self.rings[cpu].extract_if(.., |raw| raw.time_ns <= now_ns).collect()
    }
}

/// A collector that reads one ring after the other while children start on any processor, and learns of the
/// recording's end some time after it. The trace once had a child's fault without the child's fork.
#[test]
fn a_recording_that_is_cut_off_has_the_fork_of_every_child() {
    for seed in 0..40 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut kernel = Kernel::default();
        kernel.starts_program();
        for child in 0..60 {
            let child = PROGRAM + 1 + child;
            kernel.forks(rng.usize(..2), child);
            kernel.now_ns += rng.u64(1..4);
            kernel.faults(rng.usize(..2), child);
            kernel.now_ns += rng.u64(1..8);
        }
        let end_ns = rng.u64(kernel.now_ns / 2..kernel.now_ns);
        let (known_ns, lateness_ns) = (end_ns + rng.u64(..200), rng.u64(..200));
        let mut horizon = 0;
        kernel.now_ns = 0;
        let events = trace(|assembler| {
            loop {
                let last = kernel.now_ns >= known_ns;
                let next = kernel.now_ns.saturating_sub(lateness_ns);
                for cpu in 0..2 {
                    kernel.read(cpu).into_iter().for_each(|raw| assembler.push(raw));
                    kernel.now_ns += rng.u64(..20);
                }
                if last {
                    return end_ns;
                }
                horizon = next;
                assembler.advance(horizon).expect("events are written");
                kernel.now_ns += rng.u64(..100);
            }
        });
        assert_eq!(lost(&events), [0; 0], "seed {seed}");
        let last_ns = events.last().expect("the program started").time_ns;
        assert!(last_ns <= end_ns.max(horizon) && last_ns + 12 > end_ns, "seed {seed}: {last_ns}, {end_ns}");
    }
}

/// A reader could not tell which memory such an event is about.
#[test]
fn an_event_of_a_thread_whose_start_is_missing_is_written_as_lost() {
    let (unborn, child) = (PROGRAM + 1, PROGRAM + 2);
    let events = trace(|assembler| {
        let mut kernel = Kernel::default();
        kernel.starts_program();
        kernel.faults(0, unborn);
        kernel.forks(0, child);
        kernel.faults(0, child);
        // Its memory is known from here on.
        kernel.tell(0, unborn, RawKind::Comm { exec: true, name: "another".into() });
        kernel.faults(0, unborn);
        for pid in [unborn, child] {
            kernel.tell(0, pid, RawKind::Exit);
            kernel.faults(0, pid);
        }
        kernel.read(0).into_iter().for_each(|raw| assembler.push(raw));
        u64::MAX
    });
    assert_eq!(lost(&events), [unborn, unborn, child]);
    let faults = |event: &&Event| matches!(event.kind, EventKind::Fault { .. });
    let faulting: Vec<u32> = events.iter().filter(faults).map(|event| event.pid).collect();
    assert_eq!(faulting, [child, unborn]);
}
