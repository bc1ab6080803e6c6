//! Sets of memory nodes, and how to choose among nodes.

use crate::limits::MAX_NODES;

/// Stands for all nodes that no machine can have.
const BEYOND: u32 = 1 << MAX_NODES;

/// A set of memory nodes (Linux: `nodemask_t`). It remembers that a node was named which no machine can have,
/// so that the request is refused and not served from the rest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeSet(u32);

/// Which nodes a request is served from (Linux: the modes of `set_mempolicy(2)`), here per request.
///
/// A set may name nodes without memory, since CPUs may be there, but it must name one that has memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NodePolicy {
    /// The running CPU's node first, then the others by their distance from it (`MPOL_LOCAL`).
    #[default]
    Local,
    /// This node first, then the others by their distance from it (`MPOL_PREFERRED`).
    Preferred(u8),
    /// These nodes first, those nearest to the running CPU before the others of them, then all others
    /// (`MPOL_PREFERRED_MANY`).
    PreferredMany(NodeSet),
    /// These nodes and no other, those nearest to the running CPU first (`MPOL_BIND`).
    Bind(NodeSet),
    /// The nodes of the set in turn, one for each request (a bulk request is one), with separate turns for
    /// each CPU. When that node is short, the others of the set by distance from it, and then nodes outside
    /// the set, as under Linux's `MPOL_INTERLEAVE`. A request that must not leave the set binds.
    Interleave(NodeSet),
}

/// How a program named the nodes of a policy (Linux: the mode flags of `set_mempolicy(2)`). The kernel shows
/// it to the program. It changes no placement: the policy has the nodes of the machine that were meant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum NodeNames {
    /// As the policy has them.
    #[default]
    Plain,
    /// By these numbers, whichever nodes may be used (`MPOL_F_STATIC_NODES`).
    Static(NodeSet),
    /// By their place among the nodes that may be used (`MPOL_F_RELATIVE_NODES`).
    Relative(NodeSet),
}

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self(0);
    /// Every node that a machine can have.
    pub const ALL: Self = Self::first(MAX_NODES);

    /// The one node.
    pub const fn one(node: u8) -> Self {
        Self::EMPTY.with(node)
    }

    /// Nodes 0 to `count - 1`.
    pub const fn first(count: usize) -> Self {
        if count > MAX_NODES { Self(BEYOND | (BEYOND - 1)) } else { Self((1 << count) - 1) }
    }

    /// These nodes.
    pub const fn of(nodes: &[u8]) -> Self {
        let (mut set, mut at) = (Self::EMPTY, 0);
        while at < nodes.len() {
            set = set.with(nodes[at]);
            at += 1;
        }
        set
    }

    /// The set and this node.
    #[must_use]
    pub const fn with(self, node: u8) -> Self {
        if node as usize >= MAX_NODES { Self(self.0 | BEYOND) } else { Self(self.0 | 1 << node) }
    }

    /// The set without this node.
    #[must_use]
    pub const fn without(self, node: u8) -> Self {
        if node as usize >= MAX_NODES { self } else { Self(self.0 & !(1 << node)) }
    }

    /// The nodes in both.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every node of this set is in the other.
    pub const fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether the node is in the set.
    #[inline]
    pub const fn contains(self, node: u8) -> bool {
        (node as usize) < MAX_NODES && self.0 >> node & 1 == 1
    }

    /// Whether there is no node in the set.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many nodes.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The nodes in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..MAX_NODES as u8).filter(move |&node| self.contains(node))
    }

    /// The nodes of `allowed` that stand at the places which this set names, counted from the lowest one and
    /// going round (Linux: `mpol_relative_nodemask`). No node if none is allowed.
    #[must_use]
    pub fn relative_to(self, allowed: Self) -> Self {
        let place = |node: u8| allowed.iter().nth(usize::from(node) % allowed.len());
        if allowed.is_empty() { Self::EMPTY } else { self.iter().filter_map(place).collect() }
    }

    /// The first node of the set behind `node`, going round; `None` when the set is empty.
    pub fn next_after(self, node: u8) -> Option<u8> {
        (1..=MAX_NODES as u8)
            .map(|step| node.wrapping_add(step) % MAX_NODES as u8)
            .find(|&next| self.contains(next))
    }
}

impl FromIterator<u8> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u8>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

#[cfg(test)]
mod tests;
