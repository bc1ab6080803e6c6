//! Traces of a few events, written by hand.

use lab::trace::{
    Access, Call, Clock, Event, EventKind, FaultKinds, Header, Limits, MapCause, PathId, Program, Syscall,
    Tier, Totals, TraceWriter, VERSION,
};

/// Where the heap of these programs starts.
pub(crate) const HEAP: u64 = 0x5555_0000_0000;

/// The names in these traces, by number: of the program, and of shared memory.
const NAMES: [&str; 3] = ["small", "/dev/zero (deleted)", "/memfd:named (deleted)"];

/// Nanoseconds that every recorded call and fault took.
const LINUX_NS: u64 = 1000;

/// Events of a trace, in the order in which they are added.
pub(crate) struct SmallTrace {
    events: Vec<Event>,
    tier: Tier,
    limits: Option<Limits>,
    computed_ns: u64,
    thp_disabled: bool,
}

impl SmallTrace {
    /// An event of a process's first thread.
    pub(crate) fn event(&mut self, pid: u32, kind: EventKind) {
        self.on_thread(pid, pid, kind);
    }

    /// An event of any thread.
    pub(crate) fn on_thread(&mut self, pid: u32, tid: u32, kind: EventKind) {
        let time_ns = self.events.len() as u64 * 2 * LINUX_NS + 1 + self.computed_ns;
        let kind = match kind {
            EventKind::Syscall(call) => EventKind::Syscall(Syscall { enter_ns: time_ns, ..call }),
            EventKind::Fault { addr, protection, kernel_mode, major, .. } if self.tier == Tier::User => {
                let (access, duration_ns) = (Access::Unknown, None);
                EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns }
            }
            kind => kind,
        };
        self.events.push(Event { time_ns, pid, tid, kind });
    }

    /// The process starts a program, with a stack.
    pub(crate) fn exec(&mut self, pid: u32) {
        self.event(pid, EventKind::Exec { name: PathId(0) });
        let (cause, flags) = (MapCause::Stack, 0x122);
        let (start, len) = (0x7ffd_0000_0000, 0x21000);
        self.event(pid, EventKind::Map { cause, start, len, prot: 3, flags, file: None, file_offset: 0 });
    }

    /// The process gets one more thread.
    pub(crate) fn thread(&mut self, pid: u32, tid: u32) {
        self.on_thread(pid, tid, EventKind::ThreadStart { creator_tid: pid, flags: 0x1_0100 });
    }

    /// The process ends.
    pub(crate) fn exit(&mut self, pid: u32) {
        let (minor_faults, major_faults, recorded_faults) = (None, None, 0);
        self.event(pid, EventKind::ProcessExit { minor_faults, major_faults, recorded_faults });
    }

    /// The program computes without an event, so that its faults are a small part of its run time.
    pub(crate) fn computes(&mut self, ns: u64) {
        self.computed_ns += ns;
    }

    /// The next event is the last possible moment of a clock.
    pub(crate) fn until_the_end_of_time(&mut self) {
        self.computed_ns = u64::MAX - 1 - self.events.len() as u64 * 2 * LINUX_NS;
    }

    /// The first event is at the first moment of a clock.
    pub(crate) fn starts_at_the_beginning_of_time(&mut self) {
        self.events.iter_mut().for_each(|event| event.time_ns -= 1);
    }

    /// Its folios were what the settings gave.
    pub(crate) fn keeps_huge_pages(&mut self) {
        self.thp_disabled = false;
    }

    /// Leaves out from here on what an ordinary user cannot record.
    pub(crate) fn as_user(&mut self) {
        self.tier = Tier::User;
    }

    /// The program started under these limits.
    pub(crate) fn under(&mut self, limits: Limits) {
        self.limits = Some(limits);
    }

    /// Writes the trace to a file that goes with the value.
    pub(crate) fn write(&self) -> tempfile::TempPath {
        let path = tempfile::NamedTempFile::new().expect("a temporary file").into_temp_path();
        let header = Header {
            version: VERSION,
            clock: Clock::Monotonic,
            page_size: 4096,
            kernel: "6.18.0".into(),
            cpus: 2,
            cpu: "one".into(),
            command: vec!["small".into()],
            program: Program { name: "small".into(), version: "1".into() },
            tier: self.tier,
            thp_disabled: self.thp_disabled,
            faults: FaultKinds::of(self.tier),
            ring_bytes: 1 << 20,
            limits: self.limits,
            attached: false,
            totals: Totals::default(),
            events: 0,
        };
        let mut writer = TraceWriter::create(&path, &header).expect("a trace is started");
        for name in NAMES {
            writer.path(name);
        }
        self.events.iter().for_each(|event| writer.write(event).expect("an event is written"));
        writer.finish(Totals::default()).expect("the trace is written");
        path
    }
}

/// A program, process 10, that has just started.
pub(crate) fn program() -> SmallTrace {
    let (events, tier) = (Vec::new(), Tier::Privileged);
    let mut trace = SmallTrace { events, tier, limits: None, computed_ns: 0, thp_disabled: true };
    trace.exec(10);
    trace
}

/// A call with its answer.
pub(crate) fn call(call: Call, args: [u64; 6], result: i64) -> EventKind {
    EventKind::Syscall(Syscall {
        call,
        args,
        result,
        enter_ns: 0,
        duration_ns: LINUX_NS,
        file: None,
        unordered: false,
    })
}

/// A private anonymous mapping that can be read and written.
pub(crate) fn anonymous(addr: u64, len: u64) -> EventKind {
    call(Call::Mmap, [0, len, 3, 0x22, u64::MAX, 0], addr as i64)
}

/// A fault that was resolved.
pub(crate) fn fault(addr: u64, access: Access, protection: bool) -> EventKind {
    let duration_ns = Some(LINUX_NS);
    EventKind::Fault { addr, access, protection, kernel_mode: false, major: false, duration_ns }
}
