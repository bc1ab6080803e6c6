//! Memory is short: mapped page cache is dropped, and large folios that are mapped in part are split.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hosted::{FailurePlan, Hosted, HostedConfig, SyntheticFiles};
use quire::addr::{Order, VirtAddr};
use quire::error::{FaultError, MmError};
use quire::limits::RECLAIM_ROUNDS;
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Backing, File, FolioPolicy, ForkStrategy, MapRequest, Sharing};

use crate::vm::world::{MIB, R, Space, anonymous, load, run, small, store, with_forks, with_manager};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;

fn request<'a>(file: &'a File<'_, Hosted>, at: u64, len: u64, sharing: Sharing) -> MapRequest<'a> {
    MapRequest { sharing, backing: Backing::File { file, page_offset: 0 }, ..anonymous(at, len) }
}

fn pristine(file: u64, offset: u64) -> u64 {
    let byte = |at: usize| SyntheticFiles::pristine_byte(FileId(file), offset + at as u64);
    u64::from_le_bytes(std::array::from_fn(byte))
}

fn use_up(mm: &Space<'_>, len: u64) {
    mm.mmap(&anonymous(16 * BASE, len)).unwrap();
    assert_eq!(mm.madvise(VirtAddr(16 * BASE), len, Advice::PopulateWrite), Ok(()));
}

#[test]
fn clean_pages_are_unmapped_and_dropped_wherever_they_are_mapped() {
    small(|machine, manager| {
        let len = 24 * MIB;
        machine.files().set_size(FileId(3), len);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            mm.mmap(&request(&file, BASE, len, Sharing::Private)).unwrap();
            mm.mmap(&MapRequest { prot: R, ..request(&file, 2 * BASE, len, Sharing::Shared) }).unwrap();
            for at in [BASE, 2 * BASE] {
                mm.madvise(VirtAddr(at), len, Advice::PopulateRead).unwrap();
            }
            mm.mlock(VirtAddr(2 * BASE), 16 * PAGE, false).unwrap();
            store(machine, mm, BASE + 100 * PAGE, 7).unwrap();
            let child = mm.fork().unwrap();
            assert_eq!(child.rss().file, len / PAGE - 1);
            let other = manager.new_mm().unwrap();
            other.mmap(&MapRequest { prot: R, ..request(&file, BASE, MIB, Sharing::Shared) }).unwrap();
            other.madvise(VirtAddr(BASE), MIB, Advice::PopulateRead).unwrap();
            let flushes = machine.counters().flushes_local;
            use_up(mm, 50 * MIB);
            let flushed = machine.counters().flushes_local - flushes;
            let stolen = manager.stat(Stat::PgstealFile);
            assert!(stolen > 2000, "{stolen} pages were dropped");
            assert!(manager.stat(Stat::PgscanFile) >= 3 * stolen, "each was mapped three times");
            assert!(flushed <= stolen / 100, "{flushed} flushes for {stolen} pages");
            assert!(child.rss().file < len / PAGE - 2000 && other.rss().file < MIB / PAGE);
            assert_eq!(file.resident(), len / PAGE - stolen);
            for mm in [mm, &child, &other] {
                mm.validate().unwrap();
            }
            // Locked and copied pages stay; a dropped page is read again.
            assert_eq!(load(machine, mm, BASE + 100 * PAGE), Ok(7));
            assert_eq!(mm.rss().anon, 50 * MIB / PAGE + 1);
            for page in [0, 15, 16, 99, 100, 101, 200, 5000] {
                assert_eq!(load(machine, mm, 2 * BASE + page * PAGE), Ok(pristine(3, page * PAGE)));
            }
        });
    });
}

