//! Steps the library's page allocator and the model together.

use quire::addr::{Frame, FrameRange, Order, PageSize};
use quire::cpu::CpuId;
use quire::page_alloc::{
    AllocatorConfig, CountError, Gfp, NodePolicy, NodeSet, PageAllocator, Urgency, ZoneKind,
};

use hosted::{Hosted, HostedConfig};

use super::{Census, Class, FrameModel, FrameOp, FrameShape};

type Outcome = Result<(), String>;

/// Model and page allocator of one machine.
pub struct FrameLockstep<'p> {
    machine: &'p Hosted,
    allocator: PageAllocator<'p, Hosted>,
    model: FrameModel,
    shape: FrameShape,
    /// Folios handed out, in an order that operations name them by.
    live: Vec<(Frame, Order)>,
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
    HostedConfig::new(0).with_ranges(shape.ranges.iter().map(bytes).collect()).with_cpus(shape.cpus).build()
}

fn gfp(class: Class) -> Gfp {
    match class {
        Class::Kernel => Gfp::KERNEL,
        Class::User => Gfp::USER,
        Class::Atomic => Gfp::ATOMIC,
        Class::Dma32 => Gfp::DMA32,
        Class::Reclaimable => Gfp::RECLAIMABLE,
        Class::Reserve => Gfp { urgency: Urgency::Reserve, ..Gfp::USER },
        Class::Node0 => Gfp::USER.from_nodes(NodePolicy::Bind(NodeSet::one(0))),
    }
}

