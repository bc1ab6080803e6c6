//! Pages of files of huge pages that move while parts of them are mapped, or while a handler of faults
//! watches them. Each part is mapped afterwards as it was before, by a leaf of the same size, and the handler
//! is told of nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::error::MigrateError;
use quire::hugetlb::HugeSize::{self, Size1G, Size2M};
use quire::page_alloc::Gfp;
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Access, Advice, AnswerMode, MapRequest, PageWord};
use quire::vm::{UserfaultChanges, UserfaultModes};

use crate::hugetlb::support::{GIB, MIB};
use crate::hugetlb::world::{
    BASE, HUGE, Manager, R, RW, Space, check, info, load, of_file, run, store, with_config, with_huge,
    with_pool, within,
};
use testkit::{Stress, seed};

pub(super) const PAGE: u64 = 4096;
/// Where a second mapping, or a private one, begins.
pub(super) const OTHER: u64 = BASE + 8 * GIB;

/// Each 4 KiB of 2 MiB that is mapped: its place in the page at `head`, the size of its leaf, its marks, what
/// hardware recorded (accessed, dirty), and how many leaves map its frame.
type Part = (u64, u64, u64, (bool, bool), u64);

fn parts(manager: &Manager<'_>, machine: &Hosted, mm: &Space<'_>, addr: u64, head: Frame) -> Vec<Part> {
    let mut parts = Vec::new();
    mm.pagemap(VirtRange::from_len(VirtAddr(addr), HUGE), |at, word| {
        if let Some(frame) = word.frame() {
            let leaf = machine.probe(mm.root(), at).unwrap();
            let marks = word.0 & !(PageWord::SOFT_DIRTY - 1);
            let recorded = (leaf.accessed, leaf.dirty);
            let leaves = manager.pages().counts().mapcount(frame);
            parts.push((frame.0.wrapping_sub(head.0), leaf.frames, marks, recorded, leaves));
        }
    });
    parts
}

pub(super) fn head_of(mm: &Space<'_>, addr: u64, size: HugeSize) -> Frame {
    let found = mm.translate(VirtAddr(addr), Access::Read).expect("mapped");
    Frame(found.frame.0 & !(size.order().frames() - 1))
}

pub(super) fn drop_part(mm: &Space<'_>, addr: u64, len: u64) {
    mm.madvise(VirtAddr(addr), len, Advice::DontNeed).unwrap();
}

#[test]
fn parts_move_with_their_page_in_every_address_space() {
    with_huge(3, |machine, manager| {
        let file = manager.huge_file(Size2M, HUGE).unwrap();
        let [first, second] = [(); 2].map(|()| manager.new_mm().unwrap());
        for mm in [&first, &second] {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 1))).unwrap();
            mm.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
            mm.mmap(&of_file(&file, Private, OTHER, (0, 1))).unwrap();
        }
        within(&first, || {
            (0..512).for_each(|at| store(machine, &first, BASE + at * PAGE, 40 + at).unwrap());
            assert_eq!(load(machine, &first, OTHER), Ok(40));
            drop_part(&first, BASE + 8 * PAGE, 4 * PAGE);
        });
        within(&second, || {
            assert_eq!(load(machine, &second, BASE + 9 * PAGE), Ok(49));
            store(machine, &second, OTHER, 3).unwrap();
        });
        let old = head_of(&first, BASE, Size2M);
        let seen = |mm, head| parts(manager, machine, mm, BASE, head);
        let before = [&first, &second].map(|mm| seen(mm, old));
        let (pool, rss) = (info(manager, Size2M), [&first, &second].map(|mm| mm.rss().huge));
        assert_eq!((before[0].len(), manager.migrate(old.add(77))), (508, Ok(512)));
        let new = head_of(&first, BASE, Size2M);
        assert_ne!(new, old);
        assert_eq!([&first, &second].map(|mm| seen(mm, new)), before);
        assert_eq!((info(manager, Size2M), [&first, &second].map(|mm| mm.rss().huge)), (pool, rss));
        assert_eq!(head_of(&first, OTHER, Size2M), new, "a private mapping shows the file's page");
        within(&first, || {
            (0..512).for_each(|at| assert_eq!(load(machine, &first, BASE + at * PAGE), Ok(40 + at)));
            store(machine, &first, BASE + 9 * PAGE, 5).unwrap();
        });
        within(&second, || {
            assert_eq!(load(machine, &second, BASE + 9 * PAGE), Ok(5), "one page for both");
            assert_eq!(load(machine, &second, OTHER), Ok(3), "its own copy");
        });
        check(manager);
        [first, second].into_iter().for_each(|mm| mm.exit());
        drop(file);
    });
}