/// Invariant 3.
#[test]
fn what_is_stored_after_a_sync_is_dirty_again() {
    small(|machine, manager| {
        machine.files().set_size(FileId(4), 8 * PAGE);
        let file = manager.open(FileId(4)).unwrap();
        run(manager, |mm| {
            mm.mmap(&request(&file, BASE, 8 * PAGE, Sharing::Shared)).unwrap();
            mm.mmap(&request(&file, 2 * BASE, 8 * PAGE, Sharing::Shared)).unwrap();
            for page in 0..3 {
                store(machine, mm, BASE + page * PAGE, 1).unwrap();
                store(machine, mm, 2 * BASE + page * PAGE + 8, 1).unwrap();
            }
            file.sync().unwrap();
            assert_eq!(file.dirty(), 0);
            // Both mappings lost the right to store, and nothing else.
            assert_eq!(mm.rss().file, 6);
            store(machine, mm, BASE, 2).unwrap();
            assert_eq!(file.dirty(), 1);
            store(machine, mm, 2 * BASE + PAGE, 2).unwrap();
            assert_eq!(file.dirty(), 2);
            while manager.reclaim() > 0 {}
            assert_eq!((file.resident(), file.dirty()), (2, 2));
            assert_eq!((load(machine, mm, BASE), load(machine, mm, BASE + PAGE)), (Ok(2), Ok(2)));
            assert_eq!(load(machine, mm, BASE + 2 * PAGE), Ok(1));
            file.sync().unwrap();
            store(machine, mm, BASE + PAGE, 3).unwrap();
            mm.validate().unwrap();
        });
        drop(file);
        let pages = machine.files().written_pages(FileId(4));
        let word = |page: usize| u64::from_le_bytes(pages[page].1[..8].try_into().unwrap());
        assert_eq!((word(0), word(1), word(2)), (2, 3, 1));
        assert_eq!(machine.files().counters().writes, 3 + 2 + 1);
    });
}

/// Pages that follow each other reach the pager together, and one that fails keeps no other from being written.
#[test]
fn dirty_pages_are_written_in_runs() {
    small(|machine, manager| {
        machine.files().set_size(FileId(5), 64 * PAGE);
        let file = manager.open(FileId(5)).unwrap();
        let write = |pages: &[u64]| {
            pages.iter().for_each(|page| assert_eq!(file.write_at(page * PAGE, &[9]), Ok(1)));
        };
        let all: Vec<u64> = (0..40).chain([50]).chain(52..55).collect();
        write(&all);
        machine.files().set_longest_run(100);
        file.sync().unwrap();
        assert_eq!(machine.files().take_runs(), [(0, 32), (32, 8), (50, 1), (52, 3)]);
        // A pager may write less than it could.
        write(&[3, 4, 5, 6, 7]);
        machine.files().set_longest_run(2);
        file.sync().unwrap();
        assert_eq!(machine.files().take_runs(), [(3, 2), (5, 2), (7, 1)]);
        // The first page fails; then two are written, and none any more.
        machine.files().set_longest_run(100);
        for (plan, runs, dirty) in
            [(FailurePlan::Nth(0), &[(4, 4)][..], 1), (FailurePlan::From(2), &[(3, 2)][..], 3)]
        {
            write(&[3, 4, 5, 6, 7]);
            machine.files().set_write_failures(plan);
            assert_eq!(file.sync(), Err(MmError::Io));
            assert_eq!((machine.files().take_runs().as_slice(), file.dirty()), (runs, dirty));
        }
        machine.files().set_write_failures(FailurePlan::Off);
        file.sync().unwrap();
        assert_eq!(file.dirty(), 0);
    });
}

/// Every store that came before a sync is in the file when the sync ends.
#[test]
fn syncs_meet_stores() {
    let config = HostedConfig::new(64 * MIB).with_cpus(3);
    with_manager(config, |machine, manager| {
        let name = FileId(6);
        machine.files().set_size(name, 16 * PAGE);
        let file = manager.open(name).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.mmap(&request(&file, BASE, 16 * PAGE, Sharing::Shared)).unwrap();
        let stored: [AtomicU64; 32] = std::array::from_fn(|_| AtomicU64::new(0));
        let end = Instant::now() + Duration::from_millis(900);
        machine.spawn_cpus(3, |cpu| {
            mm.switch_in();
            let mut word = 0;
            while Instant::now() < end {
                word += 1;
                if cpu.0 > 0 {
                    let slot = (word % 16 * 2 + u64::from(cpu.0) - 1) as usize;
                    let at = BASE + (slot as u64 / 2) * PAGE + 64 * u64::from(cpu.0);
                    store(machine, &mm, at, word).unwrap();
                    stored[slot].store(word, Ordering::SeqCst);
                    continue;
                }
                let least: Vec<u64> = stored.iter().map(|word| word.load(Ordering::SeqCst)).collect();
                file.sync().unwrap();
                let pages = machine.files().written_pages(name);
                for (slot, least) in least.into_iter().enumerate().filter(|(_, least)| *least > 0) {
                    let bytes = &pages.iter().find(|(page, _)| *page == slot as u64 / 2).unwrap().1;
                    let at = 64 * (slot % 2 + 1);
                    let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                    assert!(word >= least, "slot {slot}: {word} was written, {least} stored before");
                }
                if word % 8 == 0 {
                    manager.reclaim();
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        mm.validate().unwrap();
        mm.exit();
        drop(file);
        let pages = machine.files().written_pages(name);
        for (slot, last) in stored.iter().enumerate() {
            let at = 64 * (slot % 2 + 1);
            let word = u64::from_le_bytes(pages[slot / 2].1[at..at + 8].try_into().unwrap());
            assert_eq!(word, last.load(Ordering::SeqCst), "slot {slot}");
        }
    });
}

#[test]
fn a_folio_that_is_mapped_in_part_gives_its_other_frames_up() {
    with_manager(HostedConfig::new(24 * MIB), |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 8 * 2 * MIB)).unwrap();
            for folio in 0..8 {
                store(machine, mm, BASE + folio * 2 * MIB + 5 * PAGE, folio).unwrap();
                mm.munmap(VirtAddr(BASE + folio * 2 * MIB + 16 * PAGE), 490 * PAGE).unwrap();
            }
            assert_eq!(manager.stat(Stat::ThpDeferredSplitPage), 8);
            assert_eq!(manager.stat(Stat::ThpSplitPage), 0);
            manager.set_folio_policy(FolioPolicy::FRAMES);
            use_up(mm, 17 * MIB);
            assert!(manager.stat(Stat::ThpSplitPage) >= 6);
            for folio in 0..8 {
                assert_eq!(load(machine, mm, BASE + folio * 2 * MIB + 5 * PAGE), Ok(folio));
            }
            assert_eq!(mm.rss().anon, 8 * 22 + 17 * 256);
            assert_eq!(load(machine, mm, BASE + 16 * PAGE), Err(FaultError::NotMapped));
        });
    });
}

