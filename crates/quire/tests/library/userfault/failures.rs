//! Every allocation of an answer fails once: the answer then reports it, and nothing has changed (invariant
//! 6). Threads die.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError, UserfaultError};
use quire::hugetlb::HugeSize;
use quire::manager::Config;
use quire::page_alloc::NodeSet;
use quire::platform::FileId;
use quire::vm::{Access, Advice, File, FolioPolicy, ForkStrategy, Sharing, UserfaultChanges, UserfaultModes};

use crate::userfault::handlers::until;
use crate::userfault::support::{
    BASE, Handler, MINOR, MISSING, PAGE, PROTECT, WAKE, copy, handler, marked, of_file, register, watched,
};
use crate::userfault::world::{FORKS, MIB, Manager, Space, anonymous, run, store, with_forks};
use crate::watched::Watched;
use testkit::ranges_of;

const HUGE: u64 = 2 * MIB;
/// Where the files of the scene are mapped.
const NAMELESS: u64 = BASE + (1 << 30);
const PAGED: u64 = BASE + (2 << 30);
const PARTS: u64 = BASE + (3 << 30);

struct Scene<'m, 's> {
    mm: &'s Space<'m>,
    handler: &'s Handler<'m>,
}

fn scene<'m>(
    machine: &Hosted,
    manager: &'m Manager<'_>,
    mm: &Space<'m>,
    handler: &Handler<'m>,
) -> [File<'m, Hosted>; 3] {
    machine.files().set_size(FileId(1), 8 * PAGE);
    let shmem = manager.shmem(8 * PAGE).unwrap();
    let paged = manager.open(FileId(1)).unwrap();
    let huge = manager.huge_file(HugeSize::Size2M, HUGE).unwrap();
    mm.mmap(&anonymous(BASE, 512 * PAGE)).unwrap();
    store(machine, mm, BASE + 8 * PAGE, 1).unwrap();
    mm.mmap(&of_file(&shmem, Sharing::Shared, NAMELESS, 8 * PAGE)).unwrap();
    mm.mmap(&of_file(&paged, Sharing::Shared, PAGED, 8 * PAGE)).unwrap();
    mm.mmap(&of_file(&huge, Sharing::Shared, PARTS, HUGE)).unwrap();
    mm.madvise(VirtAddr(PARTS), HUGE, Advice::Split).unwrap();
    register(mm, handler, BASE, 16 * PAGE, MISSING | PROTECT);
    register(mm, handler, NAMELESS, 8 * PAGE, MISSING | MINOR);
    register(mm, handler, PAGED, 8 * PAGE, MINOR);
    register(mm, handler, PARTS, HUGE, MISSING | MINOR);
    [shmem, paged, huge]
}

/// Runs `verb` on fresh scenes, once with tables that a child shares, with its first, second, … allocation
/// failing, until it makes no more.
fn at_every_allocation<E: PartialEq + std::fmt::Debug>(
    out_of_memory: E,
    least: u64,
    verb: impl Fn(&Scene<'_, '_>) -> Result<(), E>,
) {
    let mut failed = 0;
    for fork in [ForkStrategy::Copy, ForkStrategy::Share] {
        for nth in 0.. {
            let mut done = false;
            with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
                let pools = manager.huge_pools();
                let resize = |pages| pools.resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, pages);
                assert_eq!(resize(2).after, 2);
                let handler = handler(manager);
                run(manager, |mm| {
                    let files = scene(machine, manager, mm, &handler);
                    let child = mm.fork().unwrap();
                    let before = (mm.rss(), files.each_ref().map(|file| file.resident()), mm.mappings());
                    let scene = Scene { mm, handler: &handler };
                    machine.set_failures(FailurePlan::Nth(nth));
                    let outcome = verb(&scene);
                    done = machine.allocations_failed() == 0;
                    machine.set_failures(FailurePlan::Off);
                    if let Err(error) = outcome {
                        assert_eq!(error, out_of_memory, "allocation {nth}");
                        // Tables may have been allocated, a page read, and a huge zero page made: none of
                        // these is mapped.
                        let now = (mm.rss(), files.each_ref().map(|file| file.resident()), mm.mappings());
                        let page_tables = before.0.page_tables;
                        assert_eq!((quire::vm::Rss { page_tables, ..now.0 }, now.2), (before.0, before.2));
                        assert_eq!(now.1[0], before.1[0]);
                        failed += 1;
                        verb(&scene).expect("memory");
                    }
                    mm.validate().expect("broken address space");
                    child.validate().expect("broken child");
                });
                let _ = resize(0);
            });
            if done {
                break;
            }
        }
    }
    assert!(failed >= least, "{failed} allocations made the verb fail, want at least {least}");
}

