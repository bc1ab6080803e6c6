//! The bracket itself: which changes need none, which accesses wait for it, and which walk again.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hosted::{Counters, Hosted, HostedConfig, InterruptPlan, Nested, OnViolation, Violation};
use quire::addr::{VirtAddr, VirtRange};
use quire::cpu::CpuId;
use quire::platform::{Context, TablePlatform};
use quire::vm::{Access, Advice, FolioPolicy, ForkStrategy};

use crate::nested::scene::{BASE, GUEST, PAGE};
use crate::nested::world::{MIB, R, RW, Space, anonymous, with_forks, with_manager};
use testkit::order;

fn with_guest(cpus: usize, test: impl FnOnce(&Hosted, &Space<'_>, &Nested<'_>)) {
    with_guest_of(cpus, ForkStrategy::Copy, 0, test);
}

fn with_guest_of(
    cpus: usize,
    fork: ForkStrategy,
    folio: u8,
    test: impl FnOnce(&Hosted, &Space<'_>, &Nested<'_>),
) {
    with_forks(HostedConfig::new(64 * MIB).with_cpus(cpus), fork, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(order(folio)).with_pmd_mapped(folio == 9));
        let mm = manager.new_mm().unwrap();
        let registered = mm.register_secondary();
        let nested = Nested::new(machine, &mm, VirtAddr(BASE), GUEST, cpus);
        mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
        test(machine, &mm, &nested);
        nested.check();
        mm.validate().unwrap();
        drop(nested);
        drop(registered);
        mm.exit();
    });
}

fn range(at: u64, len: u64) -> VirtRange {
    VirtRange::from_len(VirtAddr(BASE + at), len)
}

#[test]
fn more_rights_and_new_leaves_need_no_bracket() {
    with_guest(1, |machine, mm, nested| {
        mm.mprotect(VirtAddr(BASE), 4 * MIB, R).unwrap();
        let cpu = nested.cpu(0);
        (0..MIB).step_by(4096).for_each(|at| assert_eq!(cpu.load(mm, at), Ok(0)));
        let before = machine.counters().brackets;
        mm.mprotect(VirtAddr(BASE), 4 * MIB, RW).unwrap();
        mm.madvise(VirtAddr(BASE + MIB), MIB, Advice::PopulateWrite).unwrap();
        assert_eq!(machine.counters().brackets, before);
        assert_eq!(nested.copies(0..MIB).len() as u64, MIB / PAGE, "good as they are");
        // Only the first store replaces a leaf: that of the zero frame.
        cpu.store(mm, 0, 1).unwrap();
        cpu.store(mm, MIB, 1).unwrap();
        assert_eq!(machine.counters().brackets, before + 1);
        let child = mm.fork().unwrap();
        child.exit();
        assert_eq!(cpu.load(mm, 0), Ok(1));
        let before = machine.counters().brackets;
        cpu.store(mm, 0, 2).unwrap();
        assert_eq!(machine.counters().brackets, before, "the page is exclusive again");
        assert!(nested.copy_at(0).unwrap().write);
    });
}

/// Splitting a leaf, and unsharing a table, change nothing in a copy.
#[test]
fn another_shape_needs_no_bracket() {
    with_guest_of(1, ForkStrategy::Copy, 9, |machine, mm, nested| {
        let cpu = nested.cpu(0);
        cpu.store(mm, 2 * MIB, 5).unwrap();
        cpu.store(mm, 0, 5).unwrap();
        let before = machine.counters().brackets;
        // The range ends inside the second leaf; no address in it is mapped otherwise than before.
        mm.mprotect(VirtAddr(BASE + 2 * MIB + 8 * PAGE), PAGE, RW).unwrap();
        assert!(mm.translate(VirtAddr(BASE + 2 * MIB), Access::Read).unwrap().size.bytes() == PAGE);
        assert_eq!(machine.counters().brackets, before);
        assert_eq!(nested.copy_at(2 * MIB).map(|copy| copy.bytes), Some(2 * MIB));
        cpu.store(mm, 2 * MIB + 8 * PAGE, 6).unwrap();
        nested.check();
    });
    with_guest_of(1, ForkStrategy::Share, 0, |machine, mm, nested| {
        let cpu = nested.cpu(0);
        (0..MIB).step_by(4096).for_each(|at| cpu.store(mm, at, at).unwrap());
        let child = mm.fork().unwrap();
        (0..MIB).step_by(4096).for_each(|at| assert_eq!(cpu.load(mm, at), Ok(at)));
        let before = machine.counters().brackets;
        cpu.store(mm, 3 * PAGE, 7).unwrap();
        assert_eq!(machine.counters().brackets, before + 1, "for the one page that is copied");
        assert_eq!(nested.copies(0..MIB).len() as u64, MIB / PAGE);
        nested.check();
        child.exit();
    });
}

