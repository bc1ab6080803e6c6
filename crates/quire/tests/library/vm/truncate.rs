//! Files that become shorter and longer while they are mapped.

use std::time::Instant;

use fastrand::Rng;
use hosted::{FailurePlan, Hosted, HostedConfig, SyntheticFiles};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize;
use quire::limits::LOCK_HOLD_FRAMES;
use quire::platform::FileId;
use quire::vm::{Access, Advice, Backing, File, MapRequest, Remap, Sharing};

use crate::vm::world::{MIB, Manager, Space, anonymous, load, run, small, store, with_manager};
use testkit::{seed, stress_time};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

fn map(mm: &Space<'_>, at: u64, file: &File<'_, Hosted>, page_offset: u64, pages: u64, sharing: Sharing) {
    let backing = Backing::File { file, page_offset };
    mm.mmap(&MapRequest { sharing, backing, ..anonymous(at, pages * PAGE) }).expect("memory");
}

fn pristine(file: FileId, offset: u64) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| SyntheticFiles::pristine_byte(file, offset + byte as u64)))
}

#[test]
fn what_lies_behind_the_end_is_gone_everywhere() {
    small(|machine, manager| {
        let name = FileId(1);
        machine.files().set_size(name, 64 * PAGE);
        let file = manager.open(name).unwrap();
        run(manager, |mm| {
            map(mm, BASE, &file, 0, 64, Sharing::Shared);
            map(mm, BASE + MIB, &file, 8, 32, Sharing::Private);
            for page in 0..64 {
                store(machine, mm, BASE + page * PAGE, page + 1).unwrap();
            }
            for page in 0..32 {
                assert_eq!(load(machine, mm, BASE + MIB + page * PAGE), Ok(page + 9));
                if page % 2 == 0 {
                    store(machine, mm, BASE + MIB + page * PAGE, 1000 + page).unwrap();
                }
            }
            let child = mm.fork().unwrap();
            file.truncate(20 * PAGE + 8).unwrap();
            assert_eq!((file.resident(), file.dirty()), (21, 21));
            assert_eq!((mm.rss().file, mm.rss().anon), (21 + 6, 7), "pages 8 to 20 of the private mapping");
            assert_eq!(child.rss().anon, 7);
            assert_eq!(load(machine, mm, BASE + 21 * PAGE), Err(FaultError::BeyondEnd));
            assert_eq!(load(machine, mm, BASE + MIB + 13 * PAGE), Err(FaultError::BeyondEnd));
            assert_eq!(store(machine, mm, BASE + MIB + 14 * PAGE, 1), Err(FaultError::BeyondEnd));
            // The page that contains the end.
            assert_eq!(load(machine, mm, BASE + 20 * PAGE), Ok(21));
            assert_eq!(load(machine, mm, BASE + 20 * PAGE + 8), Ok(0));
            assert_eq!(load(machine, mm, BASE + MIB + 12 * PAGE), Ok(1012));
            assert_eq!(load(machine, mm, BASE + MIB + 12 * PAGE + 8), Ok(pristine(name, 20 * PAGE + 8)));
            file.truncate(64 * PAGE).unwrap();
            assert_eq!(load(machine, mm, BASE + 21 * PAGE), Ok(0), "a page that was cut off stays gone");
            assert_eq!(load(machine, mm, BASE + MIB + 13 * PAGE), Ok(0));
            mm.switch_out();
            child.switch_in();
            assert_eq!(load(machine, &child, BASE + MIB + 14 * PAGE), Ok(0));
            child.validate().unwrap();
            child.switch_out();
            child.exit();
            mm.switch_in();
        });
        drop(file);
        assert!(machine.files().written_pages(name).iter().all(|(page, _)| *page <= 20));
    });
}

