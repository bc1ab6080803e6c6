//! Huge pages with a handler: whole ones, and in parts.

use std::sync::Mutex;

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::error::{FaultError, UserfaultError};
use quire::hugetlb::HugeSize;
use quire::page_alloc::NodeSet;
use quire::vm::{
    Access, Advice, Answer, AnswerMode, File, MapRequest, Sharing, TakenEvent, UserfaultChanges,
    UserfaultEvent, UserfaultKind,
};

use crate::userfault::handlers::until;
use crate::userfault::support::{
    BASE, MINOR, MISSING, PAGE, PROTECT, WAKE, copy, fault_of, handler, of_file, program_and_handler,
    register, watched,
};
use crate::userfault::world::{MIB, Manager, Space, anonymous, load, store, with_manager};

const HUGE: u64 = 2 * MIB;

/// A machine with a pool of so many pages of 2 MiB, which has all of them at the end.
fn with_pool(name: &str, pages: u64, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    watched(name, 60, || {
        with_manager(HostedConfig::new(64 * MIB).with_cpus(3), |machine, manager| {
            let pools = manager.huge_pools();
            let resize = |pages| pools.resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, pages).after;
            assert_eq!(resize(pages), pages);
            test(machine, manager);
            let info = pools.info(manager.pages(), HugeSize::Size2M);
            assert_eq!((info.free, info.reserved), (pages, 0), "a page or a reservation was lost");
            pools.validate(manager.pages()).unwrap();
            assert_eq!(resize(0), 0);
        });
    });
}

fn huge_file<'m>(manager: &'m Manager<'_>, pages: u64) -> File<'m, Hosted> {
    manager.huge_file(HugeSize::Size2M, pages * HUGE).unwrap()
}

/// Copies a huge page whose 4 KiB pages hold their numbers from `word` on.
fn copy_whole(mm: &Space<'_>, at: u64, word: u64) -> Result<u64, UserfaultError> {
    let fill = |offset: u64, bytes: &mut [u8; PAGE as usize]| {
        bytes[..8].copy_from_slice(&(word + offset / PAGE).to_le_bytes());
    };
    mm.userfault_copy(VirtAddr(at), HUGE, WAKE, fill).all()
}

#[test]
fn whole_huge_pages_are_answered_whole() {
    for sharing in [Sharing::Private, Sharing::Shared] {
        with_pool("whole", 6, |machine, manager| {
            let mm = manager.new_mm().unwrap();
            let handler = handler(manager);
            let request = MapRequest { huge: Some(HugeSize::Size2M), sharing, ..anonymous(BASE, 5 * HUGE) };
            mm.mmap(&request).unwrap();
            register(&mm, &handler, BASE, 5 * HUGE, MISSING | PROTECT);
            let cut = mm.userfault_register(&handler, VirtAddr(BASE), HUGE + PAGE, MISSING);
            assert_eq!(cut, Err(quire::error::MmError::Invalid));
            let events = Mutex::new(Vec::new());
            let program = || {
                assert_eq!(load(machine, &mm, BASE + 17 * PAGE), Ok(117));
                store(machine, &mm, BASE + 20 * PAGE, 1).unwrap();
                assert_eq!(load(machine, &mm, BASE + 21 * PAGE), Ok(121));
                assert_eq!(load(machine, &mm, BASE + HUGE + 40), Ok(0));
                let lost =
                    if sharing == Sharing::Shared { FaultError::Poisoned } else { FaultError::NoHandler };
                assert_eq!(load(machine, &mm, BASE + 2 * HUGE), Err(lost));
            };
            program_and_handler(machine, &mm, &handler, program, |event| {
                let fault = fault_of(event);
                events.lock().unwrap().push((fault.addr.0, fault.kind));
                assert_eq!(
                    copy(&mm, fault.addr.0, 1, WAKE),
                    Err(UserfaultError::Invalid),
                    "whole or not at all"
                );
                match (fault.addr.0 - BASE) / HUGE {
                    0 => assert_eq!(copy_whole(&mm, fault.addr.0, 100), Ok(HUGE)),
                    1 => assert_eq!(mm.userfault_zeropage(fault.addr, HUGE, WAKE).all(), Ok(HUGE)),
                    _ if sharing == Sharing::Shared => {
                        assert_eq!(mm.userfault_poison(fault.addr, HUGE, WAKE).all(), Ok(HUGE));
                    }
                    // Each missing page has a reservation, which a marker would hide.
                    _ => {
                        let poison = mm.userfault_poison(fault.addr, HUGE, WAKE);
                        assert_eq!(poison.all(), Err(UserfaultError::Invalid));
                        handler.close();
                    }
                }
            });
            let missing = UserfaultKind::Missing;
            let read = events.into_inner().unwrap();
            assert_eq!(read, [(BASE, missing), (BASE + HUGE, missing), (BASE + 2 * HUGE, missing)]);
            assert_eq!(copy_whole(&mm, BASE, 1), Err(UserfaultError::Exists));
            assert_eq!(mm.rss().huge, 2 * 512);
            mm.validate().unwrap();
        });
    }
}

