//! Counters of `/proc/vmstat`, each over events that it counts and over others that it does not.

use hosted::HostedConfig;
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize::Size2M;
use quire::manager::Meminfo;
use quire::page_alloc::{Gfp, MemoryInfo, NodeSet};
use quire::platform::FileId;
use quire::stats::Stat;
use quire::vm::{Access, Advice, Backing, FolioPolicy, MapRequest, Sharing};

use crate::hugetlb::world::{HUGE, of_file, private, with_huge};
use crate::vm::world::{
    FORKS, MIB, Manager, Space, anonymous, load, run, small, store, with_forks, with_manager,
};
use testkit::order;

const PAGE: u64 = 4096;
const BASE: u64 = 1 << 30;
const COW: [Stat; 2] = [Stat::CowCopy, Stat::CowReuse];

/// How counters change over an action.
fn counted<const N: usize>(manager: &Manager<'_>, stats: [Stat; N], action: impl FnOnce()) -> [u64; N] {
    let before = stats.map(|stat| manager.stat(stat));
    action();
    core::array::from_fn(|at| manager.stat(stats[at]) - before[at])
}

/// Copies and reuses of a store to an address.
fn copies(manager: &Manager<'_>, mm: &Space<'_>, addr: u64) -> [u64; 2] {
    counted(manager, COW, || _ = mm.fault(VirtAddr(addr), Access::Write).expect("memory"))
}

/// The first of two processes to store gets a copy, and the second has the page to itself.
#[test]
fn stores_after_a_fork_count_as_a_copy_and_as_a_reuse() {
    for fork in FORKS {
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, PAGE)).unwrap();
                assert_eq!(copies(manager, mm, BASE), [0, 0], "a new page");
                let child = mm.fork().unwrap();
                assert_eq!([copies(manager, mm, BASE), copies(manager, &child, BASE)], [[1, 0], [0, 1]]);
                child.exit();
                store(machine, mm, BASE, 1).unwrap();
            });
        });
    }
    with_huge(3, |_, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 1)).unwrap();
            assert_eq!(copies(manager, mm, BASE), [0, 0], "a new page");
            let child = mm.fork().unwrap();
            assert_eq!([copies(manager, mm, BASE), copies(manager, &child, BASE)], [[1, 0], [0, 1]]);
            child.exit();
        });
    });
}

/// A large leaf gets the right to store back, and counts once.
#[test]
fn a_store_to_a_large_leaf_that_is_shared_no_more_counts_as_one_reuse() {
    small(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
            mm.fork().unwrap().exit();
            assert_eq!(copies(manager, mm, BASE + MIB), [0, 1]);
            assert_eq!(machine.probe(mm.root(), VirtAddr(BASE)).map(|leaf| leaf.frames), Some(512));
        });
    });
}

/// A private mapping copies the file's page, whether it mapped that before or not. A shared one makes it writable.
#[test]
fn stores_to_mappings_of_files_count_as_copies_or_as_reuses() {
    small(|machine, manager| {
        machine.files().set_size(FileId(3), 2 * PAGE);
        run(manager, |mm| {
            let file = manager.open(FileId(3)).unwrap();
            let backing = Backing::File { file: &file, page_offset: 0 };
            for (sharing, first, later) in
                [(Sharing::Private, [1, 0], [1, 0]), (Sharing::Shared, [0, 0], [0, 1])]
            {
                mm.mmap(&MapRequest { backing, sharing, ..anonymous(BASE, 2 * PAGE) }).unwrap();
                assert_eq!(copies(manager, mm, BASE), first, "{sharing:?}");
                load(machine, mm, BASE + PAGE).unwrap();
                assert_eq!(copies(manager, mm, BASE + PAGE), later, "{sharing:?}");
                mm.munmap(VirtAddr(BASE), 2 * PAGE).unwrap();
            }
        });
    });
    with_huge(2, |_, manager| {
        let file = manager.huge_file(Size2M, HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Sharing::Shared, BASE, (0, 1))).unwrap();
            mm.mmap(&of_file(&file, Sharing::Private, BASE + HUGE, (0, 1))).unwrap();
            assert_eq!(copies(manager, mm, BASE), [0, 0], "a new page of the file");
            assert_eq!(copies(manager, mm, BASE + HUGE), [1, 0]);
        });
        drop(file);
    });
}

#[test]
fn folios_of_2_mib_that_faults_map_are_counted() {
    small(|_, manager| {
        run(manager, |mm| {
            let large = [Stat::ThpFaultAlloc];
            mm.mmap(&anonymous(BASE, 8 * MIB)).unwrap();
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            let touch = |addr| _ = mm.fault(VirtAddr(addr), Access::Write).unwrap();
            assert_eq!(counted(manager, large, || touch(BASE + PAGE)), [1]);
            let populate = || mm.madvise(VirtAddr(BASE), 6 * MIB, Advice::PopulateWrite).unwrap();
            assert_eq!(counted(manager, large, populate), [2]);
            manager.set_folio_policy(FolioPolicy::only(order(8)));
            assert_eq!(counted(manager, large, || touch(BASE + 6 * MIB)), [0], "half as large");
        });
    });
}

