//! Families of address spaces: those that `fork` made of one another. What an address space mapped before a
//! fork, its descendants may map.

use core::cell::UnsafeCell;
use core::ptr::NonNull;

use crate::avl::{Avl, Links, Node, Ptr};
use crate::page_alloc::Origin;
use crate::vm::space::body::MmBody;

/// The node of an address space in the tree of families. It changes under the lock of the families.
pub(in crate::vm) struct Member {
    links: Links<Self>,
    key: Key,
    body: Option<NonNull<MmBody>>,
}

/// The family's number as [`Origin::kept`] shortens it, and the address space's number.
type Key = (u64, u64);

/// A [`Member`] inside a body that other tasks read.
#[repr(transparent)]
pub(in crate::vm) struct MemberCell(UnsafeCell<Member>);

/// All address spaces by family, under one lock.
///
/// # Invariants
///
/// V3. A member in the tree belongs to a body that is live: it leaves before the body does.
pub(in crate::vm) struct Families {
    avl: Avl<Member>,
}

// SAFETY: V3: a member is reached under the lock of the families, wherever the holder runs, and a body may be
// shared.
unsafe impl Send for Member {}
// SAFETY: V3: a shared cell gives out nothing but the member's place; the member is reached under the lock of
// the families.
unsafe impl Sync for MemberCell {}

impl MemberCell {
    pub(in crate::vm) const fn new() -> Self {
        Self(UnsafeCell::new(Member { links: Links::leaf(None), key: (0, 0), body: None }))
    }
}

impl Node for Member {
    type Sum = ();

    fn links(&self) -> &Links<Self> {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }

    fn sum(&self) {}

    fn note(&mut self, _left: Option<()>, _right: Option<()>) {}
}

impl Families {
    pub(in crate::vm) const fn new() -> Self {
        Self { avl: Avl::new() }
    }

    fn member(body: NonNull<MmBody>) -> Ptr<Member> {
        // SAFETY: V3: the body is live; only its member cell is named, whose contents may be reached through
        // a shared body.
        let cell = unsafe { &raw const (*body.as_ptr()).member };
        // SAFETY: V3: the cell is a field of a live body, and the address of a field is never null.
        Ptr(unsafe { NonNull::new_unchecked(UnsafeCell::raw_get(cell.cast())) })
    }

    pub(in crate::vm) fn insert(&mut self, body: NonNull<MmBody>, family: u64, number: u64) {
        let new = Self::member(body);
        let key = (Origin::kept(family), number);
        let (mut parent, mut at, mut left) = (None, self.avl.root, false);
        while let Some(here) = at {
            parent = at;
            left = key < self.avl.node(here).key;
            at = if left { self.avl.left(here) } else { self.avl.right(here) };
        }
        let member = self.avl.node_mut(new);
        (member.key, member.body) = (key, Some(body));
        self.avl.attach(new, parent, left);
        self.avl.repair_upwards(new, None);
    }

    /// Removes an address space from its family, if it is in one.
    pub(in crate::vm) fn remove(&mut self, body: NonNull<MmBody>) {
        let member = Self::member(body);
        if self.avl.node_mut(member).body.take().is_none() {
            return;
        }
        self.avl.remove(member, None);
    }

    /// The first address space of `family`, as [`Origin::kept`], with a number above `after`.
    pub(in crate::vm) fn next(&self, family: u64, after: u64) -> Option<NonNull<MmBody>> {
        let (body, place) = self.next_of_all((family, after))?;
        (place.0 == family).then_some(body)
    }

    /// The first address space with a key above `after`, and its key.
    pub(in crate::vm) fn next_of_all(&self, after: Key) -> Option<(NonNull<MmBody>, Key)> {
        let (mut at, mut next) = (self.avl.root, None);
        while let Some(here) = at {
            if self.avl.node(here).key > after {
                next = at;
                at = self.avl.left(here);
            } else {
                at = self.avl.right(here);
            }
        }
        let member = self.avl.node(next?);
        Some((member.body?, member.key))
    }
}
