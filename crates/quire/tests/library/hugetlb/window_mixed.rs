//! Pages of 1 GiB, and pools in which only some pages are optimised.

use hosted::HostedConfig;
use hosted::raw::RawPools;
use quire::hugetlb::{ControlError, DescriptorPolicy, HugeSize::Size1G, HugeSize::Size2M, Outcome};
use quire::page_alloc::NodeSet;

use crate::hugetlb::support::{BOTH, GIB, MIB, World, two_nodes, with_policy};
use crate::hugetlb::window::{Cost, SAVING, check_page, cost, pages_of};

fn optimised(world: &World<'_, '_>) -> usize {
    let window = world.pools.window().unwrap();
    pages_of(world, Size2M).iter().filter(|&&page| window.is_optimised(world.pages, page)).count()
}

/// A page of 1 GiB spans eight leaves of the window. Demoting restores it and optimises its parts: one flush
/// each way in batches, and 513 in all page by page, with as many grace periods. Where the tails of all pages
/// are the same, only the page of 1 GiB waits for one, to be optimised.
#[test]
fn a_gigabyte_has_its_price_too() {
    for policy in SAVING {
        with_policy(policy, HostedConfig::new(2 * GIB), |world| {
            let (pools, pages) = (world.pools, world.pages);
            let is_masked = policy == DescriptorPolicy::MaskTail;
            let shared = if is_masked { 2 } else { 0 };
            let graces = |graces: u64| if is_masked { 0 } else { graces };
            let grown = cost(world, || assert_eq!(pools.resize(pages, Size1G, BOTH, 1).after, 1));
            let expected = Cost {
                flushes: 2,
                graces: 1,
                entries: 8 + 4096,
                splits: 8,
                freed: 4096,
                taken: 8 + 1 + shared,
                written: 64 + 64 + 64 * shared,
            };
            assert_eq!(grown, expected);
            check_page(world, pages_of(world, Size1G)[0], Size1G, 0);
            let each = if policy == DescriptorPolicy::PerPage { 512 } else { 1 };
            let demoted = cost(world, || assert_eq!(pools.demote(pages, BOTH, 1).done, 1));
            let expected = Cost {
                flushes: 1 + each,
                graces: graces(1 + each),
                entries: 4095 + 512 * 8,
                splits: 0,
                freed: 512 * 8,
                taken: 4095 + 512,
                written: 4095 * 64 + 262_144 + 512 * (64 + 64),
            };
            assert_eq!(demoted, expected);
            assert_eq!(optimised(world), 512);
            pages_of(world, Size2M).into_iter().for_each(|page| check_page(world, page, Size2M, 0));
            let promoted = cost(world, || assert_eq!(pools.promote(pages, BOTH, 1).done, 1));
            let expected = Cost {
                flushes: each + 1,
                graces: graces(each) + 1,
                entries: 512 * 7 + 4096,
                splits: 0,
                freed: 4096,
                taken: 512 * 7 + 1,
                written: 512 * 7 * 64 + 262_144 + 64 + 64,
            };
            assert_eq!(promoted, expected);
            let shrunk = cost(world, || assert_eq!(pools.resize(pages, Size1G, BOTH, 0).after, 0));
            let expected = Cost {
                flushes: 1,
                graces: graces(1),
                entries: 4095,
                taken: 4095,
                written: 4095 * 64 + 262_144,
                ..Cost::default()
            };
            assert_eq!(shrunk, expected);
        });
    }
}

/// Pages know whether they are optimised: the switch is for pages that are added later.
#[test]
fn the_saving_can_be_switched_with_pages_in_the_pool() {
    for policy in SAVING {
        with_policy(policy, two_nodes(512 * MIB), |world| {
            let (pools, pages) = (world.pools, world.pages);
            let resize = |wanted| assert_eq!(pools.resize(pages, Size2M, BOTH, wanted).after, wanted);
            resize(50);
            assert!(pools.set_saving(false) && !pools.is_saving());
            let off = cost(world, || resize(100));
            assert_eq!(off, Cost { written: 50 * 512, ..Cost::default() });
            assert_eq!(optimised(world), 50);
            assert!(pools.set_saving(true));
            resize(150);
            assert_eq!(optimised(world), 100);
            pages_of(world, Size2M).into_iter().for_each(|page| check_page(world, page, Size2M, 0));
            // Optimised pages are restored, whatever the switch says.
            assert!(pools.set_saving(false));
            let used: Vec<_> =
                (0..3).map(|_| pools.take(pages, Size2M, NodeSet::ALL, false).unwrap()).collect();
            let shrunk = cost(world, || _ = pools.resize(pages, Size2M, BOTH, 0));
            let left = used.iter().filter(|&&page| pools.window().unwrap().is_optimised(pages, page)).count();
            assert_eq!(shrunk.taken, 7 * (100 - left as u64));
            for page in used {
                check_page(world, page, Size2M, 1);
                pools.give_raw(pages, Size2M, page, false);
            }
            world.check();
            assert_eq!(world.info(Size2M).total, 0);
        });
    }
}

#[test]
fn the_saving_is_a_control_file() {
    for policy in DescriptorPolicy::ALL {
        with_policy(policy, two_nodes(64 * MIB), |world| {
            let (pools, pages, path) = (world.pools, world.pages, "vm/hugetlb_optimize_vmemmap");
            let read = || {
                let mut text = String::new();
                pools.read_file(pages, path, &mut text).map(|()| text)
            };
            let write = |text| pools.write_file(pages, BOTH, path, text);
            let full = policy == DescriptorPolicy::Full;
            assert_eq!(read().as_deref(), Ok(if full { "0\n" } else { "1\n" }));
            assert_eq!(write("on"), Err(ControlError::NotANumber));
            if SAVING.contains(&policy) {
                assert_eq!(write("0\n"), Ok(Outcome::Set));
                assert_eq!((read().as_deref(), pools.is_saving()), (Ok("0\n"), false));
                assert_eq!(write("1"), Ok(Outcome::Set));
                assert!(pools.is_saving());
            } else {
                let (now, other) = if full { ("0", "1") } else { ("1\n", "0") };
                assert_eq!(write(now), Ok(Outcome::Set), "it is so already");
                assert_eq!(write(other), Err(ControlError::NotPermitted));
            }
            assert_eq!(pools.policy(), policy);
        });
    }
}

/// A surplus page costs as much as a page of a request for one.
#[test]
fn surplus_pages_come_and_go_at_their_price() {
    for policy in SAVING {
        with_policy(policy, two_nodes(64 * MIB), |world| {
            let (pools, pages) = (world.pools, world.pages);
            pools.set_overcommit(pages, Size2M, 1);
            let mut page = None;
            let (graces, shared) = if policy == DescriptorPolicy::MaskTail { (0, 2) } else { (1, 0) };
            let come = cost(world, || page = pools.take(pages, Size2M, NodeSet::ALL, false).ok());
            assert_eq!((come.flushes, come.graces, come.freed, come.taken), (2, graces, 8, 2 + shared));
            let page = page.unwrap();
            check_page(world, page, Size2M, 1);
            let gone = cost(world, || pools.give_raw(pages, Size2M, page, false));
            assert_eq!((gone.flushes, gone.graces, gone.freed, gone.taken), (1, graces, 0, 7));
            world.check();
        });
    }
}
