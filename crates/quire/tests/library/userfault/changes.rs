//! Forks, unmaps, moves and removals of registered memory while threads wait for its pages: no change is
//! lost, and no thread waits for ever.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hosted::{Hosted, HostedConfig};
use quire::addr::{VirtAddr, VirtRange};
use quire::cpu::CpuId;
use quire::error::{FaultError, UserfaultError};
use quire::limits::USERFAULT_CHANGES;
use quire::manager::Config;
use quire::vm::{Advice, Remap, Sharing, TakenEvent, UserfaultChanges, UserfaultEvent, UserfaultKind};

use crate::userfault::handlers::until;
use crate::userfault::support::{
    BASE, Handler, MINOR, MISSING, OnDrop, PAGE, PROTECT, WAKE, copy, fault_of, handler, machine_of, of_file,
    register, watched,
};
use crate::userfault::world::{MIB, Manager, Space, anonymous, load, store};
use crate::watched::Watched;
use testkit::ranges_of;

/// A handler that reads all changes.
fn curious<'m>(manager: &'m Manager<'_>) -> Handler<'m> {
    manager.userfault(UserfaultChanges::ALL).expect("few handlers")
}

fn range(at: u64, len: u64) -> VirtRange {
    VirtRange::from_len(VirtAddr(at), len)
}

/// CPU 0 waits for the page at `at`, and gets `ends`. Once it waits, CPU 1 calls `verb`. CPU 2 reads all
/// events, does not answer the first, and answers other faults by pages of 42. Returns the changes that it
/// has read.
fn while_one_waits(
    machine: &Hosted,
    (mm, handler): (&Space<'_>, &Handler<'_>),
    (at, ends): (u64, Result<u64, FaultError>),
    verb: impl Fn() + Sync,
) -> Vec<UserfaultEvent> {
    let (changes, ended) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    machine.spawn_cpus(3, |cpu| match cpu.0 {
        0 => {
            let _ends = OnDrop(|| _ = ended.fetch_add(1, Ordering::SeqCst));
            mm.switch_in();
            assert_eq!(load(machine, mm, at), ends);
            mm.switch_out();
        }
        1 => {
            let _ends = OnDrop(|| _ = ended.fetch_add(1, Ordering::SeqCst));
            until(|| handler.info().taken == 1);
            verb();
        }
        _ => {
            let mut first = true;
            loop {
                let both = ended.load(Ordering::SeqCst) == 2;
                match handler.next_event().map(TakenEvent::keep) {
                    None if both => return,
                    None => std::thread::yield_now(),
                    Some(UserfaultEvent::Fault(_)) if first => first = false,
                    Some(UserfaultEvent::Fault(fault)) => {
                        let done = copy(mm, fault.addr.0, 42, WAKE);
                        assert!(matches!(done, Ok(_) | Err(UserfaultError::Again)), "{done:?}");
                        if done.is_err() {
                            handler.requeue(&fault);
                        }
                    }
                    Some(change) => changes.lock().unwrap().push(change),
                }
            }
        }
    });
    changes.into_inner().unwrap()
}

#[test]
fn a_thread_that_waits_for_unmapped_memory_is_told_so() {
    machine_of("munmap", 3, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        let space = mm.number();
        mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
        register(&mm, &handler, BASE + 4 * PAGE, 4 * PAGE, MISSING);
        register(&mm, &handler, BASE + 8 * PAGE, 2 * PAGE, PROTECT);
        let waits = (BASE + 5 * PAGE, Err(FaultError::NotMapped));
        let read = while_one_waits(machine, (&mm, &handler), waits, || {
            mm.munmap(VirtAddr(BASE + 2 * PAGE), 7 * PAGE).unwrap();
        });
        let unmap = |at, len| UserfaultEvent::Unmap { space, range: range(at, len) };
        assert_eq!(read, [unmap(BASE + 4 * PAGE, 4 * PAGE), unmap(BASE + 8 * PAGE, PAGE)]);
        // Memory that is mapped over, or that the heap frees, was unmapped too. Other ranges cause no event.
        mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 8 * PAGE, MISSING);
        let waits = (BASE + 3 * PAGE, Ok(0));
        let read = while_one_waits(machine, (&mm, &handler), waits, || {
            mm.mmap(&anonymous(BASE + 2 * PAGE, 2 * PAGE)).unwrap();
            mm.mmap(&anonymous(BASE + 2 * MIB, PAGE)).unwrap();
            mm.munmap(VirtAddr(BASE + 2 * MIB), PAGE).unwrap();
        });
        assert_eq!(read, [unmap(BASE + 2 * PAGE, 2 * PAGE)]);
        mm.validate().unwrap();
    });
}

