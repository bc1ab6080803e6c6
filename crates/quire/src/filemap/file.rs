//! A file that is open or mapped, and the counted references to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::pages::FilePages;
use super::views::FileViews;
use crate::addr::Order;
use crate::limits::FRAME_SIZE;
use crate::platform::{FileId, Pager, Platform};
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// What stands behind a file's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// The machine's pager.
    Paged(FileId),
    /// Nothing: memory that starts as zeroes and goes with the last reference. Its size in bytes.
    Shmem {
        /// Accesses behind it are bus errors.
        bytes: u64,
    },
    /// Huge pages from a pool, which start as zeroes and go with the last reference.
    Huge {
        /// The order of each page.
        order: Order,
        /// The file system that the file belongs to, by its number; 0 is none.
        fs: u8,
        /// As for shared anonymous memory; a multiple of the pages' size.
        bytes: u64,
    },
}

/// What the library keeps of one file.
///
/// # Invariants
///
/// F1. A node lives as long as its count is above zero; each [`FileRef`] accounts for one.
/// F2. The count of a node in the table falls to zero under the table's lock only, together with its removal.
pub struct FileNode {
    references: AtomicU64,
    /// How many use pages that they have looked up, and [`CLOSED`].
    users: AtomicU32,
    kind: FileKind,
    /// The size of shared anonymous memory in bytes.
    bytes: AtomicU64,
    /// Pages from here on are on their way out: no task may use them, though some may still be in memory.
    end: AtomicU64,
    /// Whether a task changes the file's size.
    resizing: AtomicBool,
    /// Whether a task brings pages together in a block.
    collapsing: AtomicBool,
    /// Whether a handler of missing pages has come since that began. Set under the lock of the pages.
    watched: AtomicBool,
    /// Whether parts of its huge pages may have been mapped by themselves.
    in_parts: AtomicBool,
    /// The next node of the table's bucket; changes and is read under the table's lock.
    pub(super) next: AtomicPtr<FileNode>,
    pub(super) pages: SpinLock<FilePages>,
    views: SpinLock<FileViews>,
}

/// One counted reference to a [`FileNode`]: a handle's, or that of one VMA.
///
/// It is plain data and has no `Drop`: giving the last one back may write pages, which needs the machine
/// ([`FileTable::close`](super::FileTable::close)). A reference that is forgotten keeps its file in memory
/// for ever.
#[must_use = "a forgotten reference keeps its file in memory"]
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct FileRef(NonNull<FileNode>);

/// Keeps the pages of a file from being dropped, for as long as it lives.
pub struct FileUse<'a>(&'a FileNode);

/// Keeps all tasks from using pages of a file, for as long as it lives.
#[must_use = "the file is open again at once"]
pub struct FileClosed<'a>(&'a FileNode);

/// The right to bring pages of a file together in a block, for as long as it lives. Reclaim drops none
/// meanwhile.
#[must_use = "it is given up at once"]
pub struct FileCollapse<'a>(&'a FileNode);

/// The right to change the size of a file.
pub struct FileResize<'a>(&'a FileNode);

/// In the count of users: no task may become one.
const CLOSED: u32 = 1 << 31;

// SAFETY: F1: what other threads reach through a reference, `FileNode`, is `Sync`, and F1 keeps it alive.
unsafe impl Send for FileRef {}
// SAFETY: F1: a shared reference leads to a live `FileNode`, which is `Sync`.
unsafe impl Sync for FileRef {}

impl FileNode {
    /// A node with the count that the first reference accounts for.
    pub(crate) const fn new(kind: FileKind) -> Self {
        Self {
            references: AtomicU64::new(1),
            users: AtomicU32::new(0),
            kind,
            bytes: AtomicU64::new(match kind {
                FileKind::Shmem { bytes } | FileKind::Huge { bytes, .. } => bytes,
                FileKind::Paged(_) => 0,
            }),
            end: AtomicU64::new(u64::MAX),
            resizing: AtomicBool::new(false),
            collapsing: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            in_parts: AtomicBool::new(false),
            next: AtomicPtr::new(core::ptr::null_mut()),
            pages: SpinLock::new(Rank::File, FilePages::new()),
            views: SpinLock::new(Rank::FileViews, FileViews::new()),
        }
    }

