use hosted::HostedConfig;
use quire::addr::{Order, VirtAddr};
use quire::error::{FaultError, MmError};
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Backing, FaultKind, FolioPolicy, MapRequest, Placement, Remap, Sharing};

use crate::vm::world::{FORKS, MIB, R, RW, Space, anonymous, load, run, small, store, with_forks};
use testkit::order;

const BASE: u64 = 0x1000_0000;

#[test]
fn anonymous_memory_starts_as_zeroes_and_keeps_what_is_stored() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, MIB)).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(0));
            assert_eq!(mm.rss().anon, 0, "a read maps the zero frame");
            store(machine, mm, BASE + 8, 7).unwrap();
            assert_eq!(mm.rss().anon, 1);
            assert_eq!((load(machine, mm, BASE), load(machine, mm, BASE + 8)), (Ok(0), Ok(7)));
            mm.munmap(VirtAddr(BASE), 4096).unwrap();
            assert_eq!(load(machine, mm, BASE), Err(FaultError::NotMapped));
            assert_eq!(mm.rss().anon, 0);
            store(machine, mm, BASE + 4096, 9).unwrap();
        });
    });
}

#[test]
fn every_folio_size_is_used_where_it_fits() {
    small(|machine, manager| {
        for size in 0..=9 {
            for pmd in [false, true] {
                manager.set_folio_policy(FolioPolicy::only(order(size)).with_pmd_mapped(pmd));
                run(manager, |mm| {
                    mm.mmap(&anonymous(4 * MIB, 4 * MIB)).unwrap();
                    let outcome = mm.fault(VirtAddr(4 * MIB + 0x12_3000), Access::Write).unwrap();
                    assert_eq!((outcome.order, outcome.kind), (order(size), FaultKind::Anon));
                    assert_eq!(mm.rss().anon, 1 << size);
                    store(machine, mm, 4 * MIB + 0x12_3000, 5).unwrap();
                    mm.munmap(VirtAddr(4 * MIB + 0x12_3000), 4096).unwrap();
                    assert_eq!(mm.rss().anon, (1 << size) - 1);
                    mm.validate().unwrap();
                });
            }
        }
    });
}

#[test]
fn fork_shares_until_a_store() {
    FORKS.into_iter().for_each(|fork| {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            run(manager, |parent| {
                parent.mmap(&anonymous(BASE, MIB)).unwrap();
                for page in 0..16 {
                    store(machine, parent, BASE + page * 4096, page + 1).unwrap();
                }
                let child = parent.fork().unwrap();
                store(machine, parent, BASE, 100).unwrap();
                assert_eq!(manager.stat(Stat::CowCopy), 1);
                parent.switch_out();
                child.switch_in();
                assert_eq!(load(machine, &child, BASE), Ok(1));
                store(machine, &child, BASE, 200).unwrap();
                assert_eq!(manager.stat(Stat::CowCopy), 1, "no other address space maps the page any more");
                store(machine, &child, BASE + 4096, 201).unwrap();
                assert_eq!(manager.stat(Stat::CowCopy), 2);
                child.validate().unwrap();
                child.switch_out();
                child.exit();
                parent.switch_in();
                assert_eq!(
                    (load(machine, parent, BASE), load(machine, parent, BASE + 4096)),
                    (Ok(100), Ok(2))
                );
            });
        })
    });
}

#[test]
fn fork_of_a_large_leaf_copies_single_pages() {
    FORKS.into_iter().for_each(|fork| {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            run(manager, |parent| {
                parent.mmap(&anonymous(4 * MIB, 2 * MIB)).unwrap();
                store(machine, parent, 4 * MIB + 0x5000, 1).unwrap();
                let child = parent.fork().unwrap();
                assert_eq!(child.rss().anon, 512);
                store(machine, parent, 4 * MIB + 0x5000, 2).unwrap();
                parent.switch_out();
                child.switch_in();
                assert_eq!(load(machine, &child, 4 * MIB + 0x5000), Ok(1));
                store(machine, &child, 4 * MIB, 3).unwrap();
                child.validate().unwrap();
                child.switch_out();
                drop(child);
                parent.switch_in();
                assert_eq!(load(machine, parent, 4 * MIB), Ok(0));
                assert_eq!(load(machine, parent, 4 * MIB + 0x5000), Ok(2));
            });
        })
    });
}