impl<'p> FrameLockstep<'p> {
    /// Builds the machine of `shape`, does the operations, gives everything back and checks that nothing is lost.
    ///
    /// # Errors
    /// What differed, with the number of the operation.
    pub fn check(shape: &FrameShape, ops: &[(usize, FrameOp)]) -> Outcome {
        let machine = machine(shape).map_err(|error| format!("no machine: {error}"))?;
        let config = AllocatorConfig { movable_percent: shape.movable_percent, ..AllocatorConfig::default() };
        let made = machine.run_on(CpuId(0), || PageAllocator::new(&machine, &shape.ranges, config));
        let allocator = match made {
            Ok(allocator) => allocator,
            // A drawn machine may be too small for its own tables; that is an answer, not a failure.
            Err(quire::error::InitError::TooSmall) => return Ok(()),
            Err(error) => return Err(format!("start: {error}")),
        };
        let ranges: Vec<FrameRange> = shape.ranges.iter().map(|range| range.frames).collect();
        let model = FrameModel::new(&ranges);
        let mut lockstep = FrameLockstep {
            machine: &machine,
            allocator,
            model,
            shape: shape.clone(),
            live: Vec::new(),
            last: None,
            empty: Census::default(),
        };
        lockstep.empty = lockstep.census();
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
            machine.run_on(CpuId(cpu as u32), || self.allocator.drain_local());
        }
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
        // Frames that hold map counts are in use for the allocator, and nobody was handed them.
        self.model.check(census).map_err(|fault| fault.to_string())?;
        if deep {
            self.allocator.validate().map_err(|violation| format!("{violation:?}"))?;
        }
        Ok(())
    }

    fn step(&mut self, op: FrameOp) -> Outcome {
        match op {
            FrameOp::Take(class, order) => self.take(class, order),
            FrameOp::TakeMany(class, order, count) => self.take_many(class, order, count),
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
            FrameOp::GiveMany(which, count) => self.give_many(which, count),
            FrameOp::Map(which, times) => (0..times).try_for_each(|_| self.map(which)),
            FrameOp::Unmap(which, skip, count) => self.unmap(which, skip, count),
            FrameOp::Drain => {
                self.allocator.drain_local();
                Ok(())
            }
        }
    }

    fn named(&self, which: usize) -> Option<(Frame, Order)> {
        (!self.live.is_empty()).then(|| self.live[which % self.live.len()])
    }

    fn took(&mut self, class: Class, frame: Frame, order: Order) -> Outcome {
        self.model.allocated(frame, order).map_err(|fault| fault.to_string())?;
        self.live.push((frame, order));
        let node =
            self.shape.ranges.iter().find(|range| range.frames.contains(frame)).map(|range| range.node);
        if class == Class::Node0 && node != Some(0) {
            return Err(format!("{frame:?} is not on node 0"));
        }
        Ok(())
    }

    fn take(&mut self, class: Class, order: u8) -> Outcome {
        let order = Order::new(order).unwrap_or(Order::FRAME);
        let request = gfp(class);
        match self.allocator.alloc(request, order) {
            Ok(frame) => self.took(class, frame, order),
            Err(_) if class == Class::Reserve && order == Order::FRAME && self.free_for(request) > 0 => {
                Err(format!("refused a frame of the reserve with {} free", self.free_for(request)))
            }
            Err(_) => Ok(()),
        }
    }

    /// Frames in the stores of all zones that the request may use.
    fn free_for(&self, request: Gfp) -> u64 {
        let zones = self.allocator.zone_info();
        zones
            .filter(|zone| zone.kind <= request.zone && zone.kind >= ZoneKind::Dma32)
            .map(|zone| zone.free)
            .sum()
    }

    fn take_many(&mut self, class: Class, order: u8, count: usize) -> Outcome {
        let order = Order::new(order).unwrap_or(Order::FRAME);
        let mut out = vec![Frame(u64::MAX); count];
        let got = self.allocator.alloc_bulk(gfp(class), order, &mut out);
        if got > count {
            return Err(format!("{got} folios for {count}"));
        }
        out[..got].iter().try_for_each(|&frame| self.took(class, frame, order))
    }

    fn forget(&mut self, frame: Frame, order: Order) {
        self.live.retain(|&folio| folio != (frame, order));
        self.last = Some((frame, order));
    }

    fn give(&mut self, frame: Frame, order: Order) -> Outcome {
        // Giving back what leaves map is the caller's breach of contract, which a per-CPU list does not look for.
        if self.model.holder(frame).is_some_and(|(start, order)| self.model.is_mapped(start, order)) {
            return Ok(());
        }
        let got = self.allocator.free(frame, order);
        let want = self.model.free(frame, order);
        if !FrameModel::same_answer(got, want) {
            return Err(format!("free of {frame:?} {order:?}: answer {got:?}, want {want:?}"));
        }
        if want.is_ok() {
            self.forget(frame, order);
        }
        Ok(())
    }

    fn give_many(&mut self, which: usize, count: usize) -> Outcome {
        let Some((_, order)) = self.named(which) else { return Ok(()) };
        let unmapped =
            |&&(frame, other): &&(Frame, Order)| other == order && !self.model.is_mapped(frame, other);
        let same = self.live.iter().filter(unmapped).map(|(frame, _)| *frame);
        let frames: Vec<Frame> = same.take(count).collect();
        let got = self.allocator.free_bulk(order, &frames);
        for (n, &frame) in frames.iter().enumerate() {
            let want = self.model.free(frame, order);
            let library = match got {
                Err((at, error)) if at == n => Err(error),
                _ => Ok(()),
            };
            if !FrameModel::same_answer(library, want) {
                return Err(format!("bulk free, folio {n}: answer {library:?}, want {want:?}"));
            }
            self.forget(frame, order);
        }
        Ok(())
    }

    fn map(&mut self, which: usize) -> Outcome {
        let Some((frame, order)) = self.named(which) else { return Ok(()) };
        let run = FrameRange::folio(frame, order);
        let mut rest = run;
        // A folio of whole blocks needs a frame for its counts; that frame belongs to nobody here.
        if order >= Order::BLOCK {
            return self.map_large(frame, order);
        }
        while rest.count > 0 {
            let counted = self.allocator.counter().map(rest);
            let done = match counted {
                Ok(()) => break,
                Err(CountError::Prepare { done, at }) => {
                    if self.allocator.prepare_counts(at).is_err() {
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

    /// Takes back the part of a mapping that was counted before memory ran out.
    fn undo_map(&mut self, run: FrameRange, done: u64) -> Outcome {
        self.unmap_run(FrameRange::new(run.start, done))
    }

    fn map_large(&mut self, frame: Frame, order: Order) -> Outcome {
        for block in FrameRange::folio(frame, order).by_block() {
            self.allocator.counter().map_large(block.start, PageSize::Size2M);
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
        let got = self.allocator.counter().unmap_large(frame, PageSize::Size2M);
        let want = self.model.unmap(FrameRange::folio(frame, Order::BLOCK));
        self.freed(got, want)
    }

    fn unmap_run(&mut self, run: FrameRange) -> Outcome {
        if run.count == 0 {
            return Ok(());
        }
        let got = self.allocator.counter().unmap(run);
        let want = self.model.unmap(run);
        self.freed(got, want)
    }

    fn freed(&mut self, got: u64, want: u64) -> Outcome {
        self.live = self.model.folios().collect();
        if got == want { Ok(()) } else { Err(format!("{got} frames became free, want {want}")) }
    }

    fn compare_counts(&self, run: FrameRange) -> Outcome {
        for frame in run.start.0..run.end().0 {
            let (got, want) = (self.allocator.mapcount(Frame(frame)), self.model.mapcount(Frame(frame)));
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
