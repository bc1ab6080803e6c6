//! A folio most of which is zero is split while others unmap it, take its memory, or look at it as well: at every moment.

use hosted::raw::RawPages;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, Order, VirtAddr};
use quire::page_alloc::Gfp;
use quire::platform::Context;
use quire::vm::{FolioPolicy, Splitter};

use crate::collapse::support::{BASE, HUGE, PAGE, leaf};
use crate::collapse::world::{MIB, Manager, Space, anonymous, load, store, with_manager};
use testkit::{PATIENCE, held_up, within};

/// The last page of each folio: it holds something, so that the folio is not free when its zeroes are.
const KEPT: u64 = BASE + 511 * PAGE;

fn with_folios(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        test(machine, manager);
    });
}

/// An address space with one folio, of zeroes but for `kept` in its last page.
fn with_folio<'m>(machine: &Hosted, manager: &'m Manager<'_>, kept: u64) -> Space<'m> {
    let mm = manager.new_mm().expect("memory");
    mm.mmap(&anonymous(BASE, HUGE)).expect("memory");
    mm.switch_in();
    store(machine, &mm, KEPT, kept).expect("memory");
    mm.switch_out();
    mm
}

fn split(manager: &Manager<'_>) {
    manager.split_underused(&mut Splitter::new(400), 1);
}

/// Who splits a folio of 2 MiB that he found, and did not keep from being unmapped.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Splitting {
    /// For its zeroes, with so much in its last page.
    Underused(u64),
    /// Since it waits for that: its first half is unmapped.
    Deferred,
    /// Because somebody says so.
    Asked,
    /// To be moved, when there is no memory for all of it.
    Moved,
}

impl Splitting {
    fn split(self, manager: &Manager<'_>, folio: Frame) {
        // Whoever is late finds nothing to split.
        match self {
            Self::Underused(_) => split(manager),
            Self::Deferred => _ = manager.pages().split_deferred(1),
            Self::Asked => _ = manager.split_folio(folio, Order::FRAME),
            Self::Moved => _ = manager.migrate(folio),
        }
    }
}

/// Lets CPU 0 split the folio, while at the `round`-th call of the platform that this makes CPU 1 unmaps it and takes its memory for
/// something that nobody maps. How many calls there were, and whether the same memory was had while CPU 0 was held up.
fn take_away(machine: &Hosted, manager: &Manager<'_>, round: u64, how: Splitting) -> (u64, bool) {
    let mm = with_folio(machine, manager, if let Splitting::Underused(kept) = how { kept } else { 7 });
    let folio = leaf(machine, &mm, BASE).expect("mapped").frame;
    if how == Splitting::Deferred {
        mm.munmap(VirtAddr(BASE), HUGE / 2).expect("mapped");
        assert_eq!(manager.pages().counts().deferred_splits(), 1);
    }
    let alloc = || manager.pages().alloc_raw(Gfp::USER, Order::BLOCK).ok();
    // Then whoever wants memory gets this, or none; and there is none to move to.
    let alone = matches!(how, Splitting::Deferred | Splitting::Moved);
    let filled: Vec<Frame> = std::iter::from_fn(alloc).take(if alone { usize::MAX } else { 0 }).collect();
    let take = || {
        mm.munmap(VirtAddr(BASE), HUGE).expect("mapped");
        alloc()
    };
    let plan = InterruptPlan::Nth(round);
    let held = held_up(machine, plan, PATIENCE, || how.split(manager, folio), take);
    for frame in filled.into_iter().chain(held.second) {
        manager.pages().free_raw(frame, Order::BLOCK).expect("whoever has it is who gives it back");
    }
    mm.validate().expect("broken address space");
    mm.exit();
    (held.calls, held.in_time && held.second == Some(folio))
}

