//! A radix tree from page index to one word, with nodes that the caller allocates.
//!
//! # Invariants
//!
//! R1. Every node reachable from the root is live and owned by this tree: it came from the caller's
//!     `allocate` and goes back through the caller's `free`. Pointers to nodes do not leave this file.
//! R2. The tree has `height` levels; slots of nodes at the lowest hold words, those above hold pointers or
//!     nothing. So the level at which a [`Slot`] was reached says which of its members is valid.
//! R3. The tree is borrowed exclusively while a node is changed and shared while one is read.
//! R4. No node is empty, save for those on the way to an index during [`RadixTree::insert`].

use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::NonNull;

const BITS: u32 = 6;
const WIDTH: usize = 1 << BITS;
/// Levels for 52 bits of page index: byte offsets of 64 bits.
const LEVELS: usize = 9;
/// All indices are below this.
pub(crate) const INDEX_END: u64 = 1 << 52;

/// A word (not zero) at the lowest level, a pointer above.
#[derive(Clone, Copy)]
union Slot {
    word: u64,
    child: Option<NonNull<RadixNode>>,
}

/// 64 slots: 512 bytes, so that a frame holds eight nodes.
pub(super) struct RadixNode {
    slots: [Slot; WIDTH],
}

const _: () = assert!(size_of::<RadixNode>() == 512);

pub(super) type NodeMemory = NonNull<MaybeUninit<RadixNode>>;

pub(super) struct RadixTree {
    root: Option<NonNull<RadixNode>>,
    height: u8,
}

// SAFETY: R1: the tree owns its nodes, which are plain data; the tree's owner may use them on any CPU.
unsafe impl Send for RadixTree {}
// SAFETY: R3: a shared tree is only read.
unsafe impl Sync for RadixTree {}

/// The slot of a node at `level` (0 the lowest) on the way to `index`.
#[inline]
const fn slot_of(index: u64, level: u8) -> usize {
    (index >> (BITS * level as u32)) as usize % WIDTH
}

/// The levels of a tree that reaches `index`.
const fn levels_for(index: u64) -> u8 {
    let bits = u64::BITS - (index | 1).leading_zeros();
    bits.div_ceil(BITS) as u8
}

impl RadixTree {
    pub(super) const fn new() -> Self {
        Self { root: None, height: 0 }
    }

    /// Whether no index has a word.
    #[cfg(test)]
    pub(super) const fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The word at `index`; 0 when there is none.
    #[inline]
    pub(super) fn get(&self, index: u64) -> u64 {
        match self.lowest(index) {
            // SAFETY: R1, R3: a live node that is only read; R2: at the lowest level slots hold words.
            Some(node) => unsafe { node.as_ref().slots[slot_of(index, 0)].word },
            None => 0,
        }
    }

    /// Replaces the word at `index` by another that is not zero. Returns whether there was one.
    #[inline]
    pub(super) fn set(&mut self, index: u64, word: u64) -> bool {
        debug_assert!(word != 0);
        let Some(mut node) = self.lowest(index) else { return false };
        // SAFETY: R1, R3: a live node, the tree borrowed exclusively; R2: the lowest level holds words.
        let slot = unsafe { &mut node.as_mut().slots[slot_of(index, 0)].word };
        let there = *slot != 0;
        if there {
            *slot = word;
        }
        there
    }

    /// Stores a word (not zero) at `index`, which is below [`INDEX_END`] and has none. Returns `false`, and
    /// has changed nothing, when `allocate` gives no memory.
    pub(super) fn insert(
        &mut self,
        index: u64,
        word: u64,
        mut allocate: impl FnMut() -> Option<NodeMemory>,
        mut free: impl FnMut(NodeMemory),
    ) -> bool {
        debug_assert!(word != 0 && index < INDEX_END && self.get(index) == 0);
        if self.root.is_none() {
            let Some(top) = allocate().map(empty_node) else { return false };
            self.root = Some(top);
            self.height = levels_for(index);
        }
        while self.height < levels_for(index) {
            let Some(mut top) = allocate().map(empty_node) else {
                self.shrink(&mut free);
                return false;
            };
            // SAFETY: R1: `empty_node` has just made the node, which no other code knows.
            unsafe { top.as_mut() }.slots[0] = Slot { child: self.root };
            (self.root, self.height) = (Some(top), self.height + 1);
        }
        let Some(mut node) = self.root else { return false };
        for level in (1..self.height).rev() {
            // SAFETY: R1, R3: a live node, the tree borrowed exclusively; R2: upper levels hold pointers.
            let child = unsafe { &mut node.as_mut().slots[slot_of(index, level)].child };
            node = match *child {
                Some(child) => child,
                None => match allocate().map(empty_node) {
                    Some(fresh) => *child.insert(fresh),
                    None => {
                        self.prune(index, &mut free);
                        return false;
                    }
                },
            };
        }
        // SAFETY: R1, R3: a live node, the tree borrowed exclusively; R2: the loop came to the lowest level.
        unsafe { node.as_mut() }.slots[slot_of(index, 0)] = Slot { word };
        true
    }

