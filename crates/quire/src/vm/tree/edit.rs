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
    let Some(whole) = tree.ptr_from(at).filter(|&whole| tree.avl.node(whole).vma.range.start < at) else {
        return true;
    };
    let Some(upper) = spares.take() else { return false };
    tree.split_at(whole, at, upper);
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
    if spares.len() < splits(tree, range) {
        return None;
    }
    let mut out = VmaList::new();
    while let Some(at) = tree.ptr_in(range) {
        let whole = tree.avl.node(at).vma.range;
        let gone = whole.intersect(range);
        if gone == whole {
            out.push(tree.remove_at(at));
            continue;
        }
        if whole.start < range.start && range.end < whole.end {
            tree.split_at(at, range.end, spares.take()?);
        }
        let mut node = spares.take()?;
        tree.cut_off(at, gone, &mut node);
        out.push(node);
    }
    Some(out)
}

/// Inserts a mapping and merges it with its neighbours where they agree. Returns it when it overlaps one.
pub fn insert(tree: &mut VmaTree, node: VmaBox, out: &mut VmaList) -> Result<(), VmaBox> {
    let range = node.range;
    let (before, after) = (tree.ptr_before(range.start), tree.ptr_from(range.start));
    let is_free = after.is_none_or(|after| range.end <= tree.avl.node(after).vma.range.start);
    if let Some(before) = before.filter(|&before| is_free && tree.avl.node(before).vma.merges_with(&node)) {
        // The mapping in front grows over the place.
        let old = &tree.avl.node(before).vma;
        let (start, moved) = (old.range.start, old.attributes.moved.merged(node.attributes.moved));
        tree.avl.node_mut(before).vma.attributes.moved = moved;
        tree.set_range(before, VirtRange::new(start, range.end));
        discard_merged(node, out);
    } else {
        tree.insert(node)?;
    }
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
    let Some(mut at) = tree.ptr_before(range.start).or_else(|| tree.ptr_from(range.start)) else { return };
    while let Some(next) = tree.avl.successor(at)
        && tree.avl.node(at).vma.range.end <= range.end
    {
        let (vma, after) = (&tree.avl.node(at).vma, &tree.avl.node(next).vma);
        if !vma.merges_with(after) {
            at = next;
            continue;
        }
        let moved = vma.attributes.moved.merged(after.attributes.moved);
        tree.avl.node_mut(at).vma.attributes.moved = moved;
        discard_merged(tree.absorb(at, next), out);
    }
}

/// The mapping is merged, not unmapped, so no handler is told of it.
fn discard_merged(mut node: VmaBox, out: &mut VmaList) {
    node.attributes.handler = Registration::NONE;
    out.push(node);
}

#[cfg(test)]
mod tests;
