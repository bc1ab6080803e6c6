//! Advices that mappings keep, holes, and what `mincore` and `msync` say.

use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError};
use quire::vm::{Advice, Backing, MapRequest, Sharing};

use crate::vm::world::{FORKS, MIB, R, RW, anonymous, load, run, small, store, with_forks};
use hosted::HostedConfig;

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

#[test]
fn a_child_gets_no_page_of_what_was_not_to_be_forked() {
    FORKS.into_iter().for_each(|fork| {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            run(manager, |parent| {
                parent.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
                (0..8).for_each(|page| store(machine, parent, BASE + page * PAGE, page + 1).unwrap());
                parent.madvise(VirtAddr(BASE + 2 * PAGE), 2 * PAGE, Advice::DontFork).unwrap();
                parent.madvise(VirtAddr(BASE + 5 * PAGE), 2 * PAGE, Advice::WipeOnFork).unwrap();
                assert_eq!(parent.mappings(), 5);
                let child = parent.fork().unwrap();
                assert_eq!((child.mappings(), child.rss().anon), (4, 4));
                parent.switch_out();
                child.switch_in();
                let found = (0..8).map(|page| load(machine, &child, BASE + page * PAGE));
                let unmapped = Err(FaultError::NotMapped);
                let wanted = [Ok(1), Ok(2), unmapped, unmapped, Ok(5), Ok(0), Ok(0), Ok(8)];
                assert!(found.eq(wanted));
                child.validate().unwrap();
                child.switch_out();
                child.exit();
                parent.switch_in();
                parent.madvise(VirtAddr(BASE), 8 * PAGE, Advice::DoFork).unwrap();
                parent.madvise(VirtAddr(BASE), 8 * PAGE, Advice::KeepOnFork).unwrap();
                assert_eq!(parent.mappings(), 1, "neighbours that agree again are one");
                assert!((0..8).all(|page| load(machine, parent, BASE + page * PAGE) == Ok(page + 1)));
            });
        });
    });
}

#[test]
fn wiping_is_for_private_anonymous_memory() {
    small(|_, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * PAGE)).unwrap();
            mm.mmap(&MapRequest { sharing: Sharing::Shared, ..anonymous(BASE + 2 * PAGE, 2 * PAGE) })
                .unwrap();
            assert_eq!(mm.madvise(VirtAddr(BASE), 4 * PAGE, Advice::WipeOnFork), Err(MmError::Invalid));
            assert_eq!(mm.madvise(VirtAddr(BASE), 2 * PAGE, Advice::WipeOnFork), Ok(()));
            assert_eq!(mm.madvise(VirtAddr(BASE + PAGE), 9 * PAGE, Advice::DontDump), Err(MmError::NoMemory));
            assert_eq!(mm.madvise(VirtAddr(BASE), 4 * PAGE, Advice::Random), Ok(()));
            assert_eq!(mm.madvise(VirtAddr(BASE), 4 * PAGE, Advice::Normal), Ok(()));
        });
    });
}

#[test]
fn a_hole_in_shared_memory_is_one_for_all() {
    small(|machine, manager| {
        let file = manager.shmem(8 * PAGE).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, 8 * PAGE) }).unwrap();
            mm.mmap(&MapRequest { backing, ..anonymous(BASE + MIB, 8 * PAGE) }).unwrap();
            for page in 0..8 {
                store(machine, mm, BASE + page * PAGE, page + 1).unwrap();
                store(machine, mm, BASE + page * PAGE + 2048, page + 1).unwrap();
                assert_eq!(load(machine, mm, BASE + MIB + page * PAGE), Ok(page + 1));
            }
            store(machine, mm, BASE + MIB + 3 * PAGE, 100).unwrap();
            file.punch_hole(PAGE + 1024..5 * PAGE + 1024).unwrap();
            assert_eq!(file.resident(), 5, "pages 2 to 4 are gone");
            let shared = [1, 2, 0, 0, 0, 0, 7, 8];
            let private = [1, 2, 0, 100, 0, 0, 7, 8];
            for page in 0..8 {
                assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(shared[page as usize]));
                assert_eq!(load(machine, mm, BASE + MIB + page * PAGE), Ok(private[page as usize]));
            }
            assert_eq!(load(machine, mm, BASE + PAGE + 2048), Ok(0), "the end of page 1 was cleared");
            assert_eq!(load(machine, mm, BASE + 5 * PAGE + 2048), Ok(6), "the end of page 5 was not");

            mm.madvise(VirtAddr(BASE + 6 * PAGE), PAGE, Advice::Remove).unwrap();
            assert_eq!(load(machine, mm, BASE + 6 * PAGE), Ok(0));
            assert_eq!(mm.madvise(VirtAddr(BASE + MIB), PAGE, Advice::Remove), Err(MmError::Access));
            mm.mlock(VirtAddr(BASE), PAGE, false).unwrap();
            assert_eq!(mm.madvise(VirtAddr(BASE), PAGE, Advice::Remove), Err(MmError::Invalid));
        });
    });
}

