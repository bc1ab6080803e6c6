//! Each change that takes pages of files, or rights to them, from a copy.

use hosted::Hosted;
use quire::addr::VirtAddr;
use quire::platform::FileId;
use quire::vm::ForkStrategy::Copy;
use quire::vm::{Access, Backing, File, MapRequest, Sharing};

use crate::nested::scene::{BASE, PAGE, Scene, check_all};
use crate::nested::world::{MIB, anonymous};

/// A file of 1 MiB, mapped.
fn mapped<'m>(scene: &Scene<'_, 'm>, sharing: Sharing) -> File<'m, Hosted> {
    scene.machine.files().set_size(FileId(3), MIB);
    let file = scene.manager.open(FileId(3)).unwrap();
    let backing = Backing::File { file: &file, page_offset: 0 };
    scene.mm.mmap(&MapRequest { sharing, backing, ..anonymous(BASE, MIB) }).unwrap();
    file
}

fn frame_at(scene: &Scene<'_, '_>) -> quire::addr::Frame {
    scene.mm.translate(VirtAddr(BASE), Access::Read).expect("mapped").frame
}

#[test]
fn pages_of_files() {
    check_all(&[
        ("dropped when memory is short", Copy, |scene| {
            let file = mapped(scene, Sharing::Private);
            scene.load(BASE, 16 * PAGE);
            scene.verb(BASE, 16 * PAGE, || while scene.manager.reclaim() > 0 {});
            assert_eq!(file.resident(), 0);
        }),
        ("written back", Copy, |scene| {
            let file = mapped(scene, Sharing::Shared);
            scene.store(BASE, 16 * PAGE);
            assert_eq!(file.dirty(), 16);
            scene.verb(BASE, 16 * PAGE, || file.sync().unwrap());
            assert_eq!(file.dirty(), 0);
        }),
        ("cut off", Copy, |scene| {
            let file = mapped(scene, Sharing::Shared);
            scene.store(BASE, MIB);
            scene.verb(BASE + MIB / 2, MIB / 2, || file.truncate(MIB / 2).unwrap());
            assert!(scene.copies(BASE, MIB / 2) > 0);
        }),
        ("a private copy cut off", Copy, |scene| {
            let file = mapped(scene, Sharing::Private);
            scene.store(BASE, MIB);
            scene.verb(BASE + MIB / 2, MIB / 2, || file.truncate(MIB / 2).unwrap());
        }),
        ("copied on a store", Copy, |scene| {
            let _file = mapped(scene, Sharing::Private);
            scene.load(BASE, 16 * PAGE);
            scene.verb(BASE, PAGE, || {
                scene.mm.fault(VirtAddr(BASE), Access::Write).unwrap();
            });
        }),
        ("migrated", Copy, |scene| {
            let _file = mapped(scene, Sharing::Shared);
            scene.store(BASE, 16 * PAGE);
            let frame = frame_at(scene);
            scene.verb(BASE, PAGE, || assert_eq!(scene.manager.migrate(frame), Ok(1)));
        }),
        ("gone bad, clean", Copy, |scene| {
            let _file = mapped(scene, Sharing::Private);
            scene.load(BASE, 16 * PAGE);
            let frame = frame_at(scene);
            scene.verb(BASE, PAGE, || {
                scene.manager.memory_failure(frame).unwrap();
            });
        }),
        ("gone bad, dirty", Copy, |scene| {
            let _file = mapped(scene, Sharing::Shared);
            scene.store(BASE, 16 * PAGE);
            let frame = frame_at(scene);
            scene.verb(BASE, PAGE, || {
                scene.manager.memory_failure(frame).unwrap();
            });
        }),
        ("shared anonymous memory cut off", Copy, |scene| {
            let file = scene.manager.shmem(MIB).unwrap();
            let backing = Backing::File { file: &file, page_offset: 0 };
            scene.mm.mmap(&MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, MIB) }).unwrap();
            scene.store(BASE, MIB);
            scene.verb(BASE, MIB, || file.truncate(0).unwrap());
        }),
    ]);
}

/// A store through a copy after a sync is noticed: the file is dirty again, with the stored word.
#[test]
fn what_is_stored_after_a_sync_is_dirty_again() {
    let caught = crate::nested::scene::is_caught(
        |scene| {
            let file = mapped(scene, Sharing::Shared);
            scene.store(BASE, 4 * PAGE);
            scene.verb(BASE, 4 * PAGE, || file.sync().unwrap());
            scene.store(BASE + PAGE, PAGE);
            assert_eq!(file.dirty(), 1);
        },
        Copy,
        hosted::FailurePlan::Off,
    );
    assert!(!caught);
}