#[test]
fn a_page_of_a_file_is_continued_with_the_largest_leaves_that_fit() {
    with_pool("continue", 4, |machine, manager| {
        let (mm, writer) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        let handler = handler(manager);
        let file = huge_file(manager, 3);
        mm.mmap(&of_file(&file, Sharing::Shared, BASE, 3 * HUGE)).unwrap();
        writer.mmap(&of_file(&file, Sharing::Shared, BASE, 3 * HUGE)).unwrap();
        writer.switch_in();
        (0..1024).for_each(|page| store(machine, &writer, BASE + page * PAGE, page).unwrap());
        writer.switch_out();
        mm.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
        register(&mm, &handler, BASE, 3 * HUGE, MISSING | MINOR);
        let events = Mutex::new(Vec::new());
        let program = || {
            assert_eq!(load(machine, &mm, BASE + 5 * PAGE), Ok(5));
            assert_eq!(load(machine, &mm, BASE + 7 * PAGE), Ok(7));
            assert_eq!(load(machine, &mm, BASE + 5 * PAGE + 8), Ok(0), "it is there");
            assert_eq!(load(machine, &mm, BASE + HUGE + 3 * PAGE), Ok(515));
            assert_eq!(load(machine, &mm, BASE + 2 * HUGE + 3 * PAGE), Ok(0));
        };
        program_and_handler(machine, &mm, &handler, program, |event| {
            let fault = fault_of(event);
            events.lock().unwrap().push(((fault.addr.0 - BASE) / PAGE, fault.kind));
            let len = if fault.addr.0 < BASE + HUGE { PAGE } else { HUGE };
            let done = match fault.kind {
                UserfaultKind::Minor => mm.userfault_continue(fault.addr, len, WAKE).all(),
                _ => {
                    let lie = mm.userfault_continue(fault.addr, len, WAKE).all();
                    assert_eq!(lie, Err(UserfaultError::NotThere));
                    mm.userfault_zeropage(fault.addr, len, WAKE).all()
                }
            };
            assert_eq!(done, Ok(len));
        });
        let (minor, missing) = (UserfaultKind::Minor, UserfaultKind::Missing);
        assert_eq!(
            events.into_inner().unwrap(),
            [(5, minor), (7, minor), (512, minor), (1024, missing)],
            "4 KiB where parts may be mapped by themselves, and whole pages elsewhere"
        );
        assert_eq!(mm.rss().huge, 2 + 1024);
        // The whole rest of a page is answered at once, as far as the first obstacle.
        let first = mm.userfault_continue(VirtAddr(BASE), HUGE, WAKE);
        assert_eq!((first.bytes, first.stopped), (5 * PAGE, Some(UserfaultError::Exists)));
        assert_eq!(mm.userfault_continue(VirtAddr(BASE + 6 * PAGE), PAGE, WAKE).all(), Ok(PAGE));
        assert_eq!(
            mm.userfault_continue(VirtAddr(BASE + 8 * PAGE), HUGE - 8 * PAGE, WAKE).all(),
            Ok(HUGE - 8 * PAGE)
        );
        let collapsed = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
        assert_eq!((collapsed.collapsed(), collapsed.all_refused()), (1, 0));
        mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
        assert_eq!(mm.userfault_continue(VirtAddr(BASE), HUGE, WAKE).all(), Ok(HUGE));
        assert_eq!(machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frames, 512, "one leaf");
        mm.validate().unwrap();
    });
}

