//! A file that is open or mapped, and the counted references to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::pages::FilePages;
use super::references::References;
use super::views::FileViews;
use crate::addr::Order;
use crate::limits::FRAME_SIZE;
use crate::platform::{FileId, Pager, Platform};
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// What backs a file's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// The machine's pager.
    Paged(FileId),
    /// Nothing: memory that starts as zeroes and is freed with the last reference.
    Shmem {
        /// Its size; accesses behind it are bus errors.
        bytes: u64,
    },
    /// Huge pages from a pool, which start as zeroes and go back with the last reference.
    Huge {
        /// The order of each page.
        order: Order,
        /// The number of its file system; 0 is none.
        fs: u8,
        /// As for shmem; a multiple of the pages' size.
        bytes: u64,
    },
}

/// The library's record of one file.
///
/// # Invariants
///
/// F1. A node lives as long as its count is above zero; each [`FileRef`] accounts for one.
/// F2. A node leaves the table under the table's lock, while its last reference is the remover's; its count
///     falls to zero only afterwards.
pub struct FileNode {
    references: References,
    /// The number of users ([`FileUse`]), and [`CLOSED`].
    users: AtomicU32,
    kind: FileKind,
    /// The size in bytes, unless the file is paged.
    bytes: AtomicU64,
    /// No task may use pages from here on, though some may still be in memory.
    end: AtomicU64,
    /// A task changes the file's size.
    resizing: AtomicBool,
    /// A task gathers pages in a block.
    collapsing: AtomicBool,
    /// A handler of missing pages has come since gathering began. Set under the lock of the pages.
    watched: AtomicBool,
    /// Parts of its huge pages may have been mapped by themselves.
    in_parts: AtomicBool,
    /// Leaves of 2 MiB may have mapped pieces of its pages of 1 GiB.
    in_pieces: AtomicBool,
    /// The next node of the table's bucket; under the table's lock.
    pub(super) next: AtomicPtr<FileNode>,
    pub(super) pages: SpinLock<FilePages>,
    views: SpinLock<FileViews>,
}

/// One counted reference to a [`FileNode`]: a handle's, or that of one VMA.
///
/// It has no `Drop`: giving the last one back may write pages, which needs the machine
/// ([`FileTable::close`](super::FileTable::close)). A forgotten reference keeps its file in memory for ever.
#[must_use = "a forgotten reference keeps its file in memory"]
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct FileRef(NonNull<FileNode>);

/// Keeps the pages of a file from being dropped while it lives.
pub struct FileUse<'a>(&'a FileNode);

/// Keeps all tasks from using pages of a file while it lives.
#[must_use = "the file is open again at once"]
pub struct FileClosed<'a>(&'a FileNode);

/// The right to gather pages of a file in a block. Reclaim drops none of its pages while it lives.
#[must_use = "it is given up at once"]
pub struct FileCollapse<'a>(&'a FileNode);

/// The right to change the size of a file.
pub struct FileResize<'a>(&'a FileNode);

/// In the count of users: the file is closed.
const CLOSED: u32 = 1 << 31;

// SAFETY: F1: a reference leads other threads to a `FileNode`, which is `Sync` and which F1 keeps alive.
unsafe impl Send for FileRef {}
// SAFETY: F1: a shared reference leads to a live `FileNode`, which is `Sync`.
unsafe impl Sync for FileRef {}

impl FileNode {
    /// A node whose count accounts for its first reference.
    pub(crate) const fn new(kind: FileKind) -> Self {
        Self {
            references: References::one(),
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
            in_pieces: AtomicBool::new(false),
            next: AtomicPtr::new(core::ptr::null_mut()),
            pages: SpinLock::new(Rank::File, FilePages::new()),
            views: SpinLock::new(Rank::FileViews, FileViews::new()),
        }
    }

    /// What backs the pages, with its present size.
    pub fn kind(&self) -> FileKind {
        match self.kind {
            FileKind::Paged(file) => FileKind::Paged(file),
            FileKind::Shmem { .. } => FileKind::Shmem { bytes: self.bytes.load(Ordering::Acquire) },
            FileKind::Huge { order, fs, .. } => {
                FileKind::Huge { order, fs, bytes: self.bytes.load(Ordering::Acquire) }
            }
        }
    }

    /// A number that no other file has while there is a reference to this one.
    pub fn number(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }

    /// Its size in bytes. Asks the pager.
    pub fn size<P: Platform>(&self, platform: &P) -> u64 {
        match self.kind() {
            FileKind::Paged(file) => platform.pager().size(file),
            FileKind::Shmem { bytes } | FileKind::Huge { bytes, .. } => bytes,
        }
    }

    /// The order of its huge pages, if it has some.
    #[inline]
    pub(crate) fn huge_order(&self) -> Option<Order> {
        match self.kind {
            FileKind::Huge { order, .. } => Some(order),
            FileKind::Paged(_) | FileKind::Shmem { .. } => None,
        }
    }

    /// Notes that programs may map parts of its huge pages by themselves from now on, until the file goes: no
    /// count says how many mappings allow it.
    pub(crate) fn allow_parts(&self) {
        self.in_parts.store(true, Ordering::Release);
    }

