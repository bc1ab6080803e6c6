//! Each change that takes anonymous memory, or a right to it, from a copy: a copy exists before and none
//! after. A lost bracket is noticed: otherwise this suite could not tell a correct library from one without
//! brackets (invariant 12).

use hosted::{Hosted, HostedConfig, Nested};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::arch::Protection;
use quire::vm::ForkStrategy::{Copy, Share};
use quire::vm::{Access, Advice, FolioPolicy, MapRequest, Remap};

use crate::nested::scene::{BASE, GUEST, PAGE, Scene, check_all};
use crate::nested::world::{MIB, R, RW, anonymous, small, with_manager};
use testkit::order;

/// Private memory that the virtual CPU has stored to, in folios of this order.
fn written(scene: &Scene<'_, '_>, folio: u8, len: u64) {
    scene.manager.set_folio_policy(FolioPolicy::only(order(folio)).with_pmd_mapped(folio == 9));
    scene.mm.mmap(&anonymous(BASE, len)).unwrap();
    scene.store(BASE, len);
}

fn frame_at(scene: &Scene<'_, '_>, addr: u64) -> quire::addr::Frame {
    scene.mm.translate(VirtAddr(addr), Access::Read).expect("mapped").frame
}

fn fork_takes_stores(scene: &Scene<'_, '_>, folio: u8) {
    written(scene, folio, 4 * MIB);
    let mut child = None;
    scene.verb(BASE, 4 * MIB, || child = Some(scene.mm.fork().unwrap()));
    child.unwrap().exit();
}

fn store_copies(scene: &Scene<'_, '_>, folio: u8) {
    written(scene, folio, 2 * MIB);
    let child = scene.mm.fork().unwrap();
    scene.load(BASE, 2 * MIB);
    scene.verb(BASE + 7 * PAGE, PAGE, || {
        scene.mm.fault(VirtAddr(BASE + 7 * PAGE), Access::Write).unwrap();
    });
    child.exit();
}

fn moves(scene: &Scene<'_, '_>, folio: u8) {
    written(scene, folio, 2 * MIB);
    let frame = frame_at(scene, BASE);
    let bytes = order(folio).bytes();
    scene.verb(BASE, bytes, || {
        assert_eq!(scene.manager.migrate(frame), Ok(bytes / PAGE));
    });
}

#[test]
fn unmapping() {
    check_all(&[
        ("whole tables", Copy, |scene| {
            written(scene, 0, 4 * MIB);
            scene.verb(BASE, 4 * MIB, || scene.mm.munmap(VirtAddr(BASE), 4 * MIB).unwrap());
        }),
        ("some leaves", Copy, |scene| {
            written(scene, 2, 2 * MIB);
            scene.verb(BASE + 8 * PAGE, 3 * PAGE, || {
                scene.mm.munmap(VirtAddr(BASE + 8 * PAGE), 3 * PAGE).unwrap()
            });
            assert!(scene.copies(BASE, 8 * PAGE) == 8, "the neighbours stay");
        }),
        ("part of a large leaf", Copy, |scene| {
            written(scene, 9, 2 * MIB);
            assert_eq!(scene.nested.copy_at(0).map(|copy| copy.bytes), Some(2 * MIB));
            scene.verb(BASE, 2 * MIB, || scene.mm.munmap(VirtAddr(BASE + MIB), PAGE).unwrap());
        }),
        ("a large leaf", Copy, |scene| {
            written(scene, 9, 4 * MIB);
            scene.verb(BASE, 2 * MIB, || scene.mm.munmap(VirtAddr(BASE), 2 * MIB).unwrap());
            assert_eq!(scene.copies(BASE + 2 * MIB, 2 * MIB), 1, "the other one stays");
        }),
        ("a mapping over it", Copy, |scene| {
            written(scene, 0, MIB);
            scene.verb(BASE, 16 * PAGE, || {
                scene.mm.mmap(&MapRequest { prot: R, ..anonymous(BASE, 16 * PAGE) }).unwrap();
            });
        }),
        ("given up", Copy, |scene| {
            written(scene, 4, MIB);
            scene.verb(BASE, MIB, || scene.mm.madvise(VirtAddr(BASE), MIB, Advice::DontNeed).unwrap());
        }),
        ("the zero frame given up", Copy, |scene| {
            scene.mm.mmap(&anonymous(BASE, MIB)).unwrap();
            scene.load(BASE, MIB);
            scene.verb(BASE, MIB, || scene.mm.munmap(VirtAddr(BASE), MIB).unwrap());
        }),
        ("the heap's end", Copy, |scene| {
            scene.mm.set_brk_start(VirtAddr(BASE));
            assert_eq!(scene.mm.brk(VirtAddr(BASE + MIB)), VirtAddr(BASE + MIB));
            scene.store(BASE, MIB);
            scene.verb(BASE + MIB / 2, MIB / 2, || {
                scene.mm.brk(VirtAddr(BASE + MIB / 2));
            });
        }),
        ("a shared table", Share, |scene| {
            written(scene, 0, 4 * MIB);
            let child = scene.mm.fork().unwrap();
            scene.load(BASE, 4 * MIB);
            scene.verb(BASE, 4 * MIB, || scene.mm.munmap(VirtAddr(BASE), 4 * MIB).unwrap());
            child.exit();
        }),
        ("a shared table that reaches into another mapping", Share, |scene| {
            written(scene, 0, MIB);
            scene.mm.mmap(&MapRequest { prot: R, ..anonymous(BASE + MIB, MIB) }).unwrap();
            let child = scene.mm.fork().unwrap();
            scene.load(BASE, MIB);
            scene.verb(BASE, MIB, || scene.mm.munmap(VirtAddr(BASE), MIB).unwrap());
            child.exit();
        }),
        ("part of a shared table", Share, |scene| {
            written(scene, 0, 4 * MIB);
            let child = scene.mm.fork().unwrap();
            scene.load(BASE, 4 * MIB);
            scene.verb(BASE, PAGE, || scene.mm.munmap(VirtAddr(BASE), PAGE).unwrap());
            child.exit();
        }),
    ]);
}