/// As in Linux. Otherwise a replay has no faults where Linux has some, and too much resident memory.
#[test]
fn a_child_takes_its_own_faults_for_the_pages_of_a_file() {
    small(|machine, manager| {
        let file = manager.shmem(32 * 4096).unwrap();
        run(manager, |parent| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            for (at, sharing) in [(BASE, Sharing::Shared), (2 * BASE, Sharing::Private)] {
                parent.mmap(&MapRequest { sharing, backing, ..anonymous(at, 32 * 4096) }).unwrap();
            }
            store(machine, parent, BASE, 7).unwrap();
            for page in 0..32 {
                load(machine, parent, 2 * BASE + page * 4096).unwrap();
            }
            let resident = |mm: &Space<'_>| (mm.rss().anon, mm.rss().shmem);
            let child = parent.fork().unwrap();
            assert_eq!((resident(parent), resident(&child)), ((0, 33), (0, 0)));
            store(machine, parent, 2 * BASE, 8).unwrap();
            let after_a_store = parent.fork().unwrap();
            assert_eq!(resident(&after_a_store), (1, 31), "a mapping with a page of its own is copied whole");
            parent.switch_out();
            for (mm, first) in [(&child, 7), (&after_a_store, 8)] {
                mm.switch_in();
                assert_eq!(load(machine, mm, 2 * BASE), Ok(first));
                assert_eq!(load(machine, mm, 2 * BASE + 4096), Ok(0));
                mm.validate().unwrap();
                mm.switch_out();
            }
            parent.switch_in();
        });
    });
}

/// As a loader of programs does with what it relocates. Otherwise all constants of a library would be copied with it.
#[test]
fn what_allowed_stores_stays_apart_from_its_neighbour() {
    small(|machine, manager| {
        let file = manager.shmem(16 * 4096).unwrap();
        run(manager, |parent| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            parent.mmap(&MapRequest { backing, prot: R, ..anonymous(BASE, 16 * 4096) }).unwrap();
            let mappings = |mm: &Space<'_>| {
                let mut lengths = Vec::new();
                mm.vmas(|vma| lengths.push(vma.range.pages()));
                lengths
            };
            let relocated = VirtAddr(BASE + 8 * 4096);
            parent.mprotect(relocated, 8 * 4096, RW).unwrap();
            for page in 0..16 {
                load(machine, parent, BASE + page * 4096).unwrap();
            }
            store(machine, parent, relocated.0, 1).unwrap();
            parent.mprotect(relocated, 8 * 4096, R).unwrap();
            assert_eq!(mappings(parent), [8, 8]);
            let child = parent.fork().unwrap();
            assert_eq!((mappings(&child), child.rss().anon, child.rss().shmem), (vec![8, 8], 1, 7));
            // A neighbour that allowed stores as well joins it.
            parent.mprotect(VirtAddr(BASE), 8 * 4096, RW).unwrap();
            parent.mprotect(VirtAddr(BASE), 8 * 4096, R).unwrap();
            assert_eq!(mappings(parent), [16]);
        });
    });
}

