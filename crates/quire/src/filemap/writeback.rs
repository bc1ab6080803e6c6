//! Writes dirty pages back.

use core::ops::Range;

use super::FileTable;
use super::file::{FileClosed, FileKind, FileNode};
use super::reclaim::PageRuns;
use crate::error::MmError;
use crate::limits::{FRAME_SIZE, LOCK_HOLD_FRAMES};
use crate::page_alloc::PageAllocator;
use crate::platform::{FileId, Pager, PagerError, Platform};

impl FileTable {
    /// Writes every dirty page of the file to its pager and marks it clean. For the pages that it is shown
    /// `protect` takes the right to store from all mappings, so that the next store marks its page again.
    /// Leaves pages to tasks that are writing them already; waits for pages that are dirty and busy for
    /// another reason. May block in the pager; the caller holds no lock.
    ///
    /// # Errors
    /// [`MmError::Io`] when a page could not be written; it stays dirty, and all others are written.
    pub(crate) fn write_back<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        node: &FileNode,
        protect: impl Fn(&PageRuns),
    ) -> Result<(), MmError> {
        let FileKind::Paged(file) = node.kind() else { return Ok(()) };
        let (mut from, mut outcome) = (Some(0), Ok(()));
        while let Some(at) = from {
            let closed = node.close(pages.platform());
            let (runs, next) = begin_writing(pages.platform(), &closed, at);
            protect(&runs);
            drop(closed);
            outcome = write_runs(pages.platform(), node, file, &runs).and(outcome);
            if next == Some(at) {
                pages.platform().relax();
            }
            from = next;
        }
        outcome
    }
}

/// Makes some dirty pages from index `from` on busy and clean; returns where to look for more. The file is
/// closed, so no task is about to map one of them for storing.
fn begin_writing<P: Platform>(platform: &P, file: &FileClosed<'_>, from: u64) -> (PageRuns, Option<u64>) {
    let mut cached = file.node().pages.lock(platform);
    let (mut runs, mut at) = (PageRuns::default(), from);
    for _ in 0..LOCK_HOLD_FRAMES {
        let Some((index, page)) = cached.next(at).filter(|_| cached.dirty() > 0) else { return (runs, None) };
        if page.is_dirty() && page.is_busy() {
            // A task moves it or cuts it off, and waits for no other task.
            return (runs, Some(index));
        }
        if page.is_dirty() {
            if !runs.add(index) {
                break;
            }
            cached.set_dirty(index, false);
            cached.set_busy(index, true);
        }
        at = index + 1;
    }
    (runs, Some(at))
}

/// The most pages of one call of the pager.
const RUN_PAGES: usize = 32;
/// Stands where a run has no page.
static NO_PAGE: [u8; FRAME_SIZE as usize] = [0; FRAME_SIZE as usize];

/// Writes pages that this task has made busy, as many at a time as the pager takes.
fn write_runs<P: Platform>(
    platform: &P,
    node: &FileNode,
    file: FileId,
    runs: &PageRuns,
) -> Result<(), MmError> {
    let mut outcome = Ok(());
    for run in runs.as_slice() {
        let mut at = run.start;
        while at < run.end {
            let (count, written) = write_some(platform, node, file, at..run.end);
            finish_writing(platform, node, at..at + count, written)
                .unwrap_or_else(|error| outcome = Err(error));
            at += count;
        }
    }
    outcome
}

/// Writes the first pages of a range. Returns how many, at least one, and whether that went well.
fn write_some<P: Platform>(
    platform: &P,
    node: &FileNode,
    file: FileId,
    range: Range<u64>,
) -> (u64, Result<(), PagerError>) {
    let (mut run, mut count) = ([&NO_PAGE; RUN_PAGES], 0);
    for (index, bytes) in range.clone().zip(&mut run) {
        let Some(page) = node.pages.lock(platform).get(index) else { break };
        // SAFETY: invariant 1: the direct map gives the frame's 4096 bytes. The busy mark keeps the frame in
        // the cache and other tasks from using it (protocol in the module's head).
        *bytes = unsafe { &*platform.direct_map(page.frame().addr()).cast::<[u8; FRAME_SIZE as usize]>() };
        count += 1;
    }
    if count == 0 {
        return (1, Ok(()));
    }
    match platform.pager().write_run(file, range.start, &run[..count]) {
        Ok(written) => (written.clamp(1, count) as u64, Ok(())),
        Err(error) => (1, Err(error)),
    }
}

/// Lets other tasks use pages again. Those that could not be written are dirty.
fn finish_writing<P: Platform>(
    platform: &P,
    node: &FileNode,
    range: Range<u64>,
    written: Result<(), PagerError>,
) -> Result<(), MmError> {
    // A page that was cut off meanwhile need not be written.
    let wanted = written.is_err() && range.start < node.size(platform).div_ceil(FRAME_SIZE);
    let mut cached = node.pages.lock(platform);
    for index in range {
        if cached.get(index).is_some() {
            cached.set_busy(index, false);
            if wanted {
                cached.set_dirty(index, true);
            }
        }
    }
    if wanted { Err(MmError::Io) } else { Ok(()) }
}