/// Splits, moves, second views and merges keep the reverse map exact.
#[test]
fn every_mapping_is_found_wherever_it_went() {
    small(|machine, manager| {
        let file = manager.shmem(64 * PAGE).unwrap();
        run(manager, |mm| {
            map(mm, BASE, &file, 0, 64, Sharing::Shared);
            mm.munmap(VirtAddr(BASE + 10 * PAGE), 2 * PAGE).unwrap();
            mm.mprotect(VirtAddr(BASE + 30 * PAGE), PAGE, quire::arch::Protection::READ).unwrap();
            mm.mprotect(VirtAddr(BASE + 30 * PAGE), PAGE, crate::vm::world::RW).unwrap();
            let moved = VirtAddr(BASE + 4 * MIB);
            mm.mremap(VirtAddr(BASE + 40 * PAGE), 10 * PAGE, 10 * PAGE, Remap::Fixed(moved)).unwrap();
            let second = VirtAddr(BASE + 5 * MIB);
            mm.mremap(VirtAddr(BASE + 20 * PAGE), 0, 30 * PAGE, Remap::Fixed(second)).unwrap();
            mm.validate().unwrap();
            let at = |page: u64| {
                if (40..50).contains(&page) { moved.0 + (page - 40) * PAGE } else { BASE + page * PAGE }
            };
            let mapped = (0..64).filter(|page| !(10..12).contains(page));
            mapped.clone().for_each(|page| store(machine, mm, at(page), page + 1).unwrap());
            for page in 20..50 {
                assert_eq!(load(machine, mm, second.0 + (page - 20) * PAGE), Ok(page + 1));
            }
            file.truncate(5 * PAGE).unwrap();
            assert_eq!((file.resident(), mm.rss().shmem), (5, 5));
            for page in mapped {
                let want = if page < 5 { Ok(page + 1) } else { Err(FaultError::BeyondEnd) };
                assert_eq!(load(machine, mm, at(page)), want);
            }
            assert_eq!(load(machine, mm, second.0), Err(FaultError::BeyondEnd));
            file.truncate(64 * PAGE).unwrap();
            assert_eq!(load(machine, mm, moved.0), Ok(0));
        });
    });
}

#[test]
fn a_pager_that_cannot_resize_changes_nothing() {
    small(|machine, manager| {
        machine.files().set_size(FileId(3), 8 * PAGE);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            map(mm, BASE, &file, 0, 8, Sharing::Shared);
            (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, page + 1).unwrap());
            machine.files().set_write_failures(FailurePlan::Nth(0));
            assert_eq!(file.truncate(PAGE), Err(MmError::Io));
            machine.files().set_write_failures(FailurePlan::Off);
            assert_eq!((file.resident(), file.dirty()), (8, 8));
            (0..8).for_each(|page| assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page + 1)));
        });
    });
}

/// Truncation needs no memory, so it cannot fail for lack of it.
#[test]
fn truncation_needs_no_memory() {
    small(|machine, manager| {
        let file = manager.shmem(600 * PAGE).unwrap();
        run(manager, |mm| {
            map(mm, BASE, &file, 0, 600, Sharing::Shared);
            (0..600).rev().for_each(|page| store(machine, mm, BASE + page * PAGE, 1).unwrap());
            machine.set_failures(FailurePlan::From(0));
            file.truncate(PAGE + 1).unwrap();
            machine.set_failures(FailurePlan::Off);
            assert_eq!(file.resident(), 2);
        });
    });
}

const CPUS: usize = 4;
const PAGES: u64 = 256;

