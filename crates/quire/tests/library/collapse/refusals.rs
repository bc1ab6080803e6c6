//! Each reason to refuse a collapse, which then changes nothing.

use hosted::HostedConfig;
use hosted::raw::RawPages;
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::page_alloc::Gfp;
use quire::platform::FileId;
use quire::vm::{
    Advice, AnswerMode, Backing, FolioPolicy, MapRequest, Refusal, Sharing, UserfaultChanges, UserfaultModes,
};

use crate::collapse::support::{BASE, HUGE, PAGE, check, copied, fill, is_large, leaf, refused};
use crate::collapse::world::{MIB, anonymous, load, run, small, with_manager};

#[test]
fn mappings_that_do_not_suit() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            // Off its alignment, or too short.
            mm.mmap(&anonymous(BASE + PAGE, 2 * HUGE - PAGE)).unwrap();
            fill(machine, mm, BASE + PAGE, 0..1023);
            let report = mm.collapse(VirtAddr(BASE + PAGE), 2 * HUGE - PAGE).unwrap();
            assert_eq!((report.copied, report.all_refused()), (1, 0));
            assert!(mm.collapse(VirtAddr(BASE), HUGE).is_err(), "there is a hole");
            let at = BASE + 4 * HUGE;
            mm.mmap(&anonymous(at, MIB)).unwrap();
            mm.mmap(&MapRequest { prot: crate::collapse::world::R, ..anonymous(at + MIB, MIB) }).unwrap();
            refused(mm, at, Refusal::TooSmall);
            // Shared memory belongs to a shmem file, which is collapsed.
            let at = BASE + 6 * HUGE;
            mm.mmap(&MapRequest { sharing: Sharing::Shared, ..anonymous(at, HUGE) }).unwrap();
            fill(machine, mm, at, 0..512);
            copied(mm, at);
            let file = manager.open(FileId(5)).unwrap();
            let at = BASE + 8 * HUGE;
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { backing, ..anonymous(at, HUGE) }).unwrap();
            refused(mm, at, Refusal::Beyond);
            let at = BASE + 10 * HUGE;
            mm.mmap(&anonymous(at, HUGE)).unwrap();
            fill(machine, mm, at, 0..512);
            mm.madvise(VirtAddr(at), HUGE, Advice::NoHugePage).unwrap();
            refused(mm, at, Refusal::NotAllowed);
            mm.madvise(VirtAddr(at), HUGE, Advice::HugePage).unwrap();
            copied(mm, at);
        });
    });
}

#[test]
fn leaves_that_do_not_suit() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            refused(mm, BASE, Refusal::Empty);
            fill(machine, mm, BASE, 0..512);
            mm.write_protect_marked(VirtAddr(BASE + 3 * PAGE), PAGE).unwrap();
            refused(mm, BASE, Refusal::Marked);
            mm.remove_write_protect_marks(VirtAddr(BASE), HUGE).unwrap();
            let frame = FrameRange::new(leaf(machine, mm, BASE + 9 * PAGE).unwrap().frame, 1);
            manager.pages().frames().hold(frame);
            refused(mm, BASE, Refusal::Held);
            manager.pages().release_raw(frame);
            check(machine, mm, BASE, |_| true);
            let mut kept = Vec::new();
            while let Ok(frame) = manager.pages().alloc_raw(Gfp::KERNEL, Order::FRAME) {
                kept.push(frame);
            }
            refused(mm, BASE, Refusal::NoMemory);
            kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
            copied(mm, BASE);
            check(machine, mm, BASE, |_| true);
            mm.munmap(VirtAddr(BASE), HUGE).unwrap();
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            fill(machine, mm, BASE, 0..512);
            mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
            refused(mm, BASE, Refusal::Empty);
        });
    });
}

/// A page that a handler must answer stays missing until the handler brings it in.
#[test]
fn holes_of_a_handler_are_not_filled() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            fill(machine, mm, BASE, 0..511);
            let handler = manager.userfault(UserfaultChanges::NONE).expect("room");
            mm.userfault_register(&handler, VirtAddr(BASE), HUGE, UserfaultModes::MISSING).unwrap();
            refused(mm, BASE, Refusal::Watched);
            let answer = mm.userfault_zeropage(VirtAddr(BASE + 511 * PAGE), PAGE, AnswerMode::WAKE);
            assert!(answer.stopped.is_none(), "{answer:?}");
            copied(mm, BASE);
            check(machine, mm, BASE, |page| page < 511);
            handler.close();
        });
    });
}

#[test]
fn lost_memory_is_not_collapsed() {
    let machine = HostedConfig::new(64 * MIB).build().expect("the host refused a machine");
    machine.run_on(quire::cpu::CpuId(0), || {
        let ranges = testkit::ranges_of(&machine);
        let manager = hosted::raw::memory_manager(&machine, &ranges, &Default::default()).unwrap();
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(&manager, |mm| {
            mm.mmap(&anonymous(BASE, HUGE)).unwrap();
            fill(&machine, mm, BASE, 0..512);
            manager.memory_failure(leaf(&machine, mm, BASE + 8 * PAGE).unwrap().frame).unwrap();
            refused(mm, BASE, Refusal::Lost);
            mm.madvise(VirtAddr(BASE + 8 * PAGE), PAGE, Advice::DontNeed).unwrap();
            copied(mm, BASE);
            check(&machine, mm, BASE, |page| page != 8);
        });
        manager.validate().unwrap();
    });
}

/// A folio of which a part goes bad before it is mapped loses that page, and no other.
#[test]
fn folios_are_made_where_memory_is_in_pieces() {
    with_manager(HostedConfig::new(32 * MIB), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 4 * HUGE)).unwrap();
            // One frame in every few is in use, so that no block is free.
            let mut kept = Vec::new();
            while let Ok(frame) = manager.pages().alloc_raw(Gfp::USER, Order::FRAME) {
                kept.push(frame);
            }
            let (mine, theirs) = kept.split_at(kept.len() / 2);
            theirs.iter().for_each(|&frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
            fill(machine, mm, BASE, 0..2048);
            for (at, &frame) in mine.iter().enumerate() {
                if at % 64 != 0 {
                    manager.pages().free_raw(frame, Order::FRAME).unwrap();
                }
            }
            // Those frames belong to the manager and cannot be moved; only the program's own pages can.
            let report = mm.collapse(VirtAddr(BASE), 4 * HUGE).unwrap();
            assert_eq!(report.collapsed() + report.refused(Refusal::NoMemory), 4, "{report:?}");
            assert!(report.collapsed() >= 1, "{report:?}");
            (0..4).for_each(|at| check(machine, mm, BASE + at * HUGE, |_| true));
            assert_eq!(
                (0..4).filter(|at| is_large(machine, mm, BASE + at * HUGE)).count() as u64,
                report.copied
            );
            for frame in mine.iter().step_by(64) {
                manager.pages().free_raw(*frame, Order::FRAME).unwrap();
            }
            assert_eq!(load(machine, mm, BASE), Ok(crate::collapse::support::word(BASE)));
        });
    });
}