/// Invariant F1.
#[test]
fn files_are_read_once_shared_and_written_back() {
    small(|machine, manager| {
        let id = FileId(7);
        machine.files().set_size(id, 40 * 4096);
        let file = manager.open(id).unwrap();
        run(manager, |mm| {
            let shared = MapRequest {
                sharing: Sharing::Shared,
                backing: Backing::File { file: &file, page_offset: 2 },
                ..anonymous(BASE, 20 * 4096)
            };
            mm.mmap(&shared).unwrap();
            let private = MapRequest { sharing: Sharing::Private, addr: VirtAddr(2 * BASE), ..shared };
            mm.mmap(&private).unwrap();
            let first = mm.fault(VirtAddr(BASE), Access::Read).unwrap();
            assert_eq!(first.kind, FaultKind::FileMajor);
            assert_eq!(mm.fault(VirtAddr(2 * BASE), Access::Read).unwrap().kind, FaultKind::FileMinor);
            let original = load(machine, mm, BASE).unwrap();
            store(machine, mm, 2 * BASE, 1).unwrap();
            assert_eq!(load(machine, mm, BASE), Ok(original), "a private store stays private");
            store(machine, mm, BASE, 2).unwrap();
            assert_eq!(load(machine, mm, 2 * BASE), Ok(1));
            assert_eq!(file.dirty(), 1);
            assert_eq!(machine.files().counters().reads, 1);
            assert_eq!(mm.rss().file, 1);
        });
        assert!(machine.files().written_pages(id).is_empty());
        drop(file);
        let written = machine.files().written_pages(id);
        assert_eq!(written.len(), 1);
        assert_eq!((written[0].0, &written[0].1[..8]), (2, &2u64.to_le_bytes()[..]));
        assert_eq!(manager.meminfo().cached, 0);
    });
}

#[test]
fn reads_map_what_is_cached_around() {
    small(|machine, manager| {
        machine.files().set_size(FileId(1), 32 * 4096);
        let file = manager.open(FileId(1)).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { backing, prot: R, ..anonymous(BASE, 32 * 4096) }).unwrap();
            mm.madvise(VirtAddr(BASE), 32 * 4096, Advice::WillNeed).unwrap();
            assert_eq!(file.resident(), 32);
            assert_eq!(mm.fault(VirtAddr(BASE + 5 * 4096), Access::Read).unwrap().kind, FaultKind::FileMinor);
            assert_eq!(mm.rss().file, 16);
            // A mapping that starts between two multiples of 64 KiB: from its start, but not into another table.
            for (start, faulted, mapped) in
                [(2 * BASE + 5 * 4096, 7, 16), (2 * BASE + 2 * MIB - 5 * 4096, 2, 5)]
            {
                let before = mm.rss().file;
                mm.mmap(&MapRequest { backing, prot: R, ..anonymous(start, 32 * 4096) }).unwrap();
                mm.fault(VirtAddr(start + faulted * 4096), Access::Read).unwrap();
                assert_eq!(mm.rss().file - before, mapped);
                let is_mapped =
                    |page: u64| mm.translate(VirtAddr(start + page * 4096), Access::Read).is_some();
                assert!((0..mapped).all(is_mapped) && !is_mapped(mapped));
            }
        });
    });
}

#[test]
fn shmem_is_shared_with_children() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&MapRequest { sharing: Sharing::Shared, ..anonymous(BASE, 8192) }).unwrap();
            store(machine, mm, BASE, 3).unwrap();
            assert_eq!((mm.rss().shmem, manager.meminfo().shmem), (1, 1));
            let child = mm.fork().unwrap();
            mm.switch_out();
            child.switch_in();
            assert_eq!(load(machine, &child, BASE), Ok(3));
            store(machine, &child, BASE + 4096, 4).unwrap();
            child.switch_out();
            drop(child);
            mm.switch_in();
            assert_eq!(load(machine, mm, BASE + 4096), Ok(4));
        });
        assert_eq!(manager.meminfo().shmem, 0);
    });
}

#[test]
fn protection_takes_effect_at_once() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 16 * 4096)).unwrap();
            store(machine, mm, BASE + 4096, 1).unwrap();
            mm.mprotect(VirtAddr(BASE + 4096), 4096, R).unwrap();
            assert_eq!(store(machine, mm, BASE + 4096, 2), Err(FaultError::Protection));
            assert_eq!(mm.mappings(), 3);
            mm.mprotect(VirtAddr(BASE + 4096), 4096, quire::arch::Protection::NONE).unwrap();
            assert_eq!(load(machine, mm, BASE + 4096), Err(FaultError::Protection));
            mm.mprotect(VirtAddr(BASE + 4096), 4096, RW).unwrap();
            assert_eq!(mm.mappings(), 1);
            assert_eq!(load(machine, mm, BASE + 4096), Ok(1));
            store(machine, mm, BASE + 4096, 2).unwrap();
            assert_eq!(mm.mprotect(VirtAddr(BASE + 15 * 4096), 8192, R), Err(MmError::NoMemory));
            assert_eq!(
                store(machine, mm, BASE + 15 * 4096, 2),
                Err(FaultError::Protection),
                "the part before the hole"
            );
        });
    });
}

