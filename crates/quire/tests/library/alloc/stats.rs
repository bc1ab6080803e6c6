//! Counts of events that are read while they change.
#![allow(unsafe_code)]

use hosted::raw::RawPages;
use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order};
use quire::page_alloc::Gfp;
use quire::platform::Context;
use quire::stats::Stat;
use testkit::with_allocator;

const MIB: u64 = 1 << 20;

/// A count of events that is read while an interrupt allocates is never below zero.
#[test]
fn events_that_come_while_they_are_counted_do_not_count_below_zero() {
    with_allocator(HostedConfig::new(64 * MIB), |machine, allocator| {
        let mut frames = [Frame(0); 4096];
        let mut got = 0;
        let mut alloc = || {
            if let Some(slot) = frames.get_mut(got)
                && let Ok(frame) = allocator.alloc_raw(Gfp::USER, Order::FRAME)
            {
                (*slot, got) = (frame, got + 1);
            }
        };
        alloc();
        let plan = InterruptPlan::Every(1);
        let count = || allocator.lists().stat(Stat::Pgfree);
        // SAFETY: H7: neither the count nor the handler uses the heap or locks of the standard library.
        let ran = unsafe { machine.interrupt_at_steps(plan, Context::HardInterrupt, alloc, count) };
        let freed = ran.expect("signals").result;
        assert!(freed < 4096, "{freed}");
        assert!(got > 100);
        allocator.free_bulk_raw(Order::FRAME, &frames[..got]).unwrap();
    });
}
