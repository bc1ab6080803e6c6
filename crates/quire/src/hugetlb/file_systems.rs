//! Makes and unmounts file systems of huge pages, and counts their pages.
#![forbid(unsafe_code)]

use super::fs::{Fs, HugeFsError, HugeFsInfo, HugeFsLimits};
use super::{HugePools, HugeSize};
use crate::error::AllocError;
use crate::memmap::BootTable;
use crate::page_alloc::PageAllocator;
use crate::platform::Platform;
use crate::sync::SpinGuard;

impl HugePools<'_> {
    fn fs<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, BootTable<Fs>, P> {
        self.fs.lock(platform)
    }

    /// Makes a file system, with its handle as its first user; returns its number.
    ///
    /// # Errors
    /// [`HugeFsError`].
    pub(crate) fn make_fs<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        limits: HugeFsLimits,
    ) -> Result<u8, HugeFsError> {
        if limits.min > limits.max {
            return Err(HugeFsError::BadLimits);
        }
        self.reserve(pages, size, limits.min).map_err(|_| HugeFsError::NoPages)?;
        let mut all = self.fs(pages.platform());
        // A page that moved while it was unmapped still counts in its file system, and comes back later.
        let free = (1..).zip(all.iter_mut()).find(|(_, fs)| fs.users == 0 && fs.used == 0);
        let number = free.map(|(number, fs)| {
            *fs = Fs { size, limits, used: 0, kept: limits.min, users: 1 };
            number
        });
        drop(all);
        if number.is_none() {
            self.unreserve(pages, size, limits.min);
        }
        number.ok_or(HugeFsError::TooMany)
    }

    /// Drops a file system's handle and its minimum; its files stay.
    pub(crate) fn unmount_fs<P: Platform>(&self, pages: &PageAllocator<'_, P>, number: u8) {
        let mut all = self.fs(pages.platform());
        let fs = &mut all[usize::from(number) - 1];
        let (size, kept) = (fs.size, core::mem::take(&mut fs.kept));
        fs.limits.min = 0;
        fs.users -= 1;
        drop(all);
        self.unreserve(pages, size, kept);
    }

    /// Counts files of a file system (0: none).
    pub(crate) fn count_fs_files<P: Platform>(&self, platform: &P, number: u8, change: i64) {
        if number > 0 {
            let fs = &mut self.fs(platform)[usize::from(number) - 1];
            fs.users = fs.users.wrapping_add_signed(change);
        }
    }

    pub(crate) fn fs_info<P: Platform>(&self, platform: &P, number: u8) -> HugeFsInfo {
        let fs = self.fs(platform)[usize::from(number) - 1];
        HugeFsInfo { used: fs.used, kept: fs.kept, max: fs.limits.max }
    }

    /// Counts pages as used by a file system (0: none); returns how many of them the pool did not keep.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`]: its files may not have so many; nothing was counted then.
    pub(super) fn use_fs<P: Platform>(
        &self,
        platform: &P,
        number: u8,
        pages: u64,
    ) -> Result<u64, AllocError> {
        if number == 0 {
            return Ok(pages);
        }
        let fs = &mut self.fs(platform)[usize::from(number) - 1];
        let used = fs.used.checked_add(pages).filter(|&used| used <= fs.limits.max);
        fs.used = used.ok_or(AllocError::OutOfMemory)?;
        let kept = pages.min(fs.kept);
        fs.kept -= kept;
        Ok(pages - kept)
    }

    /// Counts a page as used by a file system (0: none), beyond its limit.
    pub(super) fn force_fs<P: Platform>(&self, platform: &P, number: u8) {
        if number > 0 {
            self.fs(platform)[usize::from(number) - 1].used += 1;
        }
    }

    /// Undoes [`Self::use_fs`], which has returned `needed`. The pool keeps again what it kept, unless the file system
    /// was unmounted since.
    pub(super) fn undo_use_fs<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        size: HugeSize,
        number: u8,
        (count, needed): (u64, u64),
    ) {
        let taken = count - needed;
        let kept = self.leave_fs(pages.platform(), number, size, (count, taken));
        if kept < taken {
            self.unreserve(pages, size, taken - kept);
        }
    }

    /// Whether a file system (0: none) of pages of this size has a minimum, for which it may keep pages.
    pub(super) fn has_minimum<P: Platform>(&self, platform: &P, number: u8, size: HugeSize) -> bool {
        let fs = number.checked_sub(1).map(|at| self.fs(platform)[usize::from(at)]);
        fs.is_some_and(|fs| fs.size == size && fs.limits.min > 0)
    }

    /// Counts `pages` as no longer used by a file system (0: none). Returns how many of the `free` pages, which the
    /// pool has free and reserved, it keeps for its minimum.
    pub(super) fn leave_fs<P: Platform>(
        &self,
        platform: &P,
        number: u8,
        size: HugeSize,
        (pages, free): (u64, u64),
    ) -> u64 {
        if number == 0 {
            return 0;
        }
        let fs = &mut self.fs(platform)[usize::from(number) - 1];
        debug_assert!(fs.used >= pages);
        fs.used -= pages;
        // The number may be another file system's since the page was offered.
        let free = if fs.size == size { free } else { 0 };
        let kept = fs.limits.min.saturating_sub(fs.used + fs.kept).min(free);
        fs.kept += kept;
        kept
    }
}
