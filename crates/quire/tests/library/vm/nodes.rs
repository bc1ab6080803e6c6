//! From which nodes private pages come.

use hosted::{Hosted, HostedConfig, MemoryRange};
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError};
use quire::page_alloc::{NodeNames, NodePolicy, NodeSet};
use quire::vm::{Access, FolioPolicy};

use crate::vm::world::{Manager, Space, anonymous, run, store, with_manager};

const BASE: u64 = 0x1000_0000;
const PAGE: u64 = 4096;
const NODE: u64 = 32 << 20;

fn on_two_nodes(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    let ranges = (0..2).map(|node| MemoryRange::new(u64::from(node) * NODE, NODE).on_node(node)).collect();
    with_manager(HostedConfig::new(1 << 20).with_ranges(ranges), test);
}

fn node_of(mm: &Space<'_>, page: u64) -> u64 {
    let leaf = mm.translate(VirtAddr(BASE + page * PAGE), Access::Read).expect("it was stored to");
    leaf.frame.addr().0 / NODE
}

#[test]
fn a_mapping_gets_its_private_pages_from_its_nodes() {
    on_two_nodes(|machine, manager| {
        manager.set_folio_policy(FolioPolicy::FRAMES);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 16 * PAGE)).unwrap();
            mm.set_nodes(VirtAddr(BASE + 4 * PAGE), 4 * PAGE, Some(NodePolicy::Bind(NodeSet::one(1))))
                .unwrap();
            mm.set_nodes(
                VirtAddr(BASE + 8 * PAGE),
                8 * PAGE,
                Some(NodePolicy::Interleave(NodeSet::of(&[0, 1]))),
            )
            .unwrap();
            assert_eq!(mm.mappings(), 3);
            (0..16).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            assert!((0..4).all(|page| node_of(mm, page) == 0), "the running CPU's node");
            assert!((4..8).all(|page| node_of(mm, page) == 1));
            assert_eq!((8..16).map(|page| node_of(mm, page)).sum::<u64>(), 4, "every other page");
            let child = mm.fork().unwrap();
            assert_eq!(child.mappings(), 3, "a child has the same nodes");
            store(machine, mm, BASE + 5 * PAGE, 1).unwrap();
            assert_eq!(node_of(mm, 5), 1, "a copy comes from there too");
            child.exit();
            mm.set_nodes(VirtAddr(BASE), 16 * PAGE, None).unwrap();
            assert_eq!(mm.mappings(), 1);
            let far = NodePolicy::Preferred(1);
            assert_eq!(mm.set_nodes(VirtAddr(BASE), 17 * PAGE, Some(far)), Err(MmError::Fault));
            assert_eq!(mm.set_nodes(VirtAddr(BASE + 1), PAGE, Some(far)), Err(MmError::Invalid));
            assert_eq!(mm.mappings(), 1);
        });
    });
}

/// What a program said is told back, in a child too, and keeps neighbours apart.
#[test]
fn a_mapping_keeps_how_its_nodes_were_named() {
    on_two_nodes(|machine, manager| {
        run(manager, |mm| {
            let (one, bound) = (NodeSet::one(1), Some(NodePolicy::Bind(NodeSet::one(1))));
            let named = [NodeNames::Static(NodeSet::of(&[1, 5])), NodeNames::Relative(one), NodeNames::Plain];
            mm.mmap(&anonymous(BASE, 6 * PAGE)).unwrap();
            let at = |part: u64| VirtAddr(BASE + part * 2 * PAGE);
            for (part, names) in (0..).zip(named) {
                mm.set_named_nodes(at(part), 2 * PAGE, bound, names).unwrap();
            }
            assert_eq!(mm.mappings(), 3);
            (0..6).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            assert!((0..6).all(|page| node_of(mm, page) == 1));
            let child = mm.fork().unwrap();
            for (part, names) in (0..).zip(named) {
                for space in [mm, &child] {
                    let found = space.next_vma(at(part)).unwrap();
                    assert_eq!((found.nodes, found.node_names), (bound, names));
                }
            }
            child.exit();
            mm.set_nodes(VirtAddr(BASE), 6 * PAGE, bound).unwrap();
            assert_eq!(mm.mappings(), 1);
            // Without a policy, nothing is named.
            mm.set_nodes(VirtAddr(BASE), 6 * PAGE, None).unwrap();
            mm.set_named_nodes(at(1), 2 * PAGE, None, named[0]).unwrap();
            assert_eq!(mm.mappings(), 1);
        });
    });
}

#[test]
fn bound_memory_ends_with_its_node() {
    on_two_nodes(|machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, 2 * NODE)).unwrap();
            mm.set_nodes(VirtAddr(BASE), 2 * NODE, Some(NodePolicy::Bind(NodeSet::one(1)))).unwrap();
            let end = (0..).find(|page| store(machine, mm, BASE + page * PAGE, 1).is_err()).unwrap();
            assert_eq!(store(machine, mm, BASE + end * PAGE, 1), Err(FaultError::OutOfMemory));
            assert!(end * PAGE <= NODE && end * PAGE > NODE / 2);
            mm.set_nodes(VirtAddr(BASE), 2 * NODE, None).unwrap();
            store(machine, mm, BASE + end * PAGE, 1).unwrap();
        });
    });
}
