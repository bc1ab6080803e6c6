//! The window of descriptors: the cost of each policy, and what walkers find in it.

use hosted::raw::RawPages;
use hosted::{Counters, Hosted, HostedConfig, MemoryRange};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugeSize, HugeSize::Size2M};
use quire::manager::Config;
use quire::page_alloc::NodeSet;
use quire::stats::Stat;
use quire::vmemmap::walker::{self, WindowAccess};

use crate::hugetlb::support::{BOTH, MIB, World, two_nodes, with_policy};
use testkit::ranges_of;

/// The policies with a window.
pub(crate) const WINDOWS: [DescriptorPolicy; 4] = [
    DescriptorPolicy::Full,
    DescriptorPolicy::PerPage,
    DescriptorPolicy::Batched,
    DescriptorPolicy::MaskTail,
];
/// Those that save descriptors.
pub(crate) const SAVING: [DescriptorPolicy; 3] =
    [DescriptorPolicy::PerPage, DescriptorPolicy::Batched, DescriptorPolicy::MaskTail];

/// The running CPU, in kernel mode. A fault here is a fault of the library: the window is mapped for all
/// memory, and walkers store to heads alone.
pub(crate) struct Kernel<'a>(pub(crate) &'a Hosted);

impl WindowAccess for Kernel<'_> {
    fn load(&self, addr: VirtAddr) -> u64 {
        self.0.kernel_load(addr).expect("the window can be read everywhere")
    }

    fn exchange(&self, addr: VirtAddr, old: u64, new: u64) -> Result<u64, u64> {
        self.0.kernel_exchange(addr, old, new).expect("walkers store to heads, which are writable")
    }
}

/// The cost of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) flushes: u64,
    pub(crate) graces: u64,
    pub(crate) entries: u64,
    pub(crate) splits: u64,
    pub(crate) freed: u64,
    pub(crate) taken: u64,
    pub(crate) written: u64,
}

/// The cost of `action`. The machine must have seen as many flushes as were counted.
pub(crate) fn cost(world: &World<'_, '_>, action: impl FnOnce()) -> Cost {
    let stats = [
        Stat::VmemmapFlush,
        Stat::VmemmapGrace,
        Stat::VmemmapEntry,
        Stat::VmemmapSplit,
        Stat::VmemmapFree,
        Stat::VmemmapAlloc,
        Stat::VmemmapWrite,
    ];
    let flushes = |counters: Counters| counters.flushes_kernel;
    let before = (stats.map(|stat| world.pages.lists().stat(stat)), flushes(world.machine.counters()));
    action();
    let mut all = stats.map(|stat| world.pages.lists().stat(stat));
    all.iter_mut().zip(before.0).for_each(|(now, before)| *now -= before);
    let [flushed, graces, entries, splits, freed, taken, written] = all;
    assert_eq!(flushes(world.machine.counters()) - before.1, flushed);
    Cost { flushes: flushed, graces, entries, splits, freed, taken, written }
}

pub(crate) fn pages_of(world: &World<'_, '_>, size: HugeSize) -> Vec<Frame> {
    let mut found = Vec::new();
    world.pools.each_free(world.pages, size, |page| found.push(page));
    found
}

/// Checks every descriptor of a page of the pool through the window, as the running CPU.
pub(crate) fn check_page(world: &World<'_, '_>, page: Frame, size: HugeSize, references: u64) {
    check_descriptors(world, (page, size), references, 0..size.order().frames());
}

/// The same for the head, and for those of these frames of the page.
pub(crate) fn check_descriptors(
    world: &World<'_, '_>,
    (page, size): (Frame, HugeSize),
    references: u64,
    frames: impl Iterator<Item = u64>,
) {
    let (kernel, window) = (Kernel(world.machine), world.pools.window().unwrap());
    let _section = window.walkers().enter(world.machine);
    let head = walker::head_at(&kernel, page).expect("a page of a pool has a head");
    assert_eq!((head.order, head.node), (size.order(), world.pages.store().node_of_frame(page)));
    assert_eq!(head.optimised, window.is_optimised(world.pages, page));
    assert_eq!(walker::references(&kernel, page), references);
    for at in frames {
        assert_eq!(walker::head_of(&kernel, page.add(at)), Some(page), "frame {at} of {page:?}");
    }
}

fn resize(world: &World<'_, '_>, wanted: u64) {
    let done = world.pools.resize(world.pages, Size2M, BOTH, wanted);
    assert_eq!((done.after, done.stopped), (wanted, None));
}