/// The bracket begins before any CPU is flushed and ends when all are: a flush that follows any call in a
/// verb finds it open. Guests cannot tell the difference; a secondary MMU that stops its own flushes during
/// the bracket can.
#[test]
fn a_bracket_holds_the_flush() {
    with_guest(2, |machine, mm, nested| {
        mm.switch_in();
        machine.run_on(CpuId(1), || mm.switch_in());
        let child = RefCell::new(None);
        let store = |at: u64| nested.cpu(0).store(mm, at, 1).unwrap();
        let verbs: [(&str, &dyn Fn()); 7] = [
            ("unmapped", &|| mm.munmap(VirtAddr(BASE), 2 * PAGE).unwrap()),
            ("given up", &|| mm.madvise(VirtAddr(BASE + 2 * PAGE), PAGE, Advice::DontNeed).unwrap()),
            ("freed lazily", &|| mm.madvise(VirtAddr(BASE + 3 * PAGE), PAGE, Advice::Free).unwrap()),
            ("protected", &|| mm.mprotect(VirtAddr(BASE + 4 * PAGE), PAGE, R).unwrap()),
            ("marked", &|| mm.write_protect_marked(VirtAddr(BASE + 5 * PAGE), PAGE).unwrap()),
            ("forked", &|| *child.borrow_mut() = Some(mm.fork().unwrap())),
            ("copied", &|| _ = mm.fault(VirtAddr(BASE + 6 * PAGE), Access::Write).unwrap()),
        ];
        (0..8).for_each(|page| store(page * PAGE));
        let mut all = Vec::new();
        for (name, verb) in verbs {
            let seen = RefCell::new(vec![machine.counters()]);
            let look = || seen.borrow_mut().push(machine.counters());
            machine.interrupt_at_calls(InterruptPlan::Every(1), Context::HardInterrupt, look, verb);
            look();
            let flushes = |now: &Counters| (now.flushes_local, now.flushes_remote);
            let open = |now: &Counters| now.brackets - now.bracket_ends;
            let seen = seen.into_inner();
            let pairs = seen.windows(2).filter(|pair| flushes(&pair[0]) != flushes(&pair[1]));
            let around: Vec<u64> = pairs.map(|pair| open(&pair[0])).collect();
            all.push((name, !around.is_empty() && around.iter().all(|&open| open == 1)));
        }
        child.take().unwrap().exit();
        machine.run_on(CpuId(1), || mm.switch_out());
        mm.switch_out();
        let outside: Vec<&str> = all.iter().filter(|(_, held)| !held).map(|(name, _)| *name).collect();
        assert!(outside.is_empty(), "no CPU was flushed inside the bracket: {outside:?}");
    });
}

/// A fault that walked before a bracket, and wants to install its result after the bracket began or ended,
/// walks again.
#[test]
fn what_was_found_before_a_bracket_is_not_kept() {
    with_guest(1, |machine, mm, nested| {
        for (start, len, kept) in [(0, PAGE, false), (8 * PAGE, PAGE, false)] {
            nested.cpu(0).store(mm, 0, 1).unwrap();
            let found = nested.look_up(mm, 0, Access::Write).unwrap();
            machine.secondary_invalidate_start(mm.root(), range(start, len));
            assert_eq!(nested.keep(found), kept);
            machine.secondary_invalidate_end(mm.root(), range(start, len));
            assert!(!nested.keep(found), "not later, either");
        }
        assert_eq!(nested.stats().retries, 4);
        // The same with a verb that changes the result of the walk.
        let found = nested.look_up(mm, PAGE, Access::Write).unwrap();
        mm.munmap(VirtAddr(BASE + PAGE), PAGE).unwrap();
        assert!(!nested.keep(found));
        assert_eq!(nested.copy_at(PAGE), None);
        let found = nested.look_up(mm, 0, Access::Write).unwrap();
        assert!(nested.keep(found), "none came between");
    });
}