fn answer(name: &str, least: u64, verb: impl Fn(&Space<'_>) -> Result<u64, UserfaultError>) {
    watched(name, 60, || {
        at_every_allocation(UserfaultError::OutOfMemory, least, |scene| verb(scene.mm).map(drop));
    });
}

#[test]
fn copies_fail_whole() {
    answer("copy", 2, |mm| copy(mm, BASE + PAGE, 1, WAKE));
    answer("copy to a file", 4, |mm| copy(mm, NAMELESS + PAGE, 1, WAKE));
    answer("copy a part", 2, |mm| copy(mm, PARTS + PAGE, 1, WAKE));
}

#[test]
fn zeroes_fail_whole() {
    answer("zeroes", 1, |mm| mm.userfault_zeropage(VirtAddr(BASE + PAGE), PAGE, WAKE).all());
    answer("zeroes of a file", 4, |mm| mm.userfault_zeropage(VirtAddr(NAMELESS), PAGE, WAKE).all());
    answer("zeroes of a part", 1, |mm| mm.userfault_zeropage(VirtAddr(PARTS + PAGE), PAGE, WAKE).all());
}

#[test]
fn continuing_and_poisoning_fail_whole() {
    answer("continue", 2, |mm| mm.userfault_continue(VirtAddr(PAGED), PAGE, WAKE).all());
    answer("poison", 1, |mm| mm.userfault_poison(VirtAddr(NAMELESS), PAGE, WAKE).all());
    answer("poison a part", 1, |mm| mm.userfault_poison(VirtAddr(PARTS + PAGE), PAGE, WAKE).all());
}

#[test]
fn write_protecting_fails_whole() {
    answer("protect", 1, |mm| mm.userfault_write_protect(VirtAddr(BASE), 16 * PAGE, true, WAKE).all());
}

#[test]
fn registering_fails_whole() {
    watched("register", 60, || {
        at_every_allocation(MmError::NoMemory, 1, |scene| {
            // Until the next node takes a frame.
            (0..60).try_for_each(|part| {
                let at = VirtAddr(BASE + (17 + 2 * part) * PAGE);
                scene.mm.userfault_register(scene.handler, at, PAGE, MISSING)?;
                scene.mm.userfault_unregister(at, PAGE)
            })?;
            let at = VirtAddr(BASE + 200 * PAGE);
            let done = (0..60).try_for_each(|part| {
                scene.mm.userfault_register(scene.handler, at.add(2 * part * PAGE), PAGE, MISSING)
            });
            scene.mm.userfault_unregister(at, 120 * PAGE).expect("nodes are there");
            done
        });
    });
}

/// Marks of a part of a large leaf are removed once the rest has a table. Without memory for the table the
/// handler stays, and so do its marks.
#[test]
fn unregistering_what_is_marked_fails_whole() {
    for fork in FORKS {
        let failed = (0..).take_while(|&nth| unregister_failing(fork, nth)).count();
        assert!(failed >= 1, "{fork:?}: nothing was asked for");
    }
}

/// Marks are looked for in tables that the address space does not share. Without memory to copy a table that
/// a child shares the handler stays.
#[test]
fn unregistering_what_a_child_shares_fails_whole() {
    with_forks(HostedConfig::new(64 * MIB), ForkStrategy::Share, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let handler = handler(manager);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            (0..4).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            register(mm, &handler, BASE, HUGE, PROTECT);
            let child = mm.fork().unwrap();
            let unregister = || mm.userfault_unregister(VirtAddr(BASE), HUGE);
            let modes = || {
                let mut modes = Vec::new();
                mm.vmas(|vma| modes.push(vma.handler));
                modes
            };
            machine.set_failures(FailurePlan::Nth(0));
            assert_eq!(unregister(), Err(MmError::NoMemory));
            machine.set_failures(FailurePlan::Off);
            assert_eq!(modes(), [PROTECT]);
            unregister().expect("memory");
            assert_eq!(modes(), [UserfaultModes::NONE]);
            child.validate().unwrap();
            child.exit();
        });
        handler.close();
    });
}