/// One thread's work on the file: through mappings of its own address space, of the common one, of children.
fn use_file(
    machine: &Hosted,
    manager: &Manager<'_>,
    mm: &Space<'_>,
    file: &File<'_, Hosted>,
    cpu: CpuId,
    rng: &mut Rng,
) {
    let at = BASE + u64::from(cpu.0) * 8 * MIB;
    let offset = rng.u64(..PAGES / 2);
    let sharing = if rng.bool() { Sharing::Shared } else { Sharing::Private };
    map(mm, at, file, offset, PAGES, sharing);
    for _ in 0..60 {
        let addr = at + rng.u64(..PAGES) * PAGE;
        let outcome = if rng.bool() {
            store(machine, mm, addr, rng.u64(..))
        } else {
            load(machine, mm, addr).map(drop)
        };
        assert!(matches!(outcome, Ok(()) | Err(FaultError::BeyondEnd)), "{outcome:?}");
    }
    match rng.u32(..6) {
        0 => {
            let child = mm.fork().expect("memory");
            mm.switch_out();
            child.switch_in();
            for page in 0..PAGES {
                let outcome = child.fault(VirtAddr(at + page * PAGE), Access::Write).map(drop);
                assert!(matches!(outcome, Ok(()) | Err(FaultError::BeyondEnd)), "{outcome:?}");
            }
            child.switch_out();
            mm.switch_in();
        }
        1 => {
            let (from, to) = (VirtAddr(at + 3 * PAGE), VirtAddr(at + 4 * MIB));
            mm.mremap(from, 90 * PAGE, 90 * PAGE, Remap::Fixed(to)).expect("memory");
            let _there = load(machine, mm, to.0);
            mm.munmap(to, 90 * PAGE).expect("aligned");
        }
        2 => mm.madvise(VirtAddr(at), PAGES * PAGE, Advice::DontNeed).expect("mapped"),
        3 => mm.munmap(VirtAddr(at + 9 * PAGE), 5 * PAGE).expect("aligned"),
        4 => drop(manager.reclaim()),
        _ => {
            let own = manager.new_mm().expect("memory");
            map(&own, BASE, file, 0, PAGES, Sharing::Shared);
            let _there = own.fault(VirtAddr(BASE + offset * PAGE), Access::Write);
        }
    }
}

/// Invariant V2.
#[test]
fn truncation_meets_faults_forks_and_exits() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    for paged in [false, true] {
        with_manager(HostedConfig::new(128 * MIB).with_cpus(CPUS), |machine, manager| {
            machine.files().set_size(FileId(7), PAGES * PAGE);
            let file = if paged { manager.open(FileId(7)) } else { manager.shmem(PAGES * PAGE) };
            let file = file.expect("memory");
            let mm = manager.new_mm().expect("memory");
            let end = Instant::now() + stress_time();
            machine.spawn_cpus(CPUS, |cpu| {
                let mut rng = Rng::with_seed(first.wrapping_add(u64::from(cpu.0)));
                mm.switch_in();
                while Instant::now() < end {
                    if cpu.0 == 0 {
                        let size = rng.u64(1..PAGES);
                        file.truncate(size * PAGE - rng.u64(..PAGE)).expect("the pager works");
                        file.truncate(PAGES * PAGE).expect("the pager works");
                    } else {
                        use_file(machine, manager, &mm, &file, cpu, &mut rng);
                    }
                }
                mm.switch_out();
                manager.pages().lists().drain_local();
            });
            file.truncate(0).expect("the pager works");
            assert_eq!((file.resident(), mm.rss().file + mm.rss().shmem), (0, 0));
            mm.validate().expect("broken address space");
            mm.exit();
        });
    }
}

/// Invariant 7: the lock of a file is held for so many of its pages at most.
#[test]
fn a_file_that_is_closed_drops_some_pages_at_a_time() {
    small(|machine, manager| {
        let pages = 4 * LOCK_HOLD_FRAMES as u64;
        let file = manager.shmem(pages * PAGE).unwrap();
        file.allocate(0..pages * PAGE).unwrap();
        assert_eq!(file.resident(), pages);
        let before = machine.counters().reschedule_points;
        drop(file);
        assert_eq!((machine.counters().reschedule_points - before, manager.meminfo().shmem), (4, 0));
    });
}

#[test]
fn holes_end_where_files_may_end() {
    small(|_, manager| {
        for file in [manager.shmem(4 * PAGE), manager.huge_file(HugeSize::Size2M, 2 * MIB)] {
            let file = file.unwrap();
            for end in [1 << 63, u64::MAX] {
                assert_eq!(file.punch_hole(end - 10..end), Err(MmError::Overflow));
            }
            file.punch_hole((1 << 63) - 10..(1 << 63) - 1).unwrap();
            file.mappings(u64::MAX, |_, _| unreachable!("the file is not mapped"));
        }
    });
}
