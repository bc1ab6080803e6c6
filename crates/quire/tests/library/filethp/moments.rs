//! Events in the middle of a collapse, at every moment: memory goes bad, and a pager is slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, VirtAddr};
use quire::cpu::CpuId;
use quire::error::{FaultError, MemoryFailureError};
use quire::manager::Failed;
use quire::platform::Context;
use quire::vm::{Access, Advice, Collapsed, File, FolioPolicy, MemoryFailure, Refusal};

use crate::filethp::support::{
    BASE, HUGE, PAGE, RX, TEXT, check, check_text, fill, frame_at, is_large, private, shared,
};
use crate::filethp::world::{MIB, Manager, Space, anonymous, load, with_manager};
use testkit::{held_up, within};

/// How long one CPU waits for another, which may in turn wait for a lock of the first.
const PATIENCE: Duration = Duration::from_millis(15);

/// The memory that is collapsed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Pages {
    /// Shared anonymous memory, all of it present.
    Shmem,
    /// Shared anonymous memory of which every third page was never touched.
    Holes,
    /// Text of which half must be read.
    Text,
}

impl Pages {
    /// The last one first, since pages read in order would fill a block in order.
    fn touched(self) -> impl Iterator<Item = u64> {
        let last = if self == Self::Text { 255 } else { 511 };
        core::iter::once(last).chain(0..last).filter(move |page| match self {
            Self::Shmem => true,
            Self::Holes => page % 3 > 0,
            Self::Text => *page < 256,
        })
    }

    fn file<'m>(self, machine: &Hosted, manager: &'m Manager<'_>) -> File<'m, Hosted> {
        if self == Self::Text {
            machine.files().set_size(TEXT, HUGE);
            return manager.open(TEXT).expect("memory");
        }
        manager.shmem(HUGE).expect("memory")
    }

    fn map(self, machine: &Hosted, mm: &Space<'_>, file: &File<'_, Hosted>) {
        if self == Self::Text {
            mm.mmap(&private(file, BASE, HUGE, RX)).unwrap();
            check_text(machine, mm, BASE, self.touched());
        } else {
            mm.mmap(&shared(file, BASE, HUGE)).unwrap();
            fill(machine, mm, BASE, self.touched());
        }
    }

    /// Checks that all pages but one are unchanged.
    fn check(self, machine: &Hosted, mm: &Space<'_>, lost: Option<u64>) {
        let kept = (0..512).filter(|&page| Some(page) != lost);
        match self {
            Self::Text => check_text(machine, mm, BASE, kept),
            _ => {
                let (touched, holes): (Vec<_>, Vec<_>) =
                    kept.partition(|page| self.touched().any(|one| one == *page));
                check(machine, mm, BASE, touched.into_iter());
                holes.iter().for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(0)));
            }
        }
    }
}

/// What happened to the bad frame, and to the collapse.
struct Outcome {
    /// Calls of the platform that the collapse made.
    calls: u64,
    failed: Result<Failed, MemoryFailureError>,
    report: Collapsed,
    /// Whether the failure was handled while the collapse was held up.
    meanwhile: bool,
}

/// Collapses on CPU 0; at one of its calls of the platform this frame goes bad, and CPU 1 handles that.
fn fail_at(
    machine: &Hosted,
    manager: &Manager<'_>,
    mm: &Space<'_>,
    plan: InterruptPlan,
    bad: Frame,
) -> Outcome {
    let collapse = || {
        mm.switch_in();
        let report = mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
        mm.switch_out();
        report
    };
    let fail = || {
        if plan == InterruptPlan::Count { Err(MemoryFailureError::Busy) } else { manager.memory_failure(bad) }
    };
    let held = held_up(machine, plan, PATIENCE, collapse, fail);
    Outcome { calls: held.calls, failed: held.second, report: held.first, meanwhile: held.in_time }
}

/// How often each outcome occurred.
#[derive(Default, Debug)]
struct Seen {
    /// The frame had no owner, and the collapse was refused.
    refused: u64,
    /// The block was marked before it was split.
    marked: u64,
    /// The frame held a page, which was lost or dropped.
    pages: u64,
    /// The frame was being copied from, or its owner changed.
    busy: u64,
}