/// After one part of a page was answered the others are still missing, although the file has all of it.
#[test]
fn parts_are_copied_and_no_other_part_is_made_up() {
    for modes in [MISSING, MISSING | MINOR] {
        with_pool("parts", 4, |machine, manager| {
            let mm = manager.new_mm().unwrap();
            let handler = handler(manager);
            let file = huge_file(manager, 2);
            mm.mmap(&of_file(&file, Sharing::Shared, BASE, 2 * HUGE)).unwrap();
            mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::Split).unwrap();
            register(&mm, &handler, BASE, 2 * HUGE, modes | PROTECT);
            let kinds = Mutex::new(Vec::new());
            let program = || {
                for page in [9, 3, 511, 600] {
                    assert_eq!(load(machine, &mm, BASE + page * PAGE), Ok(page + 1000));
                }
                assert_eq!(load(machine, &mm, BASE + 10 * PAGE), Ok(0));
                assert_eq!(load(machine, &mm, BASE + 11 * PAGE), Err(FaultError::Poisoned));
                store(machine, &mm, BASE + 9 * PAGE, 5).unwrap();
                assert_eq!(load(machine, &mm, BASE + 9 * PAGE), Ok(5));
            };
            program_and_handler(machine, &mm, &handler, program, |event| {
                let fault = fault_of(event);
                let page = (fault.addr.0 - BASE) / PAGE;
                kinds.lock().unwrap().push((page, fault.kind));
                let done = match (fault.kind, page) {
                    (UserfaultKind::WriteProtected, _) => {
                        mm.userfault_write_protect(fault.addr, PAGE, false, WAKE).all()
                    }
                    (_, 10) => mm.userfault_zeropage(fault.addr, PAGE, WAKE).all(),
                    (_, 11) => mm.userfault_poison(fault.addr, PAGE, WAKE).all(),
                    _ => copy(&mm, fault.addr.0, page + 1000, AnswerMode::PROTECTED),
                };
                assert_eq!(done, Ok(PAGE));
                if fault.kind != UserfaultKind::WriteProtected {
                    assert_eq!(copy(&mm, fault.addr.0, 0, WAKE), Err(UserfaultError::Exists));
                }
            });
            let missing = UserfaultKind::Missing;
            // The file has the first page from its first part on.
            let next = if modes == MISSING { missing } else { UserfaultKind::Minor };
            assert_eq!(
                kinds.into_inner().unwrap(),
                [
                    (9, missing),
                    (3, next),
                    (511, next),
                    (600, missing),
                    (10, next),
                    (11, next),
                    (9, UserfaultKind::WriteProtected)
                ]
            );
            assert_eq!(mm.rss().huge, 5);
            mm.validate().unwrap();
        });
    }
}

/// An answer across the end of a missing page continues into the next one, which was missing too.
#[test]
fn zeroes_over_two_pages_come_from_each_of_them() {
    with_pool("zeroes", 2, |_, manager| {
        let mm = manager.new_mm().unwrap();
        let (file, handler) = (huge_file(manager, 2), handler(manager));
        mm.mmap(&of_file(&file, Sharing::Shared, BASE, 2 * HUGE)).unwrap();
        mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::Split).unwrap();
        register(&mm, &handler, BASE, 2 * HUGE, MISSING);
        let at = VirtAddr(BASE + HUGE - 3 * PAGE);
        assert_eq!(mm.userfault_zeropage(at, 5 * PAGE, WAKE).all(), Ok(5 * PAGE));
        assert_eq!(manager.huge_pools().info(manager.pages(), HugeSize::Size2M).free, 0);
        assert_eq!(mm.rss().huge, 5);
        mm.validate().unwrap();
    });
}