#[test]
fn mremap_moves_what_is_mapped() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 8 * 4096)).unwrap();
            store(machine, mm, BASE + 4096, 11).unwrap();
            let to = VirtAddr(3 * BASE);
            assert_eq!(mm.mremap(VirtAddr(BASE), 8 * 4096, 12 * 4096, Remap::Fixed(to)), Ok(to));
            assert_eq!(load(machine, mm, to.0 + 4096), Ok(11));
            assert_eq!(load(machine, mm, BASE), Err(FaultError::NotMapped));
            assert_eq!(mm.mremap(to, 12 * 4096, 4 * 4096, Remap::InPlace), Ok(to));
            assert_eq!(mm.mremap(to, 4 * 4096, 6 * 4096, Remap::InPlace), Ok(to));
            let left = mm.mremap(to, 6 * 4096, 6 * 4096, Remap::DontUnmap(VirtAddr(0))).unwrap();
            assert_eq!((load(machine, mm, left.0 + 4096), load(machine, mm, to.0 + 4096)), (Ok(11), Ok(0)));
            mm.mmap(&MapRequest { placement: Placement::FixedNoReplace, ..anonymous(to.0 + 6 * 4096, 4096) })
                .unwrap();
            assert_eq!(mm.mremap(to, 4096, 4 * 4096, Remap::InPlace), Err(MmError::NoMemory));
        });
    });
}

#[test]
fn advice_drops_and_frees() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 16 * 4096)).unwrap();
            mm.madvise(VirtAddr(BASE), 16 * 4096, Advice::PopulateWrite).unwrap();
            assert_eq!(mm.rss().anon, 16);
            store(machine, mm, BASE, 1).unwrap();
            mm.madvise(VirtAddr(BASE), 4 * 4096, Advice::DontNeed).unwrap();
            assert_eq!((mm.rss().anon, load(machine, mm, BASE)), (12, Ok(0)));
            mm.madvise(VirtAddr(BASE), 16 * 4096, Advice::Free).unwrap();
            assert_eq!(manager.stat(Stat::Pglazyfree), 12);
            mm.mlock(VirtAddr(BASE), 4096, false).unwrap();
            assert_eq!(mm.madvise(VirtAddr(BASE), 4096, Advice::DontNeed), Err(MmError::Invalid));
            assert_eq!((mm.rss().locked, mm.rss().anon), (1, 13));
        });
    });
}

#[test]
fn the_heap_grows_and_shrinks() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.set_brk_start(VirtAddr(BASE));
            assert_eq!(mm.brk(VirtAddr(BASE + 10_000)), VirtAddr(BASE + 10_000));
            store(machine, mm, BASE + 8192, 1).unwrap();
            assert_eq!(mm.brk(VirtAddr(BASE + 4096)), VirtAddr(BASE + 4096));
            assert_eq!(load(machine, mm, BASE + 8192), Err(FaultError::NotMapped));
            mm.mmap(&anonymous(BASE + 8 * 4096, 4096)).unwrap();
            assert_eq!(
                mm.brk(VirtAddr(BASE + 8 * 4096)),
                VirtAddr(BASE + 4096),
                "within a page of a mapping"
            );
            assert_eq!(mm.brk(VirtAddr(BASE - 1)), VirtAddr(BASE + 4096));
        });
    });
}

#[test]
fn stacks_grow_down_to_the_guard_gap() {
    small(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&MapRequest { grows_down: true, ..anonymous(BASE, 4096) }).unwrap();
            mm.mmap(&anonymous(BASE - 512 * 4096, 4096)).unwrap();
            store(machine, mm, BASE - 100 * 4096, 1).unwrap();
            assert_eq!(store(machine, mm, BASE - 300 * 4096, 1), Err(FaultError::NotMapped));
            assert_eq!(load(machine, mm, BASE - 4096), Ok(0));
        });
    });
}