/// One collapse in a machine of its own in which this frame goes bad; returns also where its pages are in the
/// end.
fn scene(
    pages: Pages,
    plan: InterruptPlan,
    victim: impl Fn(&Hosted, &Space<'_>) -> Frame,
) -> (Outcome, Option<Frame>) {
    let machine = HostedConfig::new(64 * MIB).with_cpus(2).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let ranges = testkit::ranges_of(&machine);
        let manager =
            hosted::raw::memory_manager(&machine, &ranges, &Default::default()).expect("no manager");
        manager.set_folio_policy(FolioPolicy::FRAMES);
        manager.pages().lists().drain_all();
        let before = manager.meminfo().frames.used;
        let (file, mm) = (pages.file(&machine, &manager), manager.new_mm().expect("memory"));
        mm.switch_in();
        pages.map(&machine, &mm, &file);
        let bad = victim(&machine, &mm);
        mm.switch_out();
        let outcome = fail_at(&machine, &manager, &mm, plan, bad);
        mm.switch_in();
        let lost = look(&machine, &manager, &mm, pages, (&outcome, plan, bad));
        let again = mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
        assert_eq!(again.last, lost.map(|_| Refusal::Lost), "{plan:?}: {again:?} after {:?}", outcome.failed);
        pages.check(&machine, &mm, lost);
        let first = frame_at(&machine, &mm, BASE);
        mm.validate().expect("broken address space");
        mm.switch_out();
        mm.exit();
        drop(file);
        manager.validate().expect("broken at the end");
        manager.pages().lists().drain_all();
        let after = manager.meminfo();
        assert_eq!(after.frames.used, before + after.bad, "{plan:?}: only what is bad is lost");
        machine.assert_clean();
        (outcome, first)
    })
}

/// Checks the result, and reports the failure again where it could not be handled. Returns the lost page.
fn look(
    machine: &Hosted,
    manager: &Manager<'_>,
    mm: &Space<'_>,
    pages: Pages,
    (outcome, plan, bad): (&Outcome, InterruptPlan, Frame),
) -> Option<u64> {
    if plan == InterruptPlan::Count {
        assert_eq!(outcome.report.all_refused(), 0, "{:?}", outcome.report);
        return None;
    }
    // Before any page is accessed again.
    let place = (0..512).find(|page| frame_at(machine, mm, BASE + page * PAGE) == Some(bad));
    let failed = match outcome.failed {
        Err(MemoryFailureError::Busy) => {
            let at_last = manager.memory_failure(bad);
            assert!(at_last.is_ok(), "{plan:?}: {at_last:?}");
            at_last
        }
        failed => {
            assert_eq!(place, None, "{plan:?}: what went bad, {failed:?}, is mapped");
            failed
        }
    };
    assert_eq!(manager.pages().frames().bad_frames(), 1, "{plan:?}: {failed:?} after {:?}", outcome.report);
    let lost = match failed {
        Ok(Failed::Memory(MemoryFailure::PageLost)) => {
            (0..512).find(|page| load(machine, mm, BASE + page * PAGE) == Err(FaultError::Poisoned))
        }
        // A bad frame in a folio of whole blocks is lost when that folio is free, which it is by now.
        Ok(Failed::Memory(MemoryFailure::Free | MemoryFailure::Dropped | MemoryFailure::Marked)) => None,
        failed => panic!("{plan:?}: {failed:?}"),
    };
    assert_eq!(lost.is_some(), failed == Ok(Failed::Memory(MemoryFailure::PageLost)));
    manager.pages().lists().drain_all();
    assert!(manager.pages().frames().is_bad(bad));
    pages.check(machine, mm, lost);
    let there = (0..512).find(|page| frame_at(machine, mm, BASE + page * PAGE) == Some(bad));
    assert_eq!(there, None, "{plan:?}: a bad frame is a page");
    lost
}

/// A frame goes bad at every `early`-th moment, and at every `late`-th of the last, in which pages move.
fn at_moments(pages: Pages, (early, late): (usize, usize), victims: &[Victim]) -> Seen {
    const MOVING: u64 = 450;
    let (counted, block) = scene(pages, InterruptPlan::Count, |_, _| Frame(0));
    let moving = counted.calls - MOVING;
    let moments = (0..moving).step_by(early).chain((moving..counted.calls).step_by(late));
    let mut seen = Seen::default();
    for (number, moment) in moments.enumerate() {
        let victim = victims[number % victims.len()];
        let (outcome, _) = scene(pages, InterruptPlan::Nth(moment), |machine, mm| match victim {
            Victim::Target(page) => block.expect("mapped").add(page),
            Victim::Source(page) => frame_at(machine, mm, BASE + page * PAGE).expect("mapped"),
        });
        let refused = outcome.report.all_refused() > 0;
        match outcome.failed {
            Ok(Failed::Memory(MemoryFailure::Free)) => seen.refused += u64::from(refused),
            Ok(Failed::Memory(MemoryFailure::Marked)) => seen.marked += u64::from(refused),
            Ok(Failed::Memory(_)) => seen.pages += u64::from(outcome.meanwhile),
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                assert_eq!(error, MemoryFailureError::Busy, "moment {moment}, {victim:?}");
                seen.busy += 1;
            }
        }
    }
    println!("{pages:?}: {} calls, {seen:?}", counted.calls);
    seen
}

#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The frame that this page moves to.
    Target(u64),
    /// The frame that it moves from.
    Source(u64),
}