/// When memory is short an answer says so, whether there is an obstacle further on or not.
#[test]
fn parts_for_which_memory_is_short_are_not_said_to_be_there() {
    for lost in [None, Some(5)] {
        with_pool("short", 1, |machine, manager| {
            let (mm, other) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
            let (file, handler) = (huge_file(manager, 1), handler(manager));
            for space in [&mm, &other] {
                space.mmap(&of_file(&file, Sharing::Shared, BASE, HUGE)).unwrap();
                space.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
            }
            // Frames that another address space maps need memory for counts.
            other.fault(VirtAddr(BASE), Access::Write).unwrap();
            register(&mm, &handler, BASE, HUGE, MISSING | MINOR);
            if let Some(page) = lost {
                let at = VirtAddr(BASE + page * PAGE);
                assert_eq!(mm.userfault_poison(at, PAGE, WAKE).all(), Ok(PAGE));
            }
            let go_on = || mm.userfault_continue(VirtAddr(BASE), 9 * PAGE, WAKE);
            machine.set_failures(FailurePlan::Nth(0));
            let short = go_on();
            assert_eq!(machine.allocations_failed(), 1);
            machine.set_failures(FailurePlan::Off);
            assert_eq!(short, Answer { bytes: 0, stopped: Some(UserfaultError::OutOfMemory) });
            let (bytes, stopped) =
                lost.map_or((9 * PAGE, None), |page| (page * PAGE, Some(UserfaultError::Exists)));
            assert_eq!(go_on(), Answer { bytes, stopped });
            assert_eq!(mm.rss().huge, bytes / PAGE);
            mm.validate().unwrap();
        });
    }
}

/// A hole in a file: a thread that waits for its page finds it missing, and asks again.
#[test]
fn pages_that_are_punched_are_missing() {
    with_pool("punch", 4, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let changes = quire::vm::UserfaultChanges::REMOVE;
        let handler = manager.userfault(changes).unwrap();
        let file = huge_file(manager, 2);
        file.allocate(0..2 * HUGE).unwrap();
        mm.mmap(&of_file(&file, Sharing::Shared, BASE, 2 * HUGE)).unwrap();
        register(&mm, &handler, BASE, 2 * HUGE, MISSING | MINOR);
        let read = Mutex::new(Vec::new());
        let program = || assert_eq!(load(machine, &mm, BASE + HUGE), Ok(70));
        program_and_handler(machine, &mm, &handler, program, |event| {
            read.lock().unwrap().push(event);
            if let quire::vm::UserfaultEvent::Fault(fault) = event {
                match fault.kind {
                    UserfaultKind::Minor => std::thread::scope(|scope| {
                        // Another CPU punches the hole, and this one reads the event meanwhile.
                        let puncher = scope.spawn(|| {
                            machine.run_on(quire::cpu::CpuId(2), || file.punch_hole(HUGE..2 * HUGE).unwrap());
                        });
                        let removed = handler.wait_event().unwrap().keep();
                        read.lock().unwrap().push(removed);
                        puncher.join().unwrap();
                    }),
                    _ => assert_eq!(copy_whole(&mm, fault.addr.0, 70), Ok(HUGE)),
                }
            }
        });
        let read = read.into_inner().unwrap();
        assert_eq!(fault_of(read[0]).kind, UserfaultKind::Minor);
        let range = quire::addr::VirtRange::from_len(VirtAddr(BASE + HUGE), HUGE);
        assert_eq!(read[1], quire::vm::UserfaultEvent::Remove { space: mm.number(), range });
        assert_eq!(fault_of(read[2]).kind, UserfaultKind::Missing);
        assert_eq!(read.len(), 3);
        mm.validate().unwrap();
    });
}

