//! Bad memory that cannot be given up, now or ever: the manager's own, memory without an owner, and memory
//! that is held.

use hosted::HostedConfig;
use hosted::raw::RawPages;
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::error::{AllocError, MemoryFailureError};
use quire::manager::MemoryRange;
use quire::page_alloc::{FrameInfo, FrameRun, Gfp};
use quire::vm::{Advice, FolioPolicy, ForkStrategy, MemoryFailure};

use crate::migrate::poison::{fail, with_bad};
use crate::migrate::support::{PAGE, frame_at};
use crate::migrate::world::{MIB, anonymous, load, run, store};
use testkit::{order, ranges_of};

const BASE: u64 = 64 * MIB;

#[test]
fn the_managers_own_memory_cannot_be_given_up() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, PAGE)).unwrap();
            load(machine, mm, BASE).unwrap();
            let zero = frame_at(machine, mm, BASE);
            let ours = manager.pages().alloc_raw(Gfp::KERNEL, Order::FRAME).unwrap();
            for frame in [zero, ours, mm.root(), Frame(0), ours.block().first_frame()] {
                assert_eq!(fail(manager, frame), Err(MemoryFailureError::Unrecoverable), "{frame:?}");
            }
            assert_eq!(fail(manager, Frame(1 << 30)), Err(MemoryFailureError::NotMemory));
            manager.pages().free_raw(ours, Order::FRAME).unwrap();
            assert_eq!(fail(manager, ours), Ok(MemoryFailure::Free));
            assert_eq!(manager.meminfo().bad, 1);
            assert!(manager.meminfo().lines().any(|line| line == ("HardwareCorrupted", 4)));
        });
    });
}

/// Frames that the manager was never given lie behind its own.
#[test]
fn reserved_memory_cannot_be_given_up() {
    let machine = HostedConfig::new(64 * MIB).build().unwrap();
    let (machine, ranges) = (&machine, ranges_of(&machine));
    machine.run_on(quire::cpu::CpuId(0), || {
        let mut ranges = ranges;
        let whole = ranges.pop().expect("memory");
        let hole = FrameRange::new(whole.frames.start.add(9 * 512 + 100), 100);
        for (start, end) in [(whole.frames.start, hole.start), (hole.end(), whole.frames.end())] {
            ranges.push(MemoryRange { frames: FrameRange::new(start, end.0 - start.0), ..whole });
        }
        let config = quire::manager::Config { folios: FolioPolicy::only(order(0)), ..Default::default() };
        let manager = hosted::raw::memory_manager(machine, &ranges, &config).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.mmap(&anonymous(BASE, 64 * MIB)).unwrap();
        mm.madvise(VirtAddr(BASE), 64 * MIB, Advice::PopulateWrite).unwrap_err();
        let before = Frame(hole.start.0 - 1);
        let held = machine.leaves(mm.root()).into_iter().find(|leaf| leaf.frame == before);
        held.expect("all of the memory is mapped");
        assert_eq!(manager.pages().frames().set_aside(before), Some(order(0)));
        for index in 0..hole.count {
            let failed = manager.memory_failure(hole.start.add(index));
            assert_eq!(failed, Err(MemoryFailureError::Unrecoverable), "{index}");
        }
        assert_eq!(fail(&manager, before), Err(MemoryFailureError::Busy));
        manager.pages().release_raw(FrameRange::folio(before, order(0)));
        mm.exit();
        manager.validate().unwrap();
        machine.assert_clean();
    });
}

/// The table of origins of a block with anonymous pages stands among them.
#[test]
fn a_table_in_the_middle_of_a_block_cannot_be_given_up() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
            (0..512).for_each(|page| store(machine, mm, BASE + page * PAGE, 1).unwrap());
            let first = frame_at(machine, mm, BASE + 256 * PAGE).block().first_frame();
            let is_table = |frame: &Frame| manager.pages().frames().frame_info(*frame) == FrameInfo::Metadata;
            let tables: Vec<_> = (0..512).map(|at| first.add(at)).filter(is_table).collect();
            assert_eq!(tables.len(), 1, "{tables:?}");
            assert_eq!(fail(manager, tables[0]), Err(MemoryFailureError::Unrecoverable));
        });
    });
}

/// Neither is a reason to stop the machine: held memory is lost when its owner frees it.
#[test]
fn memory_that_is_held_can_be_given_up_later() {
    for (number, index) in [(0, 0), (4, 0), (4, 1), (4, 15)] {
        with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(order(number)));
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
                (0..16).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
                let start = frame_at(machine, mm, BASE);
                assert_eq!(manager.pages().frames().set_aside(start), Some(order(number)));
                let bad = start.add(index);
                assert_eq!(fail(manager, bad), Err(MemoryFailureError::Busy), "{number}, {index}");
                assert_eq!(load(machine, mm, BASE + index * PAGE), Ok(index), "nothing has changed");
                manager.pages().release_raw(FrameRange::folio(start, order(number)));
                assert_eq!(fail(manager, bad), Ok(MemoryFailure::Anonymous));
            });
        });
    }
}

/// The number of a block has 32 bits. A frame whose block has a larger one is no memory, and no other frame.
#[test]
fn frames_beyond_all_memory_are_no_memory() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, PAGE)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let mapped = frame_at(machine, mm, BASE);
            let (pages, beyond) = (manager.pages(), 1 << 41);
            for frame in [Frame(beyond), mapped.add(beyond), mapped.add(5 * beyond), Frame(u64::MAX)] {
                assert_eq!(fail(manager, frame), Err(MemoryFailureError::NotMemory), "{frame:?}");
                assert_eq!(manager.soft_offline(frame), Err(MemoryFailureError::NotMemory), "{frame:?}");
                assert!(manager.migrate(frame).is_err(), "{frame:?}");
                assert_eq!(pages.frames().frame_info(frame), FrameInfo::NotMemory);
                assert!(!pages.frames().is_bad(frame) && !pages.frames().is_held(frame));
                assert_eq!((pages.counts().mapcount(frame), pages.counts().folio_maps(frame)), (0, None));
                for count in [1, 600] {
                    let refused = pages.alloc_at(FrameRange::new(frame, count)).map(FrameRun::into_raw);
                    assert_eq!(refused, Err(AllocError::NotFree), "{frame:?}");
                }
            }
            assert_eq!(load(machine, mm, BASE), Ok(1));
        });
    });
}
