//! How much memory there is of each kind.
#![forbid(unsafe_code)]

use crate::limits::FRAME_SIZE;
use crate::page_alloc::MemoryInfo;

/// The machine's memory as `/proc/meminfo` shows it, in 4 KiB pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meminfo {
    /// The frames of the page allocator. `free + cached + used + metadata = total` (invariant 8).
    pub frames: MemoryInfo,
    /// Page cache of files (`Cached`, less `Shmem`).
    pub cached: u64,
    /// Shared anonymous memory (`Shmem`).
    pub shmem: u64,
    /// Anonymous pages, each counted in every address space that maps it (`AnonPages`).
    pub anon: u64,
    /// Pages of files and of `Shmem`, each counted in every address space that maps it (`Mapped`).
    pub mapped: u64,
    /// Frames that hold page tables (`PageTables`).
    pub page_tables: u64,
    /// Frames that hold small objects (`Slab`).
    pub slab: u64,
    /// Frames that went bad (`HardwareCorrupted`). They count as used.
    pub bad: u64,
}

impl Meminfo {
    /// The lines of `/proc/meminfo` that apply, in its order: name and KiB. As in Linux, `MemTotal` excludes
    /// the manager's own tables. Folios on per-CPU lists count as free.
    ///
    /// `MemAvailable` is what programs can have without pressure, by Linux's estimate (`si_mem_available`): free
    /// memory that zones do not keep, and page cache, except half of it or as much as the low marks.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let free = self.frames.free + self.frames.cached;
        let cache = self.cached - self.frames.low.min(self.cached / 2);
        [
            ("MemTotal", self.frames.total.saturating_sub(self.frames.metadata)),
            ("MemFree", free),
            ("MemAvailable", free.saturating_sub(self.frames.kept) + cache),
            ("Cached", self.cached + self.shmem),
            ("AnonPages", self.anon),
            ("Mapped", self.mapped),
            ("Shmem", self.shmem),
            ("Slab", self.slab),
            ("PageTables", self.page_tables),
            ("HardwareCorrupted", self.bad),
        ]
        .into_iter()
        .map(|(name, pages)| (name, pages * (FRAME_SIZE / 1024)))
    }
}
