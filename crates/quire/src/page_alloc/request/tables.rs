//! Adds tables to blocks in small pieces: descriptors for a group of frames, origins for a block.
//!
//! A table fills a frame: one of the block itself, so that it is gone when the block is whole again, or where
//! the block has none free any other. A task that needs a table asks for it before anything else has changed,
//! and fails without it. A block gives its tables up when all else of it is free
//! (`page_alloc/store/merge.rs`).

use crate::addr::{BlockNumber, Frame, FrameRange, Order};
use crate::error::AllocError;
use crate::memmap::{Columns, Descriptor};
use crate::page_alloc::frames::origins::Origin;
use crate::page_alloc::frames::owned::Folio;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Contents, Gfp, Urgency};
use crate::platform::FramePlatform;

const TABLE: Gfp = Gfp { urgency: Urgency::Tables, ..Gfp::KERNEL };

impl<P: FramePlatform> Requests<'_, P> {
    /// The descriptor of a frame of a block in small pieces, which the caller owns. It holds whatever the
    /// frame's last owner left there. May allocate, so the caller holds no lock that an allocation takes.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    #[inline]
    pub fn describe(&self, frame: Frame) -> Result<&Descriptor, AllocError> {
        let columns = self.frames().memmap.block(frame.block()).columns();
        match columns.and_then(|columns| columns.row(frame.index_in_block())) {
            Some(descriptor) => Ok(descriptor),
            None => self.add_rows(frame),
        }
    }

    #[cold]
    #[inline(never)]
    fn add_rows(&self, frame: Frame) -> Result<&Descriptor, AllocError> {
        self.add_table(frame, |columns, table, at| {
            // SAFETY: M2: `add_table` passes a table that no other code names.
            unsafe { columns.add_rows(frame.index_in_block(), table, at) }
        })?;
        Ok(self.frames().descriptor(frame))
    }

    /// Sets the origin of a folio in use before it is mapped for the first time. May allocate, so the caller
    /// holds no page-table lock.
    ///
    /// # Errors
    /// [`AllocError`]; nothing has changed then.
    #[inline]
    pub(crate) fn set_origin(&self, folio: FrameRange, origin: Origin) -> Result<(), AllocError> {
        let order = Order::new(folio.count.trailing_zeros() as u8).unwrap_or(Order::FRAME);
        if self.frames().set_origin(folio.start, order, origin) {
            return Ok(());
        }
        self.add_origins(folio.start)?;
        let set = self.frames().set_origin(folio.start, order, origin);
        debug_assert!(set, "a block has a table as long as a frame is in use");
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn add_origins(&self, frame: Frame) -> Result<(), AllocError> {
        self.add_table(frame, |columns, table, at| {
            // SAFETY: M2: `add_table` passes a table that no other code names.
            unsafe { columns.add_origins(table, at) }
        })
    }

    /// Holds a folio that the manager needs for itself, so that no reader takes it for a page.
    ///
    /// # Errors
    /// [`AllocError`]; the folio is not held then.
    pub(crate) fn hold_for_manager(&self, folio: FrameRange) -> Result<(), AllocError> {
        self.set_origin(folio, Origin::MANAGER)?;
        self.frames().hold(folio);
        Ok(())
    }

    /// Marks frames that are about to be held as a file's.
    ///
    /// # Errors
    /// [`AllocError`]; the frames are still the caller's.
    pub(crate) fn give_to_file(&self, frames: FrameRange) -> Result<(), AllocError> {
        if !self.frames().give_to_file(frames) {
            frames.by_block().try_for_each(|piece| self.add_origins(piece.start))?;
            let given = self.frames().give_to_file(frames);
            debug_assert!(given, "a block has a table as long as a frame is in use");
        }
        Ok(())
    }

    /// As [`Self::give_to_file`], for a folio that was just allocated.
    ///
    /// # Errors
    /// [`AllocError`]; the folio was freed.
    pub(crate) fn give_folio_to_file(&self, folio: Folio) -> Result<Folio, AllocError> {
        self.unless_failed(self.give_to_file(folio.frames()), folio)
    }

    /// Returns the folio, or frees it where a table for it could not be made.
    fn unless_failed(&self, made: Result<(), AllocError>, folio: Folio) -> Result<Folio, AllocError> {
        if let Err(error) = made {
            let freed = self.free(folio);
            debug_assert_eq!(freed, Ok(()), "a folio that was just handed out");
            return Err(error);
        }
        Ok(folio)
    }

    /// As [`Self::set_origin`], for a folio that was just allocated.
    ///
    /// # Errors
    /// [`AllocError`]; the folio was freed.
    pub(crate) fn with_origin(&self, folio: Folio, origin: Origin) -> Result<Folio, AllocError> {
        self.unless_failed(self.set_origin(folio.frames(), origin), folio)
    }

    /// Allocates a frame with a descriptor, and says whether it is known to be zero.
    ///
    /// # Errors
    /// [`AllocError`].
    #[inline]
    pub(crate) fn alloc_described(&self, gfp: Gfp) -> Result<(Folio, Contents), AllocError> {
        let (folio, contents) = self.alloc_maybe_zeroed(gfp, Order::FRAME)?;
        let made = self.describe(folio.frame()).map(drop);
        Ok((self.unless_failed(made, folio)?, contents))
    }

    /// Offers a cleared table to the block of a frame in use, which takes it unless it has one.
    fn add_table(
        &self,
        frame: Frame,
        take: impl FnOnce(&Columns, *mut u8, Frame) -> bool,
    ) -> Result<(), AllocError> {
        let table = self.take_table(frame.block())?;
        // SAFETY: invariant 1, M4: the frame was just taken, and nothing else names it.
        unsafe { self.frames().zero(table.addr(), Order::FRAME.bytes() as usize) };
        let block = self.frames().memmap.block(frame.block());
        let memory = self.platform().direct_map(table.addr());
        block.lock(self.platform());
        let taken = block.columns().is_some_and(|columns| take(columns, memory, table));
        if let Some(columns) = block.columns().filter(|_| taken && table.block() == frame.block()) {
            columns.set_own_tables(columns.own_tables() + 1);
        }
        block.unlock(self.platform());
        if !taken {
            self.store().put_table(table);
        }
        Ok(())
    }

    /// Takes a frame for a table, of this block if it has one free.
    fn take_table(&self, number: BlockNumber) -> Result<Frame, AllocError> {
        if let Some(own) = self.frames().in_store(|| self.store().take_own_table(number)) {
            if self.platform().fail_allocation() {
                self.store().put_table(own);
                return Err(AllocError::OutOfMemory);
            }
            return Ok(own);
        }
        let table = self.alloc(TABLE, Order::FRAME)?.into_raw();
        self.store().claim_table(table);
        Ok(table)
    }
}
