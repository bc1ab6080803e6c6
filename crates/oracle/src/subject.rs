//! A system that is stepped beside the model: the library on its hosted machine, or the Linux of this
//! machine.

use quire::error::{FaultError, MmError};

use crate::space::{Advice, Kind, Map, Prot, Remap, SpaceId, Vma, Words};

/// The CPU of an operation, and its address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Actor {
    /// The CPU.
    pub cpu: usize,
    /// The address space.
    pub space: SpaceId,
}

/// Pages that are mapped, as the subject counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// Private pages (`MM_ANONPAGES`).
    pub anon: u64,
    /// Bytes of locked mappings.
    pub locked: u64,
}

/// A page that a page table maps, and its contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Present {
    /// Its address.
    pub addr: u64,
    /// Whether it is private to the address space.
    pub private: bool,
    /// Its words at [`PROBE_OFFSETS`](crate::space::PROBE_OFFSETS).
    pub words: Words,
}

/// Something with address spaces. Verbs are named and behave as Linux's.
#[allow(missing_docs)]
pub trait Subject {
    fn mmap(&mut self, actor: Actor, map: &Map) -> Result<u64, MmError>;
    fn munmap(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError>;
    fn mprotect(&mut self, actor: Actor, addr: u64, len: u64, prot: Prot) -> Result<(), MmError>;
    fn mremap(&mut self, actor: Actor, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError>;
    fn madvise(&mut self, actor: Actor, addr: u64, len: u64, advice: Advice) -> Result<(), MmError>;
    fn brk(&mut self, actor: Actor, addr: u64) -> u64;
    fn mlock(&mut self, actor: Actor, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError>;
    fn munlock(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError>;
    fn mlockall(&mut self, actor: Actor, current: bool, future: bool, on_fault: bool) -> Result<(), MmError>;
    fn munlockall(&mut self, actor: Actor) -> Result<(), MmError>;

    /// An idle CPU populates so many pieces of memory that no access has touched yet, if the subject does so.
    /// Only the number of resident pages shows it.
    fn clear_ahead(&mut self, _actor: Actor, _pieces: u16) {}

    /// Collapses small pages of a range, or in the background those of any address space, if the subject does
    /// so. Only the number of resident pages shows it.
    fn collapse(&mut self, _actor: Actor, _addr: u64, _len: u64, _behind: bool) {}

    /// Gives a file another size.
    fn truncate(&mut self, actor: Actor, file: u64, bytes: u64) -> Result<(), MmError>;

    /// Forks; the child gets the next free number, if children are kept.
    fn fork(&mut self, actor: Actor) -> Result<(), MmError>;
    fn exit(&mut self, actor: Actor);

    /// Stores a word as a program would, handling faults.
    fn store(&mut self, actor: Actor, addr: u64, word: u64) -> Result<(), FaultError>;
    /// Loads a word as a program would, handling faults.
    fn load(&mut self, actor: Actor, addr: u64) -> Result<u64, FaultError>;
    /// Raises one fault, without an access.
    fn fault(&mut self, actor: Actor, addr: u64, kind: Kind) -> Result<(), FaultError>;

    /// The mappings, sorted. Numbers of shared objects need not be the model's.
    fn vmas(&mut self, space: SpaceId) -> Vec<Vma>;
    /// The resident memory, if the subject knows it.
    fn resident(&mut self, space: SpaceId) -> Option<Resident>;

    /// Calls `show` with the pages of `start..end` that the page table maps, in order; false if the subject
    /// cannot. It is no access: it populates and marks nothing.
    fn present(&mut self, _space: SpaceId, _start: u64, _end: u64, _show: impl FnMut(&Present)) -> bool {
        false
    }

    /// Whether children live on after `fork`, or exit at once.
    fn keeps_children(&self) -> bool {
        true
    }
    /// Whether the subject distinguishes why an access fails.
    fn names_faults(&self) -> bool {
        true
    }
    /// Whether the subject shows which locked mappings are locked on fault only.
    fn shows_lock_on_fault(&self) -> bool {
        true
    }
    /// Whether neighbours that agree in everything may stay two mappings, so that `mremap` across the edge answers
    /// `EFAULT`. A subject that does not keep edges shows each mapping as large as it can be.
    fn keeps_edges(&self) -> bool {
        false
    }
    /// Whether only single pages are used and no untouched page is populated.
    fn single_pages(&self) -> bool {
        false
    }
    /// Whether memory may run out at all (a small machine, injected failures).
    fn is_scarce(&self) -> bool {
        false
    }
    /// Whether memory ran out in the last call, or may have: then the subject may fail where the model does
    /// not.
    fn may_lack_memory(&mut self) -> bool {
        false
    }
    /// The violations of the subject's machine so far.
    fn violated(&mut self) -> Option<String> {
        None
    }
    /// Checks the subject's own invariants.
    fn check(&mut self, deep: bool) -> Result<(), String>;
}