    /// Takes the word at `index` out; 0 when there was none.
    pub(super) fn remove(&mut self, index: u64, mut free: impl FnMut(NodeMemory)) -> u64 {
        let Some(mut node) = self.lowest(index) else { return 0 };
        // SAFETY: R1, R3: a live node, the tree borrowed exclusively; R2: the lowest level holds words.
        let word = unsafe { core::mem::replace(&mut node.as_mut().slots[slot_of(index, 0)].word, 0) };
        if word != 0 {
            self.prune(index, &mut free);
        }
        word
    }

    /// The first index at or after `from` that has a word, and the word.
    pub(super) fn next(&self, from: u64) -> Option<(u64, u64)> {
        let mut index = from;
        while self.height > 0 && index >> (BITS * u32::from(self.height)) == 0 {
            let (mut node, mut level) = (self.root?, self.height - 1);
            loop {
                // SAFETY: R1, R3: a live node that is only read.
                let slot = unsafe { node.as_ref() }.slots[slot_of(index, level)];
                // SAFETY: R2: the lowest level holds words, the others pointers.
                let (word, child) = unsafe { if level == 0 { (slot.word, None) } else { (0, slot.child) } };
                if word != 0 {
                    return Some((index, word));
                }
                match child {
                    Some(child) => (node, level) = (child, level - 1),
                    None => break,
                }
            }
            // Nothing below this slot: go on to the next one.
            let shift = BITS * u32::from(level);
            index = ((index >> shift) + 1) << shift;
        }
        None
    }

    /// Shows the index and the word of each index in the range that has one, in ascending order. For a range
    /// that few lowest nodes cover: a missing one costs a walk.
    pub(super) fn for_each(&self, range: Range<u64>, mut show: impl FnMut(u64, u64)) {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min((start | (WIDTH as u64 - 1)) + 1);
            if let Some(node) = self.lowest(start) {
                // SAFETY: R1, R3: a live node that is only read.
                let slots = &unsafe { node.as_ref() }.slots[slot_of(start, 0)..][..(end - start) as usize];
                for (index, slot) in (start..end).zip(slots) {
                    // SAFETY: R2: at the lowest level slots hold words.
                    match unsafe { slot.word } {
                        0 => {}
                        word => show(index, word),
                    }
                }
            }
            start = end;
        }
    }

    #[inline]
    fn lowest(&self, index: u64) -> Option<NonNull<RadixNode>> {
        if index >> (BITS * u32::from(self.height)) != 0 {
            return None;
        }
        let mut node = self.root?;
        for level in (1..self.height).rev() {
            // SAFETY: R1, R3: a live node that is only read; R2: above the lowest level slots hold pointers.
            node = unsafe { node.as_ref().slots[slot_of(index, level)].child }?;
        }
        Some(node)
    }

    /// Frees the empty nodes on the way to `index`, from the lowest up, and then unneeded top levels.
    fn prune(&mut self, index: u64, free: &mut impl FnMut(NodeMemory)) {
        let mut path = [None; LEVELS];
        let (mut node, mut level) = (self.root, self.height);
        while let Some(here) = node {
            level -= 1;
            path[usize::from(level)] = Some(here);
            if level == 0 {
                break;
            }
            // SAFETY: R1, R3: a live node that is only read; R2: above the lowest level slots hold pointers.
            node = unsafe { here.as_ref().slots[slot_of(index, level)].child };
        }
        for level in level..self.height {
            let Some(here) = path[usize::from(level)] else { break };
            if !is_empty(here, level) {
                break;
            }
            match path.get(usize::from(level) + 1).copied().flatten() {
                // SAFETY: R1, R3: a live node, and the tree is borrowed exclusively.
                Some(mut above) => unsafe {
                    above.as_mut().slots[slot_of(index, level + 1)] = Slot { child: None };
                },
                None => (self.root, self.height) = (None, 0),
            }
            free(here.cast());
        }
        self.shrink(free);
    }

    /// Frees top levels of which only the first slot is used.
    fn shrink(&mut self, free: &mut impl FnMut(NodeMemory)) {
        while self.height > 1 {
            let Some(top) = self.root else { return };
            // SAFETY: R1, R3: a live node that is only read; R2: height above one, so slots hold pointers.
            let (first, others) = unsafe {
                let slots = &top.as_ref().slots;
                (slots[0].child, slots[1..].iter().any(|slot| slot.child.is_some()))
            };
            if others || first.is_none() {
                return;
            }
            (self.root, self.height) = (first, self.height - 1);
            free(top.cast());
        }
    }
}

fn empty_node(memory: NodeMemory) -> NonNull<RadixNode> {
    let node = memory.cast::<RadixNode>();
    // SAFETY: R1: the caller's `allocate` gave the memory to this tree alone. All zero is a word of zero and,
    // by the null pointer niche, no child, so every slot may be read either way.
    unsafe { node.write_bytes(0, 1) };
    node
}

fn is_empty(node: NonNull<RadixNode>, level: u8) -> bool {
    // SAFETY: R1, R3: a live node of a tree that the caller has borrowed; R2 says which member to read.
    let slots = unsafe { &node.as_ref().slots };
    // SAFETY: R2: words at the lowest level, pointers above.
    slots.iter().all(|slot| unsafe { if level == 0 { slot.word == 0 } else { slot.child.is_none() } })
}

#[cfg(test)]
mod tests;
