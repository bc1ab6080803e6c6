//! Memory runs out at each allocation of a collapse: it is done, or changes nothing (invariant 6).

use hosted::raw::RawPages;
use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::page_alloc::Gfp;
use quire::vm::{FolioPolicy, ForkStrategy, Refusal};

use crate::collapse::support::{BASE, HUGE, check, fill, is_large};
use crate::collapse::world::{FORKS, MIB, Manager, Space, anonymous, run, with_forks};

#[test]
fn a_collapse_may_fail_at_every_allocation() {
    for fork in FORKS {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::FRAMES);
            let mut failed = 0;
            for nth in 0.. {
                let mut more = false;
                run(manager, |mm| more = collapse_with_failure(machine, manager, mm, nth, &mut failed));
                manager.validate().unwrap();
                if !more {
                    break;
                }
            }
            // With a spare folio of 2 MiB its allocation cannot fail; that of a private table can.
            assert_eq!(failed > 0, fork == ForkStrategy::Share);
        });
    }
}

/// Collapses shared pages with the `nth` allocation failing, and no memory to move to. Returns whether there
/// was such an allocation.
fn collapse_with_failure(
    machine: &Hosted,
    manager: &Manager<'_>,
    mm: &Space<'_>,
    nth: u64,
    failed: &mut u64,
) -> bool {
    mm.mmap(&anonymous(BASE, HUGE)).unwrap();
    fill(machine, mm, BASE, 0..400);
    let child = mm.fork().unwrap();
    // All but one folio of 2 MiB is taken, so that moving other folios cannot serve the failed request.
    let spare = manager.pages().alloc_raw(Gfp::USER, Order::BLOCK).unwrap();
    let mut kept = Vec::new();
    while let Ok(frame) = manager.pages().alloc_raw(Gfp::KERNEL, Order::BLOCK) {
        kept.push(frame);
    }
    manager.pages().free_raw(spare, Order::BLOCK).unwrap();
    let (used, rss) = (manager.meminfo().frames.used, mm.rss().anon);
    machine.set_failures(FailurePlan::Nth(nth));
    let report = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
    let more = machine.allocations_failed() > 0;
    machine.set_failures(FailurePlan::Off);
    if report.copied == 0 {
        assert_eq!(report.last, Some(Refusal::NoMemory));
        assert_eq!(mm.rss().anon, rss);
        // The shared table may have been copied by now.
        assert!(manager.meminfo().frames.used <= used + 1);
        *failed += 1;
    }
    assert_eq!(is_large(machine, mm, BASE), report.copied == 1);
    mm.validate().unwrap();
    child.validate().unwrap();
    check(machine, mm, BASE, |page| page < 400);
    mm.switch_out();
    child.switch_in();
    check(machine, &child, BASE, |page| page < 400);
    child.switch_out();
    mm.switch_in();
    child.exit();
    kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::BLOCK).unwrap());
    more
}
