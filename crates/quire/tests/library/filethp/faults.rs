//! Faults that map 2 MiB of a file at once, and those that do not.

use quire::addr::VirtAddr;
use quire::stats::Stat;
use quire::vm::{Advice, MapRequest};

use crate::filethp::support::{
    BASE, HUGE, PAGE, RX, check, check_text, frame_at, is_large, moved, private, shared, shmem, text,
};
use crate::filethp::world::{R, RW, load, store};

const THERE: u64 = BASE + 8 * HUGE;

#[test]
fn the_mapping_decides() {
    shmem(|machine, manager, mm, file| {
        moved(mm, BASE);
        let mut at = THERE;
        let touch = |request: MapRequest<'_>, advice: Option<Advice>, wanted: bool| {
            mm.mmap(&request).unwrap();
            if let Some(advice) = advice {
                mm.madvise(request.addr, request.len, advice).unwrap();
            }
            let found = load(machine, mm, request.addr.0 + 8 * PAGE).unwrap();
            assert!(found != 0);
            assert_eq!(is_large(machine, mm, request.addr.0 + 8 * PAGE), wanted, "{request:?}");
        };
        touch(shared(file, at, HUGE), None, true);
        at += 4 * HUGE;
        touch(MapRequest { prot: R, ..shared(file, at, HUGE) }, None, true);
        at += 4 * HUGE;
        touch(private(file, at, HUGE, RW), None, true);
        at += 4 * HUGE;
        // Off the alignment, too short, or unwanted.
        touch(shared(file, at + PAGE, HUGE), None, false);
        at += 4 * HUGE;
        touch(shared(file, at, HUGE - PAGE), None, false);
        at += 4 * HUGE;
        touch(shared(file, at, HUGE), Some(Advice::NoHugePage), false);
        at += 4 * HUGE;
        // The other 2 MiB are mapped in small leaves.
        mm.mmap(&shared(file, at, 2 * HUGE)).unwrap();
        store(machine, mm, at + HUGE, 3).unwrap();
        assert!(!is_large(machine, mm, at + HUGE));
        check(machine, mm, at, 0..512);
        assert!(is_large(machine, mm, at));
        assert_eq!(manager.stat(Stat::ThpFileMapped), 4);
    });
}

/// A store to a private mapping copies one page; the others are not changed.
#[test]
fn a_private_store_copies_one_page() {
    shmem(|machine, manager, mm, file| {
        moved(mm, BASE);
        mm.mmap(&private(file, THERE, HUGE, RW)).unwrap();
        // A store with no leaf there.
        store(machine, mm, THERE + 9 * PAGE, 5).unwrap();
        assert!(!is_large(machine, mm, THERE));
        mm.munmap(VirtAddr(THERE), HUGE).unwrap();
        // A store behind a large leaf.
        mm.mmap(&private(file, THERE, HUGE, RW)).unwrap();
        check(machine, mm, THERE, 0..512);
        assert!(is_large(machine, mm, THERE));
        store(machine, mm, THERE + 9 * PAGE, 5).unwrap();
        assert!(!is_large(machine, mm, THERE) && is_large(machine, mm, BASE));
        assert_eq!(load(machine, mm, THERE + 9 * PAGE), Ok(5));
        check(machine, mm, THERE, (0..512).filter(|&page| page != 9));
        check(machine, mm, BASE, 0..512);
        assert_eq!(mm.rss().anon, 1);
        assert_eq!(manager.stat(Stat::NrFilePmdMapped), 512);
        let first = frame_at(machine, mm, BASE).unwrap();
        crate::filethp::support::counts(manager, first, |page| 2 - u64::from(page == 9));
    });
}

/// A mapping of a file that becomes writable marks pages dirty one by one.
#[test]
fn stores_to_a_file_are_noticed_by_page() {
    text(|machine, _, mm, file| {
        mm.mmap(&MapRequest { prot: R, ..shared(file, THERE, HUGE) }).unwrap();
        check_text(machine, mm, THERE, 0..16);
        moved(mm, THERE);
        assert!(is_large(machine, mm, THERE));
        mm.mprotect(VirtAddr(THERE), HUGE, RW).unwrap();
        assert_eq!(file.dirty(), 0);
        store(machine, mm, THERE + 40 * PAGE, 1).unwrap();
        assert!(!is_large(machine, mm, THERE));
        assert_eq!(file.dirty(), 1);
        // Address spaces that only read keep the large leaf, and see the store.
        check_text(machine, mm, BASE, 0..40);
        assert!(is_large(machine, mm, BASE));
        assert_eq!(load(machine, mm, BASE + 40 * PAGE), Ok(1));
        file.sync().unwrap();
        assert_eq!(file.dirty(), 0);
        assert_eq!(machine.files().written_pages(crate::filethp::support::TEXT).len(), 1);
        store(machine, mm, THERE + 40 * PAGE, 2).unwrap();
        assert_eq!(file.dirty(), 1);
        assert_eq!(load(machine, mm, BASE + 40 * PAGE), Ok(2));
        mm.mmap(&private(file, THERE + 4 * HUGE, HUGE, RX)).unwrap();
        assert_eq!(load(machine, mm, THERE + 4 * HUGE + 40 * PAGE), Ok(2));
    });
}