#[test]
fn rights() {
    check_all(&[
        ("read only", Copy, |scene| {
            written(scene, 0, MIB);
            scene.verb(BASE, MIB, || scene.mm.mprotect(VirtAddr(BASE), MIB, R).unwrap());
        }),
        ("nothing at all", Copy, |scene| {
            written(scene, 0, MIB);
            scene.mm.mprotect(VirtAddr(BASE), MIB, R).unwrap();
            scene.load(BASE, MIB);
            scene.verb(BASE, MIB, || scene.mm.mprotect(VirtAddr(BASE), MIB, Protection::NONE).unwrap());
        }),
        ("soft-dirty cleared", Copy, |scene| {
            written(scene, 9, 2 * MIB);
            scene.verb(BASE, 2 * MIB, || scene.mm.clear_soft_dirty(VirtAddr(BASE), 2 * MIB).unwrap());
        }),
        ("marked for a handler", Copy, |scene| {
            written(scene, 0, MIB);
            scene.verb(BASE, MIB, || scene.mm.write_protect_marked(VirtAddr(BASE), MIB).unwrap());
        }),
        ("freed lazily", Copy, |scene| {
            written(scene, 0, MIB);
            scene.verb(BASE, MIB, || scene.mm.madvise(VirtAddr(BASE), MIB, Advice::Free).unwrap());
        }),
        ("freed lazily, and dropped", Copy, |scene| {
            written(scene, 0, 24 * MIB);
            scene.mm.madvise(VirtAddr(BASE), 24 * MIB, Advice::Free).unwrap();
            scene.load(BASE, PAGE);
            scene.verb(BASE, PAGE, || {
                scene.mm.mmap(&anonymous(BASE + 64 * MIB, 128 * MIB)).unwrap();
                assert!(
                    scene.mm.madvise(VirtAddr(BASE + 64 * MIB), 128 * MIB, Advice::PopulateWrite).is_err()
                );
            });
        }),
        ("forked", Copy, |scene| fork_takes_stores(scene, 0)),
        ("forked, large leaves", Copy, |scene| fork_takes_stores(scene, 9)),
        ("forked, tables shared", Share, |scene| fork_takes_stores(scene, 0)),
    ]);
}

