//! Huge pages of files that are mapped in parts (`MADV_SPLIT`), with every descriptor policy that differs.

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, VirtAddr};
use quire::error::{FaultError, MmError};
use quire::hugetlb::HugeSize;
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Access, Advice, File, Remap};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, R, RW, Space, fork, load, of_file, private, run, store, with_config, with_huge,
    within,
};

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;

fn file<'m>(manager: &'m Manager<'_>, size: HugeSize, pages: u64) -> File<'m, Hosted> {
    manager.huge_file(size, pages * size.bytes()).expect("memory for a file")
}

fn split(mm: &Space<'_>, addr: u64, len: u64) {
    mm.madvise(VirtAddr(addr), len, Advice::Split).expect("shared huge pages");
}

fn drop_part(mm: &Space<'_>, addr: u64, len: u64) {
    mm.madvise(VirtAddr(addr), len, Advice::DontNeed).expect("parts may be unmapped");
}

/// The frame behind an address and how many the leaf maps.
fn leaf(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Option<(Frame, u64)> {
    let leaf = machine.probe(mm.root(), VirtAddr(addr))?;
    Some((leaf.frame.add((addr - leaf.addr.0) / PAGE), leaf.frames))
}

fn leaf_frames(machine: &Hosted, mm: &Space<'_>, addr: u64) -> u64 {
    leaf(machine, mm, addr).map_or(0, |(_, frames)| frames)
}

#[test]
fn only_shared_huge_pages_are_split_and_only_whole_ones() {
    with_huge(8, |machine, manager| {
        let file = file(manager, HugeSize::Size2M, 4);
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 4))).unwrap();
            mm.mmap(&private(BASE + 4 * HUGE, 2)).unwrap();
            let advise = |addr: u64, len| mm.madvise(VirtAddr(addr), len, Advice::Split);
            assert_eq!(advise(BASE + 4 * HUGE, HUGE), Err(MmError::Invalid), "private pages");
            assert_eq!(advise(BASE + 3 * HUGE, 2 * HUGE), Err(MmError::Invalid), "some of them private");
            assert_eq!(advise(BASE + PAGE, HUGE), Err(MmError::Invalid));
            assert_eq!(advise(BASE, HUGE + PAGE), Err(MmError::Invalid));
            assert_eq!(advise(BASE - HUGE, 2 * HUGE), Err(MmError::NoMemory), "a hole");
            assert_eq!(mm.madvise(VirtAddr(BASE + PAGE), PAGE, Advice::DontNeed), Err(MmError::Invalid));
            assert_eq!(mm.mappings(), 2);
            advise(BASE + HUGE, 2 * HUGE).unwrap();
            assert_eq!(mm.mappings(), 4, "a split mapping merges with no other");
            advise(BASE + HUGE, HUGE).unwrap();
            store(machine, mm, BASE + HUGE, 1).unwrap();
            assert_eq!(leaf_frames(machine, mm, BASE + HUGE), 512, "nothing was split yet");
            // Mappings still end at the ends of huge pages.
            assert_eq!(mm.munmap(VirtAddr(BASE + HUGE), PAGE), Err(MmError::Invalid));
            assert_eq!(mm.mprotect(VirtAddr(BASE + HUGE), PAGE, R), Err(MmError::Invalid));
        });
    });
}

#[test]
fn parts_come_and_go_by_themselves() {
    with_huge(4, |machine, manager| {
        let file = file(manager, HugeSize::Size2M, 2);
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
            split(mm, BASE, 2 * HUGE);
            (0..512).for_each(|page| store(machine, mm, BASE + page * PAGE, page + 1).unwrap());
            let (first, _) = leaf(machine, mm, BASE).unwrap();
            assert_eq!(mm.rss().huge, 512);
            drop_part(mm, BASE + 100 * PAGE, 8 * PAGE);
            assert_eq!(mm.rss().huge, 504);
            assert_eq!(leaf(machine, mm, BASE + 99 * PAGE), Some((first.add(99), 1)));
            assert_eq!(leaf(machine, mm, BASE + 100 * PAGE), None);
            for frame in [99, 108] {
                assert_eq!(manager.pages().counts().mapcount(first.add(frame)), 1);
            }
            for frame in [100, 107] {
                assert_eq!(
                    manager.pages().counts().mapcount(first.add(frame)),
                    0,
                    "exactly what is mapped counts"
                );
            }
            assert_eq!(load(machine, mm, BASE + 107 * PAGE), Ok(108), "the file has kept it");
            assert_eq!((mm.rss().huge, leaf_frames(machine, mm, BASE + 106 * PAGE)), (505, 0));
            assert_eq!(manager.pages().counts().mapcount(first.add(107)), 1);
            drop_part(mm, BASE, HUGE);
            assert_eq!(mm.rss().huge, 0);
            assert_eq!(load(machine, mm, BASE + PAGE), Ok(2));
            assert_eq!(leaf_frames(machine, mm, BASE), 512, "nothing is in the way of all of it");
        });
        assert_eq!(file.huge_pages().0, 1);
    });
}