/// Where no folio of the policy's size is free, a fault gets a frame.
#[test]
fn faults_that_get_less_than_the_policy_wants_are_counted() {
    small(|_, manager| {
        run(manager, |mm| {
            let stats = [Stat::ThpFaultAlloc, Stat::ThpFaultFallback];
            mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            let touch = |addr| _ = mm.fault(VirtAddr(addr), Access::Write).unwrap();
            assert_eq!(counted(manager, stats, || touch(BASE)), [1, 0]);
            let blocks = std::iter::from_fn(|| manager.pages().alloc(Gfp::USER, Order::BLOCK).ok());
            let blocks: Vec<_> = blocks.collect();
            assert_eq!(counted(manager, stats, || touch(BASE + 2 * MIB)), [0, 1]);
            assert_eq!(mm.rss().anon, 512 + 1);
            blocks.into_iter().for_each(|folio| manager.pages().free(folio).unwrap());
        });
    });
}

/// Pages of a file that are in memory are mapped with the one that a fault asks for, and the others are not.
#[test]
fn pages_that_are_mapped_around_a_fault_are_counted() {
    small(|machine, manager| {
        machine.files().set_size(FileId(3), 16 * PAGE);
        run(manager, |mm| {
            let file = manager.open(FileId(3)).unwrap();
            let mapping = |addr| {
                let backing = Backing::File { file: &file, page_offset: 0 };
                MapRequest { backing, sharing: Sharing::Shared, ..anonymous(addr, 16 * PAGE) }
            };
            mm.mmap(&mapping(BASE)).unwrap();
            (0..5).for_each(|page| _ = load(machine, mm, BASE + page * PAGE).unwrap());
            mm.mmap(&mapping(BASE + MIB)).unwrap();
            let touch = || _ = mm.fault(VirtAddr(BASE + MIB + 2 * PAGE), Access::Read).unwrap();
            assert_eq!(counted(manager, [Stat::FaultAround], touch), [4]);
            assert_eq!(mm.rss().file, 5 + 5);
        });
    });
}

#[test]
fn pages_that_a_pool_asks_for_are_counted() {
    small(|_, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let stats = [Stat::HtlbBuddyAllocSuccess, Stat::HtlbBuddyAllocFail];
        let resize = |wanted| pools.resize(pages, Size2M, NodeSet::ALL, wanted).after;
        assert_eq!(counted(manager, stats, || assert_eq!(resize(4), 4)), [4, 0]);
        let mut all = 0;
        let asked = counted(manager, stats, || all = resize(100));
        assert_eq!(asked, [all - 4, 1], "one request got less than it asked for");
        assert!((5..100).contains(&all), "{all}");
        assert_eq!(counted(manager, stats, || assert_eq!(resize(0), 0)), [0, 0]);
    });
}

/// One flush of an address space that three CPUs run goes to the two others.
#[test]
fn flushes_of_other_cpus_are_counted_with_their_targets() {
    let stats = [Stat::NrTlbRemoteFlush, Stat::NrTlbRemoteFlushReceived];
    with_manager(HostedConfig::new(64 * MIB).with_cpus(3), |machine, manager| {
        run(manager, |mm| {
            let unmap = || {
                mm.mmap(&anonymous(BASE, PAGE)).unwrap();
                mm.fault(VirtAddr(BASE), Access::Write).unwrap();
                mm.munmap(VirtAddr(BASE), PAGE).unwrap();
            };
            assert_eq!(counted(manager, stats, unmap), [0, 0]);
            let others = [CpuId(1), CpuId(2)];
            others.into_iter().for_each(|cpu| machine.run_on(cpu, || mm.switch_in()));
            assert_eq!(counted(manager, stats, unmap), [1, 2]);
            others.into_iter().for_each(|cpu| machine.run_on(cpu, || mm.switch_out()));
        });
    });
}

/// Of the page cache, half or as much as the low marks is not available, whichever is less.
#[test]
fn a_part_of_the_page_cache_is_available() {
    let frames = MemoryInfo { free: 1000, cached: 24, kept: 100, low: 50, ..MemoryInfo::default() };
    for (cached, available) in [(80, 964), (400, 1274)] {
        let info = Meminfo { frames, cached, shmem: 7, ..Meminfo::default() };
        let line = info.lines().find(|(name, _)| *name == "MemAvailable");
        assert_eq!(line, Some(("MemAvailable", 4 * available)), "{cached}");
    }
}