/// Unregisters a part of the marked range with this allocation failing. Returns whether memory was out.
fn unregister_failing(fork: ForkStrategy, nth: u64) -> bool {
    let mut failed = false;
    with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(true));
        let handler = handler(manager);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            (0..4).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            register(mm, &handler, BASE, HUGE, PROTECT);
            let protected = mm.userfault_write_protect(VirtAddr(BASE), HUGE, true, WAKE);
            assert_eq!(protected.all(), Ok(HUGE));
            let child = mm.fork().unwrap();
            let unregister = || child.userfault_unregister(VirtAddr(BASE), 2 * PAGE);
            machine.set_failures(FailurePlan::Nth(nth));
            let outcome = unregister();
            failed = machine.allocations_failed() > 0;
            machine.set_failures(FailurePlan::Off);
            if failed {
                assert_eq!(outcome, Err(MmError::NoMemory), "{fork:?}, allocation {nth}");
                assert_eq!((child.mappings(), marked(&child)), (1, [true; 4]), "{fork:?}, allocation {nth}");
                unregister().expect("memory");
            }
            assert_eq!((child.mappings(), marked(&child)), (2, [false, false, true, true]));
            assert_eq!(marked(mm), [true; 4], "the parent's stay");
            child.validate().unwrap();
            child.exit();
        });
        handler.close();
    });
    failed
}

/// A thread that dies frees its own place. If it was answered at that moment, another thread may have the
/// place already: that one is not woken for nothing.
#[test]
fn a_thread_that_dies_when_it_was_answered_leaves_its_place_to_the_next() {
    watched("dies late", 60, || {
        let machine = HostedConfig::new(64 * MIB).with_cpus(3).build().expect("a machine");
        let (step, wakes) = (AtomicU64::new(0), || machine.counters().wakes);
        let platform = Watched::new(&machine);
        machine.run_on(CpuId(0), || {
            let manager =
                hosted::raw::memory_manager(&platform, &ranges_of(&machine), &Config::default()).unwrap();
            let mm = manager.new_mm().unwrap();
            let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
            mm.mmap(&anonymous(BASE, 2 * PAGE)).unwrap();
            mm.userfault_register(&handler, VirtAddr(BASE), 2 * PAGE, MISSING).unwrap();
            platform.dies_after_that(|| {
                step.store(1, Ordering::SeqCst);
                until(|| machine.counters().waits == 1);
            });
            let fault = |page| mm.fault(VirtAddr(BASE + page * PAGE), Access::Read).map(drop);
            machine.spawn_cpus(3, |cpu| match cpu.0 {
                0 => {
                    let died = fault(0);
                    let woken = wakes();
                    step.store(3, Ordering::SeqCst);
                    assert_eq!((died, woken), (Err(FaultError::Dying), 1), "the answer's, and no other");
                }
                1 => {
                    until(|| step.load(Ordering::SeqCst) == 1);
                    mm.userfault_wake(VirtAddr(BASE), PAGE).all().unwrap();
                    step.store(2, Ordering::SeqCst);
                    until(|| step.load(Ordering::SeqCst) == 3);
                    mm.userfault_zeropage(VirtAddr(BASE + PAGE), PAGE, WAKE).all().unwrap();
                }
                _ => {
                    until(|| step.load(Ordering::SeqCst) == 2);
                    assert_eq!(fault(1), Ok(()));
                }
            });
            mm.validate().unwrap();
        });
    });
}
