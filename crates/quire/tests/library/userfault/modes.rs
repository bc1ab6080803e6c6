//! Each mode and each answer by itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError, UserfaultError};
use quire::limits::POPULATE_FAULTS;
use quire::platform::FileId;
use quire::vm::{Access, AnswerMode, Refusal, Sharing, UserfaultKind, UserfaultModes};

use crate::userfault::support::{
    BASE, MINOR, MISSING, PAGE, PROTECT, WAKE, copy, fault_of, handler, machine_of, marked, of_file,
    program_and_handler, register,
};
use crate::userfault::world::{FORKS, MIB, R, RW, anonymous, load, run, store, with_forks};

#[test]
fn what_is_missing_in_private_memory_is_copied() {
    machine_of("missing", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        register(&mm, &handler, BASE + PAGE, 64 * PAGE, MISSING);
        let seen = Mutex::new(Vec::new());
        let program = || {
            store(machine, &mm, BASE, 1).unwrap();
            assert_eq!(load(machine, &mm, BASE + 5 * PAGE + 16), Ok(5));
            store(machine, &mm, BASE + 6 * PAGE + 24, 77).unwrap();
            assert_eq!(load(machine, &mm, BASE + 6 * PAGE), Ok(6));
            assert_eq!(load(machine, &mm, BASE + 6 * PAGE + 24), Ok(77));
            assert_eq!(load(machine, &mm, BASE + 65 * PAGE), Ok(0), "no handler is asked behind the range");
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            let fault = fault_of(event);
            seen.lock().unwrap().push((fault.addr.0, fault.kind, fault.access));
            assert_eq!(fault.space, mm.number());
            assert_eq!(copy(&mm, fault.addr.0, (fault.addr.0 - BASE) / PAGE, WAKE), Ok(PAGE));
        });
        let missing = UserfaultKind::Missing;
        let seen = seen.into_inner().unwrap();
        assert_eq!(
            seen,
            [(BASE + 5 * PAGE, missing, Access::Read), (BASE + 6 * PAGE, missing, Access::Write)],
            "one event for each fault"
        );
        assert_eq!(mm.rss().anon, 3);
        mm.validate().unwrap();
    });
}

#[test]
fn zeroes_poison_and_unregistered_pages_are_answers() {
    machine_of("zeroes", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 8 * PAGE, MISSING);
        let program = || {
            assert_eq!(load(machine, &mm, BASE), Ok(0));
            store(machine, &mm, BASE, 3).unwrap();
            assert_eq!(load(machine, &mm, BASE), Ok(3));
            assert_eq!(load(machine, &mm, BASE + PAGE), Err(FaultError::Poisoned));
            assert_eq!(store(machine, &mm, BASE + PAGE, 1), Err(FaultError::Poisoned));
            store(machine, &mm, BASE + 2 * PAGE, 9).unwrap();
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            let at = fault_of(event).addr;
            let answer = match (at.0 - BASE) / PAGE {
                0 => mm.userfault_zeropage(at, PAGE, WAKE).all().unwrap(),
                1 => mm.userfault_poison(at, PAGE, WAKE).all().unwrap(),
                _ => {
                    mm.userfault_unregister(at, PAGE).unwrap();
                    PAGE
                }
            };
            assert_eq!(answer, PAGE);
        });
        assert_eq!(mm.rss().anon, 2);
        mm.validate().unwrap();
        // The marker is removed with the mapping.
        mm.munmap(VirtAddr(BASE), 2 * PAGE).unwrap();
        mm.mmap(&anonymous(BASE, 2 * PAGE)).unwrap();
        mm.switch_in();
        assert_eq!(load(machine, &mm, BASE + PAGE), Ok(0));
        mm.switch_out();
    });
}

