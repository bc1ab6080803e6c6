//! A file that is open or mapped, and the counted references to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::pages::FilePages;
use crate::platform::FileId;
use crate::rank::Rank;
use crate::sync::SpinLock;

/// What stands behind a file's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// The machine's pager.
    Paged(FileId),
    /// Nothing: memory that starts as zeroes and goes with the last reference. Its size in bytes.
    Nameless {
        /// Accesses behind it are bus errors.
        bytes: u64,
    },
}

/// What the library keeps of one file.
///
/// # Invariants
///
/// F1. A node lives as long as its count is above zero; whoever holds a [`FileRef`] accounts for one.
/// F2. The count of a node in the table falls to zero under the table's lock only, together with its removal.
pub struct FileNode {
    references: AtomicU64,
    users: AtomicU32,
    kind: FileKind,
    /// The next node of the table's bucket; changes and is read under the table's lock.
    pub(super) next: AtomicPtr<FileNode>,
    pub(super) pages: SpinLock<FilePages>,
}

/// One counted reference to a [`FileNode`]: a handle's, or that of one VMA.
///
/// It is plain data and has no `Drop`: giving the last one back may write pages, which needs the machine
/// ([`FileTable::close`](super::FileTable::close)). A reference that is forgotten keeps its file in memory for ever.
#[must_use = "a forgotten reference keeps its file in memory"]
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct FileRef(NonNull<FileNode>);

/// Keeps the pages of a file from being dropped, for as long as it lives.
pub struct FileUse<'a>(&'a FileNode);

// SAFETY: what other threads reach through a reference, `FileNode`, is `Sync`, and F1 keeps it alive.
unsafe impl Send for FileRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for FileRef {}

impl FileNode {
    /// A node with the count that the first reference accounts for.
    pub(crate) const fn new(kind: FileKind) -> Self {
        Self {
            references: AtomicU64::new(1),
            users: AtomicU32::new(0),
            kind,
            next: AtomicPtr::new(core::ptr::null_mut()),
            pages: SpinLock::new(Rank::File, FilePages::new()),
        }
    }

    /// What stands behind the pages.
    pub const fn kind(&self) -> FileKind {
        self.kind
    }

    /// How many references there are.
    pub fn references(&self) -> u64 {
        self.references.load(Ordering::Relaxed)
    }

    /// Whether somebody uses pages that he has looked up. Under the file's lock.
    pub(super) fn has_users(&self) -> bool {
        self.users.load(Ordering::Acquire) != 0
    }

    /// Becomes a user of the file's pages.
    #[inline]
    pub fn enter(&self) -> FileUse<'_> {
        self.users.fetch_add(1, Ordering::AcqRel);
        FileUse(self)
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
    /// `node` is live, its count already has the share of this reference, and it stays where it is until the count
    /// falls to zero.
    pub(crate) const unsafe fn from_raw(node: NonNull<FileNode>) -> Self {
        Self(node)
    }

    /// One more reference to the same file.
    pub fn again(&self) -> Self {
        self.node().references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// Gives the reference back unless it is the last one.
    pub(super) fn give_back_unless_last(self) -> Result<(), Self> {
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

    /// Gives the reference back. Returns the node when this was the last one: it then belongs to the caller alone.
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
