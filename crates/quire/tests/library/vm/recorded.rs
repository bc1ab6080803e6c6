//! Accessed bits survive every verb that moves, copies, splits or joins leaves (invariant 3): a used page
//! counts as used afterwards, and an unused one does not.

use hosted::Hosted;
use quire::addr::{Order, VirtAddr};
use quire::vm::{Advice, FolioPolicy, ForkStrategy, Remap};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, load, run, small, store, with_forks};

const BASE: u64 = 0x4000_0000;
const PAGE: u64 = 4096;
const HUGE: u64 = 2 * MIB;

/// The accessed bits of the pages from an address on; `None` where nothing is mapped.
fn accessed(machine: &Hosted, mm: &Space<'_>, base: u64, pages: u64) -> Vec<Option<bool>> {
    let leaf = |page| machine.probe(mm.root(), VirtAddr(base + page * PAGE));
    (0..pages).map(|page| leaf(page).map(|leaf| leaf.accessed)).collect()
}

/// Two times 2 MiB of written memory, of which only `used` pages are used since.
fn scene(machine: &Hosted, mm: &Space<'_>, used: impl Fn(u64) -> bool) {
    mm.mmap(&anonymous(BASE, 2 * HUGE)).unwrap();
    (0..1024).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
    // `MADV_FREE` clears both bits.
    mm.madvise(VirtAddr(BASE), 2 * HUGE, Advice::Free).unwrap();
    assert!(accessed(machine, mm, BASE, 1024).iter().all(|&bit| bit == Some(false)));
    for page in (0..1024).filter(|&page| used(page)) {
        if page % 2 == 0 {
            assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page));
        } else {
            store(machine, mm, BASE + page * PAGE, page).unwrap();
        }
    }
}

fn third(page: u64) -> bool {
    page.is_multiple_of(3)
}

/// A verb that keeps the bits: the pages are found from the returned address on.
type Verb = fn(&Hosted, &Manager<'_>, &Space<'_>) -> u64;

const VERBS: [(&str, Verb); 8] = [
    ("mprotect", |_, _, mm| {
        mm.mprotect(VirtAddr(BASE), 2 * HUGE, R).unwrap();
        mm.mprotect(VirtAddr(BASE + PAGE), HUGE, RW).unwrap();
        BASE
    }),
    ("mremap", |_, _, mm| {
        let to = VirtAddr(BASE + 64 * HUGE);
        mm.mremap(VirtAddr(BASE), 2 * HUGE, 2 * HUGE, Remap::Fixed(to)).unwrap();
        to.0
    }),
    ("mremap off its alignment", |_, _, mm| {
        let to = VirtAddr(BASE + 64 * HUGE + PAGE);
        mm.mremap(VirtAddr(BASE), 2 * HUGE, 2 * HUGE, Remap::Fixed(to)).unwrap();
        to.0
    }),
    ("fork", |_, _, mm| {
        mm.fork().unwrap().exit();
        BASE
    }),
    ("fork, and a store that takes a table back", |machine, _, mm| {
        let child = mm.fork().unwrap();
        store(machine, mm, BASE, 1).unwrap();
        store(machine, mm, BASE + HUGE, 1).unwrap();
        child.exit();
        BASE
    }),
    ("migration", |machine, manager, mm| {
        let mut frames = machine.leaves(mm.root()).iter().map(|leaf| leaf.frame).collect::<Vec<_>>();
        frames.dedup();
        assert!(frames.iter().map(|&frame| manager.migrate(frame).unwrap_or(0)).sum::<u64>() > 0);
        BASE
    }),
    ("mlock", |_, _, mm| {
        mm.mlock(VirtAddr(BASE), HUGE, true).unwrap();
        mm.munlock(VirtAddr(BASE), HUGE).unwrap();
        BASE
    }),
    ("tracking", |_, _, mm| {
        mm.clear_soft_dirty(VirtAddr(BASE), 2 * HUGE).unwrap();
        BASE
    }),
];

#[test]
fn every_verb_keeps_accessed_bits_of_small_leaves() {
    for fork in [ForkStrategy::Copy, ForkStrategy::Share] {
        for (name, verb) in VERBS {
            with_forks(hosted::HostedConfig::new(64 * MIB), fork, |machine, manager| {
                manager.set_folio_policy(FolioPolicy::FRAMES);
                run(manager, |mm| {
                    scene(machine, mm, third);
                    let base = verb(machine, manager, mm);
                    let found = accessed(machine, mm, base, 1024);
                    // The verb itself stores to pages 0 and 512.
                    for page in (0..1024).filter(|page| page % 512 != 0) {
                        let expected = Some(third(page));
                        assert_eq!(found[page as usize], expected, "{name}, {fork:?}, page {page}");
                    }
                });
            });
        }
    }
}

/// The pieces of a split leaf of 2 MiB count as used if it did.
#[test]
fn every_verb_keeps_accessed_bits_of_large_leaves() {
    for (name, verb) in VERBS {
        for used in [0, 1] {
            small(|machine, manager| {
                manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
                run(manager, |mm| {
                    scene(machine, mm, |page| page == used * 512 + 6);
                    let base = verb(machine, manager, mm);
                    let found = accessed(machine, mm, base, 1024);
                    for page in (0..1024).filter(|page| page % 512 != 0) {
                        let expected = page / 512 == used;
                        assert_eq!(found[page as usize], Some(expected), "{name}, page {page}");
                    }
                });
            });
        }
    }
}

/// One leaf in the place of many counts as used if one of them did, copied or in place.
#[test]
fn a_collapse_keeps_that_a_page_was_used() {
    for policy in [FolioPolicy::FRAMES, FolioPolicy::only(Order::BLOCK).with_pmd_mapped(false)] {
        for used in [None, Some(0), Some(77), Some(511)] {
            small(|machine, manager| {
                manager.set_folio_policy(policy);
                run(manager, |mm| {
                    scene(machine, mm, |page| Some(page) == used);
                    let report = mm.collapse(VirtAddr(BASE), HUGE).unwrap();
                    assert_eq!(report.collapsed(), 1, "{report:?}");
                    let leaf = machine.probe(mm.root(), VirtAddr(BASE)).unwrap();
                    assert_eq!((leaf.frames, leaf.accessed), (512, used.is_some()), "{used:?}, {policy:?}");
                });
            });
        }
    }
}