/// A frame that goes bad in the block that is being filled has no owner yet, or holds a page: nothing else is
/// lost (invariants 1 and 8).
#[test]
fn memory_goes_bad_where_pages_go_to() {
    let last = [Victim::Target(511)];
    let each = [Victim::Target(0), Victim::Target(255), Victim::Target(256), Victim::Target(511)];
    let seen = at_moments(Pages::Shmem, (1, 2), &last);
    assert!(seen.refused > 20 && seen.marked > 0, "{seen:?}");
    let seen = at_moments(Pages::Shmem, (5, 7), &each);
    assert!(seen.refused > 0 && seen.pages > 0, "{seen:?}");
    let seen = at_moments(Pages::Holes, (61, 13), &each);
    assert!(seen.refused > 5 && seen.pages > 1, "{seen:?}");
    let seen = at_moments(Pages::Text, (97, 11), &each);
    assert!(seen.refused > 5 && seen.pages > 0, "{seen:?}");
}

/// The same for the frames that pages move from: a moving page is busy, which is no reason to stop the
/// machine.
#[test]
fn memory_goes_bad_where_pages_come_from() {
    let victims = [Victim::Source(3), Victim::Source(200), Victim::Source(64)];
    let seen = at_moments(Pages::Shmem, (5, 5), &victims);
    assert!(seen.busy > 0 && seen.pages > 1, "{seen:?}");
    let seen = at_moments(Pages::Text, (97, 17), &victims);
    assert!(seen.pages > 1, "{seen:?}");
}

/// A pager may be slow, so tasks that need the address space do not wait for it: its lock is not held for
/// writing meanwhile.
#[test]
fn no_task_waits_for_an_address_space_while_a_pager_is_asked() {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let file = Pages::Text.file(machine, manager);
        let spaces = [(); 2].map(|()| manager.new_mm().expect("memory"));
        for mm in &spaces {
            mm.mmap(&private(&file, BASE, HUGE, RX)).unwrap();
            mm.mmap(&anonymous(BASE + 4 * HUGE, PAGE)).unwrap();
        }
        // Pages that are read in order would fill a block in order: the last one is read first.
        spaces[1].mlock(VirtAddr(BASE + HUGE - PAGE), PAGE, false).unwrap();
        spaces[1].mlock(VirtAddr(BASE), HUGE, false).unwrap();
        let reached = |word: &AtomicU64, number| word.load(Ordering::SeqCst) >= number;
        // How often the pager was asked, how often all tasks were served meanwhile, and how often not.
        let [asked, served, waited] = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
        let (slow, collapsing) = ((asked.clone(), served.clone(), waited.clone()), thread::current().id());
        machine.files().set_slow_sizes(move || {
            if thread::current().id() == collapsing {
                let number = slow.0.fetch_add(1, Ordering::SeqCst) + 1;
                let late = !within(Duration::from_secs(2), || reached(&slow.1, number));
                slow.2.fetch_add(u64::from(late), Ordering::SeqCst);
            }
        });
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                machine.run_on(CpuId(1), || {
                    for number in 1.. {
                        if !within(Duration::from_secs(30), || reached(&asked, number))
                            || asked.load(Ordering::SeqCst) == u64::MAX
                        {
                            return;
                        }
                        for mm in &spaces {
                            mm.fault(VirtAddr(BASE + 4 * HUGE), Access::Read).expect("memory");
                        }
                        served.store(number, Ordering::SeqCst);
                    }
                });
            });
            let report = spaces[0].collapse(VirtAddr(BASE), HUGE).expect("a mapping");
            assert_eq!(report.copied, 1, "{report:?}");
            assert!(asked.swap(u64::MAX, Ordering::SeqCst) > 0, "the pager was never asked");
            server.join().expect("CPU 1 is done");
        });
        assert_eq!(waited.load(Ordering::SeqCst), 0, "a task had to wait for the pager");
        machine.files().set_slow_sizes(|| ());
        for mm in spaces {
            mm.switch_in();
            assert!(is_large(machine, &mm, BASE));
            mm.validate().expect("broken address space");
            mm.switch_out();
            mm.exit();
        }
    });
}

