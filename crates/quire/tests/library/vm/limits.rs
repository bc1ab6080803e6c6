//! Limits of address spaces, each reached exactly: the number of mappings, the last page of user space, the
//! heap's end, map counts around the largest number in a byte.

use hosted::{Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::error::MmError;
use quire::limits::{CLEAR_STRETCH_BYTES, MAX_MAPPINGS};
use quire::vm::{Access, Advice, FolioPolicy, MapRequest, MappedLimits, OrderPolicy, Placement, Remap};

use crate::vm::world::{MIB, R, RW, Space, anonymous, load, run, small, store, with_manager};

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;

/// Maps separate single pages, or unmaps some, until there are so many mappings.
fn fill(mm: &Space<'_>, next: &mut u64, mappings: usize) {
    while mm.mappings() > mappings {
        *next -= 2 * PAGE;
        mm.munmap(VirtAddr(*next), PAGE).unwrap();
    }
    while mm.mappings() < mappings {
        mm.mmap(&anonymous(*next, PAGE)).unwrap();
        *next += 2 * PAGE;
    }
}

/// A verb on three pages in the middle of a mapping, the most mappings with which it works, and how many more
/// it leaves. As in Linux a new mapping may be one more than the limit, and a cut may not.
type Verb = (&'static str, usize, usize, fn(&Space<'_>, u64) -> Result<(), MmError>);

const VERBS: [Verb; 6] = [
    ("mmap", MAX_MAPPINGS, 1, |mm, at| mm.mmap(&anonymous(at - BASE / 2, PAGE)).map(drop)),
    ("munmap of a hole", MAX_MAPPINGS - 1, 1, |mm, at| mm.munmap(VirtAddr(at), PAGE)),
    ("mprotect", MAX_MAPPINGS - 2, 2, |mm, at| mm.mprotect(VirtAddr(at), PAGE, R)),
    ("mlock", MAX_MAPPINGS - 2, 2, |mm, at| mm.mlock(VirtAddr(at), PAGE, true)),
    ("madvise", MAX_MAPPINGS - 2, 2, |mm, at| mm.madvise(VirtAddr(at), PAGE, Advice::NoHugePage)),
    ("brk", MAX_MAPPINGS, 1, |mm, at| {
        let start = VirtAddr(at - BASE / 4);
        mm.set_brk_start(start);
        if mm.brk(start.add(PAGE)) == start { Err(MmError::NoMemory) } else { Ok(()) }
    }),
];

#[test]
fn there_are_as_many_mappings_as_allowed_and_not_one_more() {
    with_manager(HostedConfig::new(128 * MIB), |_, manager| {
        run(manager, |mm| {
            let mut next = 2 * BASE;
            // Each verb has a mapping of its own to cut.
            let places = (0..VERBS.len() as u64).map(|number| BASE + number * 64 * PAGE);
            places.clone().for_each(|at| _ = mm.mmap(&anonymous(at, 32 * PAGE)).unwrap());
            for (at, (name, most, more, verb)) in places.zip(VERBS) {
                fill(mm, &mut next, most + 1);
                let at = at + 8 * PAGE;
                assert_eq!(verb(mm, at), Err(MmError::NoMemory), "{name}");
                assert_eq!(mm.mappings(), most + 1, "{name}");
                fill(mm, &mut next, most);
                assert_eq!(verb(mm, at), Ok(()), "{name}");
                assert_eq!(mm.mappings(), most + more, "{name}");
            }
            // Verbs that need no new mapping work, and verbs that leave fewer.
            mm.mprotect(VirtAddr(BASE), 4 * 64 * PAGE, RW).expect_err("there are holes");
            let before = mm.mappings();
            mm.munmap(VirtAddr(BASE), 32 * PAGE).unwrap();
            assert!(mm.mappings() < before);
        });
    });
}

