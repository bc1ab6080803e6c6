//! Our own page allocator on a hosted machine.

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};

use super::measured::Measured;
use super::{Frames, PageAlloc};
use crate::bench::experiment::{Arm, Prepared, Skip};

pub(super) const NAME: &str = "quire";

/// `PageAllocator`, one list and one shard per thread.
#[derive(Default)]
pub(super) struct Quire {
    machine: Option<Hosted>,
}

impl Arm<PageAlloc> for Quire {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "PageAllocator on a hosted machine: per-CPU lists, a checked double free, map counts beside."
    }

    fn setup(&mut self, case: &PageAlloc) -> Result<Box<dyn Prepared + '_>, Skip> {
        let bytes = case.frames as u64 * 4096;
        let machine = HostedConfig { prefault: false, real_ipis: false, ..HostedConfig::bench(bytes) }
            .with_cpus(case.threads)
            .build()
            .map_err(|error| Skip(error.to_string()))?;
        let machine = &*self.machine.insert(machine);
        let ranges: Vec<MemoryRange> = machine.ranges().iter().map(range_of).collect();
        let allocator = PageAllocator::new(machine, &ranges, AllocatorConfig::default())
            .map_err(|error| Skip(error.to_string()))?;
        let allocator = std::sync::Arc::new(allocator);
        let source =
            |cpu| Cpu { machine, allocator: allocator.clone(), cpu: CpuId(cpu as u32), bulk: Vec::new() };
        Ok(Box::new(Measured::new(case, (0..case.threads).map(source).collect())))
    }
}

fn range_of(range: &hosted::MemoryRange) -> MemoryRange {
    MemoryRange {
        frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
        node: range.node,
        zeroed: true,
    }
}

/// One thread as a CPU of the machine.
struct Cpu<'m> {
    machine: &'m Hosted,
    allocator: std::sync::Arc<PageAllocator<'m, Hosted>>,
    cpu: CpuId,
    bulk: Vec<Frame>,
}

impl Frames for Cpu<'_> {
    fn as_cpu<R>(&mut self, body: impl FnOnce(&mut Self) -> R) -> R {
        self.machine.run_on(self.cpu, || body(self))
    }

    #[inline]
    fn alloc(&mut self) -> Option<usize> {
        self.allocator.alloc(Gfp::USER, Order::FRAME).ok().map(|frame| frame.0 as usize)
    }

    #[inline]
    fn free(&mut self, frame: usize) {
        let freed = self.allocator.free(Frame(frame as u64), Order::FRAME);
        debug_assert_eq!(freed, Ok(()));
    }

    fn alloc_bulk(&mut self, frames: &mut [usize]) -> usize {
        self.bulk.resize(frames.len(), Frame(0));
        let taken = self.allocator.alloc_bulk(Gfp::USER, Order::FRAME, &mut self.bulk);
        for (slot, frame) in frames.iter_mut().zip(&self.bulk[..taken]) {
            *slot = frame.0 as usize;
        }
        taken
    }

    fn free_bulk(&mut self, frames: &[usize]) {
        self.bulk.clear();
        self.bulk.extend(frames.iter().rev().map(|&frame| Frame(frame as u64)));
        let freed = self.allocator.free_bulk(Order::FRAME, &self.bulk);
        assert_eq!(freed, Ok(()), "a frame was refused");
    }
}