#[test]
fn one_gigantic_page_has_leaves_of_every_size() {
    let machine = HostedConfig::new(3 * GIB);
    with_config(machine, HugeSize::Size1G, 1, |machine, manager| {
        let file = file(manager, HugeSize::Size1G, 1);
        let request = |addr| of_file(&file, Shared, addr, (0, GIB / HUGE));
        let (near, far) = (BASE, BASE + 2 * GIB);
        run(manager, |mm| {
            mm.mmap(&request(near)).unwrap();
            mm.mmap(&request(far)).unwrap();
            split(mm, far, GIB);
            store(machine, mm, near, 1).unwrap();
            store(machine, mm, far + GIB - 8, 2).unwrap();
            let (first, frames) = leaf(machine, mm, far).unwrap();
            assert_eq!((frames, leaf_frames(machine, mm, near)), (1 << 18, 1 << 18));
            drop_part(mm, far + 3 * HUGE + 5 * PAGE, PAGE);
            assert_eq!(leaf_frames(machine, mm, far), 512);
            assert_eq!(leaf_frames(machine, mm, far + 3 * HUGE), 1);
            let counts = |at: u64| manager.pages().counts().mapcount(first.add(at));
            assert_eq!([0, 3 * 512, 3 * 512 + 5, 4 * 512].map(counts), [2, 2, 1, 2]);
            drop_part(mm, far + 8 * HUGE, 4 * HUGE);
            assert_eq!([8 * 512 - 1, 8 * 512, 12 * 512].map(counts), [2, 1, 2]);
            assert_eq!(load(machine, mm, far + 9 * HUGE), Ok(0));
            assert_eq!(leaf_frames(machine, mm, far + 9 * HUGE), 512, "as much as is missing there");
            assert_eq!(load(machine, mm, far + 3 * HUGE + 5 * PAGE), Ok(0));
            assert_eq!(leaf_frames(machine, mm, far + 3 * HUGE + 5 * PAGE), 1);
            let mapped = mm.rss().huge;
            assert_eq!(mapped, 2 * (1 << 18) - 3 * 512);
            // The page moves in parts.
            mm.mremap(VirtAddr(far), GIB, GIB, Remap::Fixed(VirtAddr(far + 4 * GIB))).unwrap();
            assert_eq!(leaf_frames(machine, mm, far + 4 * GIB + 3 * HUGE), 1);
            assert_eq!(leaf_frames(machine, mm, far + 4 * GIB + 2 * HUGE), 512);
            assert_eq!(load(machine, mm, far + 5 * GIB - 8), Ok(2));
            mm.mprotect(VirtAddr(far + 4 * GIB), GIB, R).unwrap();
            assert_eq!(mm.fault(VirtAddr(far + 4 * GIB), Access::Write), Err(FaultError::Protection));
            mm.mprotect(VirtAddr(far + 4 * GIB), GIB, RW).unwrap();
            store(machine, mm, far + 4 * GIB + 3 * HUGE, 9).unwrap();
            assert_eq!(load(machine, mm, near + 3 * HUGE), Ok(9), "both show one page");
            let child = fork(mm);
            within(&child, || {
                assert_eq!(load(machine, &child, far + 4 * GIB + 3 * HUGE), Ok(9));
                assert_eq!(
                    leaf_frames(machine, &child, far + 4 * GIB),
                    1 << 18,
                    "pages of files come by faults"
                );
                child.madvise(VirtAddr(far + 4 * GIB), PAGE, Advice::DontNeed).expect("it may split as well");
            });
            mm.munmap(VirtAddr(far + 4 * GIB), GIB).unwrap();
            drop(child);
            assert_eq!([0, 3 * 512 + 5, 9 * 512].map(counts), [1; 3]);
        });
    });
}

#[test]
fn a_file_that_is_cut_takes_its_parts_along() {
    with_huge(6, |machine, manager| {
        let file = file(manager, HugeSize::Size2M, 3);
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 3))).unwrap();
            split(mm, BASE, 3 * HUGE);
            for page in 0..3 {
                store(machine, mm, BASE + page * HUGE, page + 1).unwrap();
                drop_part(mm, BASE + page * HUGE + PAGE, PAGE);
            }
            mm.mmap(&of_file(&file, Private, BASE + 8 * HUGE, (0, 3))).unwrap();
            store(machine, mm, BASE + 9 * HUGE, 7).unwrap();
            file.punch_hole(HUGE..2 * HUGE).unwrap();
            assert_eq!(mm.rss().huge, 2 * 511, "the private copy went as well");
            assert_eq!(load(machine, mm, BASE + HUGE), Ok(0));
            assert_eq!(load(machine, mm, BASE), Ok(1));
            file.truncate(HUGE).unwrap();
            assert_eq!(mm.fault(VirtAddr(BASE + 2 * HUGE), Access::Read), Err(FaultError::BeyondEnd));
            assert_eq!((mm.rss().huge, file.huge_pages().0), (511, 1));
        });
    });
}

