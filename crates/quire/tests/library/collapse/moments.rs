//! A folio that is mostly zero is split while other CPUs unmap it, take its memory, or split it too: at every
//! moment.

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
use testkit::{PATIENCE, held_up, unless_stuck, within};

/// The last page of each folio is not zero, so that splitting does not free the whole folio.
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

/// Why a folio of 2 MiB is split that the splitting CPU found and does not keep mapped.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Splitting {
    /// It is underused; its last page holds this.
    Underused(u64),
    /// Its first half is unmapped, so it is in the list of deferred splits.
    Deferred,
    /// By `split_folio`.
    Asked,
    /// By `migrate`, without memory to move all of it.
    Moved,
}

impl Splitting {
    fn split(self, manager: &Manager<'_>, folio: Frame) {
        // If the other CPU was faster, there is nothing to split.
        match self {
            Self::Underused(_) => split(manager),
            Self::Deferred => _ = manager.pages().split_deferred(1),
            Self::Asked => _ = manager.split_folio(folio, Order::FRAME),
            Self::Moved => _ = manager.migrate(folio),
        }
    }
}

/// CPU 0 splits the folio. At the `round`-th call of the platform in that split, CPU 1 unmaps the folio and
/// allocates its memory, which stays unmapped. Returns how many calls there were, and whether CPU 1 got the
/// same memory while CPU 0 was held up.
fn take_away(machine: &Hosted, manager: &Manager<'_>, round: u64, how: Splitting) -> (u64, bool) {
    let mm = with_folio(machine, manager, if let Splitting::Underused(kept) = how { kept } else { 7 });
    let folio = leaf(machine, &mm, BASE).expect("mapped").frame;
    if how == Splitting::Deferred {
        mm.munmap(VirtAddr(BASE), HUGE / 2).expect("mapped");
        assert_eq!(manager.pages().counts().deferred_splits(), 1);
    }
    let alloc = || manager.pages().alloc_raw(Gfp::USER, Order::BLOCK).ok();
    // Takes all other folios, so that a request gets this one or fails, and there is none to move to.
    let alone = matches!(how, Splitting::Deferred | Splitting::Moved);
    let filled: Vec<Frame> = std::iter::from_fn(alloc).take(if alone { usize::MAX } else { 0 }).collect();
    let take = || {
        mm.munmap(VirtAddr(BASE), HUGE).expect("mapped");
        alloc()
    };
    let plan = InterruptPlan::Nth(round);
    let held = held_up(machine, plan, PATIENCE, || how.split(manager, folio), take);
    for frame in filled.into_iter().chain(held.second) {
        manager.pages().free_raw(frame, Order::BLOCK).expect("the owner frees it");
    }
    mm.validate().expect("broken address space");
    mm.exit();
    (held.calls, held.in_time && held.second == Some(folio))
}

/// A CPU that splits a folio either keeps it from being allocated again, or notices that it was (invariant
/// 1).
#[test]
fn a_folio_is_not_split_after_it_was_allocated_again() {
    // In one case no page remains when the zeroes are dropped.
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
            println!("{how:?}: {round} moments, at {met} of which the memory had another owner");
            assert!(met > 0, "CPU 1 was faster at none of {round} moments");
        });
    }
}

/// How far the two CPUs are that split one folio.
#[derive(Default)]
struct Looks {
    /// CPU 0 waits for CPU 1, which is to store and then to split.
    asked: AtomicU64,
    /// CPU 1 has taken the dirty bit again, or cannot get that far.
    taken: AtomicU64,
    /// CPU 0 has finished.
    through: AtomicU64,
}

/// CPU 0 splits the folio, and is held up at the `moment`-th call after it took the dirty bit. CPU 1 then
/// stores to a zero page and splits too, up to its `second`-th call after it took the dirty bit again. Then
/// CPU 0 finishes, and CPU 1 after it. Returns whether there was such a moment, and whether CPU 1 got that
/// far.
fn look_twice(machine: &Hosted, manager: &Manager<'_>, moment: usize, second: usize) -> (bool, bool) {
    let (mm, looks) = (with_folio(machine, manager, 7), Looks::default());
    let is_clean = || leaf(machine, &mm, BASE).is_some_and(|leaf| leaf.frames == 512 && !leaf.dirty);
    let wait = |word: &AtomicU64| unless_stuck(machine, PATIENCE, || word.load(Ordering::SeqCst) == 1);
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

/// A clean page still has the contents that were read only if no other CPU has taken the dirty bit since
/// (invariant 3).
#[test]
fn two_splits_of_one_folio_lose_no_store() {
    with_folios(|machine, manager| {
        let (mut moments, mut both) = (0, 0);
        for second in 1..=20 {
            // Later on CPU 0 holds the lock, and CPU 1 cannot start.
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
