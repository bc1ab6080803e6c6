//! Each reason to refuse a collapse, which then changes nothing (invariant 6).

use hosted::FailurePlan;
use hosted::raw::RawPages;
use quire::addr::{Order, VirtAddr};
use quire::error::FaultError;
use quire::page_alloc::Gfp;
use quire::vm::{Advice, Backing, MapRequest, Refusal, UserfaultChanges, UserfaultModes};

use crate::filethp::support::{
    BASE, HUGE, PAGE, RX, check, check_text, fill, frame_at, frames, is_large, moved, private, refused,
    shared, shmem, text,
};
use crate::filethp::world::{R, RW, load, run, store};

const THERE: u64 = BASE + 8 * HUGE;

#[test]
fn mappings_that_do_not_suit() {
    shmem(|machine, _, mm, file| {
        let before = frame_at(machine, mm, BASE + 17 * PAGE);
        mm.mmap(&MapRequest { backing: Backing::File { file, page_offset: 1 }, ..shared(file, THERE, HUGE) })
            .unwrap();
        refused(mm, THERE, Refusal::Offset);
        mm.mmap(&shared(file, THERE + 4 * HUGE, HUGE - PAGE)).unwrap();
        mm.mmap(&MapRequest { prot: R, ..shared(file, THERE + 5 * HUGE - PAGE, PAGE) }).unwrap();
        refused(mm, THERE + 4 * HUGE, Refusal::TooSmall);
        mm.madvise(VirtAddr(BASE), HUGE, Advice::NoHugePage).unwrap();
        refused(mm, BASE, Refusal::NotAllowed);
        assert_eq!(frame_at(machine, mm, BASE + 17 * PAGE), before);
        mm.madvise(VirtAddr(BASE), HUGE, Advice::HugePage).unwrap();
        moved(mm, BASE);
        check(machine, mm, BASE, 0..512);
    });
}

#[test]
fn files_that_can_be_stored_to() {
    text(|machine, _, mm, file| {
        mm.mmap(&shared(file, THERE, HUGE)).unwrap();
        store(machine, mm, THERE, 9).unwrap();
        refused(mm, THERE, Refusal::SharedStores);
        // A task without the right to store may collapse a dirty file.
        moved(mm, BASE);
        assert!(is_large(machine, mm, BASE));
        assert_eq!(load(machine, mm, BASE), Ok(9));
        assert_eq!(file.dirty(), 1);
        store(machine, mm, THERE + PAGE, 10).unwrap();
        assert_eq!(load(machine, mm, BASE + PAGE), Ok(10));
        assert!(is_large(machine, mm, BASE) && !is_large(machine, mm, THERE));
        assert_eq!(file.dirty(), 2);
        file.sync().unwrap();
        assert_eq!(machine.files().written_pages(crate::filethp::support::TEXT).len(), 2);
    });
}

#[test]
fn files_that_end() {
    frames(|machine, manager| {
        let file = manager.shmem(HUGE + 3 * PAGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file, BASE, 2 * HUGE)).unwrap();
            refused(mm, BASE, Refusal::Empty);
            fill(machine, mm, BASE, 0..515);
            refused(mm, BASE + HUGE, Refusal::Beyond);
            file.truncate(2 * HUGE).unwrap();
            moved(mm, BASE + HUGE);
            check(machine, mm, BASE, 0..515);
            assert_eq!(file.resident(), 1024);
        });
    });
}

/// A leaf over the last page but one would map bytes behind the end of the file.
#[test]
fn files_that_end_one_page_short() {
    frames(|machine, manager| {
        let file = manager.shmem(HUGE - PAGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file, BASE, HUGE)).unwrap();
            fill(machine, mm, BASE, 0..511);
            refused(mm, BASE, Refusal::Beyond);
            assert_eq!(load(machine, mm, BASE + 511 * PAGE), Err(FaultError::BeyondEnd));
            assert_eq!(file.resident(), 511);
        });
    });
}

#[test]
fn private_copies_and_marks_stay() {
    text(|machine, manager, mm, file| {
        mm.mmap(&private(file, THERE, HUGE, RW)).unwrap();
        store(machine, mm, THERE + 3 * PAGE, 1).unwrap();
        refused(mm, THERE, Refusal::Copies);
        mm.write_protect_marked(VirtAddr(BASE + 3 * PAGE), PAGE).unwrap();
        refused(mm, BASE, Refusal::Marked);
        // A page that is marked in another address space is not moved.
        mm.mmap(&private(file, THERE + 4 * HUGE, HUGE, RX)).unwrap();
        refused(mm, THERE + 4 * HUGE, Refusal::Held);
        mm.remove_write_protect_marks(VirtAddr(BASE), HUGE).unwrap();
        moved(mm, BASE);
        assert_eq!(load(machine, mm, THERE + 3 * PAGE), Ok(1));
        check_text(machine, mm, BASE, 0..512);
        check_text(machine, mm, THERE, (0..512).filter(|&page| page != 3));
        let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
        let shmem = manager.shmem(HUGE).unwrap();
        mm.mmap(&shared(&shmem, THERE + 8 * HUGE, HUGE)).unwrap();
        fill(machine, mm, THERE + 8 * HUGE, 0..512);
        mm.userfault_register(&handler, VirtAddr(THERE + 8 * HUGE), HUGE, UserfaultModes::MINOR).unwrap();
        refused(mm, THERE + 8 * HUGE, Refusal::Watched);
        handler.close();
    });
}

#[test]
fn what_cannot_be_had() {
    text(|machine, manager, mm, file| {
        check_text(machine, mm, BASE, 512..520);
        machine.files().set_read_failures(FailurePlan::Nth(30));
        refused(mm, BASE + HUGE, Refusal::Io);
        machine.files().set_read_failures(FailurePlan::Off);
        let mut kept = Vec::new();
        while let Ok(frame) = manager.pages().alloc_raw(Gfp::KERNEL, Order::FRAME) {
            kept.push(frame);
        }
        let before = frame_at(machine, mm, BASE);
        refused(mm, BASE, Refusal::NoMemory);
        assert_eq!(frame_at(machine, mm, BASE), before);
        kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        moved(mm, BASE);
        moved(mm, BASE + HUGE);
        check_text(machine, mm, BASE, 0..1024);
        assert_eq!(file.resident(), 1024);
    });
}
