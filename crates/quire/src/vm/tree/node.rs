//! A node of the tree, the box in which it travels, and the only places that follow a pointer to one.

use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::super::vma::Vma;
use super::{VmaList, VmaTree};

/// The memory of one mapping; the caller allocates it, from a cache of small objects or from any heap.
#[derive(Debug)]
pub struct VmaNode {
    pub(super) vma: Vma,
    pub(super) parent: Option<Ptr>,
    pub(super) left: Option<Ptr>,
    pub(super) right: Option<Ptr>,
    pub(super) gap: u64,
    pub(super) max_gap: u64,
    pub(super) height: u8,
}

/// Sole ownership of a node that is in no tree. It has no `Drop`: give the memory back with [`VmaBox::into_raw`].
#[must_use = "a forgotten node leaks its memory and its count on a file"]
#[derive(Debug)]
pub struct VmaBox(NonNull<VmaNode>);

/// A pointer to a node of the tree at hand (T2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ptr(NonNull<VmaNode>);

// SAFETY: a box is the only way to its node, which is plain data, so it may move to another thread.
unsafe impl Send for VmaBox {}

impl VmaBox {
    /// Puts a mapping into a piece of memory.
    ///
    /// # Safety
    /// `memory` is valid for reads and writes, aligned, and the caller's alone until [`Self::into_raw`] gives it back.
    pub unsafe fn new(memory: NonNull<MaybeUninit<VmaNode>>, vma: Vma) -> Self {
        let node = VmaNode { vma, parent: None, left: None, right: None, gap: 0, max_gap: 0, height: 1 };
        let memory = memory.cast::<VmaNode>();
        // SAFETY: valid, aligned and exclusive by this function's contract.
        unsafe { memory.write(node) };
        Self(memory)
    }

    /// Takes the mapping out; the memory is the caller's again.
    pub fn into_raw(self) -> (NonNull<MaybeUninit<VmaNode>>, Vma) {
        // SAFETY: the box owns an initialised node (contract of `new`), which is given up here and never read again.
        let node = unsafe { self.0.read() };
        (self.0.cast(), node.vma)
    }

    pub(super) fn next(&self) -> Option<Ptr> {
        // SAFETY: the box owns a live node, and this borrow of it is the only one.
        unsafe { self.0.as_ref() }.right
    }

    pub(super) fn set_next(&mut self, next: Option<Ptr>) {
        // SAFETY: the box owns a live node and is borrowed exclusively.
        unsafe { self.0.as_mut() }.right = next;
    }
}

impl Deref for VmaBox {
    type Target = Vma;
    #[inline]
    fn deref(&self) -> &Vma {
        // SAFETY: the box owns a live node and is borrowed shared.
        unsafe { &self.0.as_ref().vma }
    }
}

impl DerefMut for VmaBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vma {
        // SAFETY: the box owns a live node and is borrowed exclusively.
        unsafe { &mut self.0.as_mut().vma }
    }
}

impl Ptr {
    /// The node's new owner is the tree (or list) that keeps the pointer.
    pub(super) const fn from_box(node: VmaBox) -> Self {
        Self(node.0)
    }

    /// The node leaves its tree or list; the caller has removed every pointer to it.
    pub(super) const fn into_box(self) -> VmaBox {
        VmaBox(self.0)
    }

    /// The mapping of a list's node, and the node after it.
    pub(super) fn look(self, _list: &VmaList) -> (&Vma, Option<Self>) {
        // SAFETY: the list owns the node and is borrowed shared for as long as the reference lives.
        let node = unsafe { &*self.0.as_ptr() };
        (&node.vma, node.right)
    }

    /// Lends the node of a list as a box; the list is borrowed exclusively meanwhile.
    pub(super) fn with_box(self, use_it: impl FnOnce(&mut VmaBox)) {
        use_it(&mut VmaBox(self.0));
    }
}

impl VmaNode {
    pub(super) fn link_as_leaf(&mut self, parent: Option<Ptr>) {
        (self.parent, self.left, self.right, self.height) = (parent, None, None, 1);
    }
}

impl VmaTree {
    #[inline]
    pub(super) fn node(&self, at: Ptr) -> &VmaNode {
        // SAFETY: T2 says that `at` names a node of this tree, T1 that it is live, T3 that shared access to the tree
        // excludes an exclusive reference to any node.
        unsafe { at.0.as_ref() }
    }

    #[inline]
    pub(super) fn node_mut(&mut self, at: Ptr) -> &mut VmaNode {
        let mut raw = at.0;
        // SAFETY: T2 and T1 as in `node`; T3: exclusive access to the tree excludes every other reference to a node.
        unsafe { raw.as_mut() }
    }
}
