//! Mappings of huge pages by a program: the questions of libhugetlbfs's suite (readback, private, shared,
//! fork-cow, misalign, mremap, mprotect, mlock, madvise, reservations), as cases of our own.

use hosted::Hosted;
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize;
use quire::page_alloc::NodeSet;
use quire::vm::{Advice, MapRequest, Placement, Remap, Sharing};

use crate::hugetlb::world::{
    BASE, HUGE, R, RW, Space, fork, free_and_promised, info, load, private, ranges, run, store, with_config,
    with_huge, within,
};

#[test]
fn what_is_stored_is_read_back() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            let at = mm.mmap(&MapRequest { placement: Placement::Hint, ..private(0, 3) }).unwrap().0;
            assert_eq!(at % HUGE, 0);
            assert_eq!(free_and_promised(manager), (4, 3), "reserved and not used yet");
            for word in (0..3 * HUGE).step_by(64 << 10) {
                assert_eq!(load(machine, mm, at + word), Ok(0));
                store(machine, mm, at + word, word + 1).unwrap();
            }
            (0..3 * HUGE)
                .step_by(64 << 10)
                .for_each(|word| assert_eq!(load(machine, mm, at + word), Ok(word + 1)));
            assert_eq!(free_and_promised(manager), (1, 0));
            assert_eq!((mm.rss().huge, mm.rss().anon, mm.rss().file), (3 * 512, 0, 0));
            assert_eq!(manager.meminfo().anon, 0, "AnonPages has none of them");
            let shown: Vec<_> = manager.huge_lines().map(|(_, number)| number).collect();
            assert_eq!(shown, [4, 1, 0, 0, 4 * 2048]);
            mm.munmap(VirtAddr(at + HUGE), HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (2, 0));
            assert_eq!(load(machine, mm, at + HUGE), Err(FaultError::NotMapped));
            assert_eq!(load(machine, mm, at + 2 * HUGE), Ok(2 * HUGE + 1));
        });
    });
}

#[test]
fn a_mapping_gets_no_more_than_the_pool_has() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 3)).unwrap();
            assert_eq!(mm.mmap(&private(BASE + 8 * HUGE, 2)), Err(MmError::NoMemory));
            assert_eq!(ranges(mm).len(), 1);
            // A mapping without reservations is allowed, and gets pages that are not reserved, and no more.
            mm.mmap(&MapRequest { noreserve: true, ..private(BASE + 8 * HUGE, 3) }).unwrap();
            store(machine, mm, BASE + 8 * HUGE, 1).unwrap();
            assert_eq!(free_and_promised(manager), (3, 3));
            assert_eq!(store(machine, mm, BASE + 9 * HUGE, 1), Err(FaultError::NoHugePage));
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE, 7).unwrap());
            assert_eq!(free_and_promised(manager), (0, 0));
            // Unmapping frees pages for others, touched or not.
            mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
            store(machine, mm, BASE + 9 * HUGE, 1).unwrap();
            store(machine, mm, BASE + 10 * HUGE, 1).unwrap();
        });
    });
}

#[test]
fn promises_come_back_with_a_partial_unmap() {
    with_huge(8, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 6)).unwrap();
            store(machine, mm, BASE + HUGE, 1).unwrap();
            store(machine, mm, BASE + 4 * HUGE, 1).unwrap();
            assert_eq!(free_and_promised(manager), (6, 4));
            mm.munmap(VirtAddr(BASE + HUGE), 2 * HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (7, 3), "one that was used, one that was not");
            mm.munmap(VirtAddr(BASE), 6 * HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (8, 0));
            // A mapping over a part.
            mm.mmap(&private(BASE, 6)).unwrap();
            mm.mmap(&MapRequest { huge: None, ..private(BASE + 2 * HUGE, 2) }).unwrap();
            assert_eq!(free_and_promised(manager), (8, 4));
        });
        assert_eq!(free_and_promised(manager), (8, 0), "exit");
    });
}

