//! Steps the library's page allocator and the model together.

mod many;
mod ranges;
mod refused;

use hosted::raw::{RawCounts, RawPages};
use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::error::AllocError;
use quire::page_alloc::{
    AllocatorConfig, Contents, CountError, Gfp, MemoryRange, NodePolicy, NodeSet, PageAllocator, Urgency,
};

use hosted::{FailurePlan, Hosted, HostedConfig};

use super::{BlockRun, Census, Class, FrameModel, FrameOp, FrameShape, Place, Room};

type Outcome = Result<(), String>;

/// Model and page allocator of one machine.
pub struct FrameLockstep<'p> {
    machine: &'p Hosted,
    allocator: PageAllocator<'p, Hosted>,
    model: FrameModel,
    shape: FrameShape,
    /// Memory that comes and goes, in parts of one zone each.
    later: Vec<FrameRange>,
    /// Allocated folios, in an order that operations name them by.
    live: Vec<(Frame, Order)>,
    /// The memory that can be allocated when nothing is.
    room: Room,
    last: Option<(Frame, Order)>,
    empty: Census,
}

/// The machine that a shape describes.
///
/// # Errors
/// As the machine's.
fn machine(shape: &FrameShape) -> Result<Hosted, hosted::HostedError> {
    let bytes = |range: &quire::page_alloc::MemoryRange| {
        let start = range.frames.start.addr().0;
        hosted::MemoryRange::new(start, range.frames.count * 4096).on_node(range.node)
    };
    let ranges = shape.ranges.iter().map(bytes).collect();
    let config = HostedConfig::new(0).with_ranges(ranges).with_cpus(shape.cpus);
    config.with_nodes(shape.cpu_nodes.clone()).build()
}

fn gfp(class: Class, place: Place) -> Gfp {
    let set = |bits: u8| (0..8).filter(|node| bits >> node & 1 == 1).collect::<NodeSet>();
    let nodes = match place {
        Place::Here => NodePolicy::Local,
        Place::At(node) => NodePolicy::Preferred(node),
        Place::First(bits) => NodePolicy::PreferredMany(set(bits)),
        Place::Only(bits) => NodePolicy::Bind(set(bits)),
        Place::InTurn(bits) => NodePolicy::Interleave(set(bits)),
    };
    let request = match class {
        Class::Kernel => Gfp::KERNEL,
        Class::User => Gfp::USER,
        Class::Atomic => Gfp::ATOMIC,
        Class::Dma32 => Gfp::DMA32,
        Class::Reclaimable => Gfp::RECLAIMABLE,
        Class::Reserve => Gfp { urgency: Urgency::Reserve, ..Gfp::USER },
        Class::KernelReserve => Gfp { urgency: Urgency::Reserve, ..Gfp::KERNEL },
    };
    request.from_nodes(nodes)
}

impl<'p> FrameLockstep<'p> {
    /// Builds the machine of `shape`, does the operations, frees everything and checks that nothing is lost.
    ///
    /// # Errors
    /// The difference, with the number of the operation.
    pub fn check(shape: &FrameShape, ops: &[(usize, FrameOp)]) -> Outcome {
        Self::check_failing(shape, ops, FailurePlan::Off)
    }