#[test]
fn the_heap_shrinks_with_its_handler() {
    machine_of("brk", 3, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        mm.set_brk_start(VirtAddr(BASE));
        mm.brk(VirtAddr(BASE + 8 * PAGE));
        register(&mm, &handler, BASE, 8 * PAGE, MISSING);
        let waits = (BASE + 6 * PAGE, Err(FaultError::NotMapped));
        let read = while_one_waits(machine, (&mm, &handler), waits, || {
            assert_eq!(mm.brk(VirtAddr(BASE + 4 * PAGE)), VirtAddr(BASE + 4 * PAGE));
        });
        let gone = range(BASE + 4 * PAGE, 4 * PAGE);
        assert_eq!(read, [UserfaultEvent::Unmap { space: mm.number(), range: gone }]);
    });
}

#[test]
fn memory_that_moves_takes_its_handler_along() {
    for remap in [Remap::Fixed as fn(VirtAddr) -> Remap, Remap::FixedDontUnmap] {
        machine_of("mremap", 3, |machine, manager| {
            let mm = manager.new_mm().unwrap();
            let handler = curious(manager);
            mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
            register(&mm, &handler, BASE + 4 * PAGE, 8 * PAGE, MISSING);
            assert_eq!(copy(&mm, BASE + 4 * PAGE, 11, WAKE), Ok(PAGE));
            let to = VirtAddr(BASE + MIB);
            let stays = remap(to) == Remap::FixedDontUnmap(to);
            // Where the mapping stays its pages are still missing, and the handler answers.
            let ends = if stays { Ok(42) } else { Err(FaultError::NotMapped) };
            let read = while_one_waits(machine, (&mm, &handler), (BASE + 5 * PAGE, ends), || {
                let moved = mm.mremap(VirtAddr(BASE + 4 * PAGE), 8 * PAGE, 8 * PAGE, remap(to));
                assert_eq!(moved, Ok(to));
            });
            let space = mm.number();
            let from = VirtAddr(BASE + 4 * PAGE);
            assert_eq!(read, [UserfaultEvent::Remap { space, from, to, len: 8 * PAGE }]);
            let program = || assert_eq!(load(machine, &mm, to.0 + 3 * PAGE), Ok(42));
            crate::userfault::support::program_and_handler(machine, &mm, &handler, program, |event| {
                assert_eq!(copy(&mm, fault_of(event).addr.0, 42, WAKE), Ok(PAGE));
            });
            mm.switch_in();
            assert_eq!(load(machine, &mm, to.0), Ok(11), "the present page moved too");
            mm.switch_out();
            mm.validate().unwrap();
        });
    }
}

#[test]
fn what_is_given_up_is_missing_again() {
    machine_of("dontneed", 3, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
        register(&mm, &handler, BASE + 4 * PAGE, 4 * PAGE, MISSING);
        register(&mm, &handler, BASE + 8 * PAGE, 4 * PAGE, MISSING | PROTECT);
        mm.switch_in();
        (4..12).for_each(|page| assert_eq!(copy(&mm, BASE + page * PAGE, page, WAKE), Ok(PAGE)));
        mm.switch_out();
        let protect = mm.userfault_write_protect(VirtAddr(BASE + 8 * PAGE), 4 * PAGE, true, WAKE);
        assert_eq!(protect.all(), Ok(4 * PAGE));
        // A store waits for a mark to be removed; its page is dropped, and the store finds another one.
        let space = mm.number();
        let (stored, read) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        machine.spawn_cpus(3, |cpu| match cpu.0 {
            0 => {
                mm.switch_in();
                store(machine, &mm, BASE + 9 * PAGE, 5).unwrap();
                mm.switch_out();
                stored.store(true, Ordering::SeqCst);
            }
            1 => {
                until(|| handler.info().taken == 1);
                mm.madvise(VirtAddr(BASE + 6 * PAGE), 5 * PAGE, Advice::DontNeed).unwrap();
            }
            _ => {
                while !stored.load(Ordering::SeqCst) {
                    let Some(event) = handler.next_event() else { continue };
                    let event = event.keep();
                    read.lock().unwrap().push(event);
                    if let UserfaultEvent::Fault(fault) = event
                        && fault.kind == UserfaultKind::Missing
                    {
                        assert_eq!(copy(&mm, fault.addr.0, 90, WAKE), Ok(PAGE));
                    }
                }
            }
        });
        let read = read.into_inner().unwrap();
        let remove = |at, len| UserfaultEvent::Remove { space, range: range(at, len) };
        assert_eq!(fault_of(read[0]).kind, UserfaultKind::WriteProtected);
        assert_eq!(read[1..3], [remove(BASE + 6 * PAGE, 2 * PAGE), remove(BASE + 8 * PAGE, 3 * PAGE)]);
        assert_eq!(fault_of(read[3]).kind, UserfaultKind::Missing);
        assert_eq!(read.len(), 4);
        mm.switch_in();
        assert_eq!(load(machine, &mm, BASE + 9 * PAGE), Ok(5));
        assert_eq!(load(machine, &mm, BASE + 5 * PAGE), Ok(5));
        mm.switch_out();
    });
}

