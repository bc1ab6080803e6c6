//! Huge pages that go bad while programs map them.

use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::hugetlb::{HugeFailure, HugeSize, PoolInfo};
use quire::manager::{Config, Failed};
use quire::page_alloc::{NodeSet, Verdict};
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Access, Advice, MapRequest, Mm, Remap};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, Space, check, info, load, of_file, private, store, with_pool, within,
};
use testkit::ranges_of;

fn fail_under(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, addr: u64) -> Failed {
    let leaf = machine.probe(mm.root(), VirtAddr(addr)).expect("mapped");
    manager.memory_failure(leaf.frame.add((addr - leaf.addr.0) >> 12)).expect("it can be given up")
}

fn told(mm: &Space<'_>, addr: u64) -> Option<FaultError> {
    mm.fault(VirtAddr(addr), Access::Read).err()
}

#[test]
fn a_private_page_is_unmapped_in_every_address_space() {
    with_pool(HugeSize::Size2M, 256 << 20, 8, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&private(BASE, 4)).unwrap();
        within(&mm, || {
            (0..4).for_each(|page| store(machine, &mm, BASE + page * HUGE + 8, page).unwrap());
        });
        let child = mm.fork().unwrap();
        let bad = BASE + HUGE + 77 * 4096;
        assert_eq!(fail_under(machine, manager, &mm, bad), Failed::Huge(HugeFailure::Dissolved));
        assert_eq!((info(manager, HugeSize::Size2M).total, manager.meminfo().bad), (7, 1));
        for addr in [bad, BASE + HUGE, BASE + 2 * HUGE - 8] {
            assert_eq!([told(&mm, addr), told(&child, addr)], [Some(FaultError::Poisoned); 2]);
        }
        let grandchild = child.fork().unwrap();
        assert_eq!(told(&grandchild, bad), Some(FaultError::Poisoned));
        let to = VirtAddr(BASE + (8 << 30));
        grandchild.mremap(VirtAddr(BASE), 4 * HUGE, 4 * HUGE, Remap::Fixed(to)).unwrap();
        assert_eq!(told(&grandchild, to.0 + HUGE), Some(FaultError::Poisoned));
        assert_eq!(told(&grandchild, BASE + HUGE), Some(FaultError::NotMapped));
        within(&mm, || {
            for page in [0, 2, 3] {
                assert_eq!(load(machine, &mm, BASE + page * HUGE + 8), Ok(page));
            }
            // A dropped page is reserved anew.
            mm.madvise(VirtAddr(BASE + HUGE), HUGE, Advice::DontNeed).unwrap();
            assert_eq!(info(manager, HugeSize::Size2M).reserved, 1);
            assert_eq!(load(machine, &mm, BASE + HUGE + 8), Ok(0));
        });
        for mm in [mm, child, grandchild] {
            mm.validate().unwrap();
            mm.exit();
        }
    });
}

#[test]
fn a_mapping_with_markers_goes_with_its_promises() {
    with_pool(HugeSize::Size2M, 256 << 20, 6, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.mmap(&private(BASE, 4)).unwrap();
        within(&mm, || {
            store(machine, &mm, BASE, 1).unwrap();
            store(machine, &mm, BASE + 3 * HUGE, 1).unwrap();
        });
        for addr in [BASE, BASE + 3 * HUGE + 4096] {
            assert_eq!(fail_under(machine, manager, &mm, addr), Failed::Huge(HugeFailure::Dissolved));
        }
        let now = info(manager, HugeSize::Size2M);
        assert_eq!(now, PoolInfo { total: 4, free: 4, reserved: 2, surplus: 0 });
        mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
        assert_eq!(info(manager, HugeSize::Size2M).reserved, 1);
        mm.validate().unwrap();
        mm.exit();
    });
}

#[test]
fn a_marker_moves_to_where_small_pages_moved_away() {
    with_pool(HugeSize::Size2M, 256 << 20, 4, |machine, manager| {
        let mm = manager.new_mm().unwrap();
        let (to, away) = (VirtAddr(BASE + 32 * HUGE), VirtAddr(BASE + 64 * HUGE + 4096));
        mm.mmap(&MapRequest { len: 4096, huge: None, ..private(to.0, 1) }).unwrap();
        mm.mmap(&private(BASE, 1)).unwrap();
        within(&mm, || {
            store(machine, &mm, to.0, 1).unwrap();
            store(machine, &mm, BASE, 1).unwrap();
            mm.mremap(to, 4096, 4096, Remap::Fixed(away)).unwrap();
        });
        assert_eq!(fail_under(machine, manager, &mm, BASE), Failed::Huge(HugeFailure::Dissolved));
        mm.mremap(VirtAddr(BASE), HUGE, HUGE, Remap::Fixed(to)).unwrap();
        assert_eq!(told(&mm, to.0), Some(FaultError::Poisoned));
        mm.munmap(to, HUGE).unwrap();
        assert_eq!(info(manager, HugeSize::Size2M).reserved, 0);
        mm.exit();
    });
}