/// A store to a shared table needs memory for a private one, and page cache is dropped for that as for any
/// access.
#[test]
fn page_cache_goes_for_a_table_that_is_no_longer_shared() {
    with_forks(HostedConfig::new(64 * MIB), ForkStrategy::Share, |machine, manager| {
        let (rounds, len) = (RECLAIM_ROUNDS as u64, 24 * MIB);
        machine.files().set_size(FileId(3), len);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            mm.mmap(&request(&file, 2 * BASE, len, Sharing::Private)).unwrap();
            mm.madvise(VirtAddr(2 * BASE), len, Advice::PopulateRead).unwrap();
            mm.munmap(VirtAddr(2 * BASE), len).unwrap();
            mm.mmap(&anonymous(BASE, PAGE)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            let child = mm.fork().unwrap();
            machine.set_failures(FailurePlan::From(0));
            assert_eq!(store(machine, mm, BASE, 2), Err(FaultError::OutOfMemory));
            assert_eq!(machine.allocations_failed(), 1 + rounds, "once, and once more for each round");
            let resident = file.resident();
            assert!(resident > 0 && resident < len / PAGE);
            machine.set_failures(FailurePlan::Nth(0));
            store(machine, mm, BASE, 2).unwrap();
            machine.set_failures(FailurePlan::Off);
            assert!(file.resident() < resident);
            mm.switch_out();
            child.switch_in();
            assert_eq!(load(machine, &child, BASE), Ok(1));
            child.switch_out();
            mm.switch_in();
            assert_eq!(load(machine, mm, BASE), Ok(2));
            child.validate().unwrap();
            child.exit();
        });
    });
}

/// Page cache that programs used goes after all that they did not use.
#[test]
fn pages_that_were_accessed_are_dropped_last() {
    small(|machine, manager| {
        let (half, len) = (512 * PAGE, 1024 * PAGE);
        machine.files().set_size(FileId(3), len);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            mm.mmap(&MapRequest { prot: R, ..request(&file, BASE, len, Sharing::Shared) }).unwrap();
            mm.madvise(VirtAddr(BASE), len, Advice::WillNeed).unwrap();
            // The first half, of which the other is only read ahead.
            for page in (0..512).step_by(16) {
                assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(pristine(3, page * PAGE)));
            }
            assert_eq!((mm.rss().file, file.resident()), (512, 1024));
            mm.madvise(VirtAddr(BASE), len, Advice::DontNeed).unwrap();
            assert_eq!(manager.reclaim(), 512);
            let mut resident = [false; 1024];
            mm.mincore(VirtAddr(BASE), &mut resident).unwrap();
            assert!(resident[..512].iter().all(|there| *there), "they were accessed");
            assert!(resident[512..].iter().all(|there| !*there), "they were not");
            // A frame has no marks from the page that was in it before.
            mm.madvise(VirtAddr(BASE + half), half, Advice::WillNeed).unwrap();
            assert_eq!((manager.reclaim(), manager.reclaim(), manager.reclaim()), (512, 512, 0));
        });
    });
}

