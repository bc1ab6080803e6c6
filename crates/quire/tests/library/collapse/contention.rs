//! Several CPUs collapse or split the same 2 MiB while others store, and each may undo a step of another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fastrand::Rng;
use hosted::{FaultCause, Hosted, HostedConfig, InterruptPlan};
use quire::addr::VirtAddr;
use quire::error::MmError;
use quire::stats::Stat;
use quire::vm::{Access, Advice, FolioPolicy, Splitter};

use crate::collapse::support::{BASE, HUGE, PAGE};
use crate::collapse::world::{MIB, Manager, Space, anonymous, load, store, with_manager};
use testkit::{PATIENCE, held_up, seed, stress_time};

const CPUS: usize = 4;

/// CPUs 0 and 1 repeatedly do `upset`, and the others `stores`, to two aligned ranges.
fn contend(
    upset: impl Fn(&Manager<'_>, &Space<'_>, &mut Rng) + Sync,
    stores: impl Fn(&Hosted, &Space<'_>, u32, &mut Rng) + Sync,
    check: impl FnOnce(&Hosted, &Manager<'_>, &Space<'_>),
) {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_manager(HostedConfig::new(64 * MIB).with_cpus(CPUS), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let mm = manager.new_mm().expect("memory");
        mm.mmap(&anonymous(BASE, 2 * HUGE)).expect("memory");
        machine.spawn_cpus(CPUS, |cpu| {
            mm.switch_in();
            let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            let end = Instant::now() + stress_time();
            while Instant::now() < end {
                if cpu.0 < 2 { upset(manager, &mm, &mut rng) } else { stores(machine, &mm, cpu.0, &mut rng) }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.switch_in();
        check(machine, manager, &mm);
        mm.switch_out();
        mm.validate().expect("broken address space");
        mm.exit();
    });
}

/// Adds one to a word of the program's memory, as one locked instruction.
fn add(machine: &Hosted, mm: &Space<'_>, addr: u64) {
    while let Err(fault) = machine.fetch_add(VirtAddr(addr), 1) {
        assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
        mm.fault(VirtAddr(addr), Access::Write).expect("mapped");
    }
}

/// Pages to which CPUs add: one in eight.
fn sum_at(sum: u64) -> u64 {
    BASE + sum * 8 * PAGE + sum * 8
}

/// A CPU that has copied learns from the lock's count of writers that another CPU has taken the dirty bits
/// since.
#[test]
fn two_collapse_what_others_store_to() {
    let sums: Vec<AtomicU64> = (0..128).map(|_| AtomicU64::new(0)).collect();
    contend(
        |_, mm, rng| {
            // An unused page is dropped, so that the range must be copied again.
            let (base, page) = (BASE + rng.u64(..2) * HUGE, rng.u64(..64) * 8 + rng.u64(1..8));
            mm.madvise(VirtAddr(base + page * PAGE), PAGE, Advice::DontNeed).expect("mapped");
            mm.collapse(VirtAddr(base), HUGE).expect("mapped");
        },
        |machine, mm, _, rng| {
            let sum = rng.u64(..128);
            add(machine, mm, sum_at(sum));
            sums[sum as usize].fetch_add(1, Ordering::Relaxed);
        },
        |machine, manager, mm| {
            for sum in 0..128 {
                let expected = sums[sum as usize].load(Ordering::Relaxed);
                assert_eq!(load(machine, mm, sum_at(sum)), Ok(expected), "sum {sum}");
            }
            assert!(manager.stat(Stat::ThpCollapseCopied) > 0);
        },
    );
}

/// A page that was zero when it was checked is kept if a CPU has stored to it since.
#[test]
fn what_was_zero_may_be_stored_to_at_any_moment() {
    // The word in each page: CPU 3 alone stores to odd pages, CPU 2 to even ones.
    let words: Vec<AtomicU64> = (0..1024).map(|_| AtomicU64::new(0)).collect();
    contend(
        |manager, mm, rng| {
            manager.split_underused(&mut Splitter::new(rng.usize(..64)), 2);
            if rng.bool() {
                mm.collapse(VirtAddr(BASE), 2 * HUGE).expect("mapped");
            }
        },
        |machine, mm, cpu, rng| {
            let page = rng.u64(..512) * 2 + u64::from(cpu % 2);
            let at = BASE + page * PAGE + page % 500 * 8;
            let word = &words[page as usize];
            assert_eq!(load(machine, mm, at), Ok(word.load(Ordering::Relaxed)), "page {page}");
            let new = if rng.u32(..4) == 0 { rng.u64(..) } else { 0 };
            store(machine, mm, at, new).expect("mapped");
            word.store(new, Ordering::Relaxed);
        },
        |machine, manager, mm| {
            for page in 0..1024 {
                let expected = words[page as usize].load(Ordering::Relaxed);
                assert_eq!(
                    load(machine, mm, BASE + page * PAGE + page % 500 * 8),
                    Ok(expected),
                    "page {page}"
                );
            }
            println!("{} split", manager.stat(Stat::ThpUnderusedSplitPage));
            assert!(manager.stat(Stat::ThpUnderusedSplitPage) > 0);
        },
    );
}

/// Collapses 2 MiB, in which each page has its number and one, and is held up as the plan says while another
/// CPU works on pages 100 to 109. Then each of these has one of the words that `may_have` allows. Returns
/// how many moments there were, and whether the other CPU was done in time.
fn beside_a_collapse(
    plan: InterruptPlan,
    work: impl Fn(&Hosted, &Space<'_>) -> Result<(), MmError> + Sync,
    may_have: impl Fn(u64) -> bool,
) -> (u64, bool) {
    let mut held = None;
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let mm = manager.new_mm().expect("memory");
        mm.mmap(&anonymous(BASE, HUGE)).expect("memory");
        mm.switch_in();
        (0..512).for_each(|page| store(machine, &mm, BASE + page * PAGE, page + 1).expect("memory"));
        mm.switch_out();
        let collapse = || mm.madvise(VirtAddr(BASE), HUGE, Advice::Collapse);
        let ran = held_up(machine, plan, PATIENCE, collapse, || {
            mm.switch_in();
            let done = work(machine, &mm);
            mm.switch_out();
            done
        });
        assert_eq!(ran.second, Ok(()));
        mm.switch_in();
        for page in 0..512 {
            let word = load(machine, &mm, BASE + page * PAGE).expect("mapped");
            let right = if (100..110).contains(&page) { may_have(word) } else { word == page + 1 };
            assert!(right, "page {page} has {word}, {plan:?}");
        }
        mm.switch_out();
        mm.validate().expect("broken address space");
        mm.exit();
        held = Some((ran.calls, ran.in_time));
    });
    held.expect("it ran")
}

/// The same at sixty moments of a collapse.
fn beside_a_collapse_at_moments(
    work: impl Fn(&Hosted, &Space<'_>) -> Result<(), MmError> + Sync,
    may_have: impl Fn(u64) -> bool,
) {
    let scene = |plan| beside_a_collapse(plan, &work, &may_have);
    let (calls, _) = scene(InterruptPlan::Count);
    let moments = (0..calls).step_by((calls / 60).max(1) as usize);
    let in_time = moments.filter(|&moment| scene(InterruptPlan::Nth(moment)).1).count();
    assert!(in_time > 10, "only at {in_time} moments of {calls} calls");
}

/// Pages that are dropped beside a collapse, at any moment of it, read as zero afterwards: it must not bring
/// over what it copied of them before.
#[test]
fn pages_that_are_dropped_while_they_are_copied_stay_dropped() {
    let drop = |_: &Hosted, mm: &Space<'_>| {
        mm.madvise(VirtAddr(BASE + 100 * PAGE), 10 * PAGE, Advice::DontNeed)?;
        // The frame of zeroes comes by a leaf that no store has marked.
        for page in 100..110 {
            mm.fault(VirtAddr(BASE + page * PAGE), Access::Read).expect("mapped");
        }
        Ok(())
    };
    beside_a_collapse_at_moments(drop, |word| word == 0);
}

/// What was stored beside a collapse and then freed lazily is there or is zero: the dirty bit is gone, but
/// what was copied before the store must not come back.
#[test]
fn stores_that_were_freed_lazily_while_pages_are_copied_are_not_undone() {
    let store_and_free = |machine: &Hosted, mm: &Space<'_>| {
        (100..110).for_each(|page| store(machine, mm, BASE + page * PAGE, 7000).expect("mapped"));
        mm.madvise(VirtAddr(BASE + 100 * PAGE), 10 * PAGE, Advice::Free)
    };
    beside_a_collapse_at_moments(store_and_free, |word| [0, 7000].contains(&word));
}
