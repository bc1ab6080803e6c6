//! Which zones may serve a request, and in what order: nodes by policy and distance, in each node the kinds of zone
//! from the highest down.

use core::sync::atomic::{AtomicU8, Ordering};

use super::PageAllocator;
use super::gfp::{Gfp, NodePolicy, ZoneKind};
use super::layout::KINDS;
use super::node_set::NodeSet;
use super::zone::OwnLine;
use crate::cpu::CpuId;
use crate::error::AllocError;
use crate::memmap::BootSlice;
use crate::platform::FramePlatform;
use crate::stats::Stat;
use crate::sync::Pinned;

/// The nodes of a machine, as seen from each of them.
pub(super) struct Placement {
    /// For each node and kind, the zones to try, nearest node first: `nearest[node * 3 + kind]`.
    pub(super) nearest: BootSlice<BootSlice<u8>>,
    /// Nodes that have memory.
    pub(super) with_memory: NodeSet,
    /// For each CPU, the node whose turn it was last under an interleaving request. A turn that an interrupt takes away
    /// is only lost to the count of turns, so plain loads and stores do.
    pub(super) turns: BootSlice<OwnLine<AtomicU8>>,
}

/// The zones that may serve one request: those of `first` in the order of `zones`, then perhaps the others.
#[derive(Clone, Copy)]
pub(super) struct ZoneOrder<'a> {
    zones: &'a [u8],
    first: NodeSet,
    beyond: bool,
}

impl<'a> ZoneOrder<'a> {
    /// The zones' indices, each once.
    pub(super) fn iter(self) -> impl Iterator<Item = &'a u8> + Clone {
        let inside = move |zone: &&u8| self.first.contains(node_of(**zone));
        let rest = if self.beyond { self.zones } else { &[] };
        self.zones.iter().filter(inside).chain(rest.iter().filter(move |zone| !inside(zone)))
    }

    /// The node that the policy names first.
    fn first_node(self) -> Option<u8> {
        self.iter().next().map(|&zone| node_of(zone))
    }
}

/// The node of a zone.
fn node_of(zone: u8) -> u8 {
    zone / KINDS as u8
}

impl Placement {
    /// How many nodes there are, those without memory included.
    pub(super) fn nodes(&self) -> usize {
        self.nearest.len() / KINDS
    }

    fn from(&self, node: u8, kind: ZoneKind) -> Result<&[u8], AllocError> {
        let zones = self.nearest.get(usize::from(node) * KINDS + kind as usize);
        zones.map(|zones| zones.as_slice()).ok_or(AllocError::BadNode)
    }

    /// The zone that serves requests from a node first.
    pub(super) fn nearest_zone(&self, node: u8, kind: ZoneKind) -> Option<u8> {
        self.nearest.get(usize::from(node) * KINDS + kind as usize)?.first().copied()
    }

    /// The members of a policy's set that have memory.
    fn usable(&self, set: NodeSet) -> Result<NodeSet, AllocError> {
        let usable = set.intersection(self.with_memory);
        let exists = set.is_within(NodeSet::first(self.nodes())) && !usable.is_empty();
        if exists { Ok(usable) } else { Err(AllocError::BadNode) }
    }

    /// Among how many nodes a bulk request is divided.
    pub(super) fn turns_of(&self, gfp: Gfp) -> usize {
        match gfp.nodes {
            NodePolicy::Interleave(set) => self.usable(set).map_or(1, NodeSet::len),
            _ => 1,
        }
    }

    fn take_turn(&self, cpu: CpuId, set: NodeSet) -> u8 {
        let last = &self.turns[cpu.index()].0;
        let next = set.next_after(last.load(Ordering::Relaxed)).unwrap_or_default();
        last.store(next, Ordering::Relaxed);
        next
    }
}

impl<P: FramePlatform> PageAllocator<'_, P> {
    /// How many nodes the machine has, those without memory included.
    pub fn node_count(&self) -> usize {
        self.placement.nodes()
    }

    /// The nodes that have memory, the one nearest to the running CPU first.
    pub fn nodes_by_distance(&self) -> impl Iterator<Item = u8> + '_ {
        let local = self.platform.node_of(Pinned::new(self.platform).cpu());
        let zones = self.placement.from(local, ZoneKind::Movable).unwrap_or(&[]);
        // The zones of a node stand next to each other.
        let mut last = None;
        zones.iter().map(|&zone| node_of(zone)).filter(move |&node| last.replace(node) != Some(node))
    }

    /// The zones that may serve a request, in order. An interleaving request takes its turn.
    #[inline]
    pub(super) fn zones_for(&self, cpu: CpuId, gfp: Gfp) -> Result<ZoneOrder<'_>, AllocError> {
        let placement = &self.placement;
        let local = self.platform.node_of(cpu);
        let (from, first, beyond) = match gfp.nodes {
            NodePolicy::Local => (local, NodeSet::ALL, false),
            NodePolicy::Preferred(node) => (node, NodeSet::ALL, false),
            NodePolicy::Bind(set) => (local, placement.usable(set)?, false),
            NodePolicy::Interleave(set) => {
                let usable = placement.usable(set)?;
                (placement.take_turn(cpu, usable), usable, true)
            }
        };
        Ok(ZoneOrder { zones: placement.from(from, gfp.zone)?, first, beyond })
    }

    /// Counts where frames that took the long way came from. The common path serves from the nearest node only, so all
    /// that is not counted here was meant for and came from there.
    pub(super) fn count_placed(&self, cpu: CpuId, gfp: Gfp, zones: ZoneOrder<'_>, zone: usize, frames: u64) {
        if self.placement.with_memory.len() <= 1 {
            return;
        }
        let (node, cells) = (Some(node_of(zone as u8)), self.cells(cpu));
        if node != zones.first_node() {
            cells.add(Stat::NumaMiss, frames);
            cells.add(Stat::NumaForeign, frames);
        } else if matches!(gfp.nodes, NodePolicy::Interleave(_)) {
            cells.add(Stat::InterleaveHit, frames);
        }
        let nearest = self.placement.from(self.platform.node_of(cpu), gfp.zone);
        if node != nearest.ok().and_then(|zones| zones.first()).map(|&zone| node_of(zone)) {
            cells.add(Stat::NumaOther, frames);
        }
    }
}
