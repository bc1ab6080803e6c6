//! A list of nodes that are in no tree, linked through the nodes themselves.

use super::Ptr;
use super::node::{VmaBox, look};
use crate::vm::mapping::vma::Vma;

/// Removed mappings, first in, first out. The list owns its nodes.
#[must_use = "forgotten nodes leak their memory and their counts on files"]
#[derive(Debug, Default)]
pub struct VmaList {
    first: Option<Ptr>,
    last: Option<Ptr>,
    count: usize,
}

impl VmaList {
    /// An empty list.
    pub const fn new() -> Self {
        Self { first: None, last: None, count: 0 }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The mappings, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        let mut at = self.first;
        core::iter::from_fn(move || {
            let (vma, next) = look(at?, self);
            at = next;
            Some(vma)
        })
    }

    /// Adds one at the end.
    pub fn push(&mut self, mut node: VmaBox) {
        node.set_next(None);
        let node = node.into_ptr();
        match self.last {
            None => self.first = Some(node),
            Some(last) => VmaBox::from_ptr(last).set_next(Some(node)),
        }
        self.last = Some(node);
        self.count += 1;
    }

    /// Adds all of another list at the end.
    pub fn append(&mut self, mut other: Self) {
        while let Some(node) = other.pop() {
            self.push(node);
        }
    }

    /// Takes the first out.
    pub fn pop(&mut self) -> Option<VmaBox> {
        let first = VmaBox::from_ptr(self.first?);
        self.first = first.next();
        if self.first.is_none() {
            self.last = None;
        }
        self.count -= 1;
        Some(first)
    }
}
