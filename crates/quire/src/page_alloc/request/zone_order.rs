//! Which zones serve a request, and from which nodes frames came.

use crate::cpu::CpuId;
use crate::error::AllocError;
use crate::nodes::NodePolicy;
use crate::nodes::NodeSet;
use crate::page_alloc::request::Requests;
use crate::page_alloc::request::gfp::{Gfp, ZoneKind};
use crate::page_alloc::request::placement::{Placement, ZoneOrder, node_of};
use crate::platform::FramePlatform;
use crate::stats::Stat;
use crate::sync::Pinned;

impl<P: FramePlatform> Requests<'_, P> {
    /// How many nodes the machine has, those without memory included.
    pub fn node_count(&self) -> usize {
        self.placement.nodes()
    }

    /// The nodes that have memory, the one nearest to the running CPU first.
    pub fn nodes_by_distance(&self) -> impl Iterator<Item = u8> + '_ {
        self.nodes_for(NodePolicy::Local, 0)
    }

    /// The nodes that a policy allows and that have memory, the best first. Where nodes take turns, number
    /// `turn` of them is the first.
    pub fn nodes_for(&self, policy: NodePolicy, turn: u64) -> impl Iterator<Item = u8> + '_ {
        let local = || self.platform().node_of(Pinned::new(self.platform()).cpu());
        let (from, first, beyond) = match policy {
            NodePolicy::Local => (local(), NodeSet::ALL, false),
            NodePolicy::Preferred(node) => (node, NodeSet::ALL, false),
            NodePolicy::PreferredMany(set) => (local(), set, true),
            NodePolicy::Bind(set) => (local(), set, false),
            NodePolicy::Interleave(set) => {
                let usable = set.intersection(self.placement.with_memory);
                let at = turn % usable.len().max(1) as u64;
                (usable.iter().nth(at as usize).unwrap_or_else(local), usable, true)
            }
        };
        let inside = self.nodes_from(from).filter(move |&node| first.contains(node));
        inside.chain(self.nodes_from(from).filter(move |&node| beyond && !first.contains(node)))
    }

    /// The nodes that have memory, the one nearest to `node` first.
    fn nodes_from(&self, node: u8) -> impl Iterator<Item = u8> + '_ {
        let zones = self.placement.from(node, ZoneKind::Movable).unwrap_or(&[]);
        // The zones of a node stand next to each other.
        let mut last = None;
        zones.iter().map(|&zone| node_of(zone)).filter(move |&node| last.replace(node) != Some(node))
    }

    /// The zones that may serve a request, in order. An interleaving request takes its turn.
    #[inline]
    pub(in crate::page_alloc) fn zones_for(&self, cpu: CpuId, gfp: Gfp) -> Result<ZoneOrder<'_>, AllocError> {
        self.zones_by(cpu, gfp, Placement::take_turn)
    }

    /// The same for another attempt of a request that failed: its turn is the last one of this CPU.
    pub(in crate::page_alloc) fn zones_again(
        &self,
        cpu: CpuId,
        gfp: Gfp,
    ) -> Result<ZoneOrder<'_>, AllocError> {
        self.zones_by(cpu, gfp, Placement::last_turn)
    }

    #[inline]
    fn zones_by(
        &self,
        cpu: CpuId,
        gfp: Gfp,
        turn: impl FnOnce(&Placement, CpuId, NodeSet) -> u8,
    ) -> Result<ZoneOrder<'_>, AllocError> {
        let placement = &self.placement;
        let local = self.platform().node_of(cpu);
        let (from, first, beyond) = match gfp.nodes {
            NodePolicy::Local => (local, NodeSet::ALL, false),
            NodePolicy::Preferred(node) => (node, NodeSet::ALL, false),
            NodePolicy::PreferredMany(set) => (local, placement.usable(set)?, true),
            NodePolicy::Bind(set) => (local, placement.usable(set)?, false),
            NodePolicy::Interleave(set) => {
                let usable = placement.usable(set)?;
                (turn(placement, cpu, usable), usable, true)
            }
        };
        Ok(ZoneOrder { zones: placement.from(from, gfp.zone)?, first, beyond })
    }

    /// Counts the nodes from which the slow path took frames (Linux: `numa_miss` and its kin). The common
    /// path is not counted: it takes from the nearest node alone, which is the node that was asked for.
    pub(in crate::page_alloc) fn count_placed(
        &self,
        cpu: CpuId,
        gfp: Gfp,
        zones: ZoneOrder<'_>,
        zone: usize,
        frames: u64,
    ) {
        if self.placement.with_memory.len() <= 1 {
            return;
        }
        let (node, cells) = (Some(node_of(zone as u8)), self.frames().cells(cpu));
        if node != zones.first_node() {
            cells.add(Stat::NumaMiss, frames);
            cells.add(Stat::NumaForeign, frames);
        } else if matches!(gfp.nodes, NodePolicy::Interleave(_)) {
            cells.add(Stat::InterleaveHit, frames);
        }
        let nearest = self.placement.from(self.platform().node_of(cpu), gfp.zone);
        if node != nearest.ok().and_then(|zones| zones.first()).map(|&zone| node_of(zone)) {
            cells.add(Stat::NumaOther, frames);
        }
    }
}
