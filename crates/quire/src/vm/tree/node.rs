//! A node of the tree, the box that owns it outside the tree, and all code that dereferences a pointer to
//! one.

use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use super::{Ptr, VmaList};
use crate::avl::{Links, Node};
use crate::filemap::{View, ViewPtr};
use crate::vm::mapping::vma::Vma;

/// One mapping in the tree of an address space.
#[derive(Debug)]
pub struct VmaNode {
    pub(super) vma: Vma,
    pub(super) links: Links<VmaNode>,
    pub(super) gap: u64,
    pub(super) max_gap: u64,
}

/// The memory of one mapping; the caller allocates it, from a cache of small objects or from any heap. The
/// tree owns the first part, the mapped file the second, each under its own lock.
#[repr(C)]
pub struct VmaRecord {
    node: VmaNode,
    view: View,
}

/// Sole ownership of a node that is in no tree. It has no `Drop`: give the memory back with
/// [`VmaBox::into_raw`].
#[must_use = "a forgotten node leaks its memory and its count on a file"]
#[derive(Debug)]
pub struct VmaBox(NonNull<VmaNode>);

// SAFETY: T1: a box is the only way to its node, which is plain data, so it may move to another thread.
unsafe impl Send for VmaBox {}

impl VmaBox {
    /// Writes a mapping into memory.
    ///
    /// # Safety
    /// `memory` is valid for reads and writes, aligned, and the caller's alone until [`Self::into_raw`]
    /// returns it.
    pub unsafe fn new(memory: NonNull<MaybeUninit<VmaRecord>>, vma: Vma) -> Self {
        let node = VmaNode { vma, links: Links::leaf(None), gap: 0, max_gap: 0 };
        // SAFETY: T1: by this function's contract the memory is valid, aligned and this box's alone.
        unsafe { memory.cast::<VmaRecord>().write(VmaRecord { node, view: View::new() }) };
        Self(memory.cast())
    }

    /// Moves the mapping out and returns the memory to the caller. No file knows its view any more.
    pub fn into_raw(self) -> (NonNull<MaybeUninit<VmaRecord>>, Vma) {
        // SAFETY: T1: the box owns an initialised node (contract of `new`), which is given up here and never
        // read again.
        let node = unsafe { self.0.read() };
        (self.0.cast(), node.vma)
    }

    /// The part that the file owns.
    pub(crate) fn view(&self) -> ViewPtr {
        view_of(crate::avl::Ptr(self.0))
    }

    pub(super) fn next(&self) -> Option<Ptr> {
        // SAFETY: T1: the box owns a live node, and this borrow of it is the only one.
        unsafe { self.0.as_ref() }.links.right
    }

    pub(super) fn set_next(&mut self, next: Option<Ptr>) {
        // SAFETY: T1: the box owns a live node and is borrowed exclusively.
        unsafe { self.0.as_mut() }.links.right = next;
    }
}

impl Deref for VmaBox {
    type Target = Vma;
    #[inline]
    fn deref(&self) -> &Vma {
        // SAFETY: T1: the box owns a live node and is borrowed shared.
        unsafe { &self.0.as_ref().vma }
    }
}

impl DerefMut for VmaBox {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vma {
        // SAFETY: T1: the box owns a live node and is borrowed exclusively.
        unsafe { &mut self.0.as_mut().vma }
    }
}

impl VmaBox {
    /// The tree or list that keeps the pointer owns the node from now on.
    pub(super) const fn into_ptr(self) -> Ptr {
        crate::avl::Ptr(self.0)
    }

    /// The caller has removed every pointer to the node from its tree or list.
    pub(super) const fn from_ptr(at: Ptr) -> Self {
        Self(at.0)
    }
}

/// The view of a node, which lives as long as the node.
pub(super) fn view_of(at: Ptr) -> ViewPtr {
    let record = at.0.cast::<VmaRecord>();
    // SAFETY: T2: every node is the first part of a record (`VmaBox::new`), and its pointer stands for all of
    // it; no reference is made.
    crate::avl::Ptr(unsafe { NonNull::new_unchecked(&raw mut (*record.as_ptr()).view) })
}

/// The mapping of a list's node, and the node after it.
pub(super) fn look(at: Ptr, _list: &VmaList) -> (&Vma, Option<Ptr>) {
    // SAFETY: T1: the list owns the node and is borrowed shared for as long as the reference lives.
    let node = unsafe { &*at.0.as_ptr() };
    (&node.vma, node.links.right)
}

impl VmaNode {
    pub(super) fn left(&self) -> Option<Ptr> {
        self.links.left
    }

    pub(super) fn right(&self) -> Option<Ptr> {
        self.links.right
    }
}

/// The sum is a subtree's largest gap.
impl Node for VmaNode {
    type Sum = u64;

    #[inline]
    fn links(&self) -> &Links<Self> {
        &self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }

    #[inline]
    fn sum(&self) -> u64 {
        self.max_gap
    }

    fn note(&mut self, left: Option<u64>, right: Option<u64>) {
        self.max_gap = self.gap.max(left.unwrap_or(0)).max(right.unwrap_or(0));
    }
}
