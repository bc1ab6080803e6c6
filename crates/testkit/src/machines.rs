//! Machines with an allocator, and their parameters.

use hosted::{Hosted, HostedConfig};
use quire::addr::{FrameRange, Order};
use quire::cpu::CpuId;
use quire::page_alloc::{AllocatorConfig, MemoryRange, PageAllocator};

/// The ranges of a hosted machine in the library's form.
pub fn ranges_of(machine: &Hosted) -> Vec<MemoryRange> {
    let to_library = |range: &hosted::MemoryRange| MemoryRange {
        frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
        node: range.node,
        zeroed: true,
    };
    machine.ranges().iter().map(to_library).collect()
}

/// A machine with one range and its allocator, for the length of `test`, run as CPU 0.
pub fn with_allocator(config: HostedConfig, test: impl FnOnce(&Hosted, &PageAllocator<'_, Hosted>)) {
    with_boxed(config, Box::new(test));
}

type Test<'t> = Box<dyn FnOnce(&Hosted, &PageAllocator<'_, Hosted>) + 't>;

/// [`with_allocator`], compiled once for all tests.
fn with_boxed(config: HostedConfig, test: Test<'_>) {
    let machine = config.build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let allocator =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default())
                .expect("no allocator");
        allocator.validate().expect("broken from the start");
        test(&machine, &allocator);
        allocator.lists().drain_local();
        allocator.validate().expect("broken at the end");
    });
}

/// The order with this number.
pub fn order(number: u8) -> Order {
    Order::new(number).expect("no such order")
}

/// The seed of a random test: from `QUIRE_SEED`, or this one.
pub fn seed(default: u64) -> u64 {
    std::env::var("QUIRE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
