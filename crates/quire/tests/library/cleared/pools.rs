//! Huge pages of pools, and folios of 1 GiB that are cleared piece by piece.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::Order;
use quire::hugetlb::HugeSize;
use quire::page_alloc::{Gfp, NodeSet, Urgency};
use quire::stats::Stat;
use quire::vm::{Backing, FolioPolicy, MapRequest, Sharing};

use super::alloc::write_to;
use super::support::{
    BASE, Case, GIB, Ground, MIB, PAGE, at, check, config, idle, only, store_all, unverified,
};
use crate::hugetlb::world::{HUGE, private};
use crate::vm::world::{Manager, anonymous, load, run, store};

use HugeSize::{Size1G, Size2M};

fn resize(manager: &Manager<'_>, size: HugeSize, pages: u64) {
    assert_eq!(manager.resize_huge(size, NodeSet::ALL, pages).after, pages);
}

fn gigantic(pages: u64) -> MapRequest<'static> {
    MapRequest { len: pages * GIB, huge: Some(Size1G), ..private(BASE, 1) }
}

/// Eight pages of a pool that no store has reached, and the table that maps them.
const UNTOUCHED: u64 = 8 * 512 + 1;

/// One frame is the page table, whose entries were all taken away: it is zero, which the library does not note.
const SMALL: [Case; 8] = [
    ("resized", 0, |_, manager| [8, 3, 12, 0].into_iter().for_each(|pages| resize(manager, Size2M, pages))),
    ("stored to", 1, |machine, manager| {
        resize(manager, Size2M, 8);
        for pages in [3, 8, 5] {
            run(manager, |mm| {
                mm.mmap(&private(BASE, pages)).unwrap();
                store_all(machine, mm, BASE, pages * HUGE);
            });
        }
        resize(manager, Size2M, 0);
    }),
    ("populated", UNTOUCHED, |_, manager| {
        resize(manager, Size2M, 8);
        run(manager, |mm| _ = mm.mmap(&MapRequest { populate: true, ..private(BASE, 8) }).unwrap());
        resize(manager, Size2M, 0);
    }),
    ("loaded", UNTOUCHED, |machine, manager| {
        resize(manager, Size2M, 8);
        run(manager, |mm| {
            mm.mmap(&private(BASE, 8)).unwrap();
            (0..8).for_each(|page| assert_eq!(load(machine, mm, BASE + page * HUGE), Ok(0)));
        });
        resize(manager, Size2M, 0);
    }),
    ("locked", 1, |machine, manager| {
        resize(manager, Size2M, 8);
        run(manager, |mm| {
            mm.mmap(&private(BASE, 8)).unwrap();
            mm.mlock(at(BASE), 8 * HUGE, false).unwrap();
            store_all(machine, mm, BASE, 8 * HUGE);
        });
        resize(manager, Size2M, 0);
    }),
    ("cleared ahead", 1, |machine, manager| {
        resize(manager, Size2M, 8);
        for _ in 0..3 {
            run(manager, |mm| {
                mm.mmap(&private(BASE, 6)).unwrap();
                store_all(machine, mm, BASE, 6 * HUGE);
            });
            idle(manager);
        }
        resize(manager, Size2M, 4);
        idle(manager);
        resize(manager, Size2M, 0);
    }),
    ("forked", 2, |machine, manager| {
        resize(manager, Size2M, 10);
        run(manager, |mm| {
            mm.mmap(&private(BASE, 4)).unwrap();
            store_all(machine, mm, BASE, 4 * HUGE);
            let child = mm.fork().unwrap();
            store_all(machine, mm, BASE, 4 * HUGE);
            child.exit();
        });
        resize(manager, Size2M, 0);
    }),
    ("of a file", 1, |machine, manager| {
        resize(manager, Size2M, 8);
        let file = manager.huge_file(Size2M, 6 * HUGE).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            let whole = MapRequest { sharing: Sharing::Shared, backing, huge: None, ..private(BASE, 6) };
            mm.mmap(&whole).unwrap();
            store_all(machine, mm, BASE, 6 * HUGE);
            file.punch_hole(HUGE..3 * HUGE).unwrap();
            store_all(machine, mm, BASE, 6 * HUGE);
            file.truncate(2 * HUGE).unwrap();
        });
        drop(file);
        resize(manager, Size2M, 0);
    }),
];