/// Leaves of three sizes, and a range of consecutive blocks that is emptied.
#[test]
fn a_range_with_a_gigabyte_in_parts_is_emptied() {
    with_config(HostedConfig::new(4 * GIB), Size1G, 1, |machine, manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        run(manager, |mm| {
            let request = of_file(&file, Shared, BASE, (0, 512));
            mm.mmap(&request).unwrap();
            mm.mmap(&MapRequest { addr: VirtAddr(OTHER), ..request }).unwrap();
            for at in [0, 5, 511] {
                store(machine, mm, BASE + at * HUGE, at).unwrap();
                assert_eq!(load(machine, mm, OTHER + at * HUGE), Ok(at));
            }
            mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
            mm.madvise(VirtAddr(BASE), GIB, Advice::Split).unwrap();
            drop_part(mm, BASE + 5 * HUGE + PAGE, PAGE);
            drop_part(mm, BASE + 7 * HUGE, 2 * HUGE);
            let old = head_of(mm, BASE, Size1G);
            let seen = |head: Frame| {
                [0, 5, 7, 9, 511].map(|at| parts(manager, machine, mm, BASE + at * HUGE, head.add(at * 512)))
            };
            let before = seen(old);
            assert_eq!(before.each_ref().map(Vec::len), [512, 511, 0, 512, 512]);
            assert_eq!((before[0][0].1, before[1][0].1), (512, 1));
            assert_eq!(manager.migrate(old.add(512 * 77)), Ok(512 * 512));
            let new = head_of(mm, BASE, Size1G);
            assert_ne!(new, old);
            assert_eq!(seen(new), before);
            assert_eq!(machine.probe(mm.root(), VirtAddr(OTHER)).unwrap().frames, 512 * 512);
            for at in [0, 5, 511] {
                assert_eq!(load(machine, mm, BASE + at * HUGE), Ok(at));
                store(machine, mm, OTHER + at * HUGE, at + 1).unwrap();
                assert_eq!(load(machine, mm, BASE + at * HUGE), Ok(at + 1));
            }
            check(manager);
        });
        drop(file);
    });
}

/// Memory that holds such pages is removed.
#[test]
fn pages_in_parts_make_room_for_consecutive_blocks() {
    with_config(HostedConfig::new(64 * MIB), Size2M, 6, |machine, manager| {
        let file = manager.huge_file(Size2M, 6 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 6))).unwrap();
            mm.madvise(VirtAddr(BASE), 6 * HUGE, Advice::Split).unwrap();
            let places = (0..6).map(|page| BASE + page * HUGE);
            places.clone().for_each(|at| store(machine, mm, at, at).unwrap());
            places.clone().for_each(|at| drop_part(mm, at + PAGE, PAGE));
            // The kernel has every other free block, so that no four in a row are free or could be.
            let frames =
                std::iter::from_fn(|| manager.pages().alloc(Gfp::KERNEL, quire::addr::Order::FRAME).ok());
            let (freed, kept): (Vec<_>, Vec<_>) =
                frames.partition(|folio| folio.frames().start.0 / 512 % 2 == 1);
            freed.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
            manager.pages().lists().drain_all();
            let made = manager.alloc_contig(Gfp::USER, 4, 1).expect("pages in parts make room");
            assert!(places.clone().all(|at| !made.frames().contains(head_of(mm, at, Size2M))));
            assert!(places.clone().all(|at| load(machine, mm, at) == Ok(at)));
            assert!(places.clone().all(|at| machine.probe(mm.root(), VirtAddr(at + PAGE)).is_none()));
            manager.pages().free_contig(made).unwrap();
            kept.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
        });
        drop(file);
    });
}

