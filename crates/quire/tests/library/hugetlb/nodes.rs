//! From which nodes huge pages of mappings come, and how many a group uses on each.

use hosted::Hosted;
use quire::addr::{Frame, Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::hugetlb::{HugeGroup, HugeSize::Size1G, HugeSize::Size2M, PoolInfo};
use quire::manager::Config;
use quire::page_alloc::{Gfp, NodePolicy, NodeSet};
use quire::vm::{Access, Sharing};

use crate::hugetlb::support::{BOTH, MIB, two_nodes};
use crate::hugetlb::world::{BASE, HUGE, Manager, Space, of_file, private, run, store, with_config};
use crate::watched::Watched;
use testkit::ranges_of;

const NODE: u64 = 64 * MIB;

/// A pool of four pages on each of two nodes; the CPU is on the first.
fn on_two_nodes(test: impl Fn(&Hosted, &Manager<'_>)) {
    with_config(two_nodes(NODE), Size2M, 8, |machine, manager| {
        // Policies that gather pages take them from one node.
        for (node, wanted) in [(0, 0), (1, 4), (0, 4)] {
            let _ = manager.huge_pools().resize_node(manager.pages(), Size2M, node, wanted);
        }
        assert_eq!(free_on(manager), [4, 4]);
        test(machine, manager);
    });
}

fn set(mm: &Space<'_>, pages: u64, nodes: NodePolicy) {
    mm.set_nodes(VirtAddr(BASE), pages * HUGE, Some(nodes)).unwrap();
}

fn touch(machine: &Hosted, mm: &Space<'_>, page: u64) -> Result<(), FaultError> {
    store(machine, mm, BASE + page * HUGE, page)
}

fn node_of(mm: &Space<'_>, page: u64) -> u64 {
    let leaf = mm.translate(VirtAddr(BASE + page * HUGE), Access::Read).expect("it was stored to");
    leaf.frame.addr().0 / NODE
}

fn free_on(manager: &Manager<'_>) -> [u64; 2] {
    [0, 1].map(|node| manager.huge_pools().node_info(manager.pages(), Size2M, node).free)
}

#[test]
fn a_bound_mapping_gets_pages_of_its_nodes_and_no_others() {
    on_two_nodes(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 6)).unwrap();
            set(mm, 6, NodePolicy::Bind(NodeSet::one(1)));
            (0..4).for_each(|page| touch(machine, mm, page).unwrap());
            assert!((0..4).all(|page| node_of(mm, page) == 1));
            assert_eq!(free_on(manager), [4, 0]);
            // Reserved or not: the pages that are left are elsewhere.
            assert_eq!(touch(machine, mm, 4), Err(FaultError::NoHugePage));
            manager.huge_pools().set_overcommit(manager.pages(), Size2M, 1);
            touch(machine, mm, 4).unwrap();
            assert_eq!((node_of(mm, 4), free_on(manager)), (1, [4, 0]), "a surplus page of that node");
            assert_eq!(touch(machine, mm, 5), Err(FaultError::NoHugePage));
            set(mm, 6, NodePolicy::Bind(BOTH));
            touch(machine, mm, 5).unwrap();
            assert_eq!(node_of(mm, 5), 0);
        });
        manager.huge_pools().set_overcommit(manager.pages(), Size2M, 0);
    });
}

#[test]
fn a_preferred_node_comes_first_and_others_follow() {
    on_two_nodes(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&private(BASE, 6)).unwrap();
            set(mm, 6, NodePolicy::Preferred(1));
            (0..6).for_each(|page| touch(machine, mm, page).unwrap());
            assert_eq!((0..6).map(|page| node_of(mm, page)).collect::<Vec<_>>(), [1, 1, 1, 1, 0, 0]);
        });
    });
}

/// The place in the file decides, not the order of faults.
#[test]
fn nodes_take_turns_by_the_page() {
    on_two_nodes(|machine, manager| {
        let file = manager.huge_file(Size2M, 8 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Sharing::Shared, BASE, (1, 6))).unwrap();
            set(mm, 6, NodePolicy::Interleave(BOTH));
            [4, 0, 2, 5, 3, 1].into_iter().for_each(|page| touch(machine, mm, page).unwrap());
            assert!((0..6).all(|page| node_of(mm, page) == (page + 1) % 2));
        });
        drop(file);
    });
}

