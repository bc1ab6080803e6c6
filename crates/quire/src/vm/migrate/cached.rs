//! Moves pages of files to other frames.
//!
//! The file is closed, so no fault maps any of its pages and no task uses one. The pages
//! become busy and all their leaves are unmapped. A page that no leaf maps is copied, and its frame is
//! exchanged in the cache. Faults map the new frame; where memory is locked the move itself does. The caller
//! holds no lock here either.

use crate::addr::{FrameRange, Order};
use crate::error::MigrateError;
use crate::filemap::{FileClosed, FileKind, FileNode, MovedPage, PageRuns};
use crate::limits::FRAME_SIZE;
use crate::page_alloc::NodePolicy;
use crate::platform::Platform;
use crate::stats::Stat;
use crate::tlb::MmuGather;
use crate::vm::fault::flags::leaf_flags;
use crate::vm::mapping::vma::VmaFlags;
use crate::vm::migrate::relocate::Migration;
use crate::vm::rmap::reverse::ReverseMap;
use crate::vm::userfault::UserfaultModes;

/// Attempts to close a file that is in use.
const CLOSE_TRIES: usize = 64;

impl<P: Platform> Migration<'_, '_, P> {
    /// Moves pages of files that are in these frames.
    pub(super) fn move_cached(
        self,
        range: FrameRange,
        nodes: Option<NodePolicy>,
    ) -> Result<u64, MigrateError> {
        let (mut freed, mut failed, mut place) = (0, None, (0, 0));
        while let Some((file, next)) = self.files().next_of_all(self.platform(), place) {
            place = next;
            match self.close_and_move(file.node(), range, nodes) {
                Ok(some) => freed += some,
                Err(error) => failed = Some(error),
            }
            self.close(file);
            self.platform().reschedule_point();
        }
        match failed {
            None if freed == 0 => Err(MigrateError::NotMovable),
            Some(error) if freed == 0 || error == MigrateError::OutOfMemory => Err(error),
            _ => Ok(freed),
        }
    }

    fn close_and_move(
        self,
        file: &FileNode,
        range: FrameRange,
        nodes: Option<NodePolicy>,
    ) -> Result<u64, MigrateError> {
        if file.huge_order().is_some() {
            return Ok(0);
        }
        for _ in 0..CLOSE_TRIES {
            match file.try_close() {
                Some(closed) => return self.move_file(&closed, range, nodes),
                None => self.platform().relax(),
            }
        }
        Err(MigrateError::Busy)
    }

    fn move_file(
        self,
        file: &FileClosed<'_>,
        range: FrameRange,
        nodes: Option<NodePolicy>,
    ) -> Result<u64, MigrateError> {
        let (mut freed, mut failed, mut from) = (0, None, Some(0));
        while let Some(at) = from.filter(|_| failed != Some(MigrateError::OutOfMemory)) {
            let (runs, next) = self.files().begin_moving(self.platform(), file, range, at);
            let locked = self.unmap_to_move(file, &runs);
            for index in runs.indices() {
                match self.files().move_page(self.pages(), file, (index, locked), nodes) {
                    MovedPage::Gone => freed += 1,
                    MovedPage::Mapped => failed = failed.or(Some(MigrateError::Busy)),
                    MovedPage::OutOfMemory => failed = Some(MigrateError::OutOfMemory),
                }
            }
            if locked {
                self.map_locked(file, &runs);
            }
            self.pages().count(Stat::CompactIsolated, runs.indices().count() as u64);
            from = next;
        }
        self.pages().count(Stat::PgmigrateSuccess, freed);
        self.pages().count(Stat::PgmigrateFail, u64::from(failed.is_some()));
        failed.map_or(Ok(freed), Err)
    }

    /// Unmaps pages of a closed file, except leaves marked for a handler. Returns whether some were locked.
    pub(in crate::vm) fn unmap_to_move(self, file: &FileClosed<'_>, runs: &PageRuns) -> bool {
        let mut locked = false;
        ReverseMap::of(self.0).each_mapper(file.node(), &runs.hull(), |found| {
            let mut gather = MmuGather::new(self.pages(), &found.body.context);
            for run in runs.as_slice() {
                found.each_part(run, |vma, range| {
                    locked |= vma.attributes.flags.contains(VmaFlags::LOCKED);
                    found.unmap_plain(vma, range, &mut gather);
                });
            }
            found.body.add_rss(self.pages(), gather.finish(), file.node().kind().into());
        });
        locked
    }

    /// Maps pages of a closed file again where they are locked.
    pub(in crate::vm) fn map_locked(self, file: &FileClosed<'_>, runs: &PageRuns) {
        let kind = file.node().kind();
        let shmem = matches!(kind, FileKind::Shmem { .. });
        ReverseMap::of(self.0).each_mapper(file.node(), &runs.hull(), |found| {
            let mut mapped = 0;
            for run in runs.as_slice() {
                found.each_part(run, |vma, range| {
                    let flags = vma.attributes.flags;
                    // The handler must see a minor fault on these pages, so they stay unmapped.
                    let told = vma.attributes.handler.catches(UserfaultModes::MINOR);
                    if told || !flags.contains(VmaFlags::LOCKED) || flags.contains(VmaFlags::LOCK_ON_FAULT) {
                        return;
                    }
                    let bits = leaf_flags(&vma.attributes, shmem && !vma.attributes.is_private());
                    for page in 0..range.pages() {
                        let addr = range.start.add(page * FRAME_SIZE);
                        let frame = vma
                            .file_page(addr)
                            .and_then(|index| self.files().frame_of(self.platform(), file, index));
                        let Some(frame) = frame else { continue };
                        let frames = FrameRange::folio(frame, Order::FRAME);
                        // SAFETY: invariant 1: the page cache holds the pages.
                        mapped += unsafe { found.tables().map_where_empty(addr, frames, bits) }.unwrap_or(0);
                    }
                });
            }
            found.body.rss.add_as(self.platform(), kind.into(), mapped as i64);
            self.pages().change(Stat::NrMapped, mapped as i64);
        });
    }
}