/// A hole, or a nearer end, takes the marker of a private page. The place is reserved again, as if its page
/// had gone (invariant 10).
#[test]
fn a_hole_takes_a_marker_and_reserves_its_place_again() {
    for truncate in [false, true] {
        with_pool(HugeSize::Size2M, 256 << 20, 6, |machine, manager| {
            let file = manager.huge_file(HugeSize::Size2M, 2 * HUGE).unwrap();
            let mm = manager.new_mm().unwrap();
            mm.mmap(&of_file(&file, Private, BASE, (0, 2))).unwrap();
            within(&mm, || {
                (0..2).for_each(|page| store(machine, &mm, BASE + page * HUGE, 1).unwrap());
            });
            let failed = fail_under(machine, manager, &mm, BASE + HUGE);
            assert_eq!(failed, Failed::Huge(HugeFailure::Dissolved));
            assert_eq!(info(manager, HugeSize::Size2M).reserved, 0);
            match truncate {
                true => file.truncate(HUGE).unwrap(),
                false => file.punch_hole(HUGE..2 * HUGE).unwrap(),
            }
            assert_eq!(info(manager, HugeSize::Size2M).reserved, 1);
            check(manager);
            mm.munmap(VirtAddr(BASE), 2 * HUGE).unwrap();
            assert_eq!(info(manager, HugeSize::Size2M).reserved, 0);
            mm.exit();
        });
    }
}

/// Where the pool has no page to reserve, the marker stays, and its place goes without one.
#[test]
fn a_hole_leaves_a_marker_whose_place_cannot_be_reserved() {
    with_pool(HugeSize::Size2M, 256 << 20, 1, |machine, manager| {
        let file = manager.huge_file(HugeSize::Size2M, HUGE).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.mmap(&of_file(&file, Private, BASE, (0, 1))).unwrap();
        within(&mm, || store(machine, &mm, BASE, 1).unwrap());
        assert_eq!(fail_under(machine, manager, &mm, BASE), Failed::Huge(HugeFailure::Dissolved));
        file.punch_hole(0..HUGE).unwrap();
        assert_eq!(told(&mm, BASE), Some(FaultError::Poisoned));
        mm.munmap(VirtAddr(BASE), HUGE).unwrap();
        assert_eq!(info(manager, HugeSize::Size2M).reserved, 0);
        mm.exit();
    });
}

/// The pages beside such a marker go one by one, and are reserved again.
#[test]
fn a_hole_takes_the_pages_beside_a_marker_that_stays() {
    with_pool(HugeSize::Size2M, 256 << 20, 3, |machine, manager| {
        let file = manager.huge_file(HugeSize::Size2M, 3 * HUGE).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.mmap(&of_file(&file, Private, BASE, (0, 3))).unwrap();
        within(&mm, || (0..3).for_each(|page| store(machine, &mm, BASE + page * HUGE, 1).unwrap()));
        assert_eq!(fail_under(machine, manager, &mm, BASE + HUGE), Failed::Huge(HugeFailure::Dissolved));
        file.punch_hole(0..3 * HUGE).unwrap();
        let back = PoolInfo { total: 2, free: 2, reserved: 2, surplus: 0 };
        assert_eq!(info(manager, HugeSize::Size2M), back);
        assert_eq!(told(&mm, BASE + HUGE), Some(FaultError::Poisoned));
        within(&mm, || [0, 2].map(|page| assert_eq!(load(machine, &mm, BASE + page * HUGE), Ok(0))));
        mm.exit();
    });
}