/// They are no pages of the file, so the child's own faults could not bring them.
#[test]
fn a_child_keeps_zeroes_in_the_place_of_a_file() {
    machine_of("zeroes in a child", 1, |machine, manager| {
        let file = manager.shmem(2 * PAGE).unwrap();
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&of_file(&file, Sharing::Shared, 2 * BASE, 2 * PAGE)).unwrap();
        mm.mmap(&of_file(&file, Sharing::Private, BASE, 2 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 2 * PAGE, MISSING);
        assert_eq!(mm.userfault_zeropage(VirtAddr(BASE), PAGE, WAKE).all(), Ok(PAGE));
        mm.switch_in();
        store(machine, &mm, 2 * BASE, 7).unwrap();
        mm.switch_out();
        let child = mm.fork().unwrap();
        child.switch_in();
        assert_eq!((load(machine, &child, BASE), load(machine, &child, 2 * BASE)), (Ok(0), Ok(7)));
        child.switch_out();
        child.validate().unwrap();
    });
}

#[test]
fn shmem_is_missing_once_and_minor_from_then_on() {
    machine_of("shmem", 2, |machine, manager| {
        let (mm, other) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        let file = manager.shmem(16 * PAGE).unwrap();
        let handler = handler(manager);
        for space in [&mm, &other] {
            space.mmap(&of_file(&file, Sharing::Shared, BASE, 16 * PAGE)).unwrap();
        }
        register(&mm, &handler, BASE, 16 * PAGE, MISSING | MINOR);
        other.switch_in();
        store(machine, &other, BASE + 3 * PAGE, 33).unwrap();
        other.switch_out();
        let kinds = Mutex::new(Vec::new());
        let program = || {
            assert_eq!(load(machine, &mm, BASE + 3 * PAGE), Ok(33));
            assert_eq!(load(machine, &mm, BASE + 4 * PAGE), Ok(4));
            assert_eq!(load(machine, &mm, BASE + 5 * PAGE), Ok(0));
            store(machine, &mm, BASE + 5 * PAGE, 55).unwrap();
            let beyond = load(machine, &mm, BASE + 15 * PAGE);
            assert_eq!(beyond, Ok(15));
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            let fault = fault_of(event);
            let (at, page) = (fault.addr, (fault.addr.0 - BASE) / PAGE);
            kinds.lock().unwrap().push((page, fault.kind));
            match fault.kind {
                UserfaultKind::Minor => {
                    let exists = copy(&mm, at.0, 1, WAKE);
                    assert_eq!(exists, Err(UserfaultError::Exists), "the file knows better");
                    assert_eq!(mm.userfault_continue(at, PAGE, WAKE).all(), Ok(PAGE));
                }
                _ if page == 5 => assert_eq!(mm.userfault_zeropage(at, PAGE, WAKE).all(), Ok(PAGE)),
                _ => {
                    let lie = mm.userfault_continue(at, PAGE, WAKE);
                    assert_eq!(lie.stopped, Some(UserfaultError::NotThere), "a lying handler is told so");
                    assert_eq!(copy(&mm, at.0, page, WAKE), Ok(PAGE));
                }
            }
        });
        let (missing, minor) = (UserfaultKind::Missing, UserfaultKind::Minor);
        assert_eq!(kinds.into_inner().unwrap(), [(3, minor), (4, missing), (5, missing), (15, missing)]);
        other.switch_in();
        assert_eq!(load(machine, &other, BASE + 4 * PAGE), Ok(4), "the copied page belongs to the file");
        assert_eq!(load(machine, &other, BASE + 5 * PAGE), Ok(55));
        other.switch_out();
        mm.validate().unwrap();
        other.validate().unwrap();
        assert_eq!((mm.rss().shmem, file.resident()), (4, 4));
    });
}