/// Pages that are freed lazily may go at any time, so the handler is told before that.
#[test]
fn what_is_freed_lazily_is_removed() {
    machine_of("free", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 4 * PAGE, MISSING);
        (0..4).for_each(|page| assert_eq!(copy(&mm, BASE + page * PAGE, page, WAKE), Ok(PAGE)));
        let (read, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                mm.madvise(VirtAddr(BASE + PAGE), 6 * PAGE, Advice::Free).unwrap();
                over.store(true, Ordering::SeqCst);
                return;
            }
            while !over.load(Ordering::SeqCst) {
                read.lock().unwrap().extend(handler.next_event().map(TakenEvent::keep));
            }
        });
        let removed = UserfaultEvent::Remove { space: mm.number(), range: range(BASE + PAGE, 3 * PAGE) };
        assert_eq!(read.into_inner().unwrap(), [removed]);
        mm.validate().unwrap();
    });
}

#[test]
fn a_thread_that_waits_for_a_page_behind_a_nearer_end_is_told_so() {
    machine_of("truncate", 3, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        let file = manager.shmem(16 * PAGE).unwrap();
        mm.mmap(&of_file(&file, Sharing::Shared, BASE, 16 * PAGE)).unwrap();
        mm.mmap(&of_file(&file, Sharing::Shared, BASE + MIB, 16 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 16 * PAGE, MISSING | MINOR);
        register(&mm, &handler, BASE + MIB + 8 * PAGE, 4 * PAGE, MISSING);
        let space = mm.number();
        let remove = |at, len| UserfaultEvent::Remove { space, range: range(at, len) };
        for (at, to) in [(9, 8), (7, 4)] {
            assert_eq!(copy(&mm, BASE + at * PAGE - PAGE, 1, WAKE), Ok(PAGE));
            let waits = (BASE + at * PAGE, Err(FaultError::BeyondEnd));
            let read = while_one_waits(machine, (&mm, &handler), waits, || {
                file.truncate(to * PAGE).unwrap();
            });
            let first = remove(BASE + to * PAGE, (16 - to) * PAGE);
            assert_eq!(read, [first, remove(BASE + MIB + 8 * PAGE, 4 * PAGE)]);
        }
        assert_eq!(file.resident(), 0);
        // A farther end removes no page, and causes no event.
        file.truncate(16 * PAGE).unwrap();
        assert!(handler.next_event().is_none());
        mm.validate().unwrap();
    });
}

