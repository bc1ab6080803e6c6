//! Refusals, which are checked and not believed.

use hosted::raw::RawPages;
use quire::addr::Order;
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::page_alloc::{Gfp, NodePolicy, NodeSet, Urgency};

use super::{BlockRun, FrameLockstep, Outcome};

impl FrameLockstep<'_> {
    /// The nodes that a request may be served from; `None` if it names a missing one.
    pub(super) fn allowed(&self, request: Gfp) -> Option<NodeSet> {
        let all = NodeSet::first(self.shape.nodes().into());
        let with_memory: NodeSet = self.shape.ranges.iter().map(|range| range.node).collect();
        let usable = |set: NodeSet| set.is_within(all) && !set.intersection(with_memory).is_empty();
        match request.nodes {
            NodePolicy::Local => Some(all),
            NodePolicy::Preferred(node) => all.contains(node).then_some(all),
            NodePolicy::Bind(set) => usable(set).then_some(set),
            NodePolicy::PreferredMany(set) | NodePolicy::Interleave(set) => usable(set).then_some(all),
        }
    }

    /// Checks a refusal: the nodes are missing, or nothing that fits is free.
    pub(super) fn refused(
        &self,
        request: Gfp,
        error: AllocError,
        what: &str,
        room: impl Fn(NodeSet) -> bool,
    ) -> Outcome {
        match (self.allowed(request), error) {
            (None, AllocError::BadNode) => Ok(()),
            (Some(nodes), AllocError::OutOfMemory) => {
                if request.urgency == Urgency::Reserve && !self.shape.cuts && room(nodes) {
                    return Err(format!("refused {what}, which is free: {:?}", self.census()));
                }
                Ok(())
            }
            (nodes, error) => Err(format!("refused {what}: {error:?}, of nodes {nodes:?}")),
        }
    }

    /// Whether a folio of the order is free for the request.
    pub(super) fn has_room(&self, request: Gfp, order: Order, nodes: NodeSet) -> bool {
        if order < Order::BLOCK {
            return self.room.fits(&self.model, order, request.zone, nodes).is_some();
        }
        self.room.run_fits(&self.model, BlockRun::of(order), request.zone, nodes).is_some()
    }

    /// Checks that a folio was rightly refused.
    ///
    /// A request that may not use the reserve fails after a bounded search, and other CPUs keep what is on their lists.
    /// So where that cannot be the whole reason, all lists are drained and the request is made again.
    pub(super) fn refused_folio(&self, request: Gfp, order: Order, error: AllocError, what: &str) -> Outcome {
        self.refused(request, error, what, |nodes| self.has_room(request, order, nodes))?;
        if !self.allowed(request).is_some_and(|nodes| self.has_plenty(request, order, nodes)) {
            return Ok(());
        }
        self.drain_all();
        match self.allocator.alloc_raw(request, order) {
            Ok(frame) => self.allocator.free_raw(frame, order).map_err(|error| error.to_string()),
            Err(_) => Err(format!("refused {what}, with whole blocks free: {:?}", self.census())),
        }
    }

    /// Whether some zone has so many whole blocks free that neither what it keeps nor the allocator's own records explain
    /// a refusal.
    fn has_plenty(&self, request: Gfp, order: Order, nodes: NodeSet) -> bool {
        // Each frame of records may stand in another block.
        let records = self.census().metadata.saturating_sub(self.empty.metadata);
        // A zone keeps at most a sixteenth of its frames, and a quarter of them from requests that may use other zones.
        let kept = |frames: u64| (frames + self.empty.metadata) * 5 / 16;
        let want = BlockRun { blocks: 1, align: 1 };
        let want = if order > Order::BLOCK { BlockRun::of(order) } else { want };
        self.room.has_plenty(&self.model, want, (request.zone, nodes), records, kept)
    }

    /// Drains the lists of all CPUs.
    fn drain_all(&self) {
        let own = self.machine.this_cpu();
        self.allocator.lists().drain_local();
        for cpu in (0..self.shape.cpus).map(|cpu| CpuId(cpu as u32)).filter(|&cpu| cpu != own) {
            self.machine.run_on(cpu, || self.allocator.lists().drain_local());
        }
    }
}