#[test]
fn pages_of_the_pager_are_minor_whether_they_are_in_memory_or_not() {
    machine_of("paged", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        machine.files().set_size(FileId(3), 8 * PAGE);
        let file = manager.open(FileId(3)).unwrap();
        let handler = handler(manager);
        for (sharing, at) in [(Sharing::Shared, BASE), (Sharing::Private, BASE + MIB)] {
            mm.mmap(&of_file(&file, sharing, at, 16 * PAGE)).unwrap();
            let missing = mm.userfault_register(&handler, VirtAddr(at), 16 * PAGE, MISSING);
            assert_eq!(missing, Err(MmError::Invalid), "the pager is asked instead");
            register(&mm, &handler, at, 16 * PAGE, MINOR);
        }
        let faults = AtomicU64::new(0);
        let program = || {
            let pristine = load(machine, &mm, BASE + 8).unwrap();
            assert_eq!(load(machine, &mm, BASE + MIB + 8), Ok(pristine));
            store(machine, &mm, BASE + MIB + 8, 1).unwrap();
            assert_eq!(load(machine, &mm, BASE + 8), Ok(pristine), "a private store is private");
            store(machine, &mm, BASE + PAGE, 2).unwrap();
            assert_eq!(load(machine, &mm, BASE + 8 * PAGE), Err(FaultError::BeyondEnd));
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            faults.fetch_add(1, Ordering::Relaxed);
            let at = fault_of(event).addr;
            assert_eq!(copy(&mm, at.0, 1, WAKE), Err(UserfaultError::Invalid));
            assert_eq!(mm.userfault_continue(at, PAGE, WAKE).all(), Ok(PAGE));
            assert_eq!(mm.userfault_continue(at, PAGE, WAKE).all(), Err(UserfaultError::Exists));
        });
        assert_eq!(faults.load(Ordering::Relaxed), 3, "neighbours are not mapped along");
        let beyond = mm.userfault_continue(VirtAddr(BASE + 8 * PAGE), PAGE, WAKE);
        assert_eq!(beyond.all(), Err(UserfaultError::BeyondEnd));
        mm.validate().unwrap();
    });
}

#[test]
fn stores_to_what_is_write_protected_wait() {
    machine_of("write-protect", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        mm.mmap(&anonymous(BASE, 64 * PAGE)).unwrap();
        mm.switch_in();
        (0..64).for_each(|page| store(machine, &mm, BASE + page * PAGE, page).unwrap());
        mm.switch_out();
        register(&mm, &handler, BASE, 32 * PAGE, PROTECT);
        register(&mm, &handler, BASE + 32 * PAGE, 8 * PAGE, PROTECT | MISSING);
        let protect = |at, len, on| mm.userfault_write_protect(VirtAddr(at), len, on, WAKE).all();
        assert_eq!(protect(BASE, 41 * PAGE, true), Err(UserfaultError::NotRegistered));
        assert_eq!(protect(BASE, 16 * PAGE, true), Ok(16 * PAGE));
        mm.madvise(VirtAddr(BASE + 33 * PAGE), PAGE, quire::vm::Advice::DontNeed).unwrap();
        let faults = Mutex::new(Vec::new());
        let program = || {
            assert_eq!(load(machine, &mm, BASE + PAGE), Ok(1), "loads do not wait");
            store(machine, &mm, BASE + PAGE, 100).unwrap();
            store(machine, &mm, BASE + PAGE, 101).unwrap();
            store(machine, &mm, BASE + 20 * PAGE, 102).unwrap();
            assert_eq!(load(machine, &mm, BASE + 33 * PAGE), Ok(5));
            store(machine, &mm, BASE + 33 * PAGE, 6).unwrap();
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            let fault = fault_of(event);
            faults.lock().unwrap().push(((fault.addr.0 - BASE) / PAGE, fault.kind));
            match fault.kind {
                UserfaultKind::Missing => {
                    assert_eq!(copy(&mm, fault.addr.0, 5, AnswerMode::PROTECTED), Ok(PAGE));
                }
                _ => assert_eq!(protect(fault.addr.0, PAGE, false), Ok(PAGE)),
            }
        });
        let (missing, protected) = (UserfaultKind::Missing, UserfaultKind::WriteProtected);
        assert_eq!(faults.into_inner().unwrap(), [(1, protected), (33, missing), (33, protected)]);
        // No range is registered any more, and no handler is asked.
        mm.userfault_unregister(VirtAddr(BASE), 64 * PAGE).unwrap();
        mm.switch_in();
        store(machine, &mm, BASE + 2 * PAGE, 1).unwrap();
        mm.switch_out();
        mm.validate().unwrap();
    });
}

