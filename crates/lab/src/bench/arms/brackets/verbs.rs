//! One call of each verb: what it finds, what it does, and how the memory comes back.

use std::cell::RefCell;

use hosted::{Bare, Hosted};
use quire::addr::{Order, VirtAddr};
use quire::arch::Protection;
use quire::hugetlb::HugeSize;
use quire::manager::MemoryManager;
use quire::platform::FileId;
use quire::vm::{Access, Advice, Backing, File, FolioPolicy, MapRequest, Mm, Placement, Remap, Sharing};

use super::{Brackets, Verb};
use crate::bench::experiment::Skip;
use crate::bench::folio::PAGE;
use crate::bench::ours::START;

/// Bytes that one call works on.
pub(super) const PART: u64 = 2 << 20;
/// Where memory is moved to and back.
const AWAY: VirtAddr = VirtAddr(START.0 + (1 << 40));
/// The file that reclaim takes pages from.
const FILE: FileId = FileId(1);
const RW: Protection = Protection::from_bits(3);

fn said(what: &'static str) -> impl Fn(quire::error::MmError) -> Skip {
    move |error| Skip::because(what, error)
}

/// A guest's memory, mapped as the case's verb needs it.
pub(super) struct Ground<'m> {
    pub(super) case: Brackets,
    pub(super) manager: &'m MemoryManager<'m, Bare>,
    pub(super) mm: Mm<'m, Bare>,
    file: Option<File<'m, Bare>>,
    /// The child of the last fork.
    child: RefCell<Option<Mm<'m, Bare>>>,
}

impl<'m> Ground<'m> {
    pub(super) fn new(
        machine: &Hosted,
        manager: &'m MemoryManager<'m, Bare>,
        case: Brackets,
    ) -> Result<Self, Skip> {
        manager.set_folio_policy(FolioPolicy::only(Order::FRAME));
        let file = match case.verb {
            Verb::Reclaim => {
                machine.files().set_size(FILE, case.bytes);
                Some(manager.open(FILE))
            }
            Verb::Truncate => Some(manager.shmem(case.bytes)),
            Verb::CollapseParts => Some(manager.huge_file(HugeSize::Size2M, case.bytes)),
            _ => None,
        };
        let file = file.transpose().map_err(said("a file"))?;
        let mm = manager.new_mm().map_err(said("an address space"))?;
        let ground = Self { case, manager, mm, file, child: RefCell::new(None) };
        ground.map(START, case.bytes)?;
        if case.verb == Verb::CollapseParts {
            ground.mm.madvise(START, case.bytes, Advice::Split).map_err(said("MADV_SPLIT"))?;
        }
        ground.populate(START, case.bytes)?;
        Ok(ground)
    }

    fn map(&self, addr: VirtAddr, len: u64) -> Result<(), Skip> {
        let backing = match &self.file {
            Some(file) => Backing::File { file, page_offset: 0 },
            None => Backing::Anonymous,
        };
        let sharing = if self.file.is_some() { Sharing::Shared } else { Sharing::Private };
        let fixed = MapRequest { addr, len, prot: RW, placement: Placement::Fixed, ..MapRequest::default() };
        self.mm.mmap(&MapRequest { sharing, backing, ..fixed }).map(drop).map_err(said("mmap"))
    }

    fn populate(&self, addr: VirtAddr, len: u64) -> Result<(), Skip> {
        let advice = if self.case.verb.reads_only() { Advice::PopulateRead } else { Advice::PopulateWrite };
        self.mm.madvise(addr, len, advice).map_err(said("populate"))
    }

    /// Start and length of the memory that this call works on.
    pub(super) fn part(&self, call: u64) -> (VirtAddr, u64) {
        let parts = self.case.bytes / PART;
        match self.case.verb {
            Verb::Fork | Verb::Reclaim => (START, self.case.bytes),
            // `ftruncate` removes the end of the file.
            Verb::Truncate => (START.add(self.case.bytes - PART), PART),
            Verb::Migrate | Verb::MemoryFailure => {
                (START.add(call * 7919 % (self.case.bytes / PAGE as u64) * PAGE as u64), PAGE as u64)
            }
            _ => (START.add(call % parts * PART), PART),
        }
    }

    /// Populates the memory by leaves of 4 KiB.
    pub(super) fn prepare(&self, call: u64) -> Result<(), Skip> {
        let (at, len) = self.part(call);
        if self.case.verb == Verb::CollapseParts {
            // Unmapping one page splits the large leaf into leaves of 4 KiB; the page comes back as one of
            // them.
            self.mm.madvise(at.add(PAGE as u64), PAGE as u64, Advice::DontNeed).map_err(said("a hole"))?;
        }
        self.populate(at, len)
    }

    /// Calls the verb. False if an access at the same moment made it fail.
    pub(super) fn act(&self, call: u64) -> Result<bool, Skip> {
        let (at, len) = self.part(call);
        let done = match self.case.verb {
            Verb::Munmap => self.mm.munmap(at, len),
            Verb::DontNeed => self.mm.madvise(at, len, Advice::DontNeed),
            Verb::Mprotect => self.mm.mprotect(at, len, Protection::READ),
            Verb::Mremap => self.mm.mremap(at, len, len, Remap::Fixed(AWAY)).map(drop),
            Verb::Fork => self.mm.fork().map(|child| *self.child.borrow_mut() = Some(child)),
            Verb::Reclaim => return Ok(self.manager.reclaim() > 0),
            Verb::Migrate => {
                let frame = self.mm.translate(at, Access::Read).map(|leaf| leaf.frame);
                return Ok(frame.is_some_and(|frame| self.manager.migrate(frame).is_ok()));
            }
            Verb::Truncate => self.truncate(self.case.bytes - PART),
            Verb::MemoryFailure => {
                let frame = self.mm.translate(at, Access::Read).map(|leaf| leaf.frame);
                return Ok(frame.is_some_and(|frame| self.manager.memory_failure(frame).is_ok()));
            }
            Verb::CollapseCopy | Verb::CollapseParts => {
                let done = self.mm.collapse(at, len).map_err(said("collapse"))?;
                return Ok(done.collapsed() == 1);
            }
        };
        done.map(|()| true).map_err(said("the verb"))
    }

    /// Puts the memory back as it was.
    pub(super) fn restore(&self, call: u64) -> Result<(), Skip> {
        let (at, len) = self.part(call);
        let done = match self.case.verb {
            Verb::Munmap => return self.map(at, len),
            Verb::Mprotect => self.mm.mprotect(at, len, RW),
            Verb::Mremap => self.mm.mremap(AWAY, len, len, Remap::Fixed(at)).map(drop),
            Verb::Truncate => self.truncate(self.case.bytes),
            // Drops the marker of the bad frame, or the large folio.
            Verb::MemoryFailure | Verb::CollapseCopy => self.mm.madvise(at, len, Advice::DontNeed),
            Verb::Fork => {
                // No secondary MMU has copies of its leaves.
                self.child.take().into_iter().for_each(Mm::exit);
                Ok(())
            }
            Verb::DontNeed | Verb::Reclaim | Verb::Migrate | Verb::CollapseParts => Ok(()),
        };
        done.map_err(said("putting back"))
    }

    fn truncate(&self, bytes: u64) -> Result<(), quire::error::MmError> {
        self.file.as_ref().map_or(Ok(()), |file| file.truncate(bytes))
    }
}
