//! Surprising behaviour of Linux, one test for each difference that a comparison with it has found.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::error::MmError;
use quire::platform::FileId;
use quire::vm::{Advice, Backing, MapRequest, Placement, Remap, Sharing};

use crate::vm::world::{MIB, RW, anonymous, load, run, small, store, with_manager};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

const fn page(n: u64) -> VirtAddr {
    VirtAddr(BASE + n * PAGE)
}

/// Invariant 6. `MADV_DONTNEED` reports locked memory.
#[test]
fn a_lock_that_fails_stays_where_it_got_to() {
    small(|_, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 8 * PAGE)).unwrap();
            mm.munmap(page(3), PAGE).unwrap();
            mm.mprotect(page(6), PAGE, Protection::NONE).unwrap();
            assert_eq!(mm.mlock(page(0), 8 * PAGE, false), Err(MmError::NoMemory), "a hole");
            assert_eq!(
                (mm.rss().locked, mm.rss().anon),
                (3, 0),
                "locked up to the hole, and nothing brought in"
            );
            assert_eq!(mm.madvise(page(2), PAGE, Advice::DontNeed), Err(MmError::Invalid));
            assert_eq!(mm.madvise(page(4), PAGE, Advice::DontNeed), Ok(()));
            assert_eq!(mm.mlock(page(4), 4 * PAGE, false), Err(MmError::NoMemory), "no access");
            assert_eq!((mm.rss().locked, mm.rss().anon), (7, 2), "all is locked, and brought in up to there");
            assert_eq!(mm.munlock(page(0), 8 * PAGE), Err(MmError::NoMemory));
            assert_eq!(mm.rss().locked, 4, "unlocked up to the hole");
        });
    });
}

/// A shared page is read when it is touched; a private one is present, or copied, before the first store.
#[test]
fn a_locked_mapping_that_becomes_writable_gets_its_pages_if_it_is_private() {
    small(|machine, manager| {
        machine.files().set_size(FileId(7), 4 * PAGE);
        let file = manager.open(FileId(7)).unwrap();
        run(manager, |mm| {
            let named = || Backing::File { file: &file, page_offset: 0 };
            let cases = [
                (Sharing::Shared, named(), 0),
                (Sharing::Private, named(), 4),
                (Sharing::Private, Backing::Anonymous, 4),
            ];
            for (sharing, backing, pages) in cases {
                let prot = Protection::NONE;
                mm.mmap(&MapRequest { prot, sharing, backing, ..anonymous(BASE, 4 * PAGE) }).unwrap();
                assert_eq!(mm.mlock(page(0), 4 * PAGE, false), Err(MmError::NoMemory), "no access");
                mm.mprotect(page(0), 4 * PAGE, RW).unwrap();
                let rss = mm.rss();
                assert_eq!((rss.locked, rss.file, rss.anon), (4, 0, pages), "{sharing:?}");
                mm.munmap(page(0), 4 * PAGE).unwrap();
            }
        });
    });
}

/// Pages of the first sixteen mappings were mapped at once, those of the others at the first store.
#[test]
fn many_locked_mappings_that_become_writable_all_get_their_pages() {
    small(|_, manager| {
        run(manager, |mm| {
            for at in 0..40 {
                let prot = if at % 2 == 0 { Protection::NONE } else { Protection::READ };
                mm.mmap(&MapRequest { prot, ..anonymous(BASE + at * PAGE, PAGE) }).unwrap();
            }
            let _no_access = mm.mlock(page(0), 40 * PAGE, false);
            mm.mprotect(page(0), 41 * PAGE, RW).expect_err("a hole behind them");
            assert_eq!((mm.rss().locked, mm.rss().anon), (40, 40));
        });
    });
}

#[test]
fn a_lock_for_which_memory_does_not_suffice_says_again() {
    with_manager(HostedConfig::new(16 * MIB), |_, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 32 * MIB)).unwrap();
            assert_eq!(mm.mlock(page(0), 32 * MIB, false), Err(MmError::Again));
            assert_eq!(mm.rss().locked, 32 * MIB / PAGE, "all is locked");
        });
    });
}

/// Such a range was refused with `EFAULT` however it was to change.
#[test]
fn a_range_that_ends_behind_all_addresses_stays_but_does_not_shrink() {
    small(|_, manager| {
        run(manager, |mm| {
            let (end, far) = ((1 << 47) - PAGE, page(1 << 20));
            mm.mmap(&anonymous(far.0, 4 * PAGE)).unwrap();
            let remap = |from: VirtAddr, old, new, to| mm.mremap(from, old, new, to);
            for to in [Remap::InPlace, Remap::MayMove] {
                assert_eq!(remap(far, end, end, to), Ok(far), "all of it stays");
                assert_eq!(remap(far, end, 2 * PAGE, to), Err(MmError::Invalid));
                assert_eq!(remap(far, end, 5 * PAGE, to), Err(MmError::Invalid), "more than is mapped");
                assert_eq!(remap(far, end - PAGE, end, to), Err(MmError::Fault));
                assert_eq!(remap(page(0), end, end, to), Err(MmError::Fault), "nothing is mapped");
                assert_eq!(remap(page(0), end, 2 * PAGE, to), Err(MmError::Fault), "nothing is mapped");
            }
            let down = Remap::Fixed(page(0));
            assert_eq!(remap(far, end, 2 * PAGE, down), Err(MmError::Invalid));
            assert_eq!(remap(far, end, 5 * PAGE, down), Err(MmError::Fault), "more than is mapped");
            let (top, len) = (VirtAddr(end - 4 * PAGE), 5 * PAGE);
            mm.mmap(&anonymous(top.0, 4 * PAGE)).unwrap();
            assert_eq!(remap(top, len, len, Remap::DontUnmap(VirtAddr(0))), Err(MmError::Fault));
            assert_eq!(remap(top, len, len, down), Ok(page(0)), "what is mapped moves");
            assert_eq!(remap(top, PAGE, PAGE, Remap::InPlace), Err(MmError::Fault));
            assert_eq!(remap(page(0), 4 * PAGE, PAGE, Remap::InPlace), Ok(page(0)));
        });
    });
}