/// Under each policy: growing an empty pool of fresh memory, and emptying it.
#[test]
fn each_policy_has_its_price() {
    for pages in [1, 64, 100, 300] {
        // One node, so that the pages are adjacent: 64 in a leaf, whether from the top of memory downwards or
        // not.
        let leaves = |world: &World<'_, '_>| {
            let mut leaves = pages_of(world, Size2M).iter().map(|page| page.0 / 32768).collect::<Vec<_>>();
            leaves.sort_unstable();
            leaves.dedup();
            leaves.len() as u64
        };
        for policy in DescriptorPolicy::ALL {
            with_policy(policy, HostedConfig::new(1 << 30).with_cpus(2), |world| {
                let grown = cost(world, || resize(world, pages));
                let leaves = leaves(world);
                let shrunk = cost(world, || resize(world, 0));
                let (grow, shrink) = match policy {
                    DescriptorPolicy::InBlock => (Cost::default(), Cost::default()),
                    DescriptorPolicy::Full => {
                        let written = Cost { written: 512 * pages, ..Cost::default() };
                        (written, written)
                    }
                    DescriptorPolicy::PerPage | DescriptorPolicy::Batched | DescriptorPolicy::MaskTail => {
                        let grow = Cost {
                            flushes: 2,
                            graces: 1,
                            entries: leaves + 8 * pages,
                            splits: leaves,
                            // The frame that stays is a fresh copy, so all eight are freed.
                            freed: 8 * pages,
                            taken: leaves + pages,
                            written: (64 + 64) * pages,
                        };
                        let shrink = Cost {
                            flushes: 1,
                            graces: 1,
                            entries: 7 * pages,
                            splits: 0,
                            freed: 0,
                            taken: 7 * pages,
                            written: (7 * 64 + 512) * pages,
                        };
                        match policy {
                            DescriptorPolicy::Batched => (grow, shrink),
                            // A frame of tails for each size of pages, and no grace period.
                            DescriptorPolicy::MaskTail => (
                                Cost {
                                    graces: 0,
                                    taken: grow.taken + 2,
                                    written: grow.written + 2 * 64,
                                    ..grow
                                },
                                Cost { graces: 0, ..shrink },
                            ),
                            // One for each page, and one for each leaf that was split for one.
                            _ => (
                                Cost { flushes: pages + leaves, graces: pages, ..grow },
                                Cost { flushes: pages, graces: pages, ..shrink },
                            ),
                        }
                    }
                };
                assert_eq!((grown, shrunk), (grow, shrink), "{} pages, {}", pages, policy.name());
                let held = world.pools.window().map_or(0, |window| window.peak_held());
                let expected = match policy {
                    DescriptorPolicy::PerPage => 8,
                    DescriptorPolicy::Batched | DescriptorPolicy::MaskTail => 8 * pages,
                    DescriptorPolicy::InBlock | DescriptorPolicy::Full => 0,
                };
                assert_eq!(held, expected);
            });
        }
    }
}

/// A leaf describes 128 MiB. A range without any memory has none, though the records beside it exist.
#[test]
fn a_hole_in_memory_has_no_descriptors() {
    let ranges = vec![MemoryRange::new(0, 128 * MIB), MemoryRange::new(512 * MIB, 128 * MIB)];
    for policy in WINDOWS {
        with_policy(policy, HostedConfig::new(MIB).with_ranges(ranges.clone()), |world| {
            let (leaves, tables) = (2, 3);
            assert_eq!(world.pools.window().unwrap().frames(), leaves * 512 + tables);
        });
    }
}

/// A request without work flushes nothing.
/// Memory that is announced at start has its part of the window, as its pages may join a pool later.
#[test]
fn memory_that_is_added_later_has_descriptors() {
    for policy in WINDOWS {
        let machine = HostedConfig::new(512 * MIB).build().unwrap();
        let all = ranges_of(&machine)[0];
        let here = FrameRange::new(all.frames.start, 128 * MIB / 4096);
        let late = FrameRange::new(here.end(), all.frames.end().0 - here.end().0);
        let [now, later] = [here, late].map(|frames| quire::manager::MemoryRange { frames, ..all });
        machine.run_on(CpuId(0), || {
            let config = Config { descriptors: policy, ..Config::default() };
            let manager =
                hosted::raw::memory_manager_with_later(&machine, &[now], &[later], &config).unwrap();
            let pools = manager.huge_pools();
            machine.set_kernel_root(pools.window().map(|window| window.root()));
            manager.pages().add_memory_raw(late, false).unwrap();
            let world = World { machine: &machine, pages: manager.pages(), pools };
            assert_eq!(manager.resize_huge(Size2M, NodeSet::ALL, 150).after, 150);
            let pages = pages_of(&world, Size2M);
            assert!(pages.iter().any(|&page| late.contains(page)));
            pages.iter().for_each(|&page| check_page(&world, page, Size2M, 0));
            pools.validate(manager.pages()).unwrap();
            assert_eq!(manager.resize_huge(Size2M, NodeSet::ALL, 0).after, 0);
            manager.validate().unwrap();
        });
    }
}

#[test]
fn an_empty_request_flushes_nothing() {
    for policy in DescriptorPolicy::ALL {
        with_policy(policy, two_nodes(64 * MIB), |world| {
            assert_eq!(cost(world, || resize(world, 0)), Cost::default());
            resize(world, 3);
            assert_eq!(cost(world, || resize(world, 3)), Cost::default());
        });
    }
}

/// A walker finds the head of every frame, whatever is mapped behind it; it finds none for a page that left
/// the pool.
#[test]
fn every_frame_leads_to_its_head() {
    for policy in WINDOWS {
        with_policy(policy, two_nodes(256 * MIB), |world| {
            let window = world.pools.window().unwrap();
            for round in 0..3 {
                resize(world, 70);
                let pages = pages_of(world, Size2M);
                assert_eq!(pages.len(), 70);
                for &page in &pages {
                    check_page(world, page, Size2M, 0);
                    assert_eq!(
                        window.is_optimised(world.pages, page),
                        policy != DescriptorPolicy::Full,
                        "round {round}"
                    );
                }
                let frames = window.frames();
                resize(world, 0);
                let kernel = Kernel(world.machine);
                let found = |frame| walker::head_of(&kernel, frame);
                for page in pages {
                    assert!((0..512).all(|at| found(page.add(at)).is_none()), "{page:?} is in no pool");
                }
                if policy != DescriptorPolicy::Full {
                    assert_eq!(window.frames(), frames + 7 * 70);
                }
                world.check();
            }
        });
    }
}
