//! One CPU drains the lists of another while their owner goes on.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::limits::MAGAZINE_FRAMES;
use quire::page_alloc::{Gfp, PageAllocator, Urgency};
use quire::platform::Context;

use testkit::with_allocator;

const MIB: u64 = 1 << 20;

fn take(allocator: &PageAllocator<'_, Hosted>, count: u64) -> Vec<Frame> {
    (0..count).map(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()).collect()
}

fn give(allocator: &PageAllocator<'_, Hosted>, frames: &[Frame]) {
    frames.iter().for_each(|&frame| allocator.free_raw(frame, Order::FRAME).unwrap());
}

/// CPU 0 drains the lists of CPU 1, and CPU 1 takes all its parked magazines at call `call` of the platform.
/// Returns how many frames the drain reports beyond those that CPU 1 left.
fn drained_beyond_what_is_left(call: u64) -> u64 {
    let mut beyond = 0;
    with_allocator(HostedConfig::new(512 * MIB).with_cpus(2), |machine, allocator| {
        machine.run_on(CpuId(1), || (0..4).for_each(|_| give(allocator, &take(allocator, 3000))));
        let cached = allocator.memory_info().cached;
        assert!(cached > 3 * MAGAZINE_FRAMES as u64, "{cached}: some are parked");
        let (mut taken, mut left) = (Vec::new(), 0);
        let take_all = || {
            machine.run_on(CpuId(1), || taken = take(allocator, cached));
            left = allocator.memory_info().cached;
        };
        let drain = || allocator.lists().drain_cpu(CpuId(1));
        let plan = InterruptPlan::Nth(call);
        let ran = machine.interrupt_at_calls(plan, Context::HardInterrupt, take_all, drain);
        assert_eq!((ran.delivered, ran.result.more), (1, false), "call {call}");
        assert_eq!(allocator.memory_info().cached, 0, "call {call}");
        give(allocator, &taken);
        beyond = ran.result.frames - left;
    });
    beyond
}

/// The owner is first at each call before the lock of the parked magazines is taken. From the next call on
/// the drain has one of them.
#[test]
fn a_drain_counts_no_magazine_that_its_owner_was_faster_to_take() {
    let first = (0..).map(drained_beyond_what_is_left).find(|&beyond| beyond > 0);
    assert_eq!(first, Some(MAGAZINE_FRAMES as u64));
}

/// A request that cannot wait does not interrupt other CPUs for what their lists have. The manager's tables do.
#[test]
fn requests_that_cannot_wait_leave_other_cpus_alone() {
    with_allocator(HostedConfig::new(64 * MIB).with_cpus(2), |machine, allocator| {
        let gfp = Gfp::ATOMIC;
        machine.run_on(CpuId(1), || {
            let frames: Vec<_> = (0..100).map(|_| allocator.alloc_raw(gfp, Order::FRAME).unwrap()).collect();
            give(allocator, &frames);
        });
        let mut all: Vec<_> = std::iter::from_fn(|| allocator.alloc_raw(gfp, Order::FRAME).ok()).collect();
        assert!(allocator.memory_info().cached >= 50, "{}", allocator.memory_info().cached);
        let tables = Gfp { urgency: Urgency::Tables, ..Gfp::KERNEL };
        all.push(allocator.alloc_raw(tables, Order::FRAME).expect("from the other CPU"));
        give(allocator, &all);
    });
}
