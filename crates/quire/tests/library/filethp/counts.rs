//! Each frame's count is the number of leaves that map it, whatever their size (invariant 5).

use quire::addr::VirtAddr;
use quire::stats::Stat;
use quire::vm::{Backing, MapRequest};

use crate::filethp::support::{
    BASE, HUGE, PAGE, RX, TEXT, check, check_text, counts, fill, frame_at, inside, is_large, moved, private,
    shared, shmem, text,
};
use crate::filethp::world::{load, store};

#[test]
fn pages_keep_their_contents_and_count_once() {
    shmem(|machine, manager, mm, file| {
        let before = (file.resident(), mm.rss());
        moved(mm, BASE);
        assert!(is_large(machine, mm, BASE) && !is_large(machine, mm, BASE + HUGE));
        let first = frame_at(machine, mm, BASE).unwrap();
        check(machine, mm, BASE, 0..512);
        counts(manager, first, |_| 1);
        assert_eq!((file.resident(), mm.rss().shmem), (before.0, before.1.shmem));
        assert_eq!(manager.stat(Stat::NrFilePmdMapped), 512);
        assert_eq!(manager.stat(Stat::ThpCollapseFile), 1);
        // Stores go to the same memory.
        store(machine, mm, BASE + 5 * PAGE, 77).unwrap();
        assert_eq!(load(machine, mm, BASE + 5 * PAGE), Ok(77));
        // A second call has nothing to do.
        let again = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
        assert_eq!((again.large, again.all_refused()), (1, 0));
        manager.validate().unwrap();
    });
}

/// Holes become zero pages.
#[test]
fn holes_are_filled() {
    shmem(|machine, manager, mm, file| {
        fill(machine, mm, BASE, [512, 700, 1023].into_iter());
        moved(mm, BASE + HUGE);
        assert!(is_large(machine, mm, BASE + HUGE));
        assert_eq!(file.resident(), 1024);
        check(machine, mm, BASE, [512, 700, 1023].into_iter());
        let zeroes = (512..1024).filter(|page| ![512, 700, 1023].contains(page));
        zeroes.for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(0), "page {page}"));
        counts(manager, frame_at(machine, mm, BASE + HUGE).unwrap(), |_| 1);
    });
}

#[test]
fn two_address_spaces_map_the_same_leaf() {
    shmem(|machine, manager, mm, file| {
        let other = manager.new_mm().unwrap();
        other.mmap(&shared(file, BASE + 4 * HUGE, 2 * HUGE)).unwrap();
        inside(mm, &other, || check(machine, &other, BASE + 4 * HUGE, 0..512));
        moved(mm, BASE);
        let first = frame_at(machine, mm, BASE).unwrap();
        counts(manager, first, |_| 1);
        inside(mm, &other, || {
            // It lost its table, and maps one leaf at the first access.
            assert_eq!(frame_at(machine, &other, BASE + 4 * HUGE), None);
            check(machine, &other, BASE + 4 * HUGE, 3..4);
            assert!(is_large(machine, &other, BASE + 4 * HUGE));
            check(machine, &other, BASE + 4 * HUGE, 0..512);
            store(machine, &other, BASE + 4 * HUGE, 1234).unwrap();
        });
        assert_eq!(load(machine, mm, BASE), Ok(1234));
        counts(manager, first, |_| 2);
        assert_eq!(manager.stat(Stat::NrFilePmdMapped), 1024);
        // One of the two mappings is split: as many leaves map each frame.
        inside(mm, &other, || {
            other.munmap(VirtAddr(BASE + 4 * HUGE), 100 * PAGE).unwrap();
        });
        counts(manager, first, |page| if page < 100 { 1 } else { 2 });
        assert_eq!(manager.stat(Stat::NrFilePmdMapped), 512);
        mm.munmap(VirtAddr(BASE + 300 * PAGE), PAGE).unwrap();
        counts(manager, first, |page| u64::from(page >= 100) + u64::from(page != 300));
        assert_eq!(manager.stat(Stat::NrFilePmdMapped), 0);
        other.validate().unwrap();
        other.exit();
        counts(manager, first, |page| u64::from(page != 300));
        manager.validate().unwrap();
    });
}