/// A whole range is marked or nothing of it, and the answer says so.
#[test]
fn a_write_protection_that_is_refused_has_marked_no_byte() {
    machine_of("refused", 1, |machine, manager| {
        run(manager, |mm| {
            let handler = handler(manager);
            mm.mmap(&anonymous(BASE, 4 * PAGE)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            register(mm, &handler, BASE, 2 * PAGE, PROTECT);
            let protect = |at, len| mm.userfault_write_protect(VirtAddr(at), len, true, WAKE);
            let refused = |error| quire::vm::Answer { bytes: 0, stopped: Some(error) };
            assert_eq!(protect(BASE, 3 * PAGE), refused(UserfaultError::NotRegistered));
            assert_eq!(protect(BASE + 1, PAGE), refused(UserfaultError::Invalid));
            store(machine, mm, BASE, 2).unwrap();
        });
    });
}

#[test]
fn answers_say_how_far_they_came() {
    machine_of("errors", 1, |machine, manager| {
        run(manager, |mm| {
            let handler = handler(manager);
            mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
            let zero = |at, len| mm.userfault_zeropage(VirtAddr(at), len, WAKE);
            assert_eq!(zero(BASE, PAGE).all(), Err(UserfaultError::NotRegistered));
            register(mm, &handler, BASE, 8 * PAGE, MISSING);
            assert_eq!(copy(mm, BASE + 3 * PAGE, 4, WAKE), Ok(PAGE));
            let (bytes, stopped) = (3 * PAGE, Some(UserfaultError::Exists));
            assert_eq!(zero(BASE, 8 * PAGE), quire::vm::Answer { bytes, stopped });
            let (bytes, stopped) = (4 * PAGE, Some(UserfaultError::NotRegistered));
            assert_eq!(zero(BASE + 4 * PAGE, 8 * PAGE), quire::vm::Answer { bytes, stopped });
            for (at, len) in [(BASE + 1, PAGE), (BASE, 0), (BASE, 100), (u64::MAX - 4095, PAGE)] {
                assert_eq!(zero(at, len).all(), Err(UserfaultError::Invalid), "{at:#x} {len}");
                assert_eq!(mm.userfault_wake(VirtAddr(at), len).all(), Err(UserfaultError::Invalid));
            }
            let quiet = copy(mm, BASE + 3 * PAGE, 4, AnswerMode::PROTECTED);
            assert_eq!(quiet, Err(UserfaultError::Invalid), "not registered for that");
            let next = mm.userfault_continue(VirtAddr(BASE), PAGE, WAKE);
            assert_eq!(next.all(), Err(UserfaultError::Invalid), "no file");
            assert_eq!(load(machine, mm, BASE + 3 * PAGE), Ok(4));
            assert_eq!(mm.userfault_wake(VirtAddr(BASE), PAGE).all(), Ok(PAGE));
            // An answered page has the rights of its mapping.
            mm.mmap(&quire::vm::MapRequest { prot: R, ..anonymous(BASE + MIB, PAGE) }).unwrap();
            register(mm, &handler, BASE + MIB, PAGE, MISSING);
            assert_eq!(copy(mm, BASE + MIB, 8, WAKE), Ok(PAGE));
            assert_eq!(store(machine, mm, BASE + MIB, 1), Err(FaultError::Protection));
            mm.mprotect(VirtAddr(BASE + MIB), PAGE, RW).unwrap();
            store(machine, mm, BASE + MIB, 1).unwrap();
        });
    });
}

#[test]
fn ranges_are_registered_whole_or_not_at_all() {
    machine_of("register", 1, |_, manager| {
        run(manager, |mm| {
            let (first, second) = (handler(manager), handler(manager));
            mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
            let ask = |handler, at, len, modes| mm.userfault_register(handler, VirtAddr(at), len, modes);
            for (at, len, modes) in [
                (BASE, PAGE, MINOR),
                (BASE, PAGE, UserfaultModes::NONE),
                (BASE, 0, MISSING),
                (BASE + 8, PAGE, MISSING),
                (BASE, 8, MISSING),
                (BASE + MIB, PAGE, MISSING),
                (u64::MAX - 4095, PAGE, MISSING),
            ] {
                assert_eq!(ask(&first, at, len, modes), Err(MmError::Invalid), "{at:#x} {len} {modes:?}");
            }
            assert_eq!(mm.mappings(), 1);
            ask(&first, BASE + 4 * PAGE, 4 * PAGE, MISSING).unwrap();
            assert_eq!(mm.mappings(), 3);
            assert_eq!(ask(&second, BASE, 16 * PAGE, MISSING), Err(MmError::Busy));
            assert_eq!(mm.mappings(), 3);
            ask(&first, BASE, 16 * PAGE, MISSING).unwrap();
            assert_eq!(mm.mappings(), 1, "equal mappings merge");
            ask(&first, BASE, 16 * PAGE, MISSING | PROTECT).unwrap();
            mm.userfault_unregister(VirtAddr(BASE + PAGE), PAGE).unwrap();
            ask(&second, BASE + PAGE, PAGE, MISSING).unwrap();
            let mut modes = Vec::new();
            mm.vmas(|vma| modes.push(vma.handler));
            assert_eq!(modes, [MISSING | PROTECT, MISSING, MISSING | PROTECT]);
            second.close();
            assert_eq!(ask(&second, BASE + 4 * PAGE, PAGE, MISSING), Err(MmError::Invalid), "it is closed");
            assert_eq!(ask(&first, BASE, 2 * PAGE, MISSING), Ok(()), "a dead one blocks no other");
        });
    });
}

/// Only the handler fills missing pages: neither advice nor a collapse does (invariant U2).
#[test]
fn a_missing_page_stays_missing_until_its_handler_fills_it() {
    machine_of("fill", 2, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let handler = handler(manager);
        let (huge, file) = (2 * MIB, manager.shmem(16 * PAGE).unwrap());
        mm.mmap(&of_file(&file, Sharing::Shared, BASE, 16 * PAGE)).unwrap();
        register(&mm, &handler, BASE, 16 * PAGE, MISSING);
        mm.madvise(VirtAddr(BASE), 16 * PAGE, quire::vm::Advice::WillNeed).unwrap();
        assert_eq!(file.resident(), 0);
        mm.mmap(&anonymous(BASE + huge, huge)).unwrap();
        register(&mm, &handler, BASE + huge, huge, MISSING);
        let bring = |first: u64, last: u64| {
            (first..last).for_each(|page| _ = copy(&mm, BASE + huge + page * PAGE, page, WAKE).unwrap());
        };
        bring(0, 511);
        let collapsed = mm.collapse(VirtAddr(BASE + huge), huge).unwrap();
        assert_eq!(collapsed.refused(quire::vm::Refusal::Watched), 1);
        bring(511, 512);
        assert_eq!(mm.collapse(VirtAddr(BASE + huge), huge).unwrap().collapsed(), 1);
        mm.switch_in();
        (0..512).for_each(|page| assert_eq!(load(machine, &mm, BASE + huge + page * PAGE), Ok(page)));
        mm.switch_out();
    });
}