/// An answer continues over bad memory: it stays unmapped, and a program that touches it gets an error.
#[test]
fn what_went_bad_is_left_out() {
    watched("bad", 60, || {
        let machine = HostedConfig::new(64 * MIB).with_cpus(3).build().expect("a machine");
        machine.run_on(quire::cpu::CpuId(0), || {
            let ranges = testkit::ranges_of(&machine);
            let manager =
                hosted::raw::memory_manager(&machine, &ranges, &quire::manager::Config::default()).unwrap();
            let pools = manager.huge_pools();
            let _ = pools.resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, 2);
            let (mm, writer) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
            let handler = handler(&manager);
            let file = huge_file(&manager, 1);
            for space in [&mm, &writer] {
                space.mmap(&of_file(&file, Sharing::Shared, BASE, HUGE)).unwrap();
                space.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
            }
            writer.switch_in();
            (0..512).for_each(|page| store(&machine, &writer, BASE + page * PAGE, page).unwrap());
            let leaf = machine.probe(writer.root(), VirtAddr(BASE)).unwrap();
            writer.switch_out();
            register(&mm, &handler, BASE, HUGE, MINOR);
            manager.memory_failure(leaf.frame.add(9)).unwrap();
            assert_eq!(mm.userfault_continue(VirtAddr(BASE), HUGE, WAKE).all(), Ok(HUGE));
            let mapped = |page: u64| machine.probe(mm.root(), VirtAddr(BASE + page * PAGE)).is_some();
            assert_eq!([0, 8, 9, 10, 511].map(mapped), [true, true, false, true, true]);
            let told = mm.fault(VirtAddr(BASE + 9 * PAGE), Access::Read);
            assert_eq!(told, Err(FaultError::Poisoned));
            mm.validate().unwrap();
        });
    });
}

/// A page that a handler has marked as lost is lost in children as well, whatever kind of mapping it has and
/// whether it still has a handler.
#[test]
fn children_have_what_is_poisoned() {
    with_pool("forked", 2, |machine, manager| {
        let huge =
            |sharing| MapRequest { sharing, huge: Some(HugeSize::Size2M), ..anonymous(BASE, 2 * HUGE) };
        let small = |sharing| MapRequest { sharing, ..anonymous(BASE, 2 * HUGE) };
        let kinds = [
            (small(Sharing::Private), PAGE, false),
            (small(Sharing::Shared), PAGE, false),
            (huge(Sharing::Shared), HUGE, false),
            (huge(Sharing::Shared), PAGE, true),
        ];
        for (request, size, split) in kinds {
            for registered in [false, true] {
                let (mm, handler) = (manager.new_mm().unwrap(), handler(manager));
                mm.mmap(&request).unwrap();
                if split {
                    mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::Split).unwrap();
                }
                register(&mm, &handler, BASE, 2 * HUGE, MISSING);
                let lost = VirtAddr(BASE + HUGE);
                assert_eq!(mm.userfault_poison(lost, size, WAKE).all(), Ok(size));
                if !registered {
                    mm.userfault_unregister(VirtAddr(BASE), 2 * HUGE).unwrap();
                }
                let child = mm.fork().unwrap();
                let grandchild = child.fork().unwrap();
                for each in [&mm, &child, &grandchild] {
                    let told = each.fault(lost, Access::Read);
                    assert_eq!(told, Err(FaultError::Poisoned), "{size}, {registered}");
                    each.validate().unwrap();
                }
                // The address stays lost until it is unmapped.
                child.madvise(VirtAddr(BASE), 2 * HUGE, Advice::DontNeed).unwrap();
                if !registered {
                    child.fault(lost, Access::Read).expect("nothing stands there");
                }
                assert_eq!(grandchild.fault(lost, Access::Write), Err(FaultError::Poisoned));
                [grandchild, child, mm].into_iter().for_each(Space::exit);
            }
        }
        machine.assert_clean();
    });
}

/// The task that maps shared huge pages over registered memory waits for the handler, which needs the file.
#[test]
fn a_handler_may_change_the_file_that_is_mapped_over_its_memory() {
    watched("mapped over", 20, || {
        with_pool("mapped over", 2, |machine, manager| {
            let mm = manager.new_mm().unwrap();
            let handler = manager.userfault(UserfaultChanges::ALL).unwrap();
            let file = huge_file(manager, 2);
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            register(&mm, &handler, BASE, HUGE, MISSING);
            machine.spawn_cpus(2, |cpu| {
                if cpu.0 == 0 {
                    mm.mmap(&of_file(&file, Sharing::Shared, BASE, HUGE)).unwrap();
                    return;
                }
                until(|| handler.info().changes == 1);
                file.allocate(HUGE..2 * HUGE).unwrap();
                let event = handler.wait_event().map(TakenEvent::keep);
                assert!(matches!(event, Some(UserfaultEvent::Unmap { .. })), "{event:?}");
            });
            assert_eq!(file.huge_pages(), (1, 1));
            mm.exit();
        });
    });
}