    /// What stands behind the pages, with the size that it has now.
    pub fn kind(&self) -> FileKind {
        match self.kind {
            FileKind::Paged(file) => FileKind::Paged(file),
            FileKind::Shmem { .. } => FileKind::Shmem { bytes: self.bytes.load(Ordering::Acquire) },
            FileKind::Huge { order, fs, .. } => {
                FileKind::Huge { order, fs, bytes: self.bytes.load(Ordering::Acquire) }
            }
        }
    }

    /// Its size in bytes. Asks the pager.
    pub fn size<P: Platform>(&self, platform: &P) -> u64 {
        match self.kind() {
            FileKind::Paged(file) => platform.pager().size(file),
            FileKind::Shmem { bytes } | FileKind::Huge { bytes, .. } => bytes,
        }
    }

    /// The order of its pages, if they are huge ones.
    #[inline]
    pub(crate) fn huge_order(&self) -> Option<Order> {
        match self.kind {
            FileKind::Huge { order, .. } => Some(order),
            FileKind::Paged(_) | FileKind::Shmem { .. } => None,
        }
    }

    /// Says that parts of its huge pages may be mapped by themselves from now on.
    pub(crate) fn allow_parts(&self) {
        self.in_parts.store(true, Ordering::Release);
    }

    /// Whether [`Self::allow_parts`] was ever said.
    pub(crate) fn allows_parts(&self) -> bool {
        self.in_parts.load(Ordering::Acquire)
    }

    /// What maps the file.
    pub fn views<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, FileViews, P> {
        self.views.lock(platform)
    }

    /// Whether a page lies wholly behind the file's end, or is about to. Asks the pager.
    pub(crate) fn ends_before<P: Platform>(&self, platform: &P, index: u64) -> bool {
        self.is_cut_off(index) || index >= self.size(platform).div_ceil(FRAME_SIZE)
    }

    /// Whether this page may not be used any more, since the file is being cut short.
    #[inline]
    pub(crate) fn is_cut_off(&self, index: u64) -> bool {
        index >= self.end.load(Ordering::Acquire)
    }

    /// How many references there are.
    pub fn references(&self) -> u64 {
        self.references.load(Ordering::Relaxed)
    }

    /// Whether a task uses pages that it has looked up, or has the file closed. Under the file's lock.
    pub(super) fn has_users(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    /// Becomes the task that brings pages of the file together, unless another is.
    pub(crate) fn try_collapse(&self) -> Option<FileCollapse<'_>> {
        if self.collapsing.swap(true, Ordering::AcqRel) {
            return None;
        }
        // A handler that came before is found in its mapping.
        self.watched.store(false, Ordering::Release);
        Some(FileCollapse(self))
    }

    /// A mapping has a handler of missing pages from now on: no task makes zeroes of them without it. The
    /// caller holds the lock of the mapping's address space for writing.
    pub(crate) fn note_watched<P: Platform>(&self, platform: &P) {
        let _pages = self.pages.lock(platform);
        self.watched.store(true, Ordering::Release);
    }

    /// Whether one came since pages began to be brought together. Under the lock of the pages.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Whether a task brings pages of the file together.
    pub(crate) fn is_collapsing(&self) -> bool {
        self.collapsing.load(Ordering::Acquire)
    }

