//! One thread's part of an address space that it shares with others, as a subject: its addresses are the model's, moved
//! by a distance of its own; its files have numbers of its own.

use std::collections::HashMap;

use hosted::Hosted;
use oracle::machine::convert;
use oracle::ops::{At, Op, Step, To, WINDOW, What};
use oracle::space::{Advice, Backing, Kind, Map, PAGE, Placement, Prot, Remap, SpaceId, Vma};
use oracle::subject::{Actor, Resident, Subject};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::manager::MemoryManager;
use quire::platform::FileId;
use quire::vm::{self, File, MapRequest, Mm, Sharing};

/// Pages between the windows of two threads: more than a window has, and no multiple of what one table maps.
const DISTANCE: u64 = 2600 * PAGE;
const BELOW: u64 = 640 * PAGE;
const LONGEST: u64 = 600 * PAGE;
const FAULTS: usize = 4096;

/// The file that a thread means by a number.
pub(crate) fn file_of(cpu: CpuId, number: u64) -> u64 {
    u64::from(cpu.0) * 100 + number
}

/// The operations of a list whose effects stay in the window.
pub(crate) fn possible(steps: Vec<Step>) -> Vec<Step> {
    let here = |at: &At| matches!(at, At::Window(..));
    let fits = |step: &Step| match &step.op {
        Op::Mmap(map) => {
            here(&map.at) && map.len <= LONGEST && map.placement != Placement::Hint && !map.grows_down
        }
        Op::Mremap(at, old, new, To::FixedTo(to) | To::FixedDontUnmap(to)) => {
            here(at) && here(to) && *old <= LONGEST && *new <= LONGEST
        }
        Op::Mremap(at, old, new, To::InPlace) => here(at) && *old <= LONGEST && *new <= LONGEST,
        Op::Munmap(at, len)
        | Op::Mprotect(at, len, _)
        | Op::Madvise(at, len, _)
        | Op::Mlock(at, len, _)
        | Op::Munlock(at, len) => here(at) && *len <= LONGEST,
        Op::Store(at, _) | Op::Load(at, _) | Op::Touch(at, _) | Op::Access(at, _) => here(at),
        Op::Fork | Op::Truncate(..) => true,
        _ => false,
    };
    let mut steps: Vec<Step> = steps.into_iter().filter(fits).collect();
    // A shared mapping of a file would show the stores of children, which this view does not follow.
    for step in &mut steps {
        if let Op::Mmap(map) = &mut step.op
            && let What::File { shared, .. } = &mut map.what
        {
            *shared &= map.prot == Prot::R;
        }
    }
    steps
}

pub(crate) struct View<'a, 'm> {
    machine: &'m Hosted,
    mm: &'a Mm<'m, Hosted>,
    shift: u64,
    files: HashMap<u64, File<'m, Hosted>>,
}

impl<'a, 'm> View<'a, 'm> {
    pub(crate) fn new(
        machine: &'m Hosted,
        manager: &'m MemoryManager<'m, Hosted>,
        mm: &'a Mm<'m, Hosted>,
        cpu: CpuId,
        files: &[(u64, u64)],
    ) -> Self {
        let open = |&(number, _): &(u64, u64)| {
            (number, manager.open(FileId(file_of(cpu, number))).expect("there is memory"))
        };
        let shift = u64::from(cpu.0) * DISTANCE;
        Self { machine, mm, shift, files: files.iter().map(open).collect() }
    }

    fn at(&self, addr: u64) -> VirtAddr {
        VirtAddr(addr.wrapping_add(self.shift))
    }

    fn access<R>(
        &self,
        kind: Kind,
        attempt: impl Fn() -> Result<R, hosted::PageFault>,
    ) -> Result<R, FaultError> {
        for _ in 0..FAULTS {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(fault) => self.mm.fault(fault.addr, convert::access(kind)).map(drop)?,
            }
        }
        panic!("{kind:?}: {FAULTS} faults and no access");
    }
}