#[test]
fn the_last_page_of_user_space_is_used_and_none_behind_it() {
    small(|machine, manager| {
        run(manager, |mm| {
            let end = mm.layout().user.end.0;
            let last = end - PAGE;
            mm.mmap(&anonymous(last - PAGE, 2 * PAGE)).unwrap();
            store(machine, mm, end - 8, 7).unwrap();
            assert_eq!(load(machine, mm, end - 8), Ok(7));
            assert!(machine.read(VirtAddr(end - 4), &mut [0; 8]).is_err(), "half of it is behind the end");
            assert!(mm.fault(VirtAddr(end), Access::Read).is_err());
            let before = mm.mappings();
            for (addr, len) in
                [(end, PAGE), (last, 2 * PAGE), (last, u64::MAX), (u64::MAX - 4095, PAGE), (0, end + 1)]
            {
                refused(mm, addr, len);
                // As in Linux, some verbs do what they can before they find the hole behind the end.
                mm.mprotect(VirtAddr(last), PAGE, RW).unwrap();
                mm.munlock(VirtAddr(last), PAGE).unwrap();
                assert_eq!(mm.mappings(), before, "{addr:#x} +{len:#x}");
            }
            let at = VirtAddr(last);
            mm.mprotect(at, PAGE, R).unwrap();
            assert!(store(machine, mm, end - 8, 8).is_err());
            mm.mprotect(at, PAGE, RW).unwrap();
            mm.mlock(at, PAGE, false).unwrap();
            mm.munlock(at, PAGE).unwrap();
            mm.madvise(at, PAGE, Advice::PopulateWrite).unwrap();
            let child = mm.fork().unwrap();
            store(machine, mm, end - 8, 9).unwrap();
            child.validate().unwrap();
            drop(child);
            mm.mremap(at, PAGE, PAGE, Remap::Fixed(VirtAddr(BASE))).unwrap();
            assert_eq!(load(machine, mm, BASE + PAGE - 8), Ok(9));
            mm.mremap(VirtAddr(BASE), PAGE, PAGE, Remap::Fixed(at)).unwrap();
            assert_eq!(load(machine, mm, end - 8), Ok(9));
            assert!(mm.mremap(at, PAGE, 2 * PAGE, Remap::InPlace).is_err(), "there is no room behind");
            mm.madvise(at, PAGE, Advice::DontNeed).unwrap();
            assert_eq!(load(machine, mm, end - 8), Ok(0));
            mm.munmap(at, PAGE).unwrap();
            assert!(load(machine, mm, end - 8).is_err());
        });
    });
}

/// Ranges that leave user space, or wrap around, are refused by every verb.
fn refused(mm: &Space<'_>, addr: u64, len: u64) {
    let (at, what) = (VirtAddr(addr), format!("{addr:#x} +{len:#x}"));
    assert!(mm.mmap(&anonymous(addr, len)).is_err(), "mmap {what}");
    let request = quire::vm::MapRequest { placement: Placement::FixedNoReplace, ..anonymous(addr, len) };
    assert!(mm.mmap(&request).is_err(), "mmap {what}");
    assert!(mm.munmap(at, len).is_err(), "munmap {what}");
    assert!(mm.mprotect(at, len, R).is_err(), "mprotect {what}");
    // In Linux's arithmetic the longest length wraps around to zero.
    assert_eq!(mm.mlock(at, len, true).is_ok(), len == u64::MAX, "mlock {what}");
    assert_eq!(mm.munlock(at, len).is_ok(), len == u64::MAX, "munlock {what}");
    assert!(mm.madvise(at, len, Advice::DontNeed).is_err(), "madvise {what}");
    let from = VirtAddr(mm.layout().user.end.0 - 2 * PAGE);
    assert!(mm.mremap(from, PAGE, len, Remap::Fixed(at)).is_err(), "mremap {what}");
}

#[test]
fn the_heap_ends_at_the_byte_that_was_asked_for() {
    small(|machine, manager| {
        run(manager, |mm| {
            let end = mm.layout().user.end;
            let start = VirtAddr(end.0 - 3 * PAGE);
            mm.set_brk_start(start);
            for (asked, there) in [
                (start.0, start.0),
                (start.0 + 1, start.0 + 1),
                (start.0 - 1, start.0 + 1),
                (end.0, end.0),
                (end.0 + 1, end.0),
                (u64::MAX, end.0),
            ] {
                assert_eq!(mm.brk(VirtAddr(asked)), VirtAddr(there), "{asked:#x}");
            }
            store(machine, mm, end.0 - 8, 5).unwrap();
            // The heap keeps a page before the next mapping, and is refused one byte more.
            mm.brk(start);
            mm.mmap(&anonymous(end.0 - PAGE, PAGE)).unwrap();
            assert_eq!(mm.brk(start.add(PAGE + 1)), start);
            assert_eq!(mm.brk(start.add(PAGE)), start.add(PAGE));
            assert_eq!(mm.rss().anon, 0);
        });
    });
}

/// Map counts of 254 to 257, of a page by itself, of a small folio and of 2 MiB, as children are forked and
/// exit. Pages that the parent stores to are copied as long as any child is there.
#[test]
fn a_page_is_mapped_by_254_to_257_address_spaces() {
    for number in [0, 4, 9] {
        let order = Order::new(number).unwrap();
        with_manager(HostedConfig::new(128 * MIB), |machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(order).with_pmd_mapped(false));
            run(manager, |mm| counted_by_children(machine, manager, mm, order));
        });
    }
}