#[test]
fn ends_inside_huge_pages_are_refused() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 4)).unwrap();
            store(machine, mm, BASE, 5).unwrap();
            let inside = VirtAddr(BASE + 4096);
            assert_eq!(mm.munmap(inside, HUGE - 4096), Err(MmError::Invalid));
            assert_eq!(mm.munmap(VirtAddr(BASE), 4096), Err(MmError::Invalid));
            assert_eq!(mm.mprotect(VirtAddr(BASE), 4096, R), Err(MmError::Invalid));
            assert_eq!(mm.mprotect(inside, HUGE - 4096, R), Err(MmError::Invalid));
            assert_eq!(mm.madvise(inside, HUGE, Advice::DontNeed), Err(MmError::Invalid));
            assert_eq!(mm.madvise(VirtAddr(BASE), 4096, Advice::Free), Err(MmError::Invalid));
            assert_eq!(mm.madvise(VirtAddr(BASE), 4096, Advice::NoHugePage), Err(MmError::Invalid));
            assert_eq!(
                mm.mmap(&MapRequest { huge: None, len: 4096, ..private(BASE, 1) }),
                Err(MmError::Invalid)
            );
            let far = 16 * HUGE;
            assert_eq!(mm.mmap(&private(BASE + far + 4096, 1)), Err(MmError::Invalid));
            for to in [Remap::Fixed(VirtAddr(BASE + far + 4096)), Remap::DontUnmap(VirtAddr(0))] {
                assert_eq!(mm.mremap(VirtAddr(BASE), HUGE, HUGE, to), Err(MmError::Invalid), "{to:?}");
            }
            assert_eq!(mm.mremap(inside, HUGE, HUGE, Remap::MayMove), Err(MmError::Invalid));
            assert_eq!(
                mm.mremap(VirtAddr(BASE), HUGE, 2 * HUGE, Remap::MayMove),
                Err(MmError::Invalid),
                "no growing"
            );
            assert_eq!(mm.mremap(VirtAddr(BASE), 0, HUGE, Remap::MayMove), Err(MmError::Invalid));
            assert_eq!(load(machine, mm, BASE), Ok(5), "nothing has changed");
            assert_eq!(ranges(mm).len(), 1);
            // Lengths of mappings are rounded up; lengths of what is dropped are rounded down.
            mm.madvise(VirtAddr(BASE), HUGE - 4096, Advice::DontNeed).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(5));
            mm.mmap(&MapRequest { len: 4096, noreserve: true, ..private(BASE + far, 1) }).unwrap();
            assert_eq!(ranges(mm)[1].len(), HUGE);
            mm.mlock(inside, 4096, false).unwrap();
            assert_eq!((ranges(mm).len(), mm.rss().locked), (2, 0), "huge pages are never given up");
        });
    });
}

/// Locking and populating fault huge pages in, wherever inside them the range ends.
#[test]
fn locked_and_populated_pages_are_there() {
    with_huge(6, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 3)).unwrap();
            mm.mlock(VirtAddr(BASE + HUGE + 4096), 4096, false).unwrap();
            assert_eq!(mm.rss().huge, 512);
            assert!(machine.probe(mm.root(), VirtAddr(BASE + HUGE)).is_some());
            mm.mlock(VirtAddr(BASE), 3 * HUGE, false).unwrap();
            assert_eq!(free_and_promised(manager), (3, 0));
            mm.mmap(&MapRequest { populate: true, ..private(BASE + 8 * HUGE, 2) }).unwrap();
            mm.mmap(&MapRequest { locked: true, ..private(BASE + 16 * HUGE, 1) }).unwrap();
            assert_eq!(free_and_promised(manager), (0, 0));
            assert_eq!((mm.rss().huge, mm.rss().locked), (6 * 512, 0));
        });
    });
}

#[test]
fn rights_change_page_by_page() {
    with_huge(3, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 3)).unwrap();
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE, page).unwrap());
            mm.mprotect(VirtAddr(BASE + HUGE), HUGE, R).unwrap();
            assert_eq!(ranges(mm).len(), 3);
            assert_eq!(store(machine, mm, BASE + HUGE + 8, 1), Err(FaultError::Protection));
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(1));
            store(machine, mm, BASE + 2 * HUGE + 8, 1).unwrap();
            mm.mprotect(VirtAddr(BASE + HUGE), HUGE, RW).unwrap();
            assert_eq!(ranges(mm).len(), 1);
            store(machine, mm, BASE + HUGE + 8, 9).unwrap();
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(1));
            assert_eq!(manager.stat(quire::stats::Stat::CowCopy), 0, "its own page");
        });
    });
}

