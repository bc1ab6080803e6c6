//! The whole manager: one value per machine.
#![forbid(unsafe_code)]

use crate::arch::PagingMode;
use crate::error::{InitError, MmError};
use crate::page_alloc::{AllocatorConfig, MemoryInfo, PageAllocator, Violation};
use crate::platform::{FileId, Platform};
use crate::stats::Stat;
use crate::vm::{File, FolioPolicy, Memory, Mm};

pub use crate::page_alloc::MemoryRange;

/// Choices made when a machine is taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Config {
    /// The page allocator's.
    pub allocator: AllocatorConfig,
    /// The folio sizes of anonymous memory, until [`MemoryManager::set_folio_policy`].
    pub folios: FolioPolicy,
    /// How many levels page tables have.
    pub paging: PagingMode,
}

/// Manages the memory of one machine: frames, page cache, address spaces.
pub struct MemoryManager<'p, P: Platform> {
    memory: Memory<'p, P>,
    paging: PagingMode,
}

/// The machine's memory in the words of `/proc/meminfo`, in 4 KiB pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meminfo {
    /// What the page allocator holds. `free + cached + used + metadata = total` (invariant 8).
    pub frames: MemoryInfo,
    /// Page cache of files (`Cached`, less `Shmem`).
    pub cached: u64,
    /// Nameless shared memory (`Shmem`).
    pub shmem: u64,
}

impl<'p, P: Platform> MemoryManager<'p, P> {
    /// Takes over the memory in `ranges`, in ascending order. Ready in well under a millisecond where ranges are zeroed:
    /// records of untouched blocks are not written.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn new(platform: &'p P, ranges: &[MemoryRange], config: &Config) -> Result<Self, InitError> {
        let pages = PageAllocator::new(platform, ranges, config.allocator)?;
        Ok(Self { memory: Memory::new(pages, config.folios)?, paging: config.paging })
    }

    /// An empty address space.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn new_mm(&self) -> Result<Mm<'_, P>, MmError> {
        Mm::new(&self.memory, self.paging)
    }

    /// A handle on a file of the machine's pager.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn open(&self, file: FileId) -> Result<File<'_, P>, MmError> {
        File::open(&self.memory, file)
    }

    /// A handle on fresh memory without a name, for several address spaces to share.
    ///
    /// # Errors
    /// [`MmError::NoMemory`].
    pub fn nameless(&self, bytes: u64) -> Result<File<'_, P>, MmError> {
        File::nameless(&self.memory, bytes)
    }

    /// Chooses the folio sizes of anonymous memory from now on; what is mapped stays as it is.
    pub fn set_folio_policy(&self, policy: FolioPolicy) {
        self.memory.set_policy(policy);
    }

    /// The folio sizes of anonymous memory.
    pub fn folio_policy(&self) -> FolioPolicy {
        self.memory.policy()
    }

    /// The frames.
    pub fn pages(&self) -> &PageAllocator<'p, P> {
        self.memory.pages()
    }

    /// How often an event happened, on all CPUs together. The names are those of `/proc/vmstat`.
    pub fn stat(&self, stat: Stat) -> u64 {
        self.memory.pages().stat(stat)
    }

    /// How much memory there is of each kind.
    pub fn meminfo(&self) -> Meminfo {
        Meminfo {
            frames: self.memory.pages().memory_info(),
            cached: self.memory.files().paged_frames(),
            shmem: self.memory.files().nameless_frames(),
        }
    }

    /// Drops page cache that nobody maps and that can be read again. How many frames became free.
    pub fn reclaim(&self) -> u64 {
        self.memory.reclaim()
    }

    /// Checks everything that can be checked while nothing is under way. Address spaces are checked by
    /// [`Mm::validate`].
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn validate(&self) -> Result<(), Violation> {
        self.memory.pages().validate()
    }
}