#[test]
fn lazily_freed_memory_makes_room() {
    small(|machine, manager| {
        run(manager, |mm| {
            let free = manager.meminfo().frames.free + manager.meminfo().frames.cached;
            let lazy = free / 2 * 4096;
            mm.mmap(&anonymous(BASE, lazy)).unwrap();
            mm.madvise(VirtAddr(BASE), lazy, Advice::PopulateWrite).unwrap();
            (0..8).for_each(|page| store(machine, mm, BASE + page * 4096, page + 1).unwrap());
            mm.madvise(VirtAddr(BASE), lazy, Advice::Free).unwrap();
            store(machine, mm, BASE, 100).unwrap();
            // More memory than is free: pages without a later store must be dropped.
            mm.mmap(&anonymous(8 * BASE, lazy + lazy / 2)).unwrap();
            mm.madvise(VirtAddr(8 * BASE), lazy + lazy / 2, Advice::PopulateWrite).unwrap();
            assert!(manager.stat(Stat::Pglazyfreed) > free / 4);
            assert_eq!(load(machine, mm, BASE), Ok(100), "a page that was stored to again stays");
            for page in 1..8 {
                let word = load(machine, mm, BASE + page * 4096).unwrap();
                assert!(word == 0 || word == page + 1, "all or nothing");
            }
            let more = mm.mmap(&anonymous(16 * BASE, 2 * lazy));
            assert!(more.is_ok());
            assert_eq!(
                mm.madvise(VirtAddr(16 * BASE), 2 * lazy, Advice::PopulateWrite),
                Err(MmError::NoMemory)
            );
        });
    });
}

#[test]
fn page_cache_makes_room_unless_it_is_dirty_or_mapped() {
    small(|machine, manager| {
        machine.files().set_size(FileId(3), 24 * MIB);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            let shared = MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, 24 * MIB) };
            mm.mmap(&shared).unwrap();
            mm.madvise(VirtAddr(BASE), 24 * MIB, Advice::WillNeed).unwrap();
            assert_eq!(file.resident(), 24 * 256);
            store(machine, mm, BASE, 5).unwrap();
            mm.madvise(VirtAddr(BASE), 4096, Advice::DontNeed).unwrap();
            load(machine, mm, BASE + 4096).unwrap();
            let mapped = mm.rss().file;
            mm.mmap(&anonymous(8 * BASE, 46 * MIB)).unwrap();
            assert_eq!(mm.madvise(VirtAddr(8 * BASE), 46 * MIB, Advice::PopulateWrite), Ok(()));
            assert!(file.resident() < 24 * 256 && file.resident() > mapped);
            assert_eq!((load(machine, mm, BASE), file.dirty()), (Ok(5), 1));
        });
    });
}

#[test]
fn meminfo_and_vmstat_say_what_is_there() {
    small(|machine, manager| {
        let line = |name: &str| manager.meminfo().lines().find(|line| line.0 == name).unwrap().1;
        let stat = |name: &str| manager.vmstat().find(|line| line.0 == name).unwrap().1;
        let (total, free, faults) = (line("MemTotal"), line("MemFree"), stat("pgfault"));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, MIB)).unwrap();
            for page in 0..256 {
                store(machine, mm, BASE + page * 4096, page).unwrap();
            }
            assert_eq!(line("AnonPages"), 1024);
            assert_eq!(stat("nr_anon_pages"), 256);
            assert_eq!(stat("pgfault") - faults, 256);
            assert_eq!(line("PageTables"), 4 * stat("nr_page_table_pages"));
            assert_eq!(stat("nr_page_table_pages"), mm.rss().page_tables);
            assert!(line("Slab") > 0 && line("MemFree") <= free - 1024);
        });
        assert_eq!((line("AnonPages"), line("PageTables"), line("Slab")), (0, 0, 0));
        assert_eq!(stat("pgfree") > 0, stat("pgalloc_dma32") > 0);
        // Descriptors of blocks in pieces are metadata, so the total may differ by a block or two of them.
        assert!(line("MemTotal").abs_diff(total) <= 4 * 32 && line("MemFree") <= total);
    });
}
