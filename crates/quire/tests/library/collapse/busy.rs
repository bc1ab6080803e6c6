//! Another task is replacing or moving a page: the collapse is refused and changes nothing; the next one
//! succeeds.

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::vm::{Access, FolioPolicy, Refusal};

use crate::collapse::support::{BASE, HUGE, PAGE, check, fill, leaf};
use crate::collapse::world::{MIB, Manager, Space, anonymous, with_manager};
use testkit::{PATIENCE, held_up};

/// What is done to page 9 of memory that an address space and its child share.
type Work = fn(&Hosted, &Manager<'_>, &Space<'_>);

fn seen(machine: &Hosted, manager: &Manager<'_>, spaces: [&Space<'_>; 2]) -> impl PartialEq {
    let mut counts = Vec::new();
    let all = machine.ranges().last().expect("memory").end().0 / PAGE;
    manager.kpagecount(FrameRange::new(Frame(0), all), |run, count| counts.push((run.start.0, count)));
    (
        spaces.map(|mm| machine.leaves(mm.root())),
        spaces.map(Space::rss),
        counts,
        manager.meminfo().frames.used,
    )
}

/// CPU 0 works, and CPU 1 collapses at every moment of it. Returns how often it was refused for reason `why`.
fn at_every_moment(folios: FolioPolicy, work: Work, why: Refusal) -> u64 {
    let mut found = 0;
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(folios);
        let mut round = 0;
        loop {
            let mm = manager.new_mm().expect("memory");
            mm.mmap(&anonymous(BASE, HUGE)).expect("memory");
            mm.switch_in();
            fill(machine, &mm, BASE, 0..512);
            mm.switch_out();
            let child = mm.fork().expect("memory");
            let collapse = || {
                let before = seen(machine, manager, [&mm, &child]);
                let done = mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
                (done, before == seen(machine, manager, [&mm, &child]))
            };
            let working = || {
                mm.switch_in();
                work(machine, manager, &mm);
                mm.switch_out();
            };
            let held = held_up(machine, InterruptPlan::Nth(round), PATIENCE, working, collapse);
            let (done, same) = held.second;
            if held.in_time && done.all_refused() > 0 {
                assert_eq!(done.last, Some(why), "call {round}");
                assert!(same, "call {round}: it refused, and something has changed");
                found += 1;
            }
            let after = mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
            assert_eq!(after.all_refused(), 0, "call {round}: {after:?}");
            for each in [mm, child] {
                each.switch_in();
                check(machine, &each, BASE, |_| true);
                each.switch_out();
                each.validate().expect("broken address space");
                each.exit();
            }
            round += 1;
            if round > held.calls {
                break;
            }
        }
        println!("{round} moments, refused at {found} of them");
    });
    found
}

fn copy_on_store(_: &Hosted, _: &Manager<'_>, mm: &Space<'_>) {
    mm.fault(VirtAddr(BASE + 9 * PAGE), Access::Write).expect("memory");
}

#[test]
fn a_page_that_is_replaced_is_in_the_way() {
    assert!(at_every_moment(FolioPolicy::FRAMES, copy_on_store, Refusal::Busy) > 0);
}

/// A store to a large leaf splits it first.
#[test]
fn a_large_leaf_that_is_split_is_in_the_way() {
    let folios = FolioPolicy::only(Order::BLOCK).with_pmd_mapped(true);
    assert!(at_every_moment(folios, copy_on_store, Refusal::Busy) > 0);
}

/// A task that moves a page holds it from before the first leaf is unmapped until the last one is mapped
/// again.
#[test]
fn a_page_that_moves_is_in_the_way() {
    let migrate: Work = |machine, manager, mm| {
        let frame = leaf(machine, mm, BASE + 9 * PAGE).expect("mapped").frame;
        // Where the page was copied meanwhile, the frame is free.
        let _gone = manager.migrate(frame);
    };
    assert!(at_every_moment(FolioPolicy::FRAMES, migrate, Refusal::Held) > 0);
}