#[test]
fn memory_that_goes_bad_costs_one_part() {
    let machine = HostedConfig::new(256 << 20).build().expect("the host refused a machine");
    machine.run_on(quire::cpu::CpuId(0), || {
        let ranges = testkit::ranges_of(&machine);
        let manager =
            hosted::raw::memory_manager(&machine, &ranges, &quire::manager::Config::default()).unwrap();
        let all = quire::page_alloc::NodeSet::ALL;
        let _ = manager.huge_pools().resize(manager.pages(), HugeSize::Size2M, all, 4);
        let file = file(&manager, HugeSize::Size2M, 2);
        run(&manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
            mm.mmap(&of_file(&file, Shared, BASE + 4 * HUGE, (0, 2))).unwrap();
            split(mm, BASE, 2 * HUGE);
            (0..4).for_each(|page| store(&machine, mm, BASE + page * PAGE, page).unwrap());
            store(&machine, mm, BASE + 4 * HUGE + 8, 5).unwrap();
            let (bad, _) = leaf(&machine, mm, BASE + 2 * PAGE).unwrap();
            manager.memory_failure(bad).unwrap();
            let told = |addr: u64| mm.fault(VirtAddr(addr), Access::Read).err();
            assert_eq!(told(BASE + 2 * PAGE), Some(FaultError::Poisoned));
            assert_eq!([told(BASE), told(BASE + 3 * PAGE)], [None; 2], "the rest stays");
            assert_eq!(load(&machine, mm, BASE + 3 * PAGE), Ok(3));
            assert_eq!(
                told(BASE + 4 * HUGE),
                Some(FaultError::Poisoned),
                "a page that is mapped whole is lost whole"
            );
            assert_eq!(mm.rss().huge, 511);
            // No leaf maps the lost part again, whichever address space maps the page anew.
            drop_part(mm, BASE, HUGE);
            assert_eq!(told(BASE + PAGE), None);
            assert_eq!(told(BASE + 2 * PAGE), Some(FaultError::Poisoned));
            assert_eq!((leaf_frames(&machine, mm, BASE + PAGE), leaf_frames(&machine, mm, BASE)), (1, 0));
        });
        // Nor in an address space that has no tables yet.
        run(&manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
            split(mm, BASE, 2 * HUGE);
            assert_eq!(load(&machine, mm, BASE + 3 * PAGE), Ok(3));
            let told = mm.fault(VirtAddr(BASE + 2 * PAGE), Access::Read);
            assert_eq!((told, leaf(&machine, mm, BASE + 2 * PAGE)), (Err(FaultError::Poisoned), None));
        });
        drop(file);
        manager.validate().unwrap();
    });
}

#[test]
fn marks_are_set_on_parts_of_what_is_split_alone() {
    with_huge(2, |machine, manager| {
        let file = file(manager, HugeSize::Size2M, 2);
        run(manager, |mm| {
            mm.mmap(&of_file(&file, Shared, BASE, (0, 2))).unwrap();
            split(mm, BASE, HUGE);
            (0..2).for_each(|page| store(machine, mm, BASE + page * HUGE, 1).unwrap());
            let mark = |addr| mm.write_protect_marked(VirtAddr(addr), PAGE);
            assert_eq!(mark(BASE + HUGE), Err(MmError::Invalid));
            assert_eq!(leaf_frames(machine, mm, BASE + HUGE), 512);
            mark(BASE).unwrap();
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Write), Err(FaultError::Marked));
            store(machine, mm, BASE + PAGE, 1).unwrap();
            mm.remove_write_protect_marks(VirtAddr(BASE), PAGE).unwrap();
            store(machine, mm, BASE, 2).unwrap();
        });
    });
}

/// Two address spaces map all of a block of a gigantic page in parts. One of them unmaps it in two steps, and
/// the other's leaves still count.
#[test]
fn parts_that_go_in_steps_leave_the_counts_of_others() {
    let machine = HostedConfig::new(3 * GIB);
    with_config(machine, HugeSize::Size1G, 1, |machine, manager| {
        let file = file(manager, HugeSize::Size1G, 1);
        let request = || of_file(&file, Shared, BASE, (0, GIB / HUGE));
        run(manager, |mm| {
            let other = manager.new_mm().unwrap();
            // The second block: the page's descriptor is in the record of the first.
            let at = BASE + HUGE;
            for space in [mm, &other] {
                space.mmap(&request()).unwrap();
                split(space, BASE, GIB);
                space.fault(VirtAddr(BASE), Access::Write).unwrap();
                drop_part(space, at, PAGE);
                space.fault(VirtAddr(at), Access::Write).unwrap();
                assert_eq!(leaf_frames(machine, space, at), 1);
            }
            let (first, _) = leaf(machine, mm, at).unwrap();
            let counts = || [0, 5, 6, 511].map(|page| manager.pages().counts().mapcount(first.add(page)));
            assert_eq!(counts(), [2; 4]);
            drop_part(&other, at + 6 * PAGE, 506 * PAGE);
            assert_eq!(counts(), [2, 2, 1, 1]);
            drop_part(&other, at, 6 * PAGE);
            assert_eq!(counts(), [1; 4]);
            other.exit();
            drop_part(mm, at, 6 * PAGE);
            assert_eq!(counts(), [0, 0, 1, 1]);
        });
    });
}