fn counted_by_children(
    machine: &Hosted,
    manager: &crate::vm::world::Manager<'_>,
    mm: &Space<'_>,
    order: Order,
) {
    mm.mmap(&anonymous(BASE, order.bytes())).unwrap();
    store(machine, mm, BASE, 7).unwrap();
    let frame = machine.probe(mm.root(), VirtAddr(BASE)).unwrap().frame;
    let count = || manager.pages().counts().mapcount(frame);
    let mut children = Vec::new();
    for spaces in 2..=257 {
        children.push(mm.fork().unwrap());
        assert_eq!(count(), spaces);
    }
    store(machine, mm, BASE, 8).unwrap();
    assert_eq!(count(), 256, "the parent has a copy");
    manager.validate().unwrap();
    for (left, child) in (0..256).rev().zip(children) {
        if left % 64 == 3 {
            // One page of it is unmapped by itself.
            child.munmap(VirtAddr(BASE), PAGE).unwrap();
            assert_eq!(count(), left);
        }
        drop(child);
        assert_eq!(count(), left);
    }
    assert_eq!(load(machine, mm, BASE), Ok(8));
}

/// Invariant 7: with larger folios a reschedule point comes once a stretch was populated, not one page
/// earlier.
#[test]
fn others_run_after_each_stretch_that_is_populated() {
    const STRETCH: u64 = CLEAR_STRETCH_BYTES / PAGE;
    let sizes = (1..=6).map(|number| Order::new(number).unwrap());
    let policy = sizes.fold(FolioPolicy::only(Order::FRAME), |all, size| all.with(size, OrderPolicy::Always));
    small(|machine, manager| {
        manager.set_folio_policy(policy);
        run(manager, |mm| {
            for (pages, points) in [(STRETCH - 1, 0), (STRETCH, 1), (2 * STRETCH - 1, 1)] {
                // One page behind a boundary, so that folios of 1, 2, 4 and more pages reach the next one.
                let (start, len) = (VirtAddr(BASE + PAGE), pages * PAGE);
                mm.mmap(&anonymous(start.0, len)).unwrap();
                let before = machine.counters().reschedule_points;
                mm.madvise(start, len, Advice::PopulateWrite).unwrap();
                assert_eq!(machine.counters().reschedule_points - before, points, "{pages} pages");
                mm.munmap(start, len).unwrap();
            }
        });
    });
}

#[test]
fn no_verb_maps_more_than_the_limits() {
    small(|_, manager| {
        run(manager, |mm| {
            let at = |page: u64| VirtAddr(BASE + page * 4096);
            let map = |page: u64, pages: u64, prot| {
                let request = MapRequest { prot, ..anonymous(at(page).0, pages * 4096) };
                mm.mmap(&request).map(drop)
            };
            mm.set_mapped_limits(MappedLimits { all: 8 * 4096, data: 4 * 4096 });
            assert_eq!(map(0, 9, R), Err(MmError::NoMemory));
            map(0, 6, R).unwrap();
            assert_eq!(map(6, 3, R), Err(MmError::NoMemory));
            map(4, 4, R).unwrap();
            assert_eq!(map(8, 1, R), Err(MmError::NoMemory), "8 pages are mapped");
            assert_eq!(mm.mprotect(at(0), 5 * 4096, RW), Err(MmError::NoMemory));
            mm.mprotect(at(0), 4 * 4096, RW).unwrap();
            mm.mprotect(at(0), 4 * 4096, RW).unwrap();
            assert_eq!(mm.mprotect(at(4), 4096, RW), Err(MmError::NoMemory), "4 pages are data");
            assert_eq!(map(0, 4, RW), Ok(()), "they replace as many");
            assert_eq!(mm.mremap(at(4), 4 * 4096, 5 * 4096, Remap::MayMove), Err(MmError::NoMemory));
            mm.munmap(at(6), 2 * 4096).unwrap();
            assert_eq!(mm.mremap(at(0), 4 * 4096, 5 * 4096, Remap::MayMove), Err(MmError::NoMemory));
            mm.mremap(at(4), 2 * 4096, 3 * 4096, Remap::MayMove).unwrap();
            assert_eq!(
                mm.mremap(at(4), 3 * 4096, 3 * 4096, Remap::DontUnmap(VirtAddr(0))),
                Err(MmError::NoMemory)
            );
            mm.munmap(at(2), 2 * 4096).unwrap();
            mm.set_brk_start(at(64));
            assert_eq!(mm.brk(at(66)), at(66));
            assert_eq!(mm.brk(at(67)), at(66));
            let child = mm.fork().unwrap();
            assert_eq!(child.brk(at(67)), at(66), "a child has the same limits");
            child.exit();
            mm.set_mapped_limits(MappedLimits::NONE);
            assert_eq!(mm.brk(at(67)), at(67));
        });
    });
}