#[test]
fn copies_and_pages_of_files_obey_the_mapping_that_touches_them() {
    on_two_nodes(|machine, manager| {
        let file = manager.huge_file(Size2M, 4 * HUGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Sharing::Shared, BASE, (0, 1))).unwrap();
            touch(machine, mm, 0).unwrap();
            assert_eq!(node_of(mm, 0), 0);
            mm.mmap(&of_file(&file, Sharing::Private, BASE + HUGE, (0, 2))).unwrap();
            let bound = NodePolicy::Bind(NodeSet::one(1));
            mm.set_nodes(VirtAddr(BASE + HUGE), 2 * HUGE, Some(bound)).unwrap();
            touch(machine, mm, 1).unwrap();
            touch(machine, mm, 2).unwrap();
            assert_eq!([node_of(mm, 0), node_of(mm, 1), node_of(mm, 2)], [0, 1, 1]);
        });
        drop(file);
    });
}

#[test]
fn a_group_knows_the_nodes_of_its_pages() {
    on_two_nodes(|machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let outer = pools.make_group(pages, HugeGroup::NONE).unwrap();
        let inner = pools.make_group(pages, outer).unwrap();
        let on = |group, size| {
            let nodes = pools.group_nodes(pages, group, size);
            assert!(nodes[2..].iter().all(|&pages| pages == 0));
            [nodes[0], nodes[1]]
        };
        run(manager, |mm| {
            mm.set_huge_group(outer);
            mm.mmap(&private(BASE, 5)).unwrap();
            touch(machine, mm, 0).unwrap();
            mm.set_huge_group(inner);
            set(mm, 5, NodePolicy::Bind(NodeSet::one(1)));
            (1..4).for_each(|page| touch(machine, mm, page).unwrap());
            mm.set_huge_group(HugeGroup::NONE);
            touch(machine, mm, 4).unwrap();
            assert_eq!(
                [on(outer, Size2M), on(inner, Size2M), on(HugeGroup::NONE, Size2M)],
                [[1, 3], [0, 3], [0, 0]]
            );
            assert_eq!(on(outer, Size1G), [0, 0]);
            mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
            assert_eq!([on(outer, Size2M), on(inner, Size2M)], [[0, 2], [0, 2]]);
        });
        assert_eq!([on(outer, Size2M), on(inner, Size2M)], [[0, 0], [0, 0]]);
    });
}

/// A task that is bound to a node is refused when it maps, not when it touches the memory.
#[test]
fn a_bound_task_reserves_no_more_than_its_nodes_have() {
    let hosted = two_nodes(NODE).build().expect("the host refused a machine");
    let machine = Watched::new(&hosted);
    hosted.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, &ranges_of(&hosted), &Config::default()).unwrap();
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        assert_eq!(pools.resize(pages, Size2M, BOTH, 8).after, 8);
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        machine.set_task_nodes(NodePolicy::Bind(NodeSet::one(1)));
        assert_eq!(mm.mmap(&private(BASE, 5)), Err(MmError::NoMemory));
        assert_eq!(pools.info(pages, Size2M).reserved, 0);
        mm.mmap(&private(BASE, 4)).unwrap();
        for page in 0..4 {
            mm.fault(VirtAddr(BASE + page * HUGE), Access::Write).unwrap();
            let leaf = mm.translate(VirtAddr(BASE + page * HUGE), Access::Write).unwrap();
            assert_eq!(leaf.frame.addr().0 / NODE, 1);
        }
        assert_eq!(mm.mmap(&private(BASE + 8 * HUGE, 1)), Err(MmError::NoMemory));
        machine.set_task_nodes(NodePolicy::Preferred(1));
        mm.mmap(&private(BASE + 8 * HUGE, 4)).unwrap();
        mm.switch_out();
        mm.exit();
        assert_eq!(pools.info(pages, Size2M), PoolInfo { total: 8, free: 8, ..PoolInfo::default() });
        let _ = pools.resize(pages, Size2M, BOTH, 0);
        manager.validate().unwrap();
    });
}

/// Surplus pages for a task that is bound to a node are allocated there, wherever it runs.
#[test]
fn surplus_pages_are_allocated_on_the_nodes_that_the_task_may_use() {
    let hosted = two_nodes(NODE).build().expect("the host refused a machine");
    let machine = Watched::new(&hosted);
    hosted.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, &ranges_of(&hosted), &Config::default()).unwrap();
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        pools.set_overcommit(pages, Size2M, 2);
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        machine.set_task_nodes(NodePolicy::Bind(NodeSet::one(1)));
        mm.mmap(&private(BASE, 2)).unwrap();
        for page in 0..2 {
            mm.fault(VirtAddr(BASE + page * HUGE), Access::Write).unwrap();
            let leaf = mm.translate(VirtAddr(BASE + page * HUGE), Access::Write).unwrap();
            assert_eq!(leaf.frame.addr().0 / NODE, 1);
        }
        assert_eq!(mm.mmap(&private(BASE + 8 * HUGE, 1)), Err(MmError::NoMemory));
        mm.switch_out();
        mm.exit();
        assert_eq!(pools.info(pages, Size2M), PoolInfo::default());
        manager.validate().unwrap();
    });
}