#[test]
fn locked_memory_is_dropped_if_that_is_meant() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * PAGE)).unwrap();
            store(machine, mm, BASE, 7).unwrap();
            mm.mlock(VirtAddr(BASE), PAGE, false).unwrap();
            for advice in [Advice::DontNeed, Advice::Cold, Advice::PageOut] {
                assert_eq!(mm.madvise(VirtAddr(BASE), PAGE, advice), Err(MmError::Invalid));
            }
            assert_eq!(load(machine, mm, BASE), Ok(7));
            mm.madvise(VirtAddr(BASE), PAGE, Advice::DontNeedLocked).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(0));
            assert_eq!(mm.madvise(VirtAddr(BASE + PAGE), PAGE, Advice::PageOut), Ok(()));
        });
    });
}

/// Populating for stores ends `MADV_FREE` as a store does. Locking a page does, too.
#[test]
fn populated_pages_are_no_longer_free() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 3 * PAGE)).unwrap();
            (0..3).for_each(|page| store(machine, mm, BASE + page * PAGE, 7).unwrap());
            mm.madvise(VirtAddr(BASE), 3 * PAGE, Advice::Free).unwrap();
            mm.madvise(VirtAddr(BASE), PAGE, Advice::PopulateWrite).unwrap();
            mm.mlock(VirtAddr(BASE + PAGE), PAGE, false).unwrap();
            mm.munlock(VirtAddr(BASE + PAGE), PAGE).unwrap();
            mm.mmap(&anonymous(16 * BASE, 64 * MIB)).unwrap();
            assert_eq!(
                mm.madvise(VirtAddr(16 * BASE), 64 * MIB, Advice::PopulateWrite),
                Err(MmError::NoMemory)
            );
            mm.munmap(VirtAddr(16 * BASE), 64 * MIB).unwrap();
            assert_eq!([0, 1, 2].map(|page| load(machine, mm, BASE + page * PAGE)), [Ok(7), Ok(7), Ok(0)]);
        });
    });
}

#[test]
fn a_mapping_never_allows_what_was_forbidden() {
    small(|_, manager| {
        let file = manager.shmem(PAGE).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            let shared = MapRequest {
                prot: R,
                forbid: quire::arch::Protection::WRITE,
                sharing: Sharing::Shared,
                backing,
                ..anonymous(BASE, PAGE)
            };
            mm.mmap(&shared).unwrap();
            assert_eq!(mm.mprotect(VirtAddr(BASE), PAGE, RW), Err(MmError::Access));
            assert_eq!(mm.mprotect(VirtAddr(BASE), PAGE, R), Ok(()));
        });
    });
}

/// As on Linux, which reads back only what it has written to swap.
#[test]
fn shared_memory_that_was_never_touched_is_not_read_ahead() {
    small(|_, manager| {
        let file = manager.shmem(16 * PAGE).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, 16 * PAGE) }).unwrap();
            mm.madvise(VirtAddr(BASE), 16 * PAGE, Advice::WillNeed).unwrap();
            assert_eq!(file.resident(), 0);
        });
        drop(file);
    });
}
