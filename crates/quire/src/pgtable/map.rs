//! Maps frames where no entry is yet.

use super::PageTables;
use crate::addr::{Frame, FrameRange, PageSize, VirtAddr, VirtRange};
use crate::arch::{Entry, EntryFlags, Level};
use crate::error::MapError;
use crate::limits::{BLOCK_FRAMES, TABLE_ENTRIES};
use crate::page_alloc::{CountError, Origin};
use crate::platform::TablePlatform;
use crate::tlb::words::Table;

impl<'p, P: TablePlatform> PageTables<'_, 'p, P> {
    /// Maps a run of frames to consecutive addresses from `addr` on, by 4 KiB leaves with `flags`, in one
    /// hold of the table's lock. The run lies in one block and its addresses in one lowest-level table, as
    /// for any folio up to 2 MiB that is mapped at its own alignment. An error adds no leaf, though perhaps
    /// tables. Shared.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when an entry is not empty or a larger leaf is in the way: the caller looks
    /// again; [`MapError::Unaligned`] when the run is empty or crosses a block or a table;
    /// [`MapError::BadAddress`]; [`MapError::OutOfMemory`].
    ///
    /// # Safety
    /// The frames' owner lets the page table have them (invariant 1): the caller gives up a folio's value
    /// once it is mapped, or the frames are held, or leaves map them already.
    #[inline]
    pub unsafe fn map(&self, addr: VirtAddr, run: FrameRange, flags: EntryFlags) -> Result<(), MapError> {
        let (first, count) = self.check_run(addr, run)?;
        let table = self.ensure(addr, Level::PTE)?;
        self.map_in(table, (first, count), run, flags)
    }

    /// As [`Self::map`] for one frame that was just allocated, whose origin it sets, in the table of a lookup of
    /// the address under the same hold of the address-space lock ([`Self::table_with_room`]).
    ///
    /// # Errors
    /// As [`Self::map`].
    ///
    /// # Safety
    /// As for [`Self::map`].
    #[inline]
    pub(crate) unsafe fn map_page(
        &self,
        table: Table<'p>,
        addr: VirtAddr,
        (frame, origin): (Frame, Origin),
        flags: EntryFlags,
    ) -> Result<(), MapError> {
        let (locked, index) = (self.lock(table), Level::PTE.index(addr));
        if !locked.all_empty(index, 1) {
            return Err(MapError::Occupied);
        }
        if self.allocator.counts().map_new(frame, origin).is_ok() {
            locked.fill_one(index, Entry::leaf(frame, PageSize::Size4K, flags));
            return Ok(());
        }
        drop(locked);
        self.allocator.set_origin(FrameRange::new(frame, 1), origin)?;
        // SAFETY: invariant 1: this function's contract is that of `map`.
        unsafe { self.map(addr, FrameRange::new(frame, 1), flags) }
    }

    /// Counts and maps a run from the index `first` of a table on.
    #[inline]
    fn map_in(
        &self,
        table: Table<'p>,
        (first, count): (usize, usize),
        run: FrameRange,
        flags: EntryFlags,
    ) -> Result<(), MapError> {
        let entry = Entry::leaf(run.start, PageSize::Size4K, flags);
        debug_assert!(entry.is_present() && !flags.contains(EntryFlags::SPECIAL));
        let mut prepared = None;
        let error = loop {
            let locked = self.lock(table);
            if !locked.all_empty(first, count) {
                break MapError::Occupied;
            }
            let counts = self.allocator.counts();
            let counted =
                if count == 1 && counts.map_piece(run.start) { Ok(()) } else { counts.counter().map(run) };
            let Err(CountError::Prepare { at, .. }) = counted else {
                locked.fill_run(first, entry, count);
                return Ok(());
            };
            drop(locked);
            if let Err(error) = self.allocator.counts().prepare_counts(at) {
                break error.into();
            }
            prepared = Some(at);
        };
        if let Some(frame) = prepared {
            self.allocator.counts().forget_counts(frame);
        }
        Err(error)
    }

    /// As [`Self::map`], but only those frames of the run whose entries are empty. Returns how many. Shared.
    ///
    /// # Errors
    /// As [`Self::map`], less [`MapError::Occupied`] for single entries; no frame was mapped then.
    ///
    /// # Safety
    /// As for [`Self::map`].
    pub unsafe fn map_where_empty(
        &self,
        addr: VirtAddr,
        run: FrameRange,
        flags: EntryFlags,
    ) -> Result<u64, MapError> {
        let (start, count) = self.check_run(addr, run)?;
        let table = self.ensure(addr, Level::PTE)?;
        let (mut at, mut mapped) = (0, 0);
        while at < count {
            let locked = self.lock(table);
            let mut counter = self.allocator.counts().counter();
            let mut full = None;
            while at < count {
                let empty = (at..count).take_while(|&at| locked.all_empty(start + at, 1)).count();
                if empty == 0 {
                    at += 1;
                    continue;
                }
                let piece = FrameRange::new(run.start.add(at as u64), empty as u64);
                if let Err(CountError::Prepare { at, .. }) = counter.map(piece) {
                    full = Some(at);
                    break;
                }
                locked.fill_run(start + at, Entry::leaf(piece.start, PageSize::Size4K, flags), empty);
                at += empty;
                mapped += empty as u64;
            }
            drop(counter);
            drop(locked);
            if let Some(frame) = full {
                match self.allocator.counts().prepare_counts(frame) {
                    Ok(()) => {}
                    // The caller learns how many were mapped, and asks for the rest when a task touches it.
                    Err(_) if mapped > 0 => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(mapped)
    }

    /// Maps a folio, or an aligned part of one, by a leaf of 2 MiB or 1 GiB; or a block in small pieces by 2
    /// MiB. Shared.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when the entry is not empty, even if it points to a table without leaves;
    /// [`MapError::Unaligned`], [`MapError::BadAddress`], [`MapError::OutOfMemory`].
    ///
    /// # Safety
    /// As for [`Self::map`].
    pub unsafe fn map_large(
        &self,
        addr: VirtAddr,
        frame: Frame,
        size: PageSize,
        flags: EntryFlags,
    ) -> Result<(), MapError> {
        if size == PageSize::Size4K || !addr.is_aligned(size.bytes()) || !frame.is_aligned(size.order()) {
            return Err(MapError::Unaligned);
        }
        self.check_len(addr, size.bytes())?;
        let table = self.ensure(addr, Level::of_leaf(size))?;
        let index = table.index(addr);
        loop {
            let locked = self.lock(table);
            if !locked.all_empty(index, 1) {
                return Err(MapError::Occupied);
            }
            let counted = self.allocator.counts().counter().map_leaf(frame, size);
            let Err(CountError::Prepare { at, .. }) = counted else {
                locked.fill(index, Entry::leaf(frame, size, flags));
                return Ok(());
            };
            drop(locked);
            self.allocator.counts().prepare_counts(at)?;
        }
    }

    /// Maps an uncounted frame, such as the zero frame, by a 4 KiB leaf with [`EntryFlags::SPECIAL`]. Shared.
    ///
    /// # Errors
    /// As [`Self::map`].
    ///
    /// # Safety
    /// The frame keeps its use while it is mapped, since no count keeps it allocated (invariant 1).
    pub unsafe fn map_special(
        &self,
        addr: VirtAddr,
        frame: Frame,
        flags: EntryFlags,
    ) -> Result<(), MapError> {
        self.check_run(addr, FrameRange::new(frame, 1))?;
        let table = self.ensure(addr, Level::PTE)?;
        let index = table.index(addr);
        let locked = self.lock(table);
        if !locked.all_empty(index, 1) {
            return Err(MapError::Occupied);
        }
        locked.fill(index, Entry::leaf(frame, PageSize::Size4K, flags.union(EntryFlags::SPECIAL)));
        Ok(())
    }

    /// The index of the first entry, and the number of entries, for a run.
    #[inline]
    fn check_run(&self, addr: VirtAddr, run: FrameRange) -> Result<(usize, usize), MapError> {
        let (first, count) = (Level::PTE.index(addr), run.count as usize);
        let in_block = run.start.index_in_block() + count <= BLOCK_FRAMES;
        if count == 0
            || count > TABLE_ENTRIES - first
            || !in_block
            || !addr.is_aligned(PageSize::Size4K.bytes())
        {
            return Err(MapError::Unaligned);
        }
        self.check_len(addr, run.count * PageSize::Size4K.bytes())?;
        Ok((first, count))
    }

    #[inline]
    fn check_len(&self, addr: VirtAddr, len: u64) -> Result<(), MapError> {
        let end = addr.0.checked_add(len).ok_or(MapError::BadAddress)?;
        self.check(VirtRange { start: addr, end: VirtAddr(end) })
    }
}