/// A free surplus page of a node that is full is replaced by one of another node, where it is surplus then.
#[test]
fn a_surplus_page_that_is_replaced_on_another_node_is_surplus_there() {
    with_config(two_nodes(NODE), Size2M, 0, |_, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let on = |node| pools.node_info(pages, Size2M, node);
        let surplus = PoolInfo { total: 1, free: 1, surplus: 1, reserved: 0 };
        pools.set_overcommit(pages, Size2M, 1);
        run(manager, |mm| {
            mm.mmap(&private(BASE, 1)).unwrap();
            assert_eq!([on(0), on(1)], [surplus, PoolInfo::default()]);
            let gfp = Gfp::USER.from_nodes(NodePolicy::Bind(NodeSet::one(0)));
            let full: Vec<_> = std::iter::from_fn(|| pages.alloc(gfp, Order::BLOCK).ok()).collect();
            let mut frames = (0..NODE / HUGE).map(|block| Frame(block * Order::BLOCK.frames()));
            let page = frames.find(|&frame| pages.frames().is_huge(frame, Order::BLOCK)).unwrap();
            assert_eq!(manager.migrate(page), Ok(512));
            assert_eq!([on(0), on(1)], [PoolInfo::default(), surplus]);
            full.into_iter().for_each(|folio| pages.free(folio).unwrap());
        });
        assert_eq!(pools.info(pages, Size2M), PoolInfo::default());
        pools.set_overcommit(pages, Size2M, 0);
    });
}

/// Runs `work` as this CPU, whose node has the same number.
fn as_cpu(machine: &Hosted, cpu: u32, work: impl Fn() + Sync) {
    machine.spawn_cpus(2, |own| {
        if own == CpuId(cpu) {
            work()
        }
    });
}

/// As in Linux, a surplus page counts on the node that it comes from (`alloc_surplus_hugetlb_folio`), and a page that is
/// freed leaves the pool only if its own node has surplus pages (`free_huge_folio`). A task reserves on one node, moves to the
/// other, and uses up its reservation with a persistent page of that one: the surplus page stays free, also when nothing is
/// mapped any more. The next reservation that ends unused takes it along (`return_unused_surplus_pages`).
#[test]
fn a_task_that_moves_to_another_node_before_it_touches_its_memory_leaves_a_surplus_page() {
    with_config(two_nodes(NODE), Size2M, 0, |machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let on = |node| pools.node_info(pages, Size2M, node);
        let one = PoolInfo { total: 1, free: 1, ..PoolInfo::default() };
        let surplus = PoolInfo { surplus: 1, ..one };
        assert_eq!(pools.resize_node(pages, Size2M, 0, 1).after, 1);
        pools.set_overcommit(pages, Size2M, 1);
        let touch = |mm: &Space<'_>, cpu| {
            as_cpu(machine, cpu, || _ = mm.fault(VirtAddr(BASE), Access::Write).unwrap());
            node_of(mm, 0)
        };
        for (cpu, left) in [(1, PoolInfo::default()), (0, surplus)] {
            let (other, mm) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
            // The persistent page is reserved for the other one.
            other.mmap(&private(BASE, 1)).unwrap();
            as_cpu(machine, 1, || _ = mm.mmap(&private(BASE, 1)).unwrap());
            assert_eq!([on(0), on(1)], [one, surplus]);
            assert_eq!(touch(&mm, cpu), u64::from(cpu));
            mm.munmap(VirtAddr(BASE), HUGE).unwrap();
            assert_eq!([on(0), on(1)], [one, left]);
            assert_eq!(touch(&other, 0), 0);
            other.exit();
            mm.exit();
            assert_eq!([on(0), on(1)], [one, left]);
        }
        run(manager, |mm| _ = mm.mmap(&private(BASE, 1)).unwrap());
        assert_eq!([on(0), on(1)], [one, PoolInfo::default()]);
        pools.set_overcommit(pages, Size2M, 0);
        assert_eq!(pools.resize_node(pages, Size2M, 0, 0).after, 0);
    });
}
