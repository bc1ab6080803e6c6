//! Calls that unmap a page of a large leaf: the other pages stay as they are, and nothing is lost.

use hosted::Hosted;
use hosted::raw::RawPages;
use quire::addr::{Order, VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::error::FaultError;
use quire::page_alloc::Gfp;
use quire::vm::{Access, Advice, Backing, MapRequest, MemoryFailure, Remap};

use crate::filethp::support::{
    BASE, HUGE, PAGE, RX, check, check_text, counts, displaced, fill, frame_at, inside, is_large, moved,
    private, shared, shmem, text,
};
use crate::filethp::world::{Manager, R, RW, Space, load, store};

const THERE: u64 = BASE + 8 * HUGE;

/// Runs something while no frame is free.
fn without_memory(manager: &Manager<'_>, work: impl FnOnce()) {
    let mut kept = Vec::new();
    while let Ok(frame) = manager.pages().alloc_raw(Gfp::KERNEL, Order::FRAME) {
        kept.push(frame);
    }
    work();
    kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
}

fn collapsed(machine: &Hosted, mm: &Space<'_>) -> quire::addr::Frame {
    moved(mm, BASE);
    frame_at(machine, mm, BASE).unwrap()
}

#[test]
fn unmapping_a_part() {
    shmem(|machine, manager, mm, file| {
        let first = collapsed(machine, mm);
        mm.munmap(VirtAddr(BASE + 10 * PAGE), 20 * PAGE).unwrap();
        counts(manager, first, |page| u64::from(!(10..30).contains(&page)));
        check(machine, mm, BASE, (0..10).chain(30..512));
        mm.madvise(VirtAddr(BASE + 40 * PAGE), PAGE, Advice::DontNeed).unwrap();
        counts(manager, first, |page| u64::from(!(10..30).contains(&page) && page != 40));
        check(machine, mm, BASE, 40..41);
        assert_eq!(file.resident(), 512);
        assert!(!is_large(machine, mm, BASE));
    });
}

#[test]
fn protecting_a_part() {
    shmem(|machine, manager, mm, _| {
        let first = collapsed(machine, mm);
        mm.mprotect(VirtAddr(BASE + 100 * PAGE), PAGE, R).unwrap();
        assert_eq!(store(machine, mm, BASE + 100 * PAGE, 1), Err(FaultError::Protection));
        store(machine, mm, BASE + 99 * PAGE, word99()).unwrap();
        mm.mprotect(VirtAddr(BASE + 200 * PAGE), PAGE, Protection::NONE).unwrap();
        assert_eq!(load(machine, mm, BASE + 200 * PAGE), Err(FaultError::Protection));
        check(machine, mm, BASE, (0..512).filter(|&page| page != 200));
        counts(manager, first, |_| 1);
    });
}

fn word99() -> u64 {
    crate::filethp::support::word(99)
}

/// The whole range at once: the leaf is not split.
#[test]
fn protecting_all() {
    shmem(|machine, _, mm, _| {
        collapsed(machine, mm);
        mm.mprotect(VirtAddr(BASE), HUGE, R).unwrap();
        assert_eq!(store(machine, mm, BASE, 1), Err(FaultError::Protection));
        mm.mprotect(VirtAddr(BASE), HUGE, RW).unwrap();
        fill(machine, mm, BASE, 0..512);
        assert!(is_large(machine, mm, BASE));
        check(machine, mm, BASE, 0..512);
    });
}

#[test]
fn truncation_in_the_middle() {
    for starved in [false, true] {
        shmem(|machine, manager, mm, file| {
            let other = manager.new_mm().unwrap();
            other.mmap(&private(file, THERE, HUGE, RW)).unwrap();
            let first = collapsed(machine, mm);
            inside(mm, &other, || check(machine, &other, THERE, 0..512));
            assert!(is_large(machine, &other, THERE));
            let cut = || file.truncate(100 * PAGE + 8).unwrap();
            if starved {
                without_memory(manager, cut)
            } else {
                cut()
            }
            assert_eq!(file.resident(), 101);
            check(machine, mm, BASE, 0..101);
            assert_eq!(mm.fault(VirtAddr(BASE + 101 * PAGE), Access::Read), Err(FaultError::BeyondEnd));
            assert_eq!(load(machine, mm, BASE + 100 * PAGE + 8), Ok(0));
            inside(mm, &other, || check(machine, &other, THERE, 0..101));
            counts(manager, first, |page| if page < 101 { 2 } else { 0 });
            // The file grows again with zeroes in other frames.
            file.truncate(HUGE).unwrap();
            assert_eq!(load(machine, mm, BASE + 300 * PAGE), Ok(0));
            fill(machine, mm, BASE, 101..512);
            let again = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
            assert_eq!(again.copied, 1, "{again:?}");
            check(machine, mm, BASE, 0..512);
            inside(mm, &other, || check(machine, &other, THERE, 0..512));
            other.validate().unwrap();
            other.exit();
        });
    }
}

#[test]
fn reclaim_takes_pages_one_by_one() {
    text(|machine, manager, mm, file| {
        let first = collapsed(machine, mm);
        assert!(first.is_aligned(Order::BLOCK));
        // Memory is short: pages that can be read again are dropped, also from a large leaf.
        let mut kept = Vec::new();
        while let Ok(frame) = manager.pages().alloc_raw(Gfp::USER, Order::FRAME) {
            kept.push(frame);
        }
        mm.mmap(&crate::filethp::world::anonymous(THERE, PAGE)).unwrap();
        store(machine, mm, THERE, 1).unwrap();
        assert!(file.resident() < 512, "memory came from the file");
        kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        check_text(machine, mm, BASE, 0..512);
        moved(mm, BASE);
        check_text(machine, mm, BASE, 0..512);
    });
}

/// Runs a test on a machine that does not expect all memory to be free at the end.
fn with_losses(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    let machine = hosted::HostedConfig::new(64 << 20).build().expect("the host refused a machine");
    machine.run_on(quire::cpu::CpuId(0), || {
        let ranges = testkit::ranges_of(&machine);
        let manager = hosted::raw::memory_manager(&machine, &ranges, &Default::default()).unwrap();
        manager.set_folio_policy(quire::vm::FolioPolicy::FRAMES);
        displaced(&manager, || test(&machine, &manager));
        manager.validate().expect("broken at the end");
        machine.assert_clean();
    });
}

#[test]
fn memory_of_a_page_goes_bad() {
    with_losses(|machine, manager| {
        let file = manager.shmem(HUGE).unwrap();
        let mm = &manager.new_mm().unwrap();
        mm.switch_in();
        mm.mmap(&shared(&file, BASE, HUGE)).unwrap();
        fill(machine, mm, BASE, 0..512);
        let first = collapsed(machine, mm);
        without_memory(manager, || {
            assert!(manager.memory_failure(first.add(7)).is_err(), "a split needs a table");
        });
        assert!(is_large(machine, mm, BASE));
        assert_eq!(manager.memory_failure(first.add(7)), Ok(failed(MemoryFailure::PageLost)));
        assert_eq!(load(machine, mm, BASE + 7 * PAGE), Err(FaultError::Poisoned));
        check(machine, mm, BASE, (0..512).filter(|&page| page != 7));
        counts(manager, first, |page| u64::from(page != 7));
        let refused = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
        assert_eq!(refused.last, Some(quire::vm::Refusal::Lost));
        mm.validate().unwrap();
        mm.switch_out();
    });
    with_losses(|machine, manager| {
        machine.files().set_size(crate::filethp::support::TEXT, HUGE);
        let file = manager.open(crate::filethp::support::TEXT).unwrap();
        let mm = &manager.new_mm().unwrap();
        mm.switch_in();
        mm.mmap(&private(&file, BASE, HUGE, RX)).unwrap();
        check_text(machine, mm, BASE, 0..512);
        let first = collapsed(machine, mm);
        assert_eq!(manager.memory_failure(first.add(7)), Ok(failed(MemoryFailure::Dropped)));
        assert_eq!(file.resident(), 511);
        check_text(machine, mm, BASE, 0..512);
        moved(mm, BASE);
        check_text(machine, mm, BASE, 0..512);
        mm.validate().unwrap();
        mm.switch_out();
    });
}

fn failed(what: MemoryFailure) -> quire::manager::Failed {
    quire::manager::Failed::Memory(what)
}

#[test]
fn a_page_moves_elsewhere() {
    shmem(|machine, manager, mm, file| {
        let first = collapsed(machine, mm);
        manager.migrate(first.add(33)).unwrap();
        counts(manager, first, |_| 0);
        check(machine, mm, BASE, 0..512);
        assert_ne!(frame_at(machine, mm, BASE + 33 * PAGE), Some(first.add(33)));
        assert_eq!(frame_at(machine, mm, BASE + 34 * PAGE), Some(first.add(34)));
        assert_eq!(file.resident(), 512);
        moved(mm, BASE);
        check(machine, mm, BASE, 0..512);
    });
}

/// Where memory is locked the other pages stay mapped; without memory for a table the page stays mapped too.
#[test]
fn locked_pages_stay_mapped() {
    shmem(|machine, manager, mm, _| {
        let first = collapsed(machine, mm);
        mm.mlock(VirtAddr(BASE), HUGE, false).unwrap();
        assert!(is_large(machine, mm, BASE));
        without_memory(manager, || assert!(manager.migrate(first.add(33)).is_err()));
        assert!(is_large(machine, mm, BASE));
        manager.migrate(first.add(33)).unwrap();
        counts(manager, first, |page| u64::from(page != 33));
        assert_ne!(frame_at(machine, mm, BASE + 33 * PAGE), None);
        check(machine, mm, BASE, 0..512);
        // The present pages are collapsed, and mapped large in all address spaces that locked them.
        moved(mm, BASE);
        assert!(is_large(machine, mm, BASE));
        check(machine, mm, BASE, 0..512);
    });
}

/// Memory that one address space has locked stays mapped when another collapses it, whether a large leaf fits
/// there or not.
#[test]
fn what_others_have_locked_stays_mapped() {
    shmem(|machine, manager, mm, file| {
        let other = manager.new_mm().expect("memory");
        inside(mm, &other, || {
            let backing = Backing::File { file, page_offset: 1 };
            other.mmap(&MapRequest { backing, ..shared(file, BASE, HUGE - PAGE) }).unwrap();
            other.mlock(VirtAddr(BASE), HUGE - PAGE, false).unwrap();
        });
        moved(mm, BASE);
        let first = frame_at(machine, mm, BASE).expect("mapped");
        for page in 1..512 {
            assert_eq!(
                frame_at(machine, &other, BASE + (page - 1) * PAGE),
                Some(first.add(page)),
                "page {page}"
            );
        }
        counts(manager, first, |page| 1 + u64::from(page > 0));
        other.validate().expect("broken address space");
        other.exit();
    });
}

#[test]
fn moving_a_mapping() {
    shmem(|machine, manager, mm, _| {
        let first = collapsed(machine, mm);
        let to = mm.mremap(VirtAddr(BASE), HUGE, HUGE, Remap::Fixed(VirtAddr(THERE))).unwrap();
        assert!(is_large(machine, mm, to.0));
        check(machine, mm, THERE, 0..512);
        counts(manager, first, |_| 1);
        let to = mm.mremap(to, HUGE, HUGE, Remap::Fixed(VirtAddr(THERE + 4 * HUGE + PAGE))).unwrap();
        check(machine, mm, to.0, 0..512);
        assert!(!is_large(machine, mm, to.0));
        counts(manager, first, |_| 1);
    });
}

#[test]
fn marks_are_of_pages() {
    shmem(|machine, manager, mm, file| {
        let first = collapsed(machine, mm);
        mm.clear_soft_dirty(VirtAddr(BASE + 8 * PAGE), PAGE).unwrap();
        assert!(!mm.is_soft_dirty(VirtAddr(BASE + 8 * PAGE)) && mm.is_soft_dirty(VirtAddr(BASE + 9 * PAGE)));
        moved_again(mm);
        mm.write_protect_marked(VirtAddr(BASE), HUGE).unwrap();
        assert_eq!(store(machine, mm, BASE + 8 * PAGE, 1), Err(FaultError::Marked));
        // Marks stay where neighbouring pages are cut off, with or without memory.
        without_memory(manager, || file.truncate(100 * PAGE).unwrap());
        assert_eq!(store(machine, mm, BASE + 8 * PAGE, 1), Err(FaultError::Marked));
        counts(manager, first, |page| u64::from(page < 100));
        mm.remove_write_protect_marks(VirtAddr(BASE), HUGE).unwrap();
        check(machine, mm, BASE, 0..100);
        fill(machine, mm, BASE, 0..100);
    });
}

/// The pages are in order: only the table is replaced.
fn moved_again(mm: &Space<'_>) {
    let report = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
    assert_eq!((report.reshaped, report.all_refused()), (1, 0), "{report:?}");
}

#[test]
fn a_child_of_a_fork() {
    text(|machine, manager, mm, file| {
        let first = collapsed(machine, mm);
        mm.mmap(&shared(file, THERE, HUGE)).unwrap();
        let child = mm.fork().unwrap();
        inside(mm, &child, || {
            child.munmap(VirtAddr(BASE), PAGE).unwrap();
            check_text(machine, &child, BASE, 1..512);
            // A large leaf shows stores through another mapping.
            store(machine, &child, THERE + 9 * PAGE, 4).unwrap();
            child.validate().unwrap();
        });
        assert_eq!(load(machine, mm, BASE + 9 * PAGE), Ok(4));
        counts(manager, first, |page| 1 + u64::from(page != 0) + u64::from(page == 9));
        child.exit();
        assert_eq!(mm.rss().file, 512);
        mm.mmap(&private(file, THERE + 4 * HUGE, HUGE, RX)).unwrap();
        let range = VirtRange::from_len(VirtAddr(THERE + 4 * HUGE), HUGE);
        mm.madvise(range.start, HUGE, Advice::PopulateRead).unwrap();
        assert!(is_large(machine, mm, THERE + 4 * HUGE));
    });
}