#[test]
fn moved_pages_keep_their_contents_and_promises() {
    with_huge(8, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 4)).unwrap();
            store(machine, mm, BASE + HUGE, 1).unwrap();
            let to = VirtAddr(BASE + 64 * HUGE);
            assert_eq!(mm.mremap(VirtAddr(BASE), 4 * HUGE, 3 * HUGE, Remap::Fixed(to)), Ok(to));
            assert_eq!(free_and_promised(manager), (7, 2), "the reservation beyond the new length ended");
            assert_eq!(load(machine, mm, to.0 + HUGE), Ok(1));
            assert_eq!(load(machine, mm, BASE), Err(FaultError::NotMapped));
            // A part of it moves by itself.
            let at = mm.mremap(VirtAddr(to.0 + HUGE), HUGE, HUGE, Remap::MayMove).unwrap();
            assert_eq!(load(machine, mm, at.0), Ok(1));
            let far = VirtAddr(BASE + 128 * HUGE);
            mm.mremap(at, HUGE, HUGE, Remap::Fixed(far)).unwrap();
            assert_eq!(load(machine, mm, far.0), Ok(1));
            let child = fork(mm);
            store(machine, mm, far.0, 2).unwrap();
            mm.switch_out();
            within(&child, || assert_eq!(load(machine, &child, far.0), Ok(1)));
            mm.switch_in();
        });
    });
}

/// Maps a small page at an address, and moves it away to another place in its table.
fn map_small_and_move_away(machine: &Hosted, mm: &Space<'_>, addr: u64) {
    mm.mmap(&MapRequest { len: 4096, huge: None, ..private(addr, 1) }).unwrap();
    store(machine, mm, addr, 1).unwrap();
    let to = VirtAddr(BASE + 64 * HUGE + 4096);
    assert_eq!(mm.mremap(VirtAddr(addr), 4096, 4096, Remap::Fixed(to)), Ok(to));
}

/// A table that small pages have left would keep the huge page out, and the fault would be tried again for
/// ever.
#[test]
fn a_huge_page_is_mapped_where_small_pages_moved_away() {
    with_huge(2, |machine, manager| {
        run(manager, |mm| {
            map_small_and_move_away(machine, mm, BASE);
            mm.mmap(&private(BASE, 1)).unwrap();
            store(machine, mm, BASE, 5).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(5));
        });
    });
}

/// Where a table of small pages was left, the huge page would move as 512 leaves, and would no longer be
/// known as one whose reservation was used.
#[test]
fn a_huge_page_moves_whole_to_where_small_pages_moved_away() {
    with_huge(2, |machine, manager| {
        run(manager, |mm| {
            let to = VirtAddr(BASE + 32 * HUGE);
            map_small_and_move_away(machine, mm, to.0);
            mm.mmap(&private(BASE, 1)).unwrap();
            store(machine, mm, BASE, 7).unwrap();
            assert_eq!(mm.mremap(VirtAddr(BASE), HUGE, HUGE, Remap::Fixed(to)), Ok(to));
            assert_eq!(machine.probe(mm.root(), to).map(|leaf| leaf.frames), Some(512));
            assert_eq!(load(machine, mm, to.0), Ok(7));
            mm.munmap(to, HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (2, 0));
        });
    });
}

#[test]
fn dontneed_gives_pages_back_and_promises_them_again() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 3)).unwrap();
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            assert_eq!(free_and_promised(manager), (1, 0));
            mm.madvise(VirtAddr(BASE + HUGE), 2 * HUGE, Advice::DontNeed).unwrap();
            assert_eq!(free_and_promised(manager), (3, 2));
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(0));
            assert_eq!(load(machine, mm, BASE), Ok(1));
            // Without reservations any mapping may use the pages.
            mm.mmap(&MapRequest { noreserve: true, ..private(BASE + 8 * HUGE, 1) }).unwrap();
            store(machine, mm, BASE + 8 * HUGE, 1).unwrap();
            mm.madvise(VirtAddr(BASE + 8 * HUGE), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(free_and_promised(manager), (2, 1));
        });
    });
}