/// Where only minor faults are handled, a missing page is faulted in as usual, without fault-around.
#[test]
fn neighbours_are_not_mapped_past_their_handler() {
    machine_of("around", 2, |machine, manager| {
        let (mm, other) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        let file = manager.shmem(16 * PAGE).unwrap();
        let handler = handler(manager);
        for space in [&mm, &other] {
            space.mmap(&of_file(&file, Sharing::Shared, BASE, 16 * PAGE)).unwrap();
        }
        register(&mm, &handler, BASE, 16 * PAGE, MINOR);
        other.switch_in();
        store(machine, &other, BASE + 3 * PAGE, 33).unwrap();
        other.switch_out();
        let faults = AtomicU64::new(0);
        let program = || {
            assert_eq!(load(machine, &mm, BASE + 4 * PAGE), Ok(0));
            assert_eq!(load(machine, &mm, BASE + 3 * PAGE), Ok(33));
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            faults.fetch_add(1, Ordering::Relaxed);
            let fault = fault_of(event);
            assert_eq!((fault.addr.0, fault.kind), (BASE + 3 * PAGE, UserfaultKind::Minor));
            assert_eq!(mm.userfault_continue(fault.addr, PAGE, WAKE).all(), Ok(PAGE));
        });
        assert_eq!(faults.load(Ordering::Relaxed), 1);
    });
}