#[test]
fn other_frames() {
    check_all(&[
        ("a copy on a store", Copy, |scene| store_copies(scene, 0)),
        ("a copy of part of a large leaf", Copy, |scene| store_copies(scene, 9)),
        ("a copy out of a shared table", Share, |scene| store_copies(scene, 0)),
        ("a store where zeroes were read", Copy, |scene| {
            scene.mm.mmap(&anonymous(BASE, MIB)).unwrap();
            scene.load(BASE, MIB);
            scene.verb(BASE, PAGE, || {
                scene.mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            });
        }),
        ("moved to another address", Copy, |scene| {
            written(scene, 0, 4 * MIB);
            scene.verb(BASE, 4 * MIB, || {
                let to = Remap::Fixed(VirtAddr(BASE + 64 * MIB));
                scene.mm.mremap(VirtAddr(BASE), 4 * MIB, 4 * MIB, to).unwrap();
            });
        }),
        ("moved off its alignment", Copy, |scene| {
            written(scene, 9, 4 * MIB);
            scene.verb(BASE, 4 * MIB, || {
                let to = Remap::Fixed(VirtAddr(BASE + 64 * MIB + PAGE));
                scene.mm.mremap(VirtAddr(BASE), 4 * MIB, 4 * MIB, to).unwrap();
            });
        }),
        ("moved and left mapped", Copy, |scene| {
            written(scene, 0, MIB);
            scene.verb(BASE, MIB, || {
                let to = Remap::FixedDontUnmap(VirtAddr(BASE + 64 * MIB));
                scene.mm.mremap(VirtAddr(BASE), MIB, MIB, to).unwrap();
            });
        }),
        ("migrated", Copy, |scene| moves(scene, 0)),
        ("migrated, a folio", Copy, |scene| moves(scene, 4)),
        ("migrated, a large leaf", Copy, |scene| moves(scene, 9)),
        ("moved out of the way", Copy, |scene| {
            written(scene, 0, MIB);
            let block = frame_at(scene, BASE).block();
            scene.verb(BASE, PAGE, || {
                let range = FrameRange::new(block.first_frame(), Order::BLOCK.frames());
                assert!(scene.manager.move_out(range) > 0);
            });
        }),
        ("gone bad", Copy, |scene| {
            written(scene, 9, 2 * MIB);
            let bad = frame_at(scene, BASE).add(5);
            scene.verb(BASE + 5 * PAGE, PAGE, || {
                scene.manager.memory_failure(bad).unwrap();
            });
        }),
    ]);
}

/// A registration for the life of an address space is told of the exit.
#[test]
fn the_end_of_an_address_space_is_a_bracket() {
    small(|machine, manager| {
        let mm = manager.new_mm().unwrap();
        mm.register_secondary().keep();
        let nested = Nested::new(machine, &mm, VirtAddr(BASE), GUEST, 1);
        mm.mmap(&anonymous(BASE, MIB)).unwrap();
        let cpu = nested.cpu(0);
        (0..MIB).step_by(4096).for_each(|at| cpu.store(&mm, at, 1).unwrap());
        assert_eq!(nested.copies(0..MIB).len() as u64, MIB / PAGE);
        mm.exit();
        assert_eq!(nested.copies(0..GUEST), []);
    });
}

/// An address space without a secondary MMU makes no call, nor does one whose MMU was removed.
#[test]
fn an_address_space_without_a_secondary_mmu_calls_none() {
    with_manager(HostedConfig::new(64 * MIB).with_cpus(2), |machine, manager| {
        let verbs = |machine: &Hosted| {
            let mm = manager.new_mm().unwrap();
            mm.mmap(&anonymous(BASE, 4 * MIB)).unwrap();
            mm.madvise(VirtAddr(BASE), 4 * MIB, Advice::PopulateWrite).unwrap();
            let child = mm.fork().unwrap();
            mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            child.exit();
            mm.mprotect(VirtAddr(BASE), MIB, R).unwrap();
            mm.munmap(VirtAddr(BASE + MIB), MIB).unwrap();
            let calls = machine.counters();
            assert_eq!((calls.brackets, calls.bracket_ends, calls.collapses_told), (0, 0, 0));
            drop(mm.register_secondary());
            mm.mprotect(VirtAddr(BASE), MIB, RW).unwrap();
            mm.munmap(VirtAddr(BASE), MIB).unwrap();
            assert_eq!(machine.counters().brackets, 0);
            let registered = mm.register_secondary();
            mm.munmap(VirtAddr(BASE + 2 * MIB), MIB).unwrap();
            let calls = machine.counters();
            assert_eq!((calls.brackets, calls.bracket_ends), (1, 1), "though no CPU runs it");
            drop(registered);
        };
        verbs(machine);
    });
}