/// Populating for stores takes back what was freed lazily: reclaim leaves it.
#[test]
fn populating_for_stores_keeps_lazily_freed_pages() {
    for (populates, left) in [(false, 0), (true, 5)] {
        small(|machine, manager| {
            run(manager, |mm| {
                let at = page(0);
                mm.mmap(&anonymous(at.0, PAGE)).unwrap();
                store(machine, mm, at.0, 5).unwrap();
                mm.madvise(at, PAGE, Advice::Free).unwrap();
                if populates {
                    mm.madvise(at, PAGE, Advice::PopulateWrite).unwrap();
                }
                // More than the machine has: all that was freed lazily goes.
                let more = VirtAddr(16 * BASE);
                mm.mmap(&anonymous(more.0, 64 * MIB)).unwrap();
                let populated = mm.madvise(more, 64 * MIB, Advice::PopulateWrite);
                assert_eq!(populated, Err(MmError::NoMemory));
                mm.munmap(more, 64 * MIB).unwrap();
                assert_eq!(load(machine, mm, at.0), Ok(left));
            });
        });
    }
}

/// The end of a range may be the last address: advice there once overflowed.
#[test]
fn what_lies_behind_the_user_half_is_a_hole() {
    small(|_, manager| {
        run(manager, |mm| {
            let advices = [
                Advice::DontNeed,
                Advice::Free,
                Advice::WillNeed,
                Advice::HugePage,
                Advice::NoHugePage,
                Advice::PopulateRead,
                Advice::PopulateWrite,
            ];
            for addr in [(1 << 47) - PAGE, 1 << 47, 1 << 63, u64::MAX - 4 * PAGE + 1, u64::MAX - 2 * PAGE + 1]
            {
                for advice in advices {
                    let answer = mm.madvise(VirtAddr(addr), PAGE, advice);
                    assert_eq!(answer, Err(MmError::NoMemory), "{advice:?} at {addr:#x}");
                }
                assert_eq!(mm.mprotect(VirtAddr(addr), PAGE, Protection::READ), Err(MmError::NoMemory));
                assert_eq!(mm.mlock(VirtAddr(addr), PAGE, false), Err(MmError::NoMemory));
                assert_eq!(mm.munlock(VirtAddr(addr), PAGE), Err(MmError::NoMemory));
                assert_eq!(mm.munmap(VirtAddr(addr), PAGE), Err(MmError::Invalid));
                assert_eq!(mm.mremap(VirtAddr(addr), PAGE, PAGE, Remap::MayMove), Err(MmError::Fault));
            }
        });
    });
}

#[test]
fn a_heap_does_not_shrink_over_a_hole() {
    small(|_, manager| {
        run(manager, |mm| {
            mm.set_brk_start(page(0));
            assert_eq!(mm.brk(page(3)), page(3));
            mm.munmap(page(2), PAGE).unwrap();
            assert_eq!(mm.brk(page(2)), page(3));
            assert_eq!(mm.brk(page(1)), page(1), "a page of it is there");
        });
    });
}

#[test]
fn a_move_that_leaves_a_mapping_takes_a_wish_and_refuses_a_bad_one() {
    small(|machine, manager| {
        run(manager, |mm| {
            let len = 4 * PAGE;
            mm.mmap(&anonymous(BASE, len)).unwrap();
            store(machine, mm, BASE, 7).unwrap();
            let bad =
                [VirtAddr(BASE + 64 * PAGE + 1), page(2), VirtAddr(1 << 47), VirtAddr(u64::MAX - PAGE + 1)];
            for hint in bad {
                assert_eq!(
                    mm.mremap(page(0), len, len, Remap::DontUnmap(hint)),
                    Err(MmError::Invalid),
                    "{hint:?}"
                );
            }
            let low = VirtAddr(PAGE);
            assert_eq!(mm.mremap(page(0), len, len, Remap::DontUnmap(low)), Err(MmError::NotPermitted));
            assert_eq!(mm.mremap(page(0), len, len, Remap::DontUnmap(page(64))), Ok(page(64)));
            let there = mm.mremap(page(0), len, len, Remap::DontUnmap(page(66))).unwrap();
            assert!(there != page(66), "something is there");
            let fixed =
                quire::vm::MapRequest { placement: Placement::FixedNoReplace, ..anonymous(BASE, len) };
            assert_eq!(mm.mmap(&fixed), Err(MmError::Exists), "an empty mapping was left");
        });
    });
}

/// The range to be moved is checked before its target.
#[test]
fn a_source_that_is_not_mapped_is_told_before_a_target_that_is_too_low() {
    small(|_, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, PAGE)).unwrap();
            let move_to_null = |from| mm.mremap(from, PAGE, PAGE, Remap::Fixed(VirtAddr(0)));
            assert_eq!(move_to_null(page(1)), Err(MmError::Fault));
            assert_eq!(move_to_null(page(0)), Err(MmError::NotPermitted));
        });
    });
}
