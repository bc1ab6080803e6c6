//! Which zones may serve a request: nodes by policy and distance, in each the kinds from the highest down.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::cpu::CpuId;
use crate::error::AllocError;
use crate::memmap::BootSlice;
use crate::nodes::NodePolicy;
use crate::nodes::NodeSet;
use crate::page_alloc::request::gfp::{Gfp, KINDS, ZoneKind};
use crate::page_alloc::store::zone::OwnLine;

/// The nodes of a machine, as seen from each of them.
pub(in crate::page_alloc) struct Placement {
    /// For each node and kind, the zones to try, nearest node first: `nearest[node * 3 + kind]`.
    pub(in crate::page_alloc) nearest: BootSlice<BootSlice<u8>>,
    /// Nodes that have memory.
    pub(in crate::page_alloc) with_memory: NodeSet,
    /// For each CPU, the node of its last interleaving request. Plain loads and stores do: an interrupt costs
    /// a turn.
    pub(in crate::page_alloc) turns: BootSlice<OwnLine<AtomicU8>>,
}

/// The zones for one request: of the nodes in `first`, in the order of `zones`, then the others if `beyond`.
#[derive(Clone, Copy)]
pub(in crate::page_alloc) struct ZoneOrder<'a> {
    pub(in crate::page_alloc) zones: &'a [u8],
    pub(in crate::page_alloc) first: NodeSet,
    pub(in crate::page_alloc) beyond: bool,
}

impl<'a> ZoneOrder<'a> {
    pub(in crate::page_alloc) fn iter(self) -> impl Iterator<Item = &'a u8> + Clone {
        let inside = move |zone: &&u8| self.first.contains(node_of(**zone));
        let rest = if self.beyond { self.zones } else { &[] };
        self.zones.iter().filter(inside).chain(rest.iter().filter(move |zone| !inside(zone)))
    }

    /// The node that the policy names first.
    pub(in crate::page_alloc) fn first_node(self) -> Option<u8> {
        self.iter().next().map(|&zone| node_of(zone))
    }
}

pub(in crate::page_alloc) fn node_of(zone: u8) -> u8 {
    zone / KINDS as u8
}

impl Placement {
    /// Includes nodes without memory.
    pub(in crate::page_alloc) fn nodes(&self) -> usize {
        self.nearest.len() / KINDS
    }

    pub(in crate::page_alloc) fn from(&self, node: u8, kind: ZoneKind) -> Result<&[u8], AllocError> {
        let zones = self.nearest.get(usize::from(node) * KINDS + kind as usize);
        zones.map(|zones| zones.as_slice()).ok_or(AllocError::BadNode)
    }

    /// The nodes of a policy's set that have memory.
    pub(in crate::page_alloc) fn usable(&self, set: NodeSet) -> Result<NodeSet, AllocError> {
        let usable = set.intersection(self.with_memory);
        let exists = set.is_within(NodeSet::first(self.nodes())) && !usable.is_empty();
        if exists { Ok(usable) } else { Err(AllocError::BadNode) }
    }

    /// Among how many nodes a bulk request is divided.
    pub(in crate::page_alloc) fn turns_of(&self, gfp: Gfp) -> usize {
        match gfp.nodes {
            NodePolicy::Interleave(set) => self.usable(set).map_or(1, NodeSet::len),
            _ => 1,
        }
    }

    pub(in crate::page_alloc) fn take_turn(&self, cpu: CpuId, set: NodeSet) -> u8 {
        let last = &self.turns[cpu.index()].0;
        let next = set.next_after(last.load(Ordering::Relaxed)).unwrap_or_default();
        last.store(next, Ordering::Relaxed);
        next
    }

    /// The node of the CPU's last turn, if it belongs to the set.
    pub(in crate::page_alloc) fn last_turn(&self, cpu: CpuId, set: NodeSet) -> u8 {
        let last = self.turns[cpu.index()].0.load(Ordering::Relaxed);
        if set.contains(last) { last } else { self.take_turn(cpu, set) }
    }
}