/// An access in the middle of a bracket waits for its end; an access elsewhere does not.
#[test]
fn a_fault_waits_for_the_bracket_around_it() {
    with_guest(2, |machine, mm, nested| {
        let (inside, done) = (AtomicBool::new(false), AtomicBool::new(false));
        machine.spawn_cpus(2, |cpu| {
            let virtual_cpu = nested.cpu(cpu.index());
            if cpu == CpuId(0) {
                virtual_cpu.store(mm, 0, 1).unwrap();
                machine.secondary_invalidate_start(mm.root(), range(0, MIB));
                inside.store(true, Ordering::SeqCst);
                virtual_cpu.store(mm, 2 * MIB, 3).unwrap();
                while nested.stats().retries == 0 {
                    std::thread::yield_now();
                }
                std::thread::sleep(Duration::from_millis(5));
                assert!(!done.load(Ordering::SeqCst), "a copy was made inside a bracket");
                assert_eq!(nested.copies(0..MIB), []);
                machine.secondary_invalidate_end(mm.root(), range(0, MIB));
            } else {
                while !inside.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                assert_eq!(virtual_cpu.load(mm, 0), Ok(1));
                done.store(true, Ordering::SeqCst);
            }
        });
        let stats = nested.stats();
        assert!(stats.longest_stall >= Duration::from_millis(5) && stats.stalled >= stats.longest_stall);
        assert!(stats.brackets[""].longest >= Duration::from_millis(5));
    });
}

/// Copies are as large as leaf, guest memory and alignment allow.
#[test]
fn copies_have_the_size_of_leaves() {
    with_guest_of(1, ForkStrategy::Copy, 9, |machine, mm, nested| {
        nested.cpu(0).store(mm, 5 * PAGE, 1).unwrap();
        assert_eq!(nested.stats().installs, [0, 1, 0]);
        let copy = nested.copy_at(0).unwrap();
        assert_eq!((copy.at, copy.bytes, copy.write), (0, 2 * MIB, true));
        // A guest whose memory starts in the middle of a large leaf cannot use it.
        let askew = Nested::new(machine, mm, VirtAddr(BASE + PAGE), MIB, 1);
        askew.cpu(0).store(mm, 0, 1).unwrap();
        assert_eq!(askew.stats().installs, [1, 0, 0]);
        // Nor can one whose memory ends there.
        let short = Nested::new(machine, mm, VirtAddr(BASE), MIB, 1);
        assert_eq!(short.cpu(0).load(mm, 5 * PAGE), Ok(1));
        assert_eq!(short.stats().installs, [1, 0, 0]);
        short.check();
        assert_eq!(askew.check(), 1);
        // A load of a clean page installs a read-only copy, so that the first store is noticed.
        mm.madvise(VirtAddr(BASE + 2 * MIB), 2 * MIB, Advice::PopulateWrite).unwrap();
        mm.madvise(VirtAddr(BASE + 2 * MIB), 2 * MIB, Advice::Free).unwrap();
        assert_eq!(nested.cpu(0).load(mm, 2 * MIB), Ok(0));
        assert!(!nested.copy_at(2 * MIB).unwrap().write);
        assert!(!machine.probe(mm.root(), VirtAddr(BASE + 2 * MIB)).unwrap().dirty);
        nested.cpu(0).store(mm, 2 * MIB, 8).unwrap();
        assert!(nested.copy_at(2 * MIB).unwrap().write);
        assert!(machine.probe(mm.root(), VirtAddr(BASE + 2 * MIB)).unwrap().dirty);
    });
}

