//! Changes to the set of mappings that keep it minimal: split, carve out, insert, change and merge again.
//!
//! *Preallocate, then commit*: the caller asks [`splits`] how many nodes the range's ends will take, and puts
//! as many into a [`Spares`]. From there on nothing can fail, so a verb that runs out of memory has changed
//! nothing (invariant 6). Unneeded nodes go to a [`VmaList`]; each holds its own count on a file.
#![cfg_attr(not(test), forbid(unsafe_code))]

use crate::addr::{VirtAddr, VirtRange};
use crate::vm::mapping::vma::{Vma, VmaAttributes};
use crate::vm::tree::{VmaBox, VmaList, VmaTree};
use crate::vm::userfault::Registration;

/// Nodes that were allocated beforehand.
#[derive(Debug, Default)]
pub struct Spares {
    nodes: [Option<VmaBox>; 3],
}

impl Spares {
    /// None.
    pub const fn new() -> Self {
        Self { nodes: [const { None }; 3] }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.iter().flatten().count()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a node with any mapping; returns it when there are three already.
    pub fn put(&mut self, node: VmaBox) -> Option<VmaBox> {
        match self.nodes.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => slot.replace(node),
            None => Some(node),
        }
    }

    /// Takes one out.
    pub fn take(&mut self) -> Option<VmaBox> {
        self.nodes.iter_mut().find_map(Option::take)
    }
}

/// How many ends of the range lie strictly inside a mapping: the spares that [`carve`] and [`change`] take.
pub fn splits(tree: &VmaTree, range: VirtRange) -> usize {
    let ends = [range.start, range.end].into_iter().filter(|&at| is_inside(tree, at)).count();
    if range.is_empty() { 0 } else { ends }
}

fn is_inside(tree: &VmaTree, at: VirtAddr) -> bool {
    tree.find(at).is_some_and(|vma| vma.range.start < at)
}

/// Makes `at` a border between mappings if it lies inside one. Returns `false` if a needed spare is missing.
pub fn split(tree: &mut VmaTree, at: VirtAddr, spares: &mut Spares) -> bool {
    let Some(vma) = tree.find(at).filter(|vma| vma.range.start < at) else { return true };
    let Some(mut upper) = spares.take() else { return false };
    let whole = vma.range;
    let lower = VirtRange::new(whole.start, at);
    *upper = Vma::new(VirtRange::new(at, whole.end), vma.attributes.again(lower.pages()));
    let resized = tree.resize(whole.start, lower);
    let inserted = tree.insert(upper).is_ok();
    debug_assert!(resized && inserted, "the halves of a mapping fit where it was");
    true
}

/// Makes both ends of a range borders, if it is not empty. `false`, with no change, when a spare is missing.
pub fn split_ends(tree: &mut VmaTree, range: VirtRange, spares: &mut Spares) -> bool {
    range.is_empty()
        || spares.len() >= splits(tree, range)
            && split(tree, range.start, spares)
            && split(tree, range.end, spares)
}

/// Removes everything in `range` from the tree, splitting mappings at its ends, and returns it in ascending
/// order. `None`, with nothing removed, when a spare is missing.
pub fn carve(tree: &mut VmaTree, range: VirtRange, spares: &mut Spares) -> Option<VmaList> {
    if !split_ends(tree, range, spares) {
        return None;
    }
    let mut out = VmaList::new();
    while let Some(start) = tree.first_in(range).map(|vma| vma.range.start) {
        tree.remove(start).into_iter().for_each(|node| out.push(node));
    }
    Some(out)
}

/// Inserts a mapping and merges it with its neighbours where they agree. Returns it when it overlaps one.
pub fn insert(tree: &mut VmaTree, node: VmaBox, out: &mut VmaList) -> Result<(), VmaBox> {
    let range = node.range;
    tree.insert(node)?;
    merge(tree, range, out);
    Ok(())
}

/// Changes the attributes of all mappings in `range` and of no other address, then merges what agrees.
/// `false`, with nothing changed, when a spare is missing.
pub fn change(
    tree: &mut VmaTree,
    range: VirtRange,
    spares: &mut Spares,
    out: &mut VmaList,
    mut each: impl FnMut(&mut VmaAttributes),
) -> bool {
    if !split_ends(tree, range, spares) {
        return false;
    }
    let mut at = range.start;
    while let Some((start, end)) = tree.first_in(VirtRange { start: at, end: range.end }).map(ends) {
        tree.modify(start, &mut each);
        at = end;
    }
    merge(tree, range, out);
    true
}

fn ends(vma: &Vma) -> (VirtAddr, VirtAddr) {
    (vma.range.start, vma.range.end)
}

/// Merges every two neighbours that agree, from the one before `range` to the one after it.
pub fn merge(tree: &mut VmaTree, range: VirtRange, out: &mut VmaList) {
    let first = tree.find_before(range.start).or_else(|| tree.find_from(range.start));
    let Some((mut start, mut end)) = first.map(ends) else { return };
    while end <= range.end {
        let Some(after) = tree.find_from(end) else { return };
        let (next, moved) = (ends(after), after.attributes.moved);
        if tree.find(start).is_some_and(|vma| vma.merges_with(after)) {
            tree.modify(start, |merged| merged.moved = merged.moved.merged(moved));
            // The mapping is merged, not unmapped, so no handler is told of it.
            tree.remove(next.0).into_iter().for_each(|mut node| {
                node.attributes.handler = Registration::NONE;
                out.push(node);
            });
            let grown = tree.resize(start, VirtRange::new(start, next.1));
            debug_assert!(grown, "the place of a removed mapping is free");
        } else {
            start = next.0;
        }
        end = next.1;
    }
}

#[cfg(test)]
mod tests;