/// A handler is told of what it was told of before: of holes and marks, and of no other part.
#[test]
fn a_handler_is_told_of_no_move() {
    for splits in [false, true] {
        with_huge(3, |machine, manager| {
            let file = manager.huge_file(Size2M, HUGE).unwrap();
            run(manager, |mm| {
                mm.mmap(&of_file(&file, Shared, BASE, (0, 1))).unwrap();
                (0..512).for_each(|at| store(machine, mm, BASE + at * PAGE, 40 + at).unwrap());
                let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
                if splits {
                    mm.madvise(VirtAddr(BASE), HUGE, Advice::Split).unwrap();
                }
                let modes = UserfaultModes::MISSING | UserfaultModes::MINOR | UserfaultModes::WRITE_PROTECT;
                mm.userfault_register(&handler, VirtAddr(BASE), HUGE, modes).unwrap();
                let marked = if splits { 16 * PAGE } else { HUGE };
                let mode = AnswerMode::default();
                assert_eq!(mm.userfault_write_protect(VirtAddr(BASE), marked, true, mode).bytes, marked);
                if splits {
                    drop_part(mm, BASE + 32 * PAGE, PAGE);
                }
                let old = head_of(mm, BASE, Size2M);
                let before = parts(manager, machine, mm, BASE, old);
                assert_eq!(manager.migrate(old), Ok(512));
                let new = head_of(mm, BASE, Size2M);
                assert_ne!(new, old);
                assert_eq!(parts(manager, machine, mm, BASE, new), before);
                let loaded = |at: u64| load(machine, mm, BASE + at * PAGE) == Ok(40 + at);
                assert!((0..512).filter(|at| !splits || *at != 32).all(loaded));
                if splits {
                    (16..32).for_each(|at| store(machine, mm, BASE + at * PAGE, 9).unwrap());
                }
                assert!(handler.next_event().is_none(), "nothing happened");
                assert_eq!(mm.userfault_write_protect(VirtAddr(BASE), marked, false, mode).bytes, marked);
                store(machine, mm, BASE, 7).unwrap();
                handler.close();
                assert!(mm.fault(VirtAddr(BASE + 32 * PAGE), Access::Read).is_err() == splits);
                mm.userfault_unregister(VirtAddr(BASE), HUGE).unwrap();
            });
            drop(file);
        });
    }
}

/// Whatever allocation fails, all of the page moves, or nothing has changed. Parts of many blocks need memory
/// for the counts of their leaves.
#[test]
fn a_move_that_fails_at_any_allocation_changes_nothing() {
    with_pool(Size1G, 4 * GIB, 1, |machine, manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        let spaces = [(); 2].map(|()| manager.new_mm().unwrap());
        for mm in &spaces {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 512))).unwrap();
            mm.madvise(VirtAddr(BASE), GIB, Advice::Split).unwrap();
            within(mm, || store(machine, mm, BASE, 3).unwrap());
            (0..12).for_each(|at| drop_part(mm, BASE + at * 8 * HUGE + 8 * PAGE, 4 * PAGE));
        }
        for nth in 0.. {
            let old = head_of(&spaces[0], BASE, Size1G);
            let seen = |head: Frame| {
                let blocks = (0..12).map(|at| at * 8);
                let of = |mm| parts(manager, machine, mm, BASE, head).len();
                let all = blocks.map(|at| {
                    spaces
                        .each_ref()
                        .map(|mm| parts(manager, machine, mm, BASE + at * HUGE, head.add(at * 512)))
                });
                (spaces.each_ref().map(of), all.collect::<Vec<_>>())
            };
            let before = seen(old);
            machine.set_failures(FailurePlan::Nth(nth));
            let moved = manager.migrate(old);
            let failed = machine.allocations_failed() > 0;
            machine.set_failures(FailurePlan::Off);
            let new = head_of(&spaces[0], BASE, Size1G);
            assert!(seen(new) == before, "{nth}: a part is gone, or elsewhere");
            match moved {
                Ok(_) => assert_ne!(new, old),
                Err(MigrateError::OutOfMemory) => assert_eq!(new, old),
                Err(error) => panic!("{error:?}"),
            }
            within(&spaces[1], || assert_eq!(load(machine, &spaces[1], BASE), Ok(3)));
            let _ = manager.huge_pools().resize(manager.pages(), Size1G, quire::page_alloc::NodeSet::ALL, 1);
            if !failed {
                break;
            }
        }
        spaces.into_iter().for_each(|mm| mm.exit());
        drop(file);
    });
}

