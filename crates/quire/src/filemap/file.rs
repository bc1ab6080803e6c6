//! A file that is open or mapped, and the counted references to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// What the library keeps of one file.
///
/// # Invariants
///
/// F1. A node lives as long as its count is above zero; whoever holds a [`FileRef`] accounts for one.
#[derive(Debug)]
pub struct FileNode {
    references: AtomicU64,
}

/// One counted reference to a [`FileNode`]: a handle's, or that of one VMA.
///
/// It is plain data and has no `Drop`: giving the last one back may write pages, which needs the manager. A reference
/// that is forgotten keeps its file in memory for ever.
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct FileRef(NonNull<FileNode>);

// SAFETY: what other threads reach through a reference, `FileNode`, is `Sync`, and F1 keeps it alive.
unsafe impl Send for FileRef {}
// SAFETY: as for `Send`.
unsafe impl Sync for FileRef {}

impl FileNode {
    /// A node with the count that the first reference accounts for.
    pub fn new() -> Self {
        Self { references: AtomicU64::new(1) }
    }

    /// How many references there are.
    pub fn references(&self) -> u64 {
        self.references.load(Ordering::Relaxed)
    }
}

impl Default for FileNode {
    fn default() -> Self {
        Self::new()
    }
}

impl FileRef {
    /// The reference that a node was made with.
    ///
    /// # Safety
    /// `node` is live, its count already has the share of this reference, and it stays where it is until the count
    /// falls to zero.
    pub const unsafe fn from_raw(node: NonNull<FileNode>) -> Self {
        Self(node)
    }

    /// One more reference to the same file.
    #[must_use]
    pub fn again(&self) -> Self {
        self.node().references.fetch_add(1, Ordering::Relaxed);
        Self(self.0)
    }

    /// Gives the reference back. Returns the node when this was the last one: it then belongs to the caller alone.
    pub fn give_back(self) -> Option<NonNull<FileNode>> {
        let before = self.node().references.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "more references given back than taken");
        (before == 1).then_some(self.0)
    }

    /// The file.
    #[inline]
    pub fn node(&self) -> &FileNode {
        // SAFETY: F1: this reference is accounted for, so the node is live; it is only ever shared.
        unsafe { self.0.as_ref() }
    }
}