impl Subject for View<'_, '_> {
    fn mmap(&mut self, _actor: Actor, map: &Map) -> Result<u64, MmError> {
        let backing = match map.file {
            Some((number, page_offset)) => vm::Backing::File { file: &self.files[&number], page_offset },
            None => vm::Backing::Anonymous,
        };
        let request = MapRequest {
            addr: self.at(map.addr),
            len: map.len,
            prot: convert::protection(map.prot),
            placement: convert::placement(map.placement),
            sharing: if map.shared { Sharing::Shared } else { Sharing::Private },
            backing,
            grows_down: false,
            populate: map.populate,
            locked: map.locked,
            ..MapRequest::default()
        };
        self.mm.mmap(&request).map(|addr| addr.0 - self.shift)
    }

    fn munmap(&mut self, _actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.mm.munmap(self.at(addr), len)
    }

    fn mprotect(&mut self, _actor: Actor, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        self.mm.mprotect(self.at(addr), len, convert::protection(prot))
    }

    fn mremap(&mut self, _actor: Actor, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError> {
        let to = match to {
            Remap::Fixed(to) => Remap::Fixed(to.wrapping_add(self.shift)),
            Remap::FixedDontUnmap(to) => Remap::FixedDontUnmap(to.wrapping_add(self.shift)),
            to => to,
        };
        self.mm.mremap(self.at(addr), old, new, convert::remap(to)).map(|addr| addr.0 - self.shift)
    }

    fn madvise(&mut self, _actor: Actor, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        self.mm.madvise(self.at(addr), len, convert::advice(advice))
    }

    fn brk(&mut self, _actor: Actor, _addr: u64) -> u64 {
        unreachable!("there is one heap for all; see `possible`")
    }

    fn mlock(&mut self, _actor: Actor, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        self.mm.mlock(self.at(addr), len, on_fault)
    }

    fn munlock(&mut self, _actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.mm.munlock(self.at(addr), len)
    }

    fn mlockall(&mut self, _: Actor, _: bool, _: bool, _: bool) -> Result<(), MmError> {
        unreachable!("would lock what the others map; see `possible`")
    }

    fn munlockall(&mut self, _actor: Actor) -> Result<(), MmError> {
        unreachable!("see `mlockall`")
    }

    fn truncate(&mut self, _actor: Actor, file: u64, bytes: u64) -> Result<(), MmError> {
        self.files[&file].truncate(bytes)
    }

    /// Forks, and has the child exit: it would hold what the others map.
    fn fork(&mut self, _actor: Actor) -> Result<(), MmError> {
        self.mm.fork().map(drop)
    }

    fn keeps_children(&self) -> bool {
        false
    }

    fn exit(&mut self, _actor: Actor) {
        let window = (self.at(WINDOW - BELOW), DISTANCE);
        let gone = self.mm.munmap(window.0, window.1);
        assert_eq!(gone, Ok(()), "unmapping needs no memory where there is plenty");
        self.files.clear();
    }

    fn store(&mut self, _actor: Actor, addr: u64, word: u64) -> Result<(), FaultError> {
        self.access(Kind::Write, || self.machine.write(self.at(addr), &word.to_le_bytes()))
    }

    fn load(&mut self, _actor: Actor, addr: u64) -> Result<u64, FaultError> {
        self.access(Kind::Read, || {
            let mut bytes = [0; 8];
            self.machine.read(self.at(addr), &mut bytes).map(|()| u64::from_le_bytes(bytes))
        })
    }

    fn fault(&mut self, _actor: Actor, addr: u64, kind: Kind) -> Result<(), FaultError> {
        self.mm.fault(self.at(addr), convert::access(kind)).map(drop)
    }

    fn vmas(&mut self, _space: SpaceId) -> Vec<Vma> {
        let mut vmas = Vec::new();
        let (start, shift) = (self.at(WINDOW - BELOW).0, self.shift);
        self.mm.vmas(|info| {
            if info.range.start.0 >= start && info.range.start.0 < start + DISTANCE {
                let vma = convert::vma(info);
                let backing = match vma.backing {
                    Backing::File(number) => Backing::File(number % 100),
                    other => other,
                };
                vmas.push(Vma { start: vma.start - shift, end: vma.end - shift, backing, ..vma });
            }
        });
        vmas
    }

    fn resident(&mut self, _space: SpaceId) -> Option<Resident> {
        None
    }

    fn violated(&mut self) -> Option<String> {
        (self.machine.violation_count() > 0).then(|| "the machine saw a violation".to_string())
    }

    /// Nothing can be checked while the others go on.
    fn check(&mut self, _deep: bool) -> Result<(), String> {
        Ok(())
    }
}