/// Ends the other CPUs' work, also where this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the third CPU does beside moves.
fn upset(manager: &Manager<'_>, mm: &Space<'_>, random: &mut fastrand::Rng) -> bool {
    let page = BASE + random.u64(0..2) * HUGE;
    match random.u32(0..8) {
        0 => mm.madvise(VirtAddr(page + random.u64(0..512) * PAGE), PAGE, Advice::DontNeed).unwrap(),
        1 => {
            mm.mprotect(VirtAddr(page), HUGE, R).unwrap();
            mm.mprotect(VirtAddr(page), HUGE, RW).unwrap();
        }
        2 => _ = mm.collapse(VirtAddr(page), HUGE),
        3 => mm.fork().unwrap().exit(),
        _ => {
            let Some(leaf) = mm.translate(VirtAddr(page), Access::Read) else { return false };
            return match manager.migrate(leaf.frame) {
                Ok(_) => true,
                Err(MigrateError::NotMovable) => false,
                Err(error) => panic!("{error:?}"),
            };
        }
    }
    false
}

/// No store is lost while pages in parts move, are unmapped, protected, collapsed and forked (invariant F4).
#[test]
fn parts_move_beside_stores_in_two_address_spaces() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_config(HostedConfig::new(64 * MIB).with_cpus(3), Size2M, 4, |machine, manager| {
        let file = manager.huge_file(Size2M, 2 * HUGE).unwrap();
        let spaces = [(); 2].map(|()| manager.new_mm().unwrap());
        for mm in &spaces {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
            mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::Split).unwrap();
        }
        let (moved, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let stress = Stress::begin();
        machine.spawn_cpus(3, |cpu| {
            let mut random = fastrand::Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
            if cpu.0 == 2 {
                while !ended.load(Ordering::Relaxed) {
                    let done = upset(manager, &spaces[random.usize(0..2)], &mut random);
                    moved.fetch_add(u64::from(done), Ordering::Relaxed);
                }
                return manager.pages().lists().drain_local();
            }
            // The only writer of its words counts up: a lost store shows at the next one.
            let mm = &spaces[cpu.0 as usize];
            let _ends = Ends(&ended);
            mm.switch_in();
            let mut counts = [0; 64];
            while !ended.load(Ordering::Relaxed) && stress.goes_on(|| moved.load(Ordering::Relaxed) > 20) {
                let place = random.usize(0..64);
                let at = BASE + place as u64 * 16 * PAGE + u64::from(cpu.0) * 8;
                assert_eq!(load(machine, mm, at), Ok(counts[place]), "a store was lost");
                // The mapping may be read-only for a moment.
                if store(machine, mm, at, counts[place] + 1).is_ok() {
                    counts[place] += 1;
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        assert!(moved.load(Ordering::Relaxed) > 20, "{moved:?} moves");
        for mm in &spaces {
            mm.validate().unwrap();
        }
        spaces.into_iter().for_each(|mm| mm.exit());
        drop(file);
        check(manager);
    });
}