/// A page that a handler has marked stays mapped, and so marked, while other pages of its file are dropped.
#[test]
fn marks_of_a_handler_outlive_reclaim() {
    small(|machine, manager| {
        let len = 4 * MIB;
        machine.files().set_size(FileId(3), len);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            mm.mmap(&request(&file, BASE, len, Sharing::Shared)).unwrap();
            mm.madvise(VirtAddr(BASE), len, Advice::PopulateRead).unwrap();
            mm.write_protect_marked(VirtAddr(BASE + 100 * PAGE), PAGE).unwrap();
            while manager.reclaim() > 0 {}
            assert_eq!((mm.rss().file, file.resident()), (1, 1), "all others were dropped");
            assert_eq!(store(machine, mm, BASE + 100 * PAGE, 1), Err(FaultError::Marked));
            mm.remove_write_protect_marks(VirtAddr(BASE + 100 * PAGE), PAGE).unwrap();
            store(machine, mm, BASE + 100 * PAGE, 1).unwrap();
            store(machine, mm, BASE + 101 * PAGE, 1).unwrap();
        });
    });
}

/// A fault that finds no memory goes from one kind of memory to the next when nothing is left of the one before.
#[test]
fn memory_that_is_cheap_to_bring_back_goes_first() {
    with_manager(HostedConfig::new(32 * MIB), |machine, manager| {
        let [unmapped, mapped] = [FileId(3), FileId(4)].map(|name| {
            machine.files().set_size(name, MIB);
            manager.open(name).unwrap()
        });
        run(manager, |mm| {
            for (file, at) in [(&unmapped, BASE), (&mapped, 2 * BASE)] {
                mm.mmap(&request(file, at, MIB, Sharing::Private)).unwrap();
                mm.madvise(VirtAddr(at), MIB, Advice::PopulateRead).unwrap();
            }
            mm.munmap(VirtAddr(BASE), MIB).unwrap();
            // Half of a folio waits to be split.
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            mm.mmap(&anonymous(3 * BASE, 2 * MIB)).unwrap();
            store(machine, mm, 3 * BASE, 1).unwrap();
            mm.munmap(VirtAddr(3 * BASE + MIB), MIB).unwrap();
            manager.set_folio_policy(FolioPolicy::FRAMES);
            mm.mmap(&anonymous(4 * BASE, MIB)).unwrap();
            (0..256).for_each(|page| store(machine, mm, 4 * BASE + page * PAGE, 1).unwrap());
            mm.madvise(VirtAddr(4 * BASE), MIB, Advice::Free).unwrap();
            let left = || {
                let (split, freed) = (manager.stat(Stat::ThpSplitPage), manager.stat(Stat::Pglazyfreed));
                [unmapped.resident(), 1 - split, mapped.resident(), 256 - freed]
            };
            let full = left();
            mm.mmap(&anonymous(16 * BASE, 64 * MIB)).unwrap();
            let mut at = 16 * BASE;
            while mm.fault(VirtAddr(at), Access::Write).is_ok() {
                let now = left();
                for kind in 1..4 {
                    let before = now[..kind].iter().sum::<u64>();
                    assert!(before == 0 || now[kind] == full[kind], "{now:?} of {full:?}");
                }
                at += PAGE;
            }
            assert_eq!(left(), [0; 4]);
        });
    });
}

/// Pages that were freed lazily, and that a child still maps, are no memory to be had: those that are the
/// parent's alone are found behind them.
#[test]
fn lazily_freed_pages_that_a_child_maps_are_not_counted_as_free() {
    const LAZY: u64 = 16 * MIB;
    small(|_, manager| {
        run(manager, |mm| {
            let free_lazily = |at| {
                mm.mmap(&anonymous(at, LAZY)).unwrap();
                mm.madvise(VirtAddr(at), LAZY, Advice::PopulateWrite).unwrap();
                mm.madvise(VirtAddr(at), LAZY, Advice::Free).unwrap();
            };
            free_lazily(BASE);
            let child = mm.fork().unwrap();
            free_lazily(2 * BASE);
            let len = 64 * MIB;
            mm.mmap(&anonymous(16 * BASE, len)).unwrap();
            let populated = mm.madvise(VirtAddr(16 * BASE), len, Advice::PopulateWrite);
            assert_eq!(populated, Err(MmError::NoMemory), "the machine is smaller");
            assert_eq!(manager.stat(Stat::Pglazyfreed), LAZY / PAGE, "all that were its own");
            mm.munmap(VirtAddr(16 * BASE), len).unwrap();
            mm.validate().unwrap();
            child.validate().unwrap();
            child.exit();
        });
    });
}