/// A handler of missing pages of a file is told of each, even if a collapse through another mapping could
/// fill them.
#[test]
fn a_collapse_of_others_leaves_what_is_missing_to_the_handler() {
    machine_of("elsewhere", 2, |machine, manager| {
        let file = manager.shmem(2 * MIB).unwrap();
        let (mm, other) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        let handler = handler(manager);
        for mm in [&mm, &other] {
            mm.mmap(&of_file(&file, Sharing::Shared, BASE, 2 * MIB)).unwrap();
        }
        register(&mm, &handler, BASE, 2 * MIB, MISSING);
        other.switch_in();
        store(machine, &other, BASE, 7).unwrap();
        let refused = other.collapse(VirtAddr(BASE), 2 * MIB).unwrap();
        assert_eq!((refused.all_refused(), refused.last), (1, Some(Refusal::Watched)));
        assert_eq!(file.resident(), 1, "nothing came");
        assert_eq!(copy(&mm, BASE + 3 * PAGE, 33, WAKE), Ok(PAGE), "the handler's page comes");
        assert_eq!(load(machine, &other, BASE + 3 * PAGE), Ok(33));
        mm.userfault_unregister(VirtAddr(BASE), 2 * MIB).unwrap();
        assert_eq!(other.collapse(VirtAddr(BASE), 2 * MIB).unwrap().copied, 1, "it has no handler any more");
        assert_eq!([0, 3, 5].map(|page| load(machine, &other, BASE + page * PAGE)), [Ok(7), Ok(33), Ok(0)]);
        other.switch_out();
    });
}

/// A child inherits a handler and its marks, and loses both by unregistering; the parent keeps its own.
#[test]
fn a_child_that_unregisters_loses_the_marks_it_inherited() {
    for fork in FORKS {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            let handler = handler(manager);
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 4 * PAGE)).unwrap();
                (0..4).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
                register(mm, &handler, BASE, 4 * PAGE, PROTECT);
                let protected = mm.userfault_write_protect(VirtAddr(BASE), 2 * PAGE, true, WAKE);
                assert_eq!(protected.all(), Ok(2 * PAGE));
                let child = mm.fork().unwrap();
                assert_eq!(marked(&child), [true, true, false, false], "{fork:?}");
                child.userfault_unregister(VirtAddr(BASE), 4 * PAGE).unwrap();
                assert_eq!(marked(&child), [false; 4], "{fork:?}");
                mm.switch_out();
                child.switch_in();
                store(machine, &child, BASE, 9).unwrap();
                child.switch_out();
                mm.switch_in();
                child.validate().unwrap();
                child.exit();
                assert_eq!(marked(mm), [true, true, false, false], "{fork:?}");
                assert_eq!(load(machine, mm, BASE), Ok(0));
            });
            handler.close();
        });
    }
}

/// An answer of many pages has a reschedule point after so many of them, not after each.
#[test]
fn a_long_answer_lets_others_run_now_and_then() {
    machine_of("points", 1, |machine, manager| {
        run(manager, |mm| {
            // One more page would be a fourth point.
            let (handler, pages) = (handler(manager), 4 * u64::from(POPULATE_FAULTS) - 1);
            mm.mmap(&anonymous(BASE, pages * PAGE)).unwrap();
            register(mm, &handler, BASE, pages * PAGE, MISSING);
            let before = machine.counters().reschedule_points;
            let answer = mm.userfault_poison(VirtAddr(BASE), pages * PAGE, WAKE);
            assert_eq!(answer.all(), Ok(pages * PAGE));
            assert_eq!(machine.counters().reschedule_points - before, 3);
        });
    });
}