/// A page that a child still maps is not freed; its reservation can be renewed only if the pool has another
/// page.
#[test]
fn dontneed_of_what_a_child_maps_needs_another_page() {
    with_huge(3, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 2)).unwrap();
            (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            let child = fork(mm);
            assert_eq!(mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::DontNeed), Err(MmError::NoMemory));
            assert_eq!(free_and_promised(manager), (1, 0));
            mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(free_and_promised(manager), (1, 1));
            assert_eq!(load(machine, mm, BASE), Ok(0));
            child.exit();
            mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::DontNeed).unwrap();
            assert_eq!(free_and_promised(manager), (3, 2));
        });
    });
}

#[test]
fn a_child_shares_until_one_stores() {
    with_huge(5, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 2)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let child = fork(mm);
            assert_eq!(free_and_promised(manager), (4, 1), "a child is reserved nothing");
            store(machine, mm, BASE, 2).unwrap();
            assert_eq!(free_and_promised(manager), (3, 1), "a copy");
            mm.switch_out();
            within(&child, || {
                assert_eq!(load(machine, &child, BASE), Ok(1));
                store(machine, &child, BASE, 3).unwrap();
                assert_eq!(free_and_promised(manager), (3, 1), "it has no other mapping any more");
                store(machine, &child, BASE + HUGE, 4).unwrap();
                assert_eq!(free_and_promised(manager), (2, 1), "not what its parent is reserved");
            });
            mm.switch_in();
            assert_eq!(load(machine, mm, BASE), Ok(2));
            store(machine, mm, BASE + HUGE, 5).unwrap();
            assert_eq!(free_and_promised(manager), (1, 0));
            drop(child);
            assert_eq!(free_and_promised(manager), (3, 0));
        });
    });
}

/// A parent has its pages reserved (invariant 10). When there is none for a copy, its children lose theirs,
/// not the parent.
#[test]
fn a_parent_takes_back_what_it_was_promised() {
    with_huge(2, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 2)).unwrap();
            (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, page + 1).unwrap());
            let (child, other) = (fork(mm), fork(mm));
            mm.switch_out();
            let stored = within(&child, || store(machine, &child, BASE, 5));
            assert_eq!(stored, Err(FaultError::NoHugePage), "a child was reserved nothing");
            mm.switch_in();
            store(machine, mm, BASE, 3).unwrap();
            assert_eq!((load(machine, mm, BASE), mm.rss().huge), (Ok(3), 1024));
            mm.switch_out();
            for child in [&child, &other] {
                within(child, || {
                    assert_eq!(load(machine, child, BASE), Err(FaultError::Poisoned));
                    assert_eq!(load(machine, child, BASE + HUGE), Ok(2));
                    assert_eq!(child.rss().huge, 512);
                });
            }
            // A lost page stays lost in a grandchild. A child that drops it may fault in a free page.
            let grandchild = fork(&child);
            within(&grandchild, || assert_eq!(load(machine, &grandchild, BASE), Err(FaultError::Poisoned)));
            drop(grandchild);
            within(&other, || other.munmap(VirtAddr(BASE), HUGE).unwrap());
            mm.switch_in();
            // Populating may take it, too.
            mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::PopulateWrite).unwrap();
            mm.switch_out();
            within(&child, || assert_eq!(load(machine, &child, BASE + HUGE), Err(FaultError::Poisoned)));
            mm.switch_in();
        });
    });
}