    /// Becomes a user of the file's pages. `None` while a task has it closed: a caller that holds a lock
    /// which that task may want gives it back and tries again.
    #[inline]
    pub fn enter(&self) -> Option<FileUse<'_>> {
        if self.users.fetch_add(1, Ordering::AcqRel) & CLOSED == 0 {
            return Some(FileUse(self));
        }
        self.users.fetch_sub(1, Ordering::AcqRel);
        None
    }

    /// Closes the file, unless it has users or is closed already.
    pub(crate) fn try_close(&self) -> Option<FileClosed<'_>> {
        let closed = self.users.compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed);
        // Not `then_some`: what is made and dropped again would open the file that another has closed.
        closed.is_ok().then(|| FileClosed(self))
    }

    /// Closes the file, once no other task has it closed and the tasks that use a page now have ceased to.
    /// The caller holds no lock.
    pub fn close<P: Platform>(&self, platform: &P) -> FileClosed<'_> {
        while self.users.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0 {
            platform.relax();
        }
        while self.users.load(Ordering::Acquire) != CLOSED {
            platform.relax();
        }
        FileClosed(self)
    }

    /// Becomes the task that changes the file's size. The caller holds no lock.
    pub fn resize<P: Platform>(&self, platform: &P) -> FileResize<'_> {
        while self.resizing.swap(true, Ordering::AcqRel) {
            platform.relax();
        }
        FileResize(self)
    }
}

impl<'a> FileCollapse<'a> {
    /// The file.
    pub const fn node(&self) -> &'a FileNode {
        self.0
    }
}

impl Drop for FileCollapse<'_> {
    fn drop(&mut self) {
        self.0.collapsing.store(false, Ordering::Release);
    }
}

impl FileClosed<'_> {
    /// The file.
    pub const fn node(&self) -> &FileNode {
        self.0
    }
}

impl<'a> FileResize<'a> {
    /// The file.
    pub const fn node(&self) -> &'a FileNode {
        self.0
    }

    /// Says how long shared anonymous memory is, or will be.
    pub(crate) fn set_bytes(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Release);
    }

    /// Says that from this page on no task may use any, and waits until none does. The pages that are in
    /// memory may then be unmapped and dropped.
    pub(crate) fn cut_off<P: Platform>(&self, platform: &P, end: u64) {
        self.0.end.store(end, Ordering::Release);
        drop(self.0.close(platform));
    }
}

impl Drop for FileResize<'_> {
    fn drop(&mut self) {
        self.0.end.store(u64::MAX, Ordering::Release);
        self.0.resizing.store(false, Ordering::Release);
    }
}

impl Drop for FileClosed<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

impl<'a> FileUse<'a> {
    /// The file.
    #[inline]
    pub const fn node(&self) -> &'a FileNode {
        self.0
    }
}

impl Drop for FileUse<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl FileRef {
    /// The reference that a node was made with, or one that was counted by hand.
    ///
    /// # Safety
    /// `node` is live, its count already has the share of this reference, and it stays where it is until the
    /// count falls to zero.
    pub(crate) const unsafe fn from_raw(node: NonNull<FileNode>) -> Self {
        Self(node)
    }

    /// One more reference to the same file.
    pub fn again(&self) -> Self {
        self.node().references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// Gives the reference back unless it is the last one.
    ///
    /// # Errors
    /// The reference, if it is.
    pub(crate) fn give_back_unless_last(self) -> Result<(), Self> {
        let references = &self.node().references;
        let mut count = references.load(Ordering::Relaxed);
        while count > 1 {
            match references.compare_exchange_weak(count, count - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => count = now,
            }
        }
        Err(self)
    }

    /// Gives the reference back. Returns the node when this was the last one: it then belongs to the caller
    /// alone.
    pub fn give_back(self) -> Option<NonNull<FileNode>> {
        let before = self.node().references.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more references given back than taken");
        (before == 1).then_some(self.0)
    }

    /// Where the node is, for comparison.
    pub(super) const fn as_ptr(&self) -> *mut FileNode {
        self.0.as_ptr()
    }

    /// The file.
    #[inline]
    pub fn node(&self) -> &FileNode {
        // SAFETY: F1: this reference is accounted for, so the node is live; it is only ever shared.
        unsafe { self.0.as_ref() }
    }
}