/// No large leaf maps pages that were cut off, at whatever moment a task touches one that stays (invariant
/// 3).
#[test]
fn a_fault_while_pages_are_cut_off_maps_none_of_them() {
    // Moments in which the pages are cut off and unmapped, and the first of them freed.
    const MOMENTS: u64 = 40;
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let mut meanwhile = 0;
        for moment in 0..MOMENTS {
            let (file, mm) = (manager.shmem(HUGE).unwrap(), manager.new_mm().expect("memory"));
            mm.switch_in();
            Pages::Shmem.map(machine, &mm, &file);
            crate::filethp::support::moved(&mm, BASE);
            mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
            mm.switch_out();
            let truncate = || file.truncate(100 * PAGE).expect("it is shmem");
            let fault = || mm.fault(VirtAddr(BASE), Access::Read).map(drop).expect("it stays");
            let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, truncate, fault);
            meanwhile += u64::from(held.in_time);
            mm.switch_in();
            assert_eq!(frame_at(machine, &mm, BASE + 300 * PAGE), None, "moment {moment}");
            assert_eq!(mm.fault(VirtAddr(BASE + 300 * PAGE), Access::Read), Err(FaultError::BeyondEnd));
            check(machine, &mm, BASE, 0..100);
            mm.validate().expect("broken address space");
            mm.switch_out();
            mm.exit();
        }
        assert!(meanwhile > 5, "at {meanwhile} of {MOMENTS} moments");
    });
}

/// Collapses locked pages, of which all but the first 100 are cut off at call `moment` of the platform.
/// Returns how many calls there were, and whether the file was short while the collapse was held up.
fn cut_off_at(machine: &Hosted, manager: &Manager<'_>, moment: u64) -> (u64, bool) {
    let (file, mm) = (manager.shmem(HUGE).unwrap(), manager.new_mm().expect("memory"));
    mm.switch_in();
    Pages::Shmem.map(machine, &mm, &file);
    mm.mlock(VirtAddr(BASE), HUGE, false).expect("it is there");
    mm.switch_out();
    let collapse = || _ = mm.collapse(VirtAddr(BASE), HUGE);
    let truncate = || file.truncate(100 * PAGE).expect("it is shmem");
    let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, collapse, truncate);
    mm.switch_in();
    for page in 100..512 {
        assert_eq!(frame_at(machine, &mm, BASE + page * PAGE), None, "page {page}, moment {moment}");
    }
    check(machine, &mm, BASE, 0..100);
    mm.validate().expect("broken address space");
    mm.switch_out();
    mm.exit();
    (held.calls, held.in_time)
}

/// A collapse maps the pages that it moved again in locked mappings, but none that was cut off meanwhile
/// (invariant 2).
#[test]
fn what_is_cut_off_meanwhile_is_not_mapped_again_for_its_lock() {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let (calls, _) = cut_off_at(machine, manager, u64::MAX);
        let moments = (0..calls).step_by((calls / 150) as usize);
        let came = moments.filter(|&moment| cut_off_at(machine, manager, moment).1).count();
        // At other moments the truncating CPU waits for busy pages, or for the closed file.
        println!("of {calls} calls, {came} times the file was cut short while the collapse stood still");
        assert!(came > 0);
    });
}

/// No two CPUs use leaves of different sizes for an address. A CPU that has small leaves cached is flushed
/// before the large one is mapped, though that maps the same frames.
#[test]
fn a_large_leaf_comes_after_the_flush_of_the_small_ones() {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let (file, mm) = (manager.shmem(HUGE).unwrap(), manager.new_mm().expect("memory"));
        mm.switch_in();
        Pages::Shmem.map(machine, &mm, &file);
        crate::filethp::support::moved(&mm, BASE);
        // Marking one page splits the large leaf.
        mm.clear_soft_dirty(VirtAddr(BASE), PAGE).unwrap();
        mm.switch_out();
        // Accesses that CPU 0 has asked for, and that CPU 1 has made; before its first, CPU 1 caches a small
        // leaf.
        let [asked, looked] = [const { AtomicU64::new(0) }; 2];
        let look = || {
            let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(within(Duration::from_secs(10), || looked.load(Ordering::SeqCst) >= number));
        };
        let ends = machine.spawn_cpus(2, |cpu| {
            let mut hits = None;
            if cpu.0 == 0 {
                look();
                let collapse = || mm.collapse(VirtAddr(BASE), HUGE).expect("a mapping");
                let every = InterruptPlan::Every(1);
                let ran = machine.interrupt_at_calls(every, Context::HardInterrupt, look, collapse);
                assert_eq!(ran.result.reshaped, 1, "{:?}", ran.result);
                asked.store(u64::MAX, Ordering::SeqCst);
                return hits;
            }
            mm.switch_in();
            check(machine, &mm, BASE, 0..1);
            for number in 1.. {
                assert!(within(Duration::from_secs(10), || asked.load(Ordering::SeqCst) >= number));
                if asked.load(Ordering::SeqCst) == u64::MAX {
                    break;
                }
                if hits.is_none() && is_large(machine, &mm, BASE) {
                    let before = machine.counters().tlb_hits;
                    check(machine, &mm, BASE, 0..1);
                    hits = Some(machine.counters().tlb_hits - before);
                }
                looked.store(number, Ordering::SeqCst);
            }
            mm.switch_out();
            hits
        });
        assert_eq!(ends[1], Some(0), "a small leaf was cached when the large one came");
        mm.exit();
    });
}