#[test]
fn shared_memory_is_shared_with_children() {
    with_huge(4, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&MapRequest { sharing: Sharing::Shared, ..private(BASE, 3) }).unwrap();
            assert_eq!(free_and_promised(manager), (4, 3));
            store(machine, mm, BASE, 1).unwrap();
            let child = fork(mm);
            mm.switch_out();
            within(&child, || {
                assert_eq!(load(machine, &child, BASE), Ok(1));
                store(machine, &child, BASE, 2).unwrap();
                store(machine, &child, BASE + HUGE, 3).unwrap();
                assert_eq!(free_and_promised(manager), (2, 1), "reservations are the file's");
            });
            mm.switch_in();
            assert_eq!(load(machine, mm, BASE), Ok(2));
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(3));
            mm.munmap(VirtAddr(BASE), 3 * HUGE).unwrap();
            assert_eq!(free_and_promised(manager), (2, 1), "the child has it still");
            drop(child);
            assert_eq!(free_and_promised(manager), (4, 0));
        });
    });
}

#[test]
fn pages_of_one_gibibyte_are_mapped_by_one_leaf() {
    const GIB: u64 = 1 << 30;
    with_config(hosted::HostedConfig::new(6 * GIB), HugeSize::Size1G, 3, |machine, manager| {
        run(manager, |mm| {
            let request = MapRequest { len: 2 * GIB, huge: Some(HugeSize::Size1G), ..private(BASE, 1) };
            assert_eq!(
                mm.mmap(&MapRequest { addr: VirtAddr(BASE + HUGE), ..request }),
                Err(MmError::Invalid)
            );
            mm.mmap(&request).unwrap();
            store(machine, mm, BASE + GIB + 12345 * 8, 1).unwrap();
            assert_eq!(mm.rss().huge, GIB >> 12);
            assert_eq!(
                (info(manager, HugeSize::Size1G).free, info(manager, HugeSize::Size1G).reserved),
                (2, 1)
            );
            assert_eq!(mm.munmap(VirtAddr(BASE), HUGE), Err(MmError::Invalid));
            let child = fork(mm);
            store(machine, mm, BASE + GIB, 2).unwrap();
            assert_eq!(load(machine, mm, BASE + GIB + 12345 * 8), Ok(1), "copied whole");
            assert_eq!(info(manager, HugeSize::Size1G).free, 1);
            drop(child);
            mm.madvise(VirtAddr(BASE), 2 * GIB, Advice::DontNeed).unwrap();
            assert_eq!(
                (info(manager, HugeSize::Size1G).free, info(manager, HugeSize::Size1G).reserved),
                (3, 2)
            );
        });
    });
}

/// Beyond the pool, up to a limit, pages are allocated from the page allocator, and freed to it.
#[test]
fn surplus_pages_serve_mappings() {
    with_huge(1, |machine, manager| {
        manager.huge_pools().set_overcommit(manager.pages(), HugeSize::Size2M, 2);
        run(manager, |mm| {
            assert_eq!(mm.mmap(&private(BASE, 4)), Err(MmError::NoMemory));
            mm.mmap(&private(BASE, 3)).unwrap();
            let pool = info(manager, HugeSize::Size2M);
            assert_eq!((pool.total, pool.surplus, pool.reserved), (3, 2, 3));
            (0..3).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            mm.munmap(VirtAddr(BASE), HUGE).unwrap();
            assert_eq!(info(manager, HugeSize::Size2M).total, 2);
            // A pool that shrinks does not affect its pages in use.
            let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, 0);
            assert_eq!(info(manager, HugeSize::Size2M).surplus, 2);
            mm.munmap(VirtAddr(BASE), 3 * HUGE).unwrap();
            assert_eq!(info(manager, HugeSize::Size2M).total, 0);
        });
        let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size2M, NodeSet::ALL, 1);
    });
}

/// Regression: after advice that was refused, and a split of the folio, a huge page had small leaves, and
/// faulted for ever.
#[test]
fn what_is_refused_splits_no_huge_page() {
    with_huge(2, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 1)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let whole = || machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frames;
            assert_eq!(mm.madvise(VirtAddr(BASE + 4096), 4096, Advice::Free), Err(MmError::Invalid));
            assert_eq!(mm.clear_soft_dirty(VirtAddr(BASE + 4096), 4096), Err(MmError::Invalid));
            let frame = machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frame;
            let split = manager.split_folio(frame, quire::addr::Order::FRAME);
            assert_eq!((split, whole()), (Err(quire::error::SplitError::InUse), 512));
            store(machine, mm, BASE, 2).unwrap();
        });
    });
}
