//! What moves of pages of files of huge pages need: memory, and flushes.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::error::MigrateError;
use quire::hugetlb::HugeSize::{Size1G, Size2M};
use quire::page_alloc::NodeSet;
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Advice, MapRequest};

use crate::hugetlb::part_moves::{OTHER, PAGE, drop_part, head_of};
use crate::hugetlb::support::{GIB, MIB};
use crate::hugetlb::world::{BASE, HUGE, Space, of_file, run, store, with_config, with_pool};

/// A page that was cleared piece by piece, or for which `MADV_SPLIT` was refused, needs no more memory for a
/// move than one that was always whole. One that may have parts does.
#[test]
fn only_pages_that_programs_may_split_pin_memory_for_a_move() {
    type Before = fn(&Hosted, &Space<'_>);
    let whole: Before = |_, mm| mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
    let in_pieces: Before = |machine, mm| {
        store(machine, mm, BASE, 1).unwrap();
        assert_eq!(machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frames, 512);
        mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
    };
    let refused: Before = |_, mm| {
        mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
        let all = OTHER + GIB - BASE;
        assert!(mm.madvise(VirtAddr(BASE), all, Advice::Split).is_err(), "not all is shared");
    };
    let split: Before = |_, mm| {
        mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
        mm.madvise(VirtAddr(BASE), GIB, Advice::Split).unwrap();
    };
    let asked = [whole, in_pieces, refused, split].map(|before| {
        let asked = AtomicU64::new(0);
        with_pool(Size1G, 4 * GIB, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            run(manager, |mm| {
                mm.mmap(&of_file(&file, Shared, BASE, (0, 512))).unwrap();
                // The page is not known to be zero any more.
                mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
                mm.munlock(VirtAddr(BASE), GIB).unwrap();
                file.punch_hole(0..GIB).unwrap();
                let private = of_file(&file, Private, OTHER, (0, 512));
                mm.mmap(&MapRequest { noreserve: true, ..private }).unwrap();
                before(machine, mm);
                let old = head_of(mm, BASE, Size1G);
                machine.set_failures(FailurePlan::Count);
                manager.migrate(old).unwrap();
                asked.store(machine.allocations_asked(), Ordering::Relaxed);
                machine.set_failures(FailurePlan::Off);
                let _ = manager.huge_pools().resize(manager.pages(), Size1G, NodeSet::ALL, 1);
            });
            drop(file);
        });
        asked.into_inner()
    });
    assert_eq!([asked[1], asked[2]], [asked[0]; 2], "{asked:?}");
    assert!(asked[3] > asked[0], "{asked:?}");
}

/// The second visit flushes once for 32 leaves of any size, the first once.
#[test]
fn leaves_of_any_size_move_with_one_flush_for_many() {
    with_config(HostedConfig::new(4 * GIB), Size1G, 1, |machine, manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 512))).unwrap();
            mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
            mm.madvise(VirtAddr(BASE), GIB, Advice::Split).unwrap();
            // 511 leaves of 2 MiB and 256 of 4 KiB, each of which has no neighbour.
            (0..256).for_each(|at| drop_part(mm, BASE + 2 * at * PAGE, PAGE));
            let old = head_of(mm, BASE + PAGE, Size1G);
            let flushes = || machine.counters().flushes_local + machine.counters().flushes_remote;
            let before = flushes();
            assert_eq!(manager.migrate(old), Ok(512 * 512));
            assert_eq!(flushes() - before, 1 + 256 / 32 + 16);
            let leaf = |at| machine.probe(mm.root(), VirtAddr(BASE + at)).map(|leaf| leaf.frames);
            assert_eq!([leaf(0), leaf(PAGE), leaf(511 * HUGE)], [None, Some(1), Some(512)]);
        });
        drop(file);
    });
}

/// A frame that more leaves map than a byte counts: it moves with all of them, or nothing has changed.
#[test]
fn a_frame_with_many_leaves_moves_with_them_or_not_at_all() {
    const LEAVES: u64 = 300;
    with_pool(Size2M, 64 * MIB, 2, |machine, manager| {
        let file = manager.huge_file(Size2M, 2 * HUGE).unwrap();
        run(manager, |mm| {
            // The counts of the second page fill what is left of the memory for those of the first.
            let places = (0..LEAVES).map(|at| BASE + at * 2 * HUGE);
            for at in places.clone() {
                mm.mmap(&of_file(&file, Shared, at, (0, 2))).unwrap();
                mm.madvise(VirtAddr(at), 2 * HUGE, Advice::Split).unwrap();
                for page in [at, at + HUGE] {
                    store(machine, mm, page + PAGE, at).unwrap();
                    drop_part(mm, page, PAGE);
                    drop_part(mm, page + 2 * PAGE, HUGE - 2 * PAGE);
                }
            }
            let leaf = |at: u64| machine.probe(mm.root(), VirtAddr(at + PAGE)).map(|leaf| leaf.frame);
            let mut failures = 0;
            for nth in 0.. {
                let old = leaf(BASE).expect("mapped");
                machine.set_failures(FailurePlan::From(nth));
                let moved = manager.migrate(old);
                machine.set_failures(FailurePlan::Off);
                let new = leaf(BASE).expect("mapped");
                assert!(places.clone().all(|at| leaf(at) == Some(new)), "{nth}: a leaf is gone");
                assert_eq!(moved.is_ok(), new != old, "{nth}");
                assert_eq!(manager.pages().counts().mapcount(new), LEAVES);
                failures += u64::from(moved == Err(MigrateError::OutOfMemory));
                let _ = manager.huge_pools().resize(manager.pages(), Size2M, NodeSet::ALL, 2);
                if moved.is_ok() {
                    break;
                }
            }
            assert!(failures > 1, "{failures}: the page, its counts, and wide ones");
        });
        drop(file);
    });
}