/// A hint about a collapse merges copies in place: no guest faults, and no bracket is opened.
#[test]
fn copies_collapse_in_place() {
    with_guest_of(1, ForkStrategy::Copy, 9, |machine, mm, nested| {
        let cpu = nested.cpu(0);
        mm.mprotect(VirtAddr(BASE), 4 * MIB, RW).unwrap();
        mm.madvise(VirtAddr(BASE), 4 * MIB, Advice::PopulateWrite).unwrap();
        mm.mprotect(VirtAddr(BASE + 8 * PAGE), PAGE, RW).unwrap();
        // The hint for the large leaf holds for the small ones: all are stored to.
        let other = Nested::new(machine, mm, VirtAddr(BASE), GUEST, 1);
        (0..2 * MIB).step_by(4096).for_each(|at| other.cpu(0).store(mm, at, 0).unwrap());
        assert_eq!(other.stats().installs, [512, 0, 0]);
        drop(other);
        for at in [0, 8 * PAGE, 9 * PAGE] {
            cpu.store(mm, at, at).unwrap();
        }
        assert_eq!(cpu.load(mm, 16 * PAGE), Ok(0));
        assert_eq!(nested.copies(0..2 * MIB).len(), 4);
        let (before, faults) = (machine.counters(), nested.stats().faults);
        // A hint that comes too early or too late changes nothing: the page table has small leaves.
        machine.secondary_collapse_possible(mm.root(), range(0, 2 * MIB));
        assert_eq!(nested.copies(0..2 * MIB).len(), 4);
        assert_eq!(mm.collapse(VirtAddr(BASE), 2 * MIB).unwrap().reshaped, 1);
        let copies = nested.copies(0..4 * MIB);
        assert_eq!(
            copies.iter().map(|copy| (copy.at, copy.bytes, copy.write)).collect::<Vec<_>>(),
            [(0, 2 * MIB, true)]
        );
        assert_eq!((cpu.load(mm, 9 * PAGE), cpu.load(mm, 100 * PAGE)), (Ok(9 * PAGE), Ok(0)));
        cpu.store(mm, 17 * PAGE, 4).unwrap();
        let stats = nested.stats();
        assert_eq!((stats.collapses, stats.faults), (1, faults));
        assert_eq!(machine.counters().brackets, before.brackets);
        // The hint makes no copy where there was none.
        machine.secondary_collapse_possible(mm.root(), range(2 * MIB, 2 * MIB));
        assert_eq!(nested.copies(2 * MIB..4 * MIB), []);
        nested.check();
    });
}

/// The machine detects frames that are freed while a copy maps them.
#[test]
fn a_freed_frame_with_a_copy_is_found() {
    let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(64 * MIB) };
    with_manager(config, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        // No secondary MMU is registered, so none is told.
        let nested = Nested::new(machine, &mm, VirtAddr(BASE), GUEST, 1);
        mm.mmap(&anonymous(BASE, PAGE)).unwrap();
        nested.cpu(0).store(&mm, 0, 1).unwrap();
        let frame = mm.translate(VirtAddr(BASE), Access::Read).unwrap().frame;
        mm.munmap(VirtAddr(BASE), PAGE).unwrap();
        let found = machine.take_violations();
        let Violation::FreedNested { addr, first, .. } = found[0] else { panic!("{found:?}") };
        assert_eq!((found.len(), addr, first), (1, BASE, frame));
        assert_eq!(nested.check(), 1);
        assert!(matches!(machine.take_violations()[..], [Violation::StaleNested { there: None, .. }]));
        mm.exit();
    });
}

/// The length of each bracket is recorded only on request, and agrees with the sums of all brackets.
#[test]
fn the_time_of_each_bracket_is_kept() {
    with_guest(1, |_, mm, nested| {
        let cpu = nested.cpu(0);
        let protect = |prot| hosted::during("protect", || mm.mprotect(VirtAddr(BASE), PAGE, prot).unwrap());
        cpu.store(mm, 0, 1).unwrap();
        protect(R);
        assert!(nested.bracket_times().is_empty() && nested.stats().brackets["protect"].count == 1);
        nested.keep_bracket_times();
        nested.forget_stats();
        for _ in 0..5 {
            protect(RW);
            cpu.store(mm, 0, 1).unwrap();
            protect(R);
        }
        let (times, stats) = (nested.bracket_times(), nested.stats().brackets["protect"]);
        let own = &times["protect"];
        assert_eq!((own.len() as u64, times.len()), (stats.count, nested.stats().brackets.len()));
        assert_eq!((own.iter().sum::<Duration>(), own.iter().max()), (stats.total, Some(&stats.longest)));
        assert_eq!(own.len(), 5, "more rights need no bracket");
        nested.forget_stats();
        assert!(nested.bracket_times().is_empty());
    });
}