    /// Whether [`Self::allow_parts`] was ever called.
    pub(crate) fn allows_parts(&self) -> bool {
        self.in_parts.load(Ordering::Acquire)
    }

    /// Notes that leaves of 2 MiB may map pieces of its pages of 1 GiB from now on.
    pub(crate) fn allow_pieces(&self) {
        self.in_pieces.store(true, Ordering::Release);
    }

    /// Whether leaves smaller than its huge pages may have mapped them.
    pub(crate) fn may_have_small_leaves(&self) -> bool {
        self.in_pieces.load(Ordering::Acquire) || self.allows_parts()
    }

    /// The mappings of the file.
    pub fn views<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, FileViews, P> {
        self.views.lock(platform)
    }

    /// Whether a page lies wholly behind the file's end, or is about to. Asks the pager.
    pub(crate) fn ends_before<P: Platform>(&self, platform: &P, index: u64) -> bool {
        self.is_cut_off(index) || index >= self.size(platform).div_ceil(FRAME_SIZE)
    }

    /// Whether no task may use this page, since the file is being cut short.
    #[inline]
    pub(crate) fn is_cut_off(&self, index: u64) -> bool {
        index >= self.end.load(Ordering::Acquire)
    }

    /// How many references there are.
    pub fn references(&self) -> u64 {
        self.references.count()
    }

    /// Whether the file has users or is closed. Under the file's lock.
    pub(super) fn has_users(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    /// Makes the caller the task that gathers pages of the file, unless there is one.
    pub(crate) fn try_collapse(&self) -> Option<FileCollapse<'_>> {
        if self.collapsing.swap(true, Ordering::AcqRel) {
            return None;
        }
        // The caller finds earlier handlers in their mappings.
        self.watched.store(false, Ordering::Release);
        Some(FileCollapse(self))
    }

    /// Notes that a mapping has a handler of missing pages: no task fills them with zeroes without it. The
    /// caller holds the lock of the mapping's address space for writing.
    pub(crate) fn note_watched<P: Platform>(&self, platform: &P) {
        let _pages = self.pages.lock(platform);
        self.watched.store(true, Ordering::Release);
    }

    /// Whether a handler came since gathering began. Under the lock of the pages.
    pub(super) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Acquire)
    }

    /// Whether a task gathers pages of the file.
    pub(crate) fn is_collapsing(&self) -> bool {
        self.collapsing.load(Ordering::Acquire)
    }

    /// Makes the caller a user of the file's pages. `None` while a task has it closed: a caller whose locks
    /// that task may want gives them back and tries again.
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
        // Not `then_some`: dropping a value made in vain would open the file that another task has closed.
        closed.is_ok().then(|| FileClosed(self))
    }

    /// Closes the file: waits until no other task has it closed, and for its users. The caller holds no lock.
    pub fn close<P: Platform>(&self, platform: &P) -> FileClosed<'_> {
        while self.users.fetch_or(CLOSED, Ordering::AcqRel) & CLOSED != 0 {
            platform.relax();
        }
        while self.users.load(Ordering::Acquire) != CLOSED {
            platform.relax();
        }
        FileClosed(self)
    }

    /// Makes the caller the task that changes the file's size, once no other does. The caller holds no lock.
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

    /// Sets the size in bytes of a file without a pager, now or soon.
    pub(crate) fn set_bytes(&self, bytes: u64) {
        self.0.bytes.store(bytes, Ordering::Release);
    }

    /// Forbids the use of pages from `end` on, and waits until no task uses one. The caller may then drop
    /// them.
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
    /// Makes the reference for a share of the count that exists already.
    ///
    /// # Safety
    /// `node` is live, stays where it is until its count is zero, and one share of the count is this
    /// reference's.
    pub(crate) const unsafe fn from_raw(node: NonNull<FileNode>) -> Self {
        Self(node)
    }

    /// One more reference to the same file.
    pub fn again(&self) -> Self {
        self.node().references.add();
        Self(self.0)
    }

    /// Gives the reference back unless it is the last one.
    ///
    /// # Errors
    /// The reference, if it is.
    pub(crate) fn give_back_unless_last(self) -> Result<(), Self> {
        if self.node().references.give_back_unless_last() { Ok(()) } else { Err(self) }
    }

    /// The same; if it is the last one, `unlink` has taken the file out of the table that `lock` locks.
    pub(super) fn give_back_or_unlink<G>(
        self,
        lock: impl FnOnce() -> G,
        unlink: impl FnOnce(&G, *mut FileNode),
    ) -> Result<(), Self> {
        let unlink = |table: &G| unlink(table, self.as_ptr());
        if self.node().references.give_back_or_unlink(lock, unlink) { Ok(()) } else { Err(self) }
    }

    /// Gives the reference back. Returns the node if this was the last one: the caller then owns it.
    pub fn give_back(self) -> Option<NonNull<FileNode>> {
        self.node().references.give_back().then_some(self.0)
    }

    /// The node's address, for comparison.
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