/// All its mappings are removed. A program that touches its address gets an error, and never zeroes in place
/// of the lost contents. The page leaves the pool when the file drops it.
#[test]
fn a_page_of_a_file_is_isolated_until_the_file_gives_it_up() {
    with_pool(HugeSize::Size2M, 256 << 20, 6, |machine, manager| {
        let file = manager.huge_file(HugeSize::Size2M, 2 * HUGE).unwrap();
        let (mm, other) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        for (mm, sharing, at) in
            [(&mm, Shared, BASE), (&mm, Private, BASE + (1 << 30)), (&other, Shared, BASE)]
        {
            mm.mmap(&of_file(&file, sharing, at, (0, 2))).unwrap();
            within(mm, || {
                store(machine, mm, BASE + HUGE, 5).unwrap();
                assert_eq!(load(machine, mm, at + HUGE), Ok(5));
                assert_eq!(load(machine, mm, at), Ok(0));
            });
        }
        let private = BASE + (1 << 30);
        assert_eq!(fail_under(machine, manager, &mm, BASE + HUGE + 8192), Failed::Huge(HugeFailure::InUse));
        assert_eq!(info(manager, HugeSize::Size2M).total, 6);
        let bad = Some(FaultError::Poisoned);
        assert_eq!([told(&mm, BASE + HUGE), told(&mm, private + HUGE), told(&other, BASE + HUGE)], [bad; 3]);
        assert_eq!(mm.fault(VirtAddr(private + HUGE), Access::Write).err(), bad, "nor is it copied");
        assert_eq!((mm.rss().huge, other.rss().huge), (2 * 512, 512));
        // Nor does the kernel read it.
        let mut bytes = [1; 8];
        assert_eq!(file.read_at(HUGE + 8192, &mut bytes), Err(MmError::Io));
        assert_eq!(file.read_at(HUGE + 8188, &mut bytes), Ok(4), "up to the bad frame");
        assert_eq!(file.read_at(HUGE, &mut bytes), Ok(8), "another frame of the page");
        assert_eq!(bytes, 5_u64.to_le_bytes());
        assert_eq!([told(&mm, BASE), told(&mm, private), told(&other, BASE)], [None; 3]);
        file.punch_hole(HUGE..2 * HUGE).unwrap();
        assert_eq!((info(manager, HugeSize::Size2M).total, manager.meminfo().bad), (5, 1));
        within(&other, || assert_eq!(load(machine, &other, BASE + HUGE), Ok(0), "the page is new"));
        [mm, other].into_iter().for_each(Mm::exit);
    });
}

/// The bad page is before a larger one: mappings of the larger page are not checked as if it started at the
/// bad page.
#[test]
fn a_bad_page_costs_no_page_of_another_size_behind_it() {
    const GIB: u64 = 1 << 30;
    let machine = HostedConfig::new(3 * GIB).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap();
        let pools = manager.huge_pools();
        for (size, pages) in [(HugeSize::Size1G, 1), (HugeSize::Size2M, 8)] {
            assert_eq!(pools.resize(manager.pages(), size, NodeSet::ALL, pages).after, pages);
        }
        let gigantic = manager.huge_file(HugeSize::Size1G, GIB).unwrap();
        let large = manager.huge_file(HugeSize::Size2M, 8 * HUGE).unwrap();
        let mm = manager.new_mm().unwrap();
        let (below, near, far) = (BASE, BASE + GIB, BASE + 2 * GIB);
        for at in [below, near] {
            mm.mmap(&of_file(&gigantic, Shared, at, (0, GIB / HUGE))).unwrap();
            mm.madvise(VirtAddr(at), GIB, Advice::Split).unwrap();
        }
        mm.mmap(&of_file(&large, Shared, far, (0, 8))).unwrap();
        within(&mm, || {
            [below, near].into_iter().for_each(|at| store(&machine, &mm, at, 1).unwrap());
            (0..8).for_each(|page| store(&machine, &mm, far + page * HUGE, page).unwrap());
            let leaf = |addr| machine.probe(mm.root(), VirtAddr(addr)).expect("mapped");
            let behind = leaf(near).frame;
            let before = (0..8).filter(|page| leaf(far + page * HUGE).frame < behind);
            let before: Vec<u64> = before.collect();
            assert!(!before.is_empty(), "the smaller pages stand before the larger one");
            for page in before {
                fail_under(&machine, &manager, &mm, far + page * HUGE + 109 * 4096);
                assert_eq!(told(&mm, far + page * HUGE), Some(FaultError::Poisoned));
                for at in (below..far).step_by(HUGE as usize) {
                    assert_eq!(leaf(at).frames, 1 << 18, "nothing of it was split, or lost");
                }
            }
            assert_eq!(load(&machine, &mm, near), Ok(1));
        });
        mm.exit();
        drop((gigantic, large));
        manager.validate().unwrap();
        machine.assert_clean();
    });
}

/// A free page with a bad frame is moved before the pool has been told of the frame. The pool counts the bad pages
/// that it has.
#[test]
fn a_page_moves_before_its_pool_knows_that_it_is_bad() {
    with_pool(HugeSize::Size2M, 64 << 20, 3, |_, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        let mut free = Vec::new();
        pools.each_free(pages, HugeSize::Size2M, |frame| free.push(frame));
        let [first, second] = [free[0].add(5), free[1].add(6)];
        assert_eq!([first, second].map(|frame| pages.condemn(frame)), [Verdict::Huge; 2]);
        manager.migrate(first).unwrap();
        pools.validate(pages).unwrap();
        assert_eq!(pools.memory_failure(pages, first), HugeFailure::Dissolved);
        assert_eq!(pools.memory_failure(pages, second), HugeFailure::Dissolved);
        pools.validate(pages).unwrap();
        assert_eq!(manager.meminfo().bad, 2);
    });
}
