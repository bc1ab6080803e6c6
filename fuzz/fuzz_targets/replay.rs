//! Whole replays on tiny machines: the input is decoded as events, which the real encoder writes.
//!
//! Addresses, lengths and numbers of processes come from few values, so that events meet; each may be anything as well.
#![no_main]

use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;

use arbitrary::Arbitrary;
use lab::replay::{ReplayError, fuzzing};
use lab::trace::{
    Access, Accesses, Call, Event, EventKind, FileId, ForkKind, MapCause, PathId, PopulateCause, Region,
    Syscall, Tier, forge,
};
use libfuzzer_sys::fuzz_target;

const PAGE: u64 = 4096;

#[derive(Arbitrary, Debug)]
struct Recording {
    check: bool,
    user: bool,
    folio: u8,
    /// The machine has 16 MiB times one more than this, at most 64.
    memory: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
struct Step {
    process: u8,
    what: What,
}

#[derive(Arbitrary, Debug)]
enum What {
    Exec,
    Fork {
        child: u8,
        shared: bool,
    },
    ThreadStart,
    ThreadExit,
    Exit,
    Map {
        cause: u8,
        at: Place,
        len: Length,
        prot: u8,
        flags: u32,
        file: Option<u8>,
        offset: Length,
    },
    Mmap {
        at: Place,
        len: Length,
        prot: u8,
        flags: Flags,
        file: Option<u8>,
        offset: Length,
    },
    /// A call of which the first two arguments are a range.
    Range {
        call: u8,
        at: Place,
        len: Length,
        third: u8,
        result: Result,
    },
    Mremap {
        at: Place,
        old: Length,
        new: Length,
        flags: u8,
        to: Place,
        result: Result,
    },
    Brk {
        to: Place,
    },
    /// A call with any arguments.
    Call {
        call: u8,
        args: [u64; 6],
        result: i64,
        file: Option<u8>,
    },
    Fault {
        at: Place,
        access: u8,
        bits: u8,
    },
    FaultAround {
        at: Place,
        len: Length,
    },
    Populate {
        at: Place,
        len: Length,
        cause: u8,
    },
    Accesses {
        at: Place,
        len: Length,
        accessed: u8,
    },
    Lost {
        records: u64,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Place {
    /// Pages above the start of one of four regions.
    In {
        region: u8,
        page: u8,
    },
    /// Larger steps in the same regions.
    Far {
        region: u8,
        mib: u8,
    },
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Length {
    Pages(u8),
    Mib(u8),
    Gib(u16),
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Flags {
    Anonymous,
    Shared,
    Populate,
    Locked,
    GrowsDown,
    Any(u64),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Result {
    Zero,
    Errno(u8),
    Any(i64),
}

impl Place {
    fn addr(self) -> u64 {
        const REGIONS: [u64; 4] = [0x5555_0000_0000, 0x7f00_0000_0000, 0x7ffd_0000_0000, 0x4000_0000];
        match self {
            Self::In { region, page } => REGIONS[usize::from(region % 4)] + u64::from(page) * PAGE,
            Self::Far { region, mib } => REGIONS[usize::from(region % 4)] + (u64::from(mib) << 20),
            Self::Any(addr) => addr,
        }
    }
}

impl Length {
    fn bytes(self) -> u64 {
        match self {
            Self::Pages(pages) => u64::from(pages) * PAGE,
            Self::Mib(mib) => u64::from(mib) << 20,
            Self::Gib(gib) => u64::from(gib) << 30,
            Self::Any(bytes) => bytes,
        }
    }
}

impl Flags {
    fn bits(self) -> u64 {
        match self {
            Self::Anonymous => 0x22,
            Self::Shared => 0x01,
            Self::Populate => 0x8022,
            Self::Locked => 0x2022,
            Self::GrowsDown => 0x122,
            Self::Any(bits) => bits,
        }
    }
}

impl Result {
    fn value(self) -> i64 {
        match self {
            Self::Zero => 0,
            Self::Errno(errno) => -i64::from(errno),
            Self::Any(value) => value,
        }
    }
}

fn file(number: u8) -> FileId {
    FileId { device: 1, inode: u64::from(number % 4), path: PathId(0) }
}

fn call(call: Call, args: [u64; 6], result: i64, file: Option<FileId>) -> EventKind {
    let unordered = result & 1 != 0;
    EventKind::Syscall(Syscall { call, args, result, enter_ns: 0, duration_ns: 1000, file, unordered })
}

fn any_call(number: u8) -> Call {
    Call::ALL[usize::from(number) % Call::ALL.len()]
}

fn access(number: u8) -> Access {
    [Access::Read, Access::Write, Access::Execute, Access::Unknown][usize::from(number % 4)]
}

impl What {
    fn kind(&self) -> EventKind {
        match *self {
            Self::Exec => EventKind::Exec { name: PathId(0) },
            Self::Fork { child, shared } => {
                let (child, kind) =
                    (pid(child), if shared { ForkKind::SharedMemory } else { ForkKind::Copy });
                EventKind::Fork { child_pid: child, child_tid: child, flags: 0, kind }
            }
            Self::ThreadStart => EventKind::ThreadStart { creator_tid: 10, flags: 0 },
            Self::ThreadExit => EventKind::ThreadExit,
            Self::Exit => {
                EventKind::ProcessExit { minor_faults: None, major_faults: None, recorded_faults: 0 }
            }
            Self::Lost { records } => EventKind::Lost { records },
            Self::Accesses { at, len, accessed } => {
                let start = at.addr();
                let len = len.bytes().min(u64::MAX - start);
                let regions = vec![Region { start, len, accessed: accessed.into() }];
                EventKind::Accesses(Accesses { sample_ns: 5_000_000, samples: 20, cost_ns: None, regions })
            }
            Self::Fault { at, access: number, bits } => EventKind::Fault {
                addr: at.addr() & (1 << 63) - 1,
                access: access(number),
                protection: bits & 1 != 0,
                kernel_mode: bits & 2 != 0,
                major: bits & 4 != 0,
                duration_ns: (bits & 8 == 0).then_some(1000),
            },
            Self::FaultAround { at, len } => EventKind::FaultAround { start: at.addr(), len: len.bytes() },
            Self::Populate { at, len, cause } => EventKind::Populate {
                start: at.addr(),
                len: len.bytes(),
                cause: [
                    PopulateCause::MapPopulate,
                    PopulateCause::MapLocked,
                    PopulateCause::Mlock,
                    PopulateCause::PopulateRead,
                    PopulateCause::PopulateWrite,
                    PopulateCause::BeforeRead,
                    PopulateCause::BeforeWritten,
                ][usize::from(cause % 7)],
            },
            _ => self.mapping(),
        }
    }

    fn mapping(&self) -> EventKind {
        match *self {
            Self::Map { cause, at, len, prot, flags, file: number, offset } => EventKind::Map {
                cause: [
                    MapCause::ExecImage,
                    MapCause::ExecAnonymous,
                    MapCause::Stack,
                    MapCause::StackGrowth,
                    MapCause::Vdso,
                    MapCause::Other,
                    MapCause::Before,
                ][usize::from(cause % 7)],
                start: at.addr(),
                len: len.bytes(),
                prot: u32::from(prot % 8),
                flags,
                file: number.map(file),
                file_offset: offset.bytes(),
            },
            Self::Mmap { at, len, prot, flags, file: number, offset } => {
                let args = [0, len.bytes(), u64::from(prot % 8), flags.bits(), u64::MAX, offset.bytes()];
                call(Call::Mmap, args, at.addr() as i64, number.map(file))
            }
            Self::Range { call: number, at, len, third, result } => {
                let args = [at.addr(), len.bytes(), u64::from(third), 0, 0, 0];
                call(any_call(number), args, result.value(), None)
            }
            Self::Mremap { at, old, new, flags, to, result } => {
                let result = match result {
                    Result::Zero => to.addr() as i64,
                    other => other.value(),
                };
                let args = [at.addr(), old.bytes(), new.bytes(), u64::from(flags), to.addr(), 0];
                call(Call::Mremap, args, result, None)
            }
            Self::Brk { to } => call(Call::Brk, [to.addr(), 0, 0, 0, 0, 0], to.addr() as i64, None),
            Self::Call { call: number, args, result, file: named } => {
                call(any_call(number), args, result, named.map(file))
            }
            _ => unreachable!("`kind` has the others"),
        }
    }
}

fn pid(number: u8) -> u32 {
    10 + u32::from(number % 6)
}

fn events(steps: &[Step]) -> Vec<Event> {
    let first = Step { process: 0, what: What::Exec };
    std::iter::once(&first)
        .chain(steps)
        .zip(1u64..)
        .map(|(step, time)| {
            let pid = pid(step.process);
            Event {
                time_ns: time * 1000,
                pid,
                tid: pid + u32::from(step.process >> 6) * 100,
                kind: step.what.kind(),
            }
        })
        .collect()
}

thread_local! {
    static FILE: std::fs::File = quire_fuzz::memory_file();
}

fuzz_target!(|recording: Recording| {
    let events = events(&recording.steps);
    let tier = if recording.user { Tier::User } else { Tier::Privileged };
    let header = forge::header(&quire_fuzz::header(tier, events.len() as u64));
    let bytes = forge::around(&header, &forge::stream(&["small"], &events), events.len() as u64);
    let memory = (u64::from(recording.memory % 4) + 1) * (16 << 20);
    let replayed = FILE.with(|mut file| {
        file.set_len(0).and_then(|()| file.seek(SeekFrom::Start(0))).expect("the file is in memory");
        file.write_all(&bytes).expect("the file is in memory");
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let replay = || fuzzing::replay(path.as_ref(), memory, recording.check, recording.folio);
        quire_fuzz::within_a_second(replay)
    });
    match replayed {
        Ok(()) | Err(ReplayError::OutOfMemory { .. }) => {}
        Err(ReplayError::Divergence { event, what }) => panic!("event {event}: {what}"),
        Err(other) => assert!(!other.to_string().contains('\n'), "one line: {other}"),
    }
});