/// The child's missing pages are missing there too, and the same handler answers, whether it reads fork
/// events or not.
#[test]
fn children_have_the_same_handler() {
    for changes in [UserfaultChanges::NONE, UserfaultChanges::FORK] {
        machine_of("fork", 3, |machine, manager| {
            let mm = manager.new_mm().unwrap();
            let handler = manager.userfault(changes).unwrap();
            mm.mmap(&anonymous(BASE, 32 * PAGE)).unwrap();
            mm.switch_in();
            store(machine, &mm, BASE + 17 * PAGE, 17).unwrap();
            store(machine, &mm, BASE + 18 * PAGE, 18).unwrap();
            mm.switch_out();
            register(&mm, &handler, BASE, 16 * PAGE, MISSING);
            register(&mm, &handler, BASE + 16 * PAGE, 16 * PAGE, PROTECT | MISSING);
            let protect = mm.userfault_write_protect(VirtAddr(BASE + 16 * PAGE), 16 * PAGE, true, WAKE);
            assert_eq!(protect.all(), Ok(16 * PAGE));
            assert_eq!(copy(&mm, BASE, 10, WAKE), Ok(PAGE));
            let child = Mutex::new(None);
            let (read, over) = (Mutex::new(Vec::new()), AtomicBool::new(false));
            machine.spawn_cpus(3, |cpu| match cpu.0 {
                0 => {
                    mm.switch_in();
                    assert_eq!(load(machine, &mm, BASE + PAGE), Ok(42), "it waits through the fork");
                    mm.switch_out();
                }
                1 => {
                    until(|| handler.info().taken == 1);
                    let forked = mm.fork().unwrap();
                    *child.lock().unwrap() = Some(forked);
                    over.store(true, Ordering::SeqCst);
                }
                _ => {
                    while !over.load(Ordering::SeqCst) {
                        let Some(event) = handler.next_event() else { continue };
                        read.lock().unwrap().push(event.keep());
                    }
                    assert_eq!(copy(&mm, BASE + PAGE, 42, WAKE), Ok(PAGE));
                }
            });
            let child = child.into_inner().unwrap().unwrap();
            let read = read.into_inner().unwrap();
            if changes == UserfaultChanges::FORK {
                assert_eq!(read[1..], [UserfaultEvent::Fork { parent: mm.number(), child: child.number() }]);
            }
            child_stores(machine, &handler, &mm, &child);
            drop(child);
        });
    }
}

fn child_stores(machine: &Hosted, handler: &Handler<'_>, mm: &Space<'_>, child: &Space<'_>) {
    let faults = Mutex::new(Vec::new());
    crate::userfault::support::program_and_handler(
        machine,
        child,
        handler,
        || {
            assert_eq!(load(machine, child, BASE), Ok(10));
            assert_eq!(load(machine, child, BASE + PAGE), Ok(77), "missing there, whatever the parent got");
            assert_eq!(load(machine, child, BASE + 17 * PAGE), Ok(17));
            store(machine, child, BASE + 17 * PAGE, 1).unwrap();
            assert_eq!(load(machine, child, BASE + 17 * PAGE), Ok(1));
        },
        |event| {
            let fault = fault_of(event);
            faults.lock().unwrap().push((fault.space, fault.addr.0, fault.kind));
            let done = match fault.kind {
                UserfaultKind::WriteProtected => {
                    child.userfault_write_protect(fault.addr, PAGE, false, WAKE).all()
                }
                _ => copy(child, fault.addr.0, 77, WAKE),
            };
            assert_eq!(done, Ok(PAGE));
        },
    );
    let number = child.number();
    assert_eq!(
        faults.into_inner().unwrap(),
        [
            (number, BASE + PAGE, UserfaultKind::Missing),
            (number, BASE + 17 * PAGE, UserfaultKind::WriteProtected)
        ]
    );
    child.validate().unwrap();
    mm.switch_in();
    assert_eq!(load(machine, mm, BASE + 17 * PAGE), Ok(17));
    assert_eq!(store(machine, mm, BASE + 18 * PAGE, 1), Err(FaultError::NoHandler), "its mark is there");
    mm.switch_out();
    mm.validate().unwrap();
}

/// From the change of memory until the handler has read of it, all answers are refused: a page for the old
/// state would be put into the new one.
#[test]
fn nothing_is_answered_before_a_change_was_read() {
    machine_of("again", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 16 * PAGE, MISSING | PROTECT);
        machine.spawn_cpus(2, |cpu| {
            if cpu.0 == 0 {
                mm.munmap(VirtAddr(BASE + 8 * PAGE), 8 * PAGE).unwrap();
                drop(mm.fork().unwrap());
                return;
            }
            for _ in 0..2 {
                until(|| handler.info().changes == 1);
                assert_eq!(copy(&mm, BASE, 1, WAKE), Err(UserfaultError::Again));
                let zero = mm.userfault_zeropage(VirtAddr(BASE), PAGE, WAKE);
                assert_eq!(zero.all(), Err(UserfaultError::Again));
                let protect = mm.userfault_write_protect(VirtAddr(BASE), PAGE, true, WAKE);
                assert_eq!(protect.all(), Err(UserfaultError::Again));
                let event = handler.next_event().unwrap().keep();
                assert!(matches!(event, UserfaultEvent::Unmap { .. } | UserfaultEvent::Fork { .. }));
            }
            assert_eq!(copy(&mm, BASE, 1, WAKE), Ok(PAGE));
        });
    });
}