    /// The same on a machine where these allocations fail, which the model does not know.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_failing(shape: &FrameShape, ops: &[(usize, FrameOp)], failures: FailurePlan) -> Outcome {
        let machine = machine(shape).map_err(|error| format!("no machine: {error}"))?;
        let config = AllocatorConfig {
            movable_percent: shape.movable_percent,
            lists: shape.lists,
            group_by_mobility: shape.grouped,
            ..AllocatorConfig::default()
        };
        let new = |shape: &FrameShape| {
            let (ranges, later) = (shape.ranges_of(false), shape.ranges_of(true));
            hosted::raw::page_allocator_with_later(&machine, &ranges, &later, config)
        };
        // The first of two successive allocators shows what can be allocated.
        let survey = || {
            new(shape).map(|first| {
                let add = |range: &MemoryRange| first.add_memory_raw(range.frames, range.zeroed);
                shape.ranges_of(true).iter().try_for_each(add).map(|()| Room::survey(shape, &first))
            })
        };
        let room = match machine.run_on(CpuId(0), survey) {
            Ok(room) => room.map_err(|error| format!("the first allocator: {error}"))?,
            // A drawn machine may be too small for its own tables; that is no failure.
            Err(quire::error::InitError::TooSmall) => return Ok(()),
            Err(error) => return Err(format!("start: {error}")),
        };
        let mut shape = shape.clone();
        // Its memory is not zero any more.
        shape.ranges.iter_mut().for_each(|range| range.zeroed = false);
        let made = machine.run_on(CpuId(0), || new(&shape));
        let allocator = made.map_err(|error| format!("second start: {error}"))?;
        let ranges: Vec<FrameRange> = shape.ranges_of(false).iter().map(|range| range.frames).collect();
        let model = FrameModel::new(&ranges);
        let later = shape.ranges_of(true).iter().flat_map(|range| room.by_zone(range.frames)).collect();
        let mut lockstep = FrameLockstep {
            later,
            machine: &machine,
            allocator,
            model,
            shape,
            live: Vec::new(),
            room,
            last: None,
            empty: Census::default(),
        };
        lockstep.empty = lockstep.census();
        machine.set_failures(failures);
        lockstep.run(ops)
    }

    fn census(&self) -> Census {
        let info = self.allocator.memory_info();
        Census { free: info.free, cached: info.cached, used: info.used, metadata: info.metadata }
    }

    fn run(&mut self, ops: &[(usize, FrameOp)]) -> Outcome {
        let machine = self.machine;
        for (n, &(cpu, op)) in ops.iter().enumerate() {
            let cpu = CpuId((cpu % self.shape.cpus) as u32);
            let result = machine.run_on(cpu, || self.step(op).and_then(|()| self.compare(n % 64 == 63)));
            result.map_err(|what| format!("operation {n}, {op:?}: {what}"))?;
        }
        machine.run_on(CpuId(0), || self.compare(true).and_then(|()| self.give_all()))?;
        for cpu in 0..self.shape.cpus {
            machine.run_on(CpuId(cpu as u32), || self.allocator.lists().drain_local());
        }
        machine.run_on(CpuId(0), || self.remove_later())?;
        machine.run_on(CpuId(0), || self.compare(true)).map_err(|what| format!("at the end: {what}"))?;
        let census = self.census();
        if census == self.empty {
            Ok(())
        } else {
            Err(format!("all was given back and drained: {census:?}, at first it was {:?}", self.empty))
        }
    }

    fn compare(&mut self, deep: bool) -> Outcome {
        let census = self.census();
        // Frames that hold map counts are in use for the allocator, and belong to no caller.
        self.model.check(census).map_err(|fault| fault.to_string())?;
        if deep {
            self.allocator.validate().map_err(|violation| format!("{violation:?}"))?;
        }
        Ok(())
    }

    fn step(&mut self, op: FrameOp) -> Outcome {
        match op {
            FrameOp::Take(class, place, order) => self.take(class, place, order),
            FrameOp::TakeAll(class, place, order) => loop {
                let before = self.live.len();
                self.take(class, place, order)?;
                if self.live.len() == before {
                    return Ok(());
                }
            },
            FrameOp::TakeMany(class, place, order, count) => self.take_many(class, place, order, count),
            FrameOp::TakeRange(class, place, blocks, align) => {
                self.take_range(class, place, BlockRun { blocks, align: 1 << align })
            }
            FrameOp::GiveRange(which, blocks) => self.give_range(which, blocks),
            FrameOp::Give(which) => {
                self.named(which).map_or(Ok(()), |(frame, order)| self.give(frame, order))
            }
            FrameOp::GiveWrong(which, order) => {
                let order = Order::new(order).unwrap_or(Order::FRAME);
                self.named(which).map_or(Ok(()), |(frame, _)| self.give(frame, order))
            }
            FrameOp::GiveInside(which, by) => {
                self.named(which).map_or(Ok(()), |(frame, _)| self.give(frame.add(by), Order::FRAME))
            }
            FrameOp::GiveTwice => self.last.map_or(Ok(()), |(frame, order)| self.give(frame, order)),
            FrameOp::GiveForeign(frame, order) => {
                self.give(Frame(frame), Order::new(order).unwrap_or(Order::FRAME))
            }
            FrameOp::FillHoles(class, place, order, count, full) => {
                self.fill_holes(class, place, order, (count, full))
            }
            FrameOp::GiveMany(which, count) => self.give_many(which, count),
            FrameOp::GiveFrames(which, count) => self.give_frames(which, count),
            FrameOp::Map(which, times) => (0..times).try_for_each(|_| self.map(which)),
            FrameOp::Unmap(which, skip, count) => self.unmap(which, skip, count),
            FrameOp::TakeExact(class, place, frames) => self.take_exact(class, place, frames),
            FrameOp::TakeAt(which, from, count) => self.take_at(which, from, count),
            FrameOp::Add(which) => self.later(which).map_or(Ok(()), |range| self.add(range)),
            FrameOp::Remove(which) => self.later(which).map_or(Ok(()), |range| self.remove(range)),
            FrameOp::Drain => {
                self.allocator.lists().drain_local();
                Ok(())
            }
        }
    }

    fn named(&self, which: usize) -> Option<(Frame, Order)> {
        (!self.live.is_empty()).then(|| self.live[which % self.live.len()])
    }

    fn took_by_number(&mut self, frame: Frame, order: Order) -> Outcome {
        self.model.allocated(frame, order).map_err(|fault| fault.to_string())?;
        self.live.push((frame, order));
        Ok(())
    }

    fn took(&mut self, request: Gfp, frame: Frame, order: Order) -> Outcome {
        self.took_by_number(frame, order)?;
        let node = self.shape.node_of(frame);
        if !node.is_some_and(|node| self.allowed(request).is_some_and(|nodes| nodes.contains(node))) {
            return Err(format!("{frame:?} is on node {node:?}, which the request does not allow"));
        }
        // A folio's first frame may hold metadata when the folio does not exist; its last never does.
        match self.room.kind_of(frame.add(order.frames() - 1)) {
            Some(kind) if kind <= request.zone => Ok(()),
            kind => {
                Err(format!("{frame:?} lies in a zone of kind {kind:?}, which the request does not allow"))
            }
        }
    }

    fn take(&mut self, class: Class, place: Place, order: u8) -> Outcome {
        let order = Order::new(order).unwrap_or(Order::FRAME);
        let request = gfp(class, place);
        match self.allocator.alloc_raw(request, order) {
            Ok(frame) => self.took(request, frame, order),
            Err(error) => self.refused_folio(request, order, error, &format!("a folio of {order:?}")),
        }
    }

    fn take_range(&mut self, class: Class, place: Place, want: BlockRun) -> Outcome {
        let request = gfp(class, place);
        match self.allocator.alloc_contig_raw(request, want.blocks, want.align) {
            Ok(frame) if frame.is_aligned(Order::BLOCK) && frame.block().0.is_multiple_of(want.align) => {
                let blocks = (0..u64::from(want.blocks)).map(|at| frame.add(at * Order::BLOCK.frames()));
                blocks.into_iter().try_for_each(|frame| self.took(request, frame, Order::BLOCK))
            }
            Ok(frame) => Err(format!("{frame:?} for {want:?}")),
            Err(AllocError::BadOrder) if want.blocks == 0 => Ok(()),
            Err(error) => self.refused(request, error, &format!("{want:?}"), |nodes| {
                self.room.run_fits(&self.model, want, request.zone, nodes).is_some()
            }),
        }
    }

    fn give_range(&mut self, which: usize, blocks: u32) -> Outcome {
        let Some((frame, _)) = self.named(which) else { return Ok(()) };
        let first = frame.block().first_frame();
        let got = self.allocator.free_contig_raw(first, blocks);
        let want = self.model.free_run(first, blocks);
        if !FrameModel::same_answer(got, want) {
            return Err(format!("free of {blocks} blocks at {first:?}: answer {got:?}, want {want:?}"));
        }
        self.live = self.model.folios().collect();
        Ok(())
    }

    fn forget(&mut self, frame: Frame, order: Order) {
        self.live.retain(|&folio| folio != (frame, order));
        self.last = Some((frame, order));
    }

    fn give(&mut self, frame: Frame, order: Order) -> Outcome {
        // Freeing mapped memory is the caller's breach of contract, which a per-CPU list does not check.
        if self.model.holder(frame).is_some_and(|(start, order)| self.model.is_mapped(start, order)) {
            return Ok(());
        }
        let got = self.allocator.free_raw(frame, order);
        let want = self.model.free(frame, order);
        if !FrameModel::same_answer(got, want) {
            return Err(format!("free of {frame:?} {order:?}: answer {got:?}, want {want:?}"));
        }
        if want.is_ok() {
            self.forget(frame, order);
        }
        Ok(())
    }

    fn map(&mut self, which: usize) -> Outcome {
        let Some((frame, order)) = self.named(which) else { return Ok(()) };
        let run = FrameRange::folio(frame, order);
        let mut rest = run;
        // A folio of whole blocks needs a frame for its counts; no caller here owns that frame.
        if order >= Order::BLOCK {
            return self.map_large(frame, order);
        }
        while rest.count > 0 {
            let counted = self.allocator.counts().counter().map(rest);
            let done = match counted {
                Ok(()) => break,
                Err(CountError::Prepare { done, at }) => {
                    if self.allocator.counts().prepare_counts(at).is_err() {
                        self.model.map(FrameRange::new(run.start, rest.start.0 - run.start.0 + done));
                        return self.undo_map(run, rest.start.0 - run.start.0 + done);
                    }
                    done
                }
            };
            rest = FrameRange::new(rest.start.add(done), rest.count - done);
        }
        self.model.map(run);
        self.compare_counts(run)
    }

    /// Undoes the part of a mapping that was counted before memory ran out.
    fn undo_map(&mut self, run: FrameRange, done: u64) -> Outcome {
        self.unmap_run(FrameRange::new(run.start, done))
    }

    fn map_large(&mut self, frame: Frame, order: Order) -> Outcome {
        for block in FrameRange::folio(frame, order).by_block() {
            self.allocator.counts().counter().map_large(block.start, PageSize::Size2M);
        }
        self.model.map(FrameRange::folio(frame, order));
        self.compare_counts(FrameRange::folio(frame, order))
    }

    fn unmap(&mut self, which: usize, skip: u64, count: u64) -> Outcome {
        let Some((frame, order)) = self.named(which) else { return Ok(()) };
        if order >= Order::BLOCK {
            let first = frame.add((skip * 512) % order.frames());
            return if self.model.mapcount(first) > 0 { self.unmap_large(first) } else { Ok(()) };
        }
        let start = frame.add(skip % order.frames());
        let most = (frame.0 + order.frames() - start.0).min(count);
        let mapped = (0..most).take_while(|&n| self.model.mapcount(start.add(n)) > 0).count() as u64;
        self.unmap_run(FrameRange::new(start, mapped))
    }

    fn unmap_large(&mut self, frame: Frame) -> Outcome {
        let got =
            self.allocator.counts().counter().unmap_large_raw(frame, PageSize::Size2M, Contents::Unknown);
        let want = self.model.unmap(FrameRange::folio(frame, Order::BLOCK));
        self.freed(got, want)
    }

    fn unmap_run(&mut self, run: FrameRange) -> Outcome {
        if run.count == 0 {
            return Ok(());
        }
        let got = self.allocator.counts().counter().unmap_raw(run);
        let want = self.model.unmap(run);
        self.freed(got, want)
    }

    fn freed(&mut self, got: u64, want: u64) -> Outcome {
        self.live = self.model.folios().collect();
        if got == want { Ok(()) } else { Err(format!("{got} frames became free, want {want}")) }
    }

    fn compare_counts(&self, run: FrameRange) -> Outcome {
        for frame in run.start.0..run.end().0 {
            let (got, want) =
                (self.allocator.counts().mapcount(Frame(frame)), self.model.mapcount(Frame(frame)));
            if got != u64::from(want) {
                return Err(format!("frame {frame:#x} has a map count of {got}, want {want}"));
            }
        }
        Ok(())
    }

    fn give_all(&mut self) -> Outcome {
        while let Some(&(frame, order)) = self.live.last() {
            if !self.model.is_mapped(frame, order) {
                self.give(frame, order)?;
                continue;
            }
            let all = FrameRange::folio(frame, order);
            let mapped: Vec<u64> =
                (all.start.0..all.end().0).filter(|&n| self.model.mapcount(Frame(n)) > 0).collect();
            let step = if order >= Order::BLOCK { 512 } else { 1 };
            for &n in mapped.iter().filter(|&&n| n.is_multiple_of(step)) {
                while self.model.mapcount(Frame(n)) > 0 {
                    if step == 1 {
                        self.unmap_run(FrameRange::new(Frame(n), 1))?;
                    } else {
                        self.unmap_large(Frame(n))?;
                    }
                }
            }
        }
        Ok(())
    }
}