/// Whoever splits a folio keeps it from becoming somebody else's, or sees that it is (invariant 1).
#[test]
fn a_folio_that_is_split_is_nobody_elses_meanwhile() {
    // Of one nothing is left when its zeroes are gone.
    let all = [
        Splitting::Underused(7),
        Splitting::Underused(0),
        Splitting::Deferred,
        Splitting::Asked,
        Splitting::Moved,
    ];
    for how in all {
        with_folios(|machine, manager| {
            let (mut round, mut met) = (0, 0);
            loop {
                let (calls, same) = take_away(machine, manager, round, how);
                (round, met) = (round + 1, met + u64::from(same));
                if round > calls {
                    break;
                }
            }
            println!("{how:?}: {round} moments, at {met} of which the memory was somebody else's");
            assert!(met > 0, "nobody was faster at any of {round} moments");
        });
    }
}

/// Where the two who look at one folio are.
#[derive(Default)]
struct Looks {
    /// CPU 0 waits for CPU 1, which is to store and to look as well.
    asked: AtomicU64,
    /// CPU 1 has taken the dirty bit again, or cannot come so far.
    taken: AtomicU64,
    /// CPU 0 is through.
    through: AtomicU64,
}

/// Lets CPU 0 split the folio; at the `moment`-th call after it took the dirty bit away CPU 1 stores to a page of zeroes and begins to
/// split as well, up to its `second`-th call after it has taken the dirty bit, too. Then CPU 0 goes on to its end, and CPU 1 after it. Whether there was such a
/// moment, and whether CPU 1 came so far.
fn look_twice(machine: &Hosted, manager: &Manager<'_>, moment: usize, second: usize) -> (bool, bool) {
    let (mm, looks) = (with_folio(machine, manager, 7), Looks::default());
    let is_clean = || leaf(machine, &mm, BASE).is_some_and(|leaf| leaf.frames == 512 && !leaf.dirty);
    let wait = |word: &AtomicU64| within(PATIENCE, || word.load(Ordering::SeqCst) == 1);
    let page = BASE + 5 * PAGE + 16;
    let came = machine.spawn_cpus(2, |cpu| {
        mm.switch_in();
        let calls = AtomicUsize::new(0);
        let mut came = false;
        if cpu.0 == 0 {
            let hold_up = || {
                if (calls.load(Ordering::Relaxed) > 0 || is_clean())
                    && calls.fetch_add(1, Ordering::Relaxed) == moment
                {
                    looks.asked.store(1, Ordering::SeqCst);
                    wait(&looks.taken);
                }
            };
            let every = InterruptPlan::Every(1);
            machine.interrupt_at_calls(every, Context::HardInterrupt, hold_up, || split(manager));
            looks.through.store(1, Ordering::SeqCst);
            came = calls.load(Ordering::Relaxed) > moment;
        } else if within(Duration::from_secs(1), || {
            looks.asked.load(Ordering::SeqCst) + looks.through.load(Ordering::SeqCst) > 0
        }) {
            store(machine, &mm, page, 9).expect("mapped");
            let stop = || {
                if is_clean() && calls.fetch_add(1, Ordering::Relaxed) == second {
                    looks.taken.store(1, Ordering::SeqCst);
                    wait(&looks.through);
                }
            };
            let every = InterruptPlan::Every(1);
            machine.interrupt_at_calls(every, Context::HardInterrupt, stop, || split(manager));
            came = calls.load(Ordering::Relaxed) > second;
            looks.taken.store(1, Ordering::SeqCst);
        }
        mm.switch_out();
        came
    });
    mm.switch_in();
    assert_eq!(load(machine, &mm, page), Ok(9), "a store was lost at moment {moment}");
    assert_eq!(load(machine, &mm, KEPT), Ok(7));
    mm.switch_out();
    mm.validate().expect("broken address space");
    mm.exit();
    (came[0], came[1])
}

/// A clean page is what was read only if nobody else has taken the dirty bit since (invariant 3).
#[test]
fn two_who_look_at_one_folio_lose_no_store() {
    with_folios(|machine, manager| {
        let (mut moments, mut both) = (0, 0);
        for second in 1..=20 {
            // Later on CPU 0 lets nobody in.
            for moment in 0..10 {
                let (was, came) = look_twice(machine, manager, moment, second);
                (moments, both) = (moments + 1, both + u64::from(came));
                if !was {
                    break;
                }
            }
        }
        println!("{moments} moments, at {both} of which both had taken the dirty bit");
        assert!(moments > 10 && both > 2, "{moments}, {both}");
    });
}