/// A machine of 2 GiB.
const LARGE: [Case; 6] = [
    ("resized", 0, |_, manager| [1, 0, 1, 0].into_iter().for_each(|pages| resize(manager, Size1G, pages))),
    ("demoted and promoted", 1, |machine, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        resize(manager, Size1G, 1);
        assert_eq!(pools.demote(pages, NodeSet::ALL, 1).done, 1);
        run(manager, |mm| {
            mm.mmap(&private(BASE, 5)).unwrap();
            (0..5).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
        });
        assert_eq!(pools.promote(pages, NodeSet::ALL, 1).done, 1);
        resize(manager, Size1G, 0);
        resize(manager, Size1G, 1);
        resize(manager, Size1G, 0);
    }),
    ("in pieces", 1, |machine, manager| {
        resize(manager, Size1G, 1);
        run(manager, |mm| {
            mm.mmap(&gigantic(1)).unwrap();
            [0, 7, 300].into_iter().for_each(|block| store(machine, mm, BASE + block * HUGE, 1).unwrap());
        });
        resize(manager, Size1G, 0);
    }),
    ("in pieces, and idle CPUs", 1, |machine, manager| {
        resize(manager, Size1G, 1);
        run(manager, |mm| {
            mm.mmap(&gigantic(1)).unwrap();
            [0, 7, 300].into_iter().for_each(|block| store(machine, mm, BASE + block * HUGE, 1).unwrap());
            (0..20).for_each(|_| _ = manager.clear_ahead());
        });
        resize(manager, Size1G, 0);
    }),
    ("an anonymous folio of 1 GiB, all zero", 0, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            store(machine, mm, BASE, 1).unwrap();
        })
    }),
    ("an anonymous folio of 1 GiB, zero in part", 0, |machine, manager| {
        soil(machine, manager);
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, GIB)).unwrap();
            (0..512).for_each(|block| store(machine, mm, BASE + block * HUGE, 1).unwrap());
        });
    }),
];

/// Of which the program uses three pieces.
const GIVEN_UP: fn(&Hosted, &Manager<'_>) = |machine, manager| {
    soil(machine, manager);
    run(manager, |mm| {
        mm.mmap(&anonymous(BASE, GIB)).unwrap();
        (100..103).for_each(|block| store(machine, mm, BASE + block * HUGE, 1).unwrap());
    });
};

/// A block of each GiB has been stored to.
fn soil(machine: &Hosted, manager: &Manager<'_>) {
    let (pages, gfp) = (manager.pages(), Gfp::USER);
    let all: Vec<_> = std::iter::from_fn(|| pages.alloc_raw(gfp, Order::BLOCK).ok()).collect();
    for frame in all {
        if frame.block().0 % 512 == 100 {
            write_to(machine, frame, Order::BLOCK);
            pages.free_raw(frame, Order::BLOCK).unwrap();
        } else {
            pages.free_zeroed_raw(frame, Order::BLOCK).unwrap();
        }
    }
}

#[test]
fn pages_of_2_mib() {
    check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(FolioPolicy::default()), &SMALL);
}

#[test]
fn pages_of_1_gib() {
    // Pieces that were never mapped are freed with their folio, which says nothing about them.
    for (on_demand, given_up) in [(true, 509 * 512), (false, 0)] {
        let config = unverified(only(18).with_on_demand(on_demand));
        let machine = HostedConfig::new(2 * GIB);
        check(Ground::Fresh, &machine, &config, &LARGE);
        check(
            Ground::Fresh,
            &machine,
            &config,
            &[("a folio that is zero in part, given up", given_up, GIVEN_UP)],
        );
    }
}

/// Folios of 2 MiB that a program has in each GiB.
const IN_EACH: u64 = 8;

/// No GiB is free, so a page of 1 GiB needs one to be emptied. All other blocks in it are known to be zero, and stay so while it
/// is emptied; then the page joins the pool as if nothing were known of it.
const EMPTIED: fn(&Hosted, &Manager<'_>) = |machine, manager| {
    let (pages, gfp) = (manager.pages(), Gfp { urgency: Urgency::Reserve, ..Gfp::USER });
    let rest = || std::iter::from_fn(move || pages.alloc_raw(gfp, Order::BLOCK).ok());
    let free = |block| pages.free_zeroed_raw(block, Order::BLOCK).unwrap();
    run(manager, |mm| {
        mm.mmap(&anonymous(BASE, 3 * IN_EACH * HUGE)).unwrap();
        let mut blocks: Vec<_> = rest().collect();
        for gib in 0..3 {
            let (own, others): (Vec<_>, _) =
                blocks.into_iter().partition(|block| block.0 / (GIB / PAGE) == gib);
            blocks = others;
            own.into_iter().for_each(free);
            for block in gib * IN_EACH..(gib + 1) * IN_EACH {
                store(machine, mm, BASE + block * HUGE, 1).unwrap();
            }
            blocks.extend(rest());
        }
        blocks.into_iter().for_each(free);
        let moved = manager.stat(Stat::PgmigrateSuccess);
        resize(manager, Size1G, 1);
        assert_eq!(manager.stat(Stat::PgmigrateSuccess) - moved, IN_EACH * 512);
        let huge = MapRequest { addr: at(BASE + 8 * GIB), ..gigantic(1) };
        mm.mmap(&huge).unwrap();
        (0..512).for_each(|block| store(machine, mm, huge.addr.0 + block * HUGE, 1).unwrap());
        mm.munmap(huge.addr, GIB).unwrap();
        resize(manager, Size1G, 0);
    });
};

#[test]
fn a_page_of_1_gib_that_was_emptied() {
    let case = ("emptied", (512 - IN_EACH) * 512, EMPTIED);
    check(Ground::Fresh, &HostedConfig::new(3 * GIB), &unverified(only(9)), &[case]);
}
