//! Each change that takes huge pages of pools from a copy.

use hosted::Hosted;
use quire::addr::VirtAddr;
use quire::hugetlb::HugeSize;
use quire::page_alloc::NodeSet;
use quire::vm::ForkStrategy::Copy;
use quire::vm::{Access, Advice, Backing, File, MapRequest, Sharing};

use crate::nested::scene::{BASE, Scene, check_all};
use crate::nested::world::{MIB, anonymous};

const HUGE: u64 = 2 * MIB;

fn pool(scene: &Scene<'_, '_>, pages: u64) {
    assert_eq!(scene.manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, pages).after, pages);
}

fn private(scene: &Scene<'_, '_>, pages: u64) {
    pool(scene, 2 * pages);
    scene.mm.mmap(&MapRequest { huge: Some(HugeSize::Size2M), ..anonymous(BASE, pages * HUGE) }).unwrap();
    scene.store(BASE, pages * HUGE);
}

fn shared<'m>(scene: &Scene<'_, 'm>, pages: u64) -> File<'m, Hosted> {
    pool(scene, pages);
    let file = scene.manager.huge_file(HugeSize::Size2M, pages * HUGE).unwrap();
    let backing = Backing::File { file: &file, page_offset: 0 };
    scene
        .mm
        .mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, pages * HUGE) })
        .unwrap();
    scene.store(BASE, pages * HUGE);
    file
}

fn frame_at(scene: &Scene<'_, '_>) -> quire::addr::Frame {
    scene.mm.translate(VirtAddr(BASE), Access::Read).expect("mapped").frame
}

#[test]
fn huge_pages() {
    check_all(&[
        ("unmapped", Copy, |scene| {
            private(scene, 3);
            scene.verb(BASE, HUGE, || scene.mm.munmap(VirtAddr(BASE), HUGE).unwrap());
        }),
        ("given up", Copy, |scene| {
            private(scene, 3);
            scene.verb(BASE, HUGE, || scene.mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap());
        }),
        ("forked", Copy, |scene| {
            private(scene, 2);
            let mut child = None;
            scene.verb(BASE, 2 * HUGE, || child = Some(scene.mm.fork().unwrap()));
            child.unwrap().exit();
        }),
        ("copied on a store", Copy, |scene| {
            private(scene, 2);
            let child = scene.mm.fork().unwrap();
            scene.load(BASE, 2 * HUGE);
            scene.verb(BASE, HUGE, || {
                scene.mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            });
            child.exit();
        }),
        ("gone bad", Copy, |scene| {
            private(scene, 2);
            let frame = frame_at(scene);
            scene.verb(BASE, HUGE, || {
                scene.manager.memory_failure(frame.add(3)).unwrap();
            });
        }),
        ("gone bad, of a file", Copy, |scene| {
            let _file = shared(scene, 2);
            let frame = frame_at(scene);
            scene.verb(BASE, HUGE, || {
                scene.manager.memory_failure(frame.add(3)).unwrap();
            });
        }),
        ("cut off", Copy, |scene| {
            let file = shared(scene, 3);
            scene.verb(BASE + HUGE, 2 * HUGE, || file.truncate(HUGE).unwrap());
        }),
        ("a hole", Copy, |scene| {
            let file = shared(scene, 3);
            scene.verb(BASE + HUGE, HUGE, || file.punch_hole(HUGE..2 * HUGE).unwrap());
        }),
    ]);
}

/// A child's second-stage tables are told too when its parent takes back the child's copy: the child has
/// nothing left to read.
#[test]
fn what_a_parent_takes_back() {
    let caught = crate::nested::scene::is_caught(
        |scene| {
            pool(scene, 2);
            let parent = scene.manager.new_mm().unwrap();
            parent.mmap(&MapRequest { huge: Some(HugeSize::Size2M), ..anonymous(BASE, HUGE) }).unwrap();
            parent.fault(VirtAddr(BASE), Access::Write).unwrap();
            // Another mapping has the page that a copy would take.
            scene.mm.mmap(&MapRequest { huge: Some(HugeSize::Size2M), ..anonymous(BASE, HUGE) }).unwrap();
            scene.store(BASE, HUGE);
            let child = parent.fork().unwrap();
            let registered = child.register_secondary();
            let nested = hosted::Nested::new(scene.machine, &child, VirtAddr(BASE), HUGE, 1);
            assert_eq!(nested.cpu(0).load(&child, 0), Ok(0));
            parent.fault(VirtAddr(BASE), Access::Write).unwrap();
            assert_eq!(nested.copies(0..HUGE), []);
            assert!(nested.cpu(0).load(&child, 0).is_err());
            drop(nested);
            drop(registered);
            child.exit();
            parent.exit();
            scene.verb(BASE, HUGE, || scene.mm.munmap(VirtAddr(BASE), HUGE).unwrap());
        },
        Copy,
        hosted::FailurePlan::Off,
    );
    assert!(!caught);
}