/// More leaves map each frame than a byte lane can count.
#[test]
fn lanes_grow_under_large_leaves() {
    shmem(|machine, manager, mm, file| {
        moved(mm, BASE);
        let first = frame_at(machine, mm, BASE).unwrap();
        let places = |count: u64| (0..count).map(|at| BASE + (4 + 2 * at) * HUGE);
        for at in places(300) {
            mm.mmap(&shared(file, at, HUGE)).unwrap();
            check(machine, mm, at, 7..8);
            assert!(is_large(machine, mm, at));
        }
        counts(manager, first, |_| 301);
        mm.munmap(VirtAddr(BASE + 4 * HUGE + 511 * PAGE), PAGE).unwrap();
        counts(manager, first, |page| 301 - u64::from(page == 511));
        places(300).for_each(|at| mm.munmap(VirtAddr(at), HUGE).unwrap());
        counts(manager, first, |_| 1);
    });
}

#[test]
fn text_is_collapsed_in_every_address_space_that_runs_it() {
    text(|machine, manager, mm, file| {
        let child = mm.fork().unwrap();
        moved(mm, BASE);
        assert!(is_large(machine, mm, BASE));
        check_text(machine, mm, BASE, 0..512);
        inside(mm, &child, || {
            check_text(machine, &child, BASE, 100..101);
            assert!(is_large(machine, &child, BASE));
            check_text(machine, &child, BASE, 0..512);
            child.validate().unwrap();
        });
        counts(manager, frame_at(machine, mm, BASE).unwrap(), |_| 2);
        // A second child maps the leaf at its first access.
        let second = mm.fork().unwrap();
        counts(manager, frame_at(machine, mm, BASE).unwrap(), |_| 2);
        inside(mm, &second, || check_text(machine, &second, BASE, 511..512));
        assert!(is_large(machine, &second, BASE));
        counts(manager, frame_at(machine, mm, BASE).unwrap(), |_| 3);
        assert_eq!(second.rss().file, mm.rss().file);
        second.validate().unwrap();
        second.exit();
        child.exit();
        let usage = mm.usage_of_all();
        assert_eq!((usage.file_large, usage.shmem_large), (HUGE, 0));
        assert_eq!(file.dirty(), 0);
    });
}

/// Pages that are on the backing store only are read.
#[test]
fn what_is_missing_of_a_file_is_read() {
    text(|machine, _, mm, file| {
        check_text(machine, mm, BASE, 512..600);
        let before = machine.files().counters().reads;
        moved(mm, BASE + HUGE);
        assert!(is_large(machine, mm, BASE + HUGE));
        assert_eq!(file.resident(), 1024);
        assert!(machine.files().counters().reads > before);
        check_text(machine, mm, BASE, 512..1024);
        mm.mmap(&private(file, BASE + 8 * HUGE, HUGE, RX)).unwrap();
        check_text(machine, mm, BASE + 8 * HUGE, 0..512);
        let third = MapRequest {
            backing: Backing::File { file, page_offset: 1024 },
            ..private(file, BASE + 16 * HUGE, HUGE, RX)
        };
        machine.files().set_size(TEXT, 3 * HUGE);
        mm.mmap(&third).unwrap();
        moved(mm, BASE + 16 * HUGE);
        assert_eq!(file.resident(), 1536);
        check_text(machine, mm, BASE + 14 * HUGE, 1024..1536);
    });
}

#[test]
fn what_is_shown_of_shmem() {
    shmem(|machine, _, mm, _| {
        moved(mm, BASE);
        fill(machine, mm, BASE, 512..520);
        let usage = mm.usage_of_all();
        assert_eq!((usage.shmem_large, usage.file_large, usage.anon_huge), (HUGE, 0, 0));
        assert_eq!(usage.rss, HUGE + 8 * PAGE);
        let lines: Vec<_> = usage.lines().filter(|(name, _)| name.ends_with("PmdMapped")).collect();
        assert_eq!(lines, [("ShmemPmdMapped", 2048), ("FilePmdMapped", 0)]);
        let mut words = 0;
        let first = frame_at(machine, mm, BASE).unwrap();
        mm.pagemap(quire::addr::VirtRange::from_len(VirtAddr(BASE), HUGE), |addr, word| {
            assert_eq!(word.frame(), Some(first.add((addr.0 - BASE) / PAGE)));
            assert!(word.has(quire::vm::PageWord::FILE | quire::vm::PageWord::EXCLUSIVE));
            words += 1;
        });
        assert_eq!(words, 512);
    });
}
