//! All files that are open or mapped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use super::file::{FileKind, FileNode, FileRef};
use super::radix::{NodeMemory, RadixNode};
use crate::addr::{FrameRange, Order};
use crate::error::{AllocError, InitError, MmError};
use crate::limits::LOCK_HOLD_FRAMES;
use crate::memmap::BootTable;
use crate::page_alloc::{PageAllocator, TableFrames};
use crate::platform::{FileId, FramePlatform, Platform};
use crate::rank::Rank;
use crate::slab::Cache;
use crate::sync::SpinLock;

const BUCKETS: usize = 256;
/// The list of the files without a name.
const NAMELESS: usize = BUCKETS;

/// The files by name, the memory of their records, and how many frames their pages fill.
///
/// # Invariants
///
/// A bucket's list holds live nodes only (F2), linked through `next` under the table's lock.
pub struct FileTable {
    buckets: SpinLock<BootTable<AtomicPtr<FileNode>>>,
    nodes: Cache<FileNode>,
    radix: Cache<RadixNode>,
    paged: AtomicI64,
    shmem: AtomicI64,
}

fn bucket_of(file: FileId) -> usize {
    (file.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % BUCKETS
}

impl FileTable {
    /// No file.
    ///
    /// # Errors
    /// [`InitError::TooSmall`].
    pub(crate) fn new<P: FramePlatform>(tables: &mut TableFrames<'_, '_, P>) -> Result<Self, InitError> {
        let buckets = tables.table(BUCKETS + 1, |_, _| Ok(AtomicPtr::default()))?;
        Ok(Self {
            buckets: SpinLock::new(Rank::FileTable, buckets),
            nodes: Cache::new(),
            radix: Cache::new(),
            paged: AtomicI64::new(0),
            shmem: AtomicI64::new(0),
        })
    }

    /// Frames that hold pages of files with a pager.
    pub(crate) fn paged_frames(&self) -> u64 {
        self.paged.load(Ordering::Relaxed).max(0) as u64
    }

    /// Frames that hold shared anonymous memory.
    pub(crate) fn shmem_frames(&self) -> u64 {
        self.shmem.load(Ordering::Relaxed).max(0) as u64
    }

    /// A reference to a file of the machine's pager.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn open<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        file: FileId,
    ) -> Result<FileRef, AllocError> {
        let kind = FileKind::Paged(file);
        let found = find_in(&self.buckets.lock(pages.platform())[bucket_of(file)], kind);
        if let Some(found) = found {
            return Ok(found);
        }
        let fresh = self.make(pages, kind)?;
        let buckets = self.buckets.lock(pages.platform());
        let head = &buckets[bucket_of(file)];
        if let Some(found) = find_in(head, kind) {
            // Another task opened it first; the fresh node was never published.
            drop(buckets);
            if let Some(node) = fresh.give_back() {
                self.free_node(pages, node);
            }
            return Ok(found);
        }
        fresh.node().next.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        head.store(fresh.as_ptr(), Ordering::Relaxed);
        Ok(fresh)
    }

    /// A shmem file: `bytes` of memory without a name that several mappings share.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn shmem<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        bytes: u64,
    ) -> Result<FileRef, AllocError> {
        self.make_nameless(pages, FileKind::Shmem { bytes })
    }

    /// A file of huge pages of this order, `bytes` long, of a file system or of none. Before its last
    /// reference goes, its holder takes the pages out (`take_huge_page`).
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`].
    pub fn huge<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        order: Order,
        fs: u8,
        bytes: u64,
    ) -> Result<FileRef, AllocError> {
        self.make_nameless(pages, FileKind::Huge { order, fs, bytes })
    }

    /// A file that is found by a walk over all files alone.
    fn make_nameless<P: Platform>(
        &self,
        pages: &PageAllocator<'_, P>,
        kind: FileKind,
    ) -> Result<FileRef, AllocError> {
        let fresh = self.make(pages, kind)?;
        let head = &self.buckets.lock(pages.platform())[NAMELESS];
        fresh.node().next.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        head.store(fresh.as_ptr(), Ordering::Relaxed);
        Ok(fresh)
    }

    /// Gives a reference to a file of huge pages back. If it is the last one it comes back instead, and no walk
    /// over all files finds the file any more.
    pub(crate) fn withdraw<P: Platform>(&self, platform: &P, file: FileRef) -> Result<(), FileRef> {
        file.give_back_or_unlink(
            || self.buckets.lock(platform),
            |buckets, node| unlink(&buckets[NAMELESS], node),
        )
    }

    /// Gives a reference back. The last one writes dirty pages back and drops all pages.
    ///
    /// # Errors
    /// [`MmError::Io`] when a dirty page could not be written: its contents are lost, and the reference is
    /// given back.
    pub fn close<P: Platform>(&self, pages: &PageAllocator<'_, P>, file: FileRef) -> Result<(), MmError> {
        let FileKind::Paged(name) = file.node().kind() else {
            if let Err(last) = self.withdraw(pages.platform(), file) {
                self.finish(pages, last);
            }
            return Ok(());
        };
        let Err(mut last) = file.give_back_unless_last() else { return Ok(()) };
        loop {
            let written = self.write_back(pages, last.node(), |_| {});
            let buckets = self.buckets.lock(pages.platform());
            // A task may have opened it meanwhile.
            let Err(file) = last.give_back_unless_last() else { return written };
            // Or opened it, written to it and closed it: once more.
            if written.is_ok() && file.node().pages.lock(pages.platform()).dirty() > 0 {
                last = file;
                continue;
            }
            unlink(&buckets[bucket_of(name)], file.as_ptr());
            drop(buckets);
            self.finish(pages, file);
            return written;
        }
    }

    /// Calls `visit` for every file with a pager, under the table's lock, which it gives back between
    /// buckets.
    pub(super) fn each_file<P: Platform>(&self, platform: &P, mut visit: impl FnMut(&FileNode)) {
        for bucket in 0..BUCKETS {
            let buckets = self.buckets.lock(platform);
            let mut at = buckets[bucket].load(Ordering::Relaxed);
            while let Some(node) = NonNull::new(at) {
                // SAFETY: F2: nodes on a bucket's list are live while the table is locked.
                let node = unsafe { node.as_ref() };
                visit(node);
                at = node.next.load(Ordering::Relaxed);
            }
        }
    }

    /// A reference to the file with a pager at or behind a place of the table, and the place after it. Files
    /// that come or go between two calls may be passed over.
    pub(crate) fn next_file<P: Platform>(
        &self,
        platform: &P,
        place: (usize, usize),
    ) -> Option<(FileRef, (usize, usize))> {
        self.next_of(platform, place, BUCKETS)
    }

    /// As [`Self::next_file`], for all files, with a name or without.
    pub(crate) fn next_of_all<P: Platform>(
        &self,
        platform: &P,
        place: (usize, usize),
    ) -> Option<(FileRef, (usize, usize))> {
        self.next_of(platform, place, NAMELESS + 1)
    }

    /// A reference to the file without a name that has this number, while it has others.
    pub(crate) fn find_nameless<P: Platform>(&self, platform: &P, number: u64) -> Option<FileRef> {
        find_by(&self.buckets.lock(platform)[NAMELESS], |file| file.number() == number)
    }

    fn next_of<P: Platform>(
        &self,
        platform: &P,
        place: (usize, usize),
        end: usize,
    ) -> Option<(FileRef, (usize, usize))> {
        let (first, mut skip) = place;
        for bucket in first..end {
            let buckets = self.buckets.lock(platform);
            let mut at = buckets[bucket].load(Ordering::Relaxed);
            let mut number = 0;
            while let Some(node) = NonNull::new(at) {
                // SAFETY: F2: the node is on a list of the locked table, so it is live and may be counted
                // once more.
                let file = unsafe { core::mem::ManuallyDrop::new(FileRef::from_raw(node)) };
                if number == skip {
                    return Some((file.again(), (bucket, number + 1)));
                }
                number += 1;
                at = file.node().next.load(Ordering::Relaxed);
            }
            skip = 0;
        }
        None
    }

    fn make<P: Platform>(&self, pages: &PageAllocator<'_, P>, kind: FileKind) -> Result<FileRef, AllocError> {
        let node = self.nodes.alloc(pages)?.cast::<FileNode>();
        // SAFETY: S2: fresh memory of the cache's, sized and aligned for a node, whose count of one is this
        // reference's.
        unsafe {
            node.write(FileNode::new(kind));
            Ok(FileRef::from_raw(node))
        }
    }

    /// Gives the last reference to a file back that has left the table. Drops its pages, some at a time, and its
    /// node.
    fn finish<P: Platform>(&self, pages: &PageAllocator<'_, P>, file: FileRef) {
        while self.drop_some(pages, file.node()) {
            pages.platform().reschedule_point();
        }
        let Some(node) = file.give_back() else {
            return debug_assert!(false, "the file has other references");
        };
        self.free_node(pages, node);
    }

    /// Drops pages of a file that no other task knows, as many as one hold of its lock may. Returns whether some
    /// may be left.
    fn drop_some<P: Platform>(&self, pages: &PageAllocator<'_, P>, node: &FileNode) -> bool {
        let mut cached = node.pages.lock(pages.platform());
        debug_assert!(node.huge_order().is_none() || cached.len() == 0, "huge pages go back to their pool");
        for _ in 0..LOCK_HOLD_FRAMES {
            let Some((index, page)) = cached.next(0) else { return false };
            cached.remove(index, |memory| self.free_radix(pages, memory));
            self.count_cached(node.kind(), -1);
            // SAFETY: invariant 1: the page cache held the frame, and names it no more.
            unsafe { pages.counts().release(FrameRange::folio(page.frame(), Order::FRAME)) };
        }
        true
    }

    fn free_node<P: Platform>(&self, pages: &PageAllocator<'_, P>, node: NonNull<FileNode>) {
        // SAFETY: S2, F2: the node came from this cache, and the caller is the last to know it.
        unsafe { self.nodes.free(pages, node.cast()) };
    }

    pub(super) fn alloc_radix<P: Platform>(&self, pages: &PageAllocator<'_, P>) -> Option<NodeMemory> {
        self.radix.alloc(pages).ok()
    }

    pub(super) fn free_radix<P: Platform>(&self, pages: &PageAllocator<'_, P>, memory: NodeMemory) {
        // SAFETY: R1: radix trees give back only what they got from `alloc_radix`, once.
        unsafe { self.radix.free(pages, memory) };
    }

    pub(super) fn count_cached(&self, kind: FileKind, frames: i64) {
        let cell = match kind {
            FileKind::Paged(_) => &self.paged,
            FileKind::Shmem { .. } => &self.shmem,
            // Their pools count them.
            FileKind::Huge { .. } => return,
        };
        cell.fetch_add(frames, Ordering::Relaxed);
    }
}

/// One more reference to the file of this name in a bucket. Under the table's lock.
fn find_in(head: &AtomicPtr<FileNode>, kind: FileKind) -> Option<FileRef> {
    find_by(head, |file| file.kind() == kind)
}

/// The same for the first file of a bucket that is the `wanted` one.
fn find_by(head: &AtomicPtr<FileNode>, wanted: impl Fn(&FileNode) -> bool) -> Option<FileRef> {
    let mut at = head.load(Ordering::Relaxed);
    while let Some(node) = NonNull::new(at) {
        // SAFETY: F2: nodes on a bucket's list are live, with a count above zero, while the table is locked.
        // So one more reference may be counted; the borrowed one is not given back.
        let found = unsafe { core::mem::ManuallyDrop::new(FileRef::from_raw(node)) };
        if wanted(found.node()) {
            return Some(found.again());
        }
        at = found.node().next.load(Ordering::Relaxed);
    }
    None
}

/// Takes a node out of its bucket's list. Under the table's lock.
fn unlink(head: &AtomicPtr<FileNode>, node: *mut FileNode) {
    let mut link = head;
    loop {
        let at = link.load(Ordering::Relaxed);
        let Some(here) = NonNull::new(at) else { return };
        // SAFETY: F2: the node is on a list of the table, and the reference ends before the table's lock is
        // given back.
        let here = unsafe { here.as_ref() };
        if at == node {
            link.store(here.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return;
        }
        link = &here.next;
    }
}
