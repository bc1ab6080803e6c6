//! `/proc/PID/statm` and the rows of `/proc/PID/status` about memory.

use core::fmt::{Result, Write};
use core::ops::Range;

use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::platform::Platform;
use quire::vm::vma::VmaFlags;
use quire::vm::{Mm, Rss};

/// How large an address space is, and how much of it is in memory, in pages of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// All mappings (`VmSize`).
    pub total: u64,
    /// Private mappings that can be stored to, stacks left out (`VmData`).
    pub data: u64,
    /// Mappings that grow down (`VmStk`).
    pub stack: u64,
    /// Mappings that can be executed and not stored to.
    pub exec: u64,
    /// What is in memory.
    pub resident: Rss,
}

impl Sizes {
    /// The sizes of an address space.
    pub fn of<P: Platform>(mm: &Mm<'_, P>) -> Self {
        let mut sizes = Self { resident: mm.rss(), ..Self::default() };
        mm.vmas(|vma| {
            let pages = vma.range.pages();
            let stack = vma.flags.contains(VmaFlags::GROWS_DOWN);
            let write = vma.protection.contains(Protection::WRITE);
            sizes.total += pages;
            let row = match () {
                () if stack => &mut sizes.stack,
                () if write && !vma.flags.contains(VmaFlags::SHARED) => &mut sizes.data,
                () if !write && vma.protection.contains(Protection::EXEC) => &mut sizes.exec,
                () => return,
            };
            *row += pages;
        });
        sizes
    }

    /// Pages in memory, huge pages of pools left out (`VmRSS`).
    pub const fn rss(&self) -> u64 {
        self.resident.anon + self.resident.file + self.resident.shmem
    }

    /// `/proc/PID/statm`. `code` are the addresses of the program's own code.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn statm(&self, out: &mut dyn Write, code: &Range<VirtAddr>) -> Result {
        let shared = self.resident.file + self.resident.shmem;
        let (text, data) = (pages_of(code), self.data + self.stack);
        writeln!(out, "{} {} {shared} {text} 0 {data} 0", self.total, self.rss())
    }

    /// The rows of `/proc/PID/status` from `VmPeak` to `HugetlbPages`. `peak` are the largest sizes so far: of all
    /// mappings, and of what is in memory.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn status(&self, out: &mut dyn Write, code: &Range<VirtAddr>, peak: (u64, u64)) -> Result {
        let text = pages_of(code).min(self.exec);
        let rows = [
            ("VmPeak", peak.0.max(self.total)),
            ("VmSize", self.total),
            ("VmLck", self.resident.locked),
            ("VmPin", 0),
            ("VmHWM", peak.1.max(self.rss())),
            ("VmRSS", self.rss()),
            ("RssAnon", self.resident.anon),
            ("RssFile", self.resident.file),
            ("RssShmem", self.resident.shmem),
            ("VmData", self.data),
            ("VmStk", self.stack),
            ("VmExe", text),
            ("VmLib", self.exec - text),
            ("VmPTE", self.resident.page_tables),
            ("VmSwap", 0),
            ("HugetlbPages", self.resident.huge),
        ];
        rows.into_iter().try_for_each(|(name, pages)| writeln!(out, "{name}:\t{:>8} kB", pages * 4))
    }
}

/// The whole pages that a range touches.
fn pages_of(range: &Range<VirtAddr>) -> u64 {
    let end = range.end.align_up(4096).map_or(0, VirtAddr::page);
    end.saturating_sub(range.start.page())
}