/// Nor does a verb wait for a handler that is gone, or that exits meanwhile.
#[test]
fn verbs_do_not_wait_for_the_dead() {
    machine_of("dead reader", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        for dies_meanwhile in [false, true] {
            let handler = curious(manager);
            mm.userfault_unregister(VirtAddr(BASE), MIB).unwrap();
            register(&mm, &handler, BASE, MIB, MISSING);
            machine.spawn_cpus(2, |cpu| {
                if cpu.0 == 0 {
                    if !dies_meanwhile {
                        handler.close();
                    }
                    mm.madvise(VirtAddr(BASE), 4 * PAGE, Advice::DontNeed).unwrap();
                    mm.munmap(VirtAddr(BASE), 4 * PAGE).unwrap();
                    mm.mmap(&anonymous(BASE, 4 * PAGE)).unwrap();
                    drop(mm.fork().unwrap());
                } else if dies_meanwhile {
                    until(|| handler.info().changes == 1);
                    let _first = handler.next_event().unwrap().keep();
                    until(|| handler.info().changes == 1);
                    handler.close();
                }
            });
        }
        // No announced change of the dead handler is left.
        let handler = handler(manager);
        mm.userfault_adopt(&handler).unwrap();
        assert_eq!(copy(&mm, BASE + 8 * PAGE, 1, WAKE), Ok(PAGE));
    });
}

/// A change that stayed announced would refuse every answer for good, and hide every fault.
#[test]
fn a_task_that_dies_before_its_change_has_a_place_takes_the_change_back() {
    watched("no place", 60, || {
        let machine = HostedConfig::new(64 * MIB).build().expect("a machine");
        let platform = Watched::new(&machine);
        machine.run_on(CpuId(0), || {
            let manager =
                hosted::raw::memory_manager(&platform, &ranges_of(&machine), &Config::default()).unwrap();
            let mm = manager.new_mm().unwrap();
            let handler = manager.userfault(UserfaultChanges::ALL).unwrap();
            mm.mmap(&anonymous(BASE, 32 * PAGE)).unwrap();
            mm.userfault_register(&handler, VirtAddr(BASE), 32 * PAGE, MISSING).unwrap();
            let places = USERFAULT_CHANGES as u64;
            platform.dies_after(Some(0));
            (0..=places).for_each(|part| mm.munmap(VirtAddr(BASE + 2 * part * PAGE), PAGE).unwrap());
            platform.dies_after(None);
            let zero = || mm.userfault_zeropage(VirtAddr(BASE + PAGE), PAGE, WAKE).all();
            assert_eq!((handler.info().changes, zero()), (USERFAULT_CHANGES, Err(UserfaultError::Again)));
            for part in 0..places {
                let gone = range(BASE + 2 * part * PAGE, PAGE);
                let event = handler.next_event().map(TakenEvent::keep);
                assert_eq!(event, Some(UserfaultEvent::Unmap { space: mm.number(), range: gone }));
            }
            assert!(handler.next_event().is_none());
            assert_eq!(zero(), Ok(PAGE));
            mm.validate().unwrap();
        });
    });
}

/// Mappings that merge again were not unmapped.
#[test]
fn a_mapping_that_merges_again_was_moved_and_nothing_else() {
    machine_of("merge", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = curious(manager);
        mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 16 * PAGE, MISSING);
        let (half, apart) = (VirtAddr(BASE + 8 * PAGE), VirtAddr(BASE + MIB));
        let read = Mutex::new(Vec::new());
        let move_both_ways = || {
            for at in [half, VirtAddr(BASE)] {
                assert_eq!(mm.mremap(at, 8 * PAGE, 8 * PAGE, Remap::Fixed(apart)), Ok(apart));
                assert_eq!(mm.mremap(apart, 8 * PAGE, 8 * PAGE, Remap::Fixed(at)), Ok(at));
                assert_eq!(mm.mappings(), 1, "they are one again");
            }
        };
        crate::userfault::support::program_and_handler(machine, &mm, &handler, move_both_ways, |event| {
            read.lock().unwrap().push(event);
        });
        let space = mm.number();
        let moved = |from, to| UserfaultEvent::Remap { space, from, to, len: 8 * PAGE };
        let first = VirtAddr(BASE);
        let all = [moved(half, apart), moved(apart, half), moved(first, apart), moved(apart, first)];
        assert_eq!(read.into_inner().unwrap(), all);
    });
}
