//! Memory that is populated, shared, moved, reclaimed and collapsed before, or without, a store.

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::VirtRange;
use quire::platform::FileId;
use quire::vm::{
    Access, Advice, AnswerMode, Backing, File, MapRequest, Remap, Sharing, UserfaultChanges, UserfaultModes,
};

use super::support::{BASE, Case, Ground, MIB, PAGE, at, check, config, only, store_all};
use crate::vm::world::{Manager, R, RW, Space, anonymous, load, run};

const LEN: u64 = 4 * MIB;

fn populated(manager: &Manager<'_>, test: impl FnOnce(&Space<'_>)) {
    run(manager, |mm| {
        mm.mmap(&anonymous(BASE, LEN)).unwrap();
        mm.madvise(at(BASE), LEN, Advice::PopulateWrite).unwrap();
        test(mm);
    });
}

fn shared<'f>(file: &'f File<'_, Hosted>) -> MapRequest<'f> {
    let backing = Backing::File { file, page_offset: 0 };
    MapRequest { sharing: Sharing::Shared, backing, ..anonymous(BASE, LEN) }
}

fn load_all(machine: &Hosted, mm: &Space<'_>) {
    (BASE..BASE + LEN).step_by(PAGE as usize).for_each(|at| assert_eq!(load(machine, mm, at), Ok(0)));
}

/// With folios of 2 MiB. A frame or two are page tables whose entries were all taken away. Of a leaf that was split it is
/// not known that no store reached its parts.
const LARGE: [Case; 9] = [
    ("moved", 0, |_, manager| {
        populated(manager, |mm| {
            mm.mremap(at(BASE), LEN, LEN, Remap::Fixed(at(BASE + 64 * MIB))).unwrap();
            mm.mremap(at(BASE + 64 * MIB), 2 * MIB, 2 * MIB, Remap::Fixed(at(BASE))).unwrap();
        });
    }),
    ("protected and locked", 0, |_, manager| {
        populated(manager, |mm| {
            mm.mprotect(at(BASE), LEN, R).unwrap();
            mm.mprotect(at(BASE), LEN, RW).unwrap();
            mm.mlock(at(BASE), LEN, false).unwrap();
            mm.munlock(at(BASE), LEN).unwrap();
        });
    }),
    ("shared with a child that reads", 0, |machine, manager| {
        populated(manager, |mm| {
            let child = mm.fork().unwrap();
            mm.switch_out();
            child.switch_in();
            load_all(machine, &child);
            child.switch_out();
            child.exit();
            mm.switch_in();
        });
    }),
    ("shared with a child that stores", 2, |machine, manager| {
        populated(manager, |mm| {
            let child = mm.fork().unwrap();
            mm.switch_out();
            child.switch_in();
            store_all(machine, &child, BASE, LEN);
            child.switch_out();
            child.exit();
            mm.switch_in();
            store_all(machine, mm, BASE, LEN);
        });
    }),
    ("free for the taking", 0, |machine, manager| {
        populated(manager, |mm| {
            mm.madvise(at(BASE), LEN, Advice::Free).unwrap();
            manager.reclaim();
            store_all(machine, mm, BASE, LEN / 2);
            mm.madvise(at(BASE), LEN / 2, Advice::Free).unwrap();
        });
    }),
    ("a page of each is given up", 1025, |_, manager| {
        populated(manager, |mm| {
            mm.madvise(at(BASE + MIB), PAGE, Advice::DontNeed).unwrap();
            mm.munmap(at(BASE + 3 * MIB), PAGE).unwrap();
        });
    }),
    ("a page of each is protected", 513, |_, manager| {
        populated(manager, |mm| mm.mprotect(at(BASE + MIB), PAGE, R).unwrap());
    }),
    ("dropped", 1, |_, manager| {
        populated(manager, |mm| mm.madvise(at(BASE), LEN, Advice::DontNeed).unwrap());
    }),
    ("moved by the allocator", 0, |_, manager| {
        populated(manager, |mm| {
            let mut frames = Vec::new();
            let range = VirtRange::from_len(at(BASE), LEN);
            mm.mapped(range, |found| frames.push(found.frames.start));
            frames.into_iter().for_each(|frame| _ = manager.migrate(frame));
        });
    }),
];

/// With pages of 4 KiB. Nothing says of a page of a file that no store reached it, nor that its pager filled it with zeroes.
const SMALL: [Case; 6] = [
    ("loads, then stores", 0, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, LEN)).unwrap();
            load_all(machine, mm);
            let child = mm.fork().unwrap();
            store_all(machine, mm, BASE, LEN);
            mm.switch_out();
            child.switch_in();
            load_all(machine, &child);
            store_all(machine, &child, BASE, LEN);
            child.switch_out();
            child.exit();
            mm.switch_in();
        });
    }),
    ("free for the taking, reclaimed and used again", 0, |machine, manager| {
        run(manager, |mm| {
            mm.mmap(&anonymous(BASE, LEN)).unwrap();
            for _ in 0..2 {
                store_all(machine, mm, BASE, LEN);
                mm.madvise(at(BASE), LEN, Advice::Free).unwrap();
                manager.reclaim();
            }
            store_all(machine, mm, BASE, LEN);
        });
    }),
    ("shmem that is read", 1024, |machine, manager| {
        let file = manager.shmem(LEN).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file)).unwrap();
            load_all(machine, mm);
        });
        drop(file);
    }),
    ("shmem that is read and copied", 1024, |machine, manager| {
        let file = manager.shmem(LEN).unwrap();
        run(manager, |mm| {
            mm.mmap(&MapRequest { sharing: Sharing::Private, ..shared(&file) }).unwrap();
            load_all(machine, mm);
            store_all(machine, mm, BASE, LEN);
        });
        drop(file);
    }),
    ("a file that ends inside a page", 511, |machine, manager| {
        machine.files().set_size(FileId(4), LEN - 100);
        let file = manager.open(FileId(4)).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file)).unwrap();
            mm.madvise(at(BASE), LEN, Advice::PopulateRead).unwrap();
        });
        file.truncate(LEN / 2 + 10).unwrap();
        file.truncate(LEN).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file)).unwrap();
            mm.madvise(at(BASE), LEN, Advice::PopulateRead).unwrap();
        });
        drop(file);
        manager.reclaim();
    }),
    ("shmem behind its end", 0, |machine, manager| {
        let file = manager.shmem(LEN - 100).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file)).unwrap();
            store_all(machine, mm, BASE, LEN);
            file.truncate(LEN / 2 + 10).unwrap();
            file.truncate(LEN).unwrap();
            store_all(machine, mm, BASE, LEN);
        });
        drop(file);
    }),
];

/// An allocation that fails after a page of zeroes was allocated for a file: the page is freed as zeroes.
#[test]
fn a_page_of_zeroes_that_cannot_be_entered() {
    const NO_MEMORY: fn(&Hosted, &Manager<'_>) = |machine, manager| {
        let file = manager.shmem(LEN).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file)).unwrap();
            let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
            for nth in 0.. {
                machine.set_failures(FailurePlan::Nth(nth));
                let faulted = mm.fault(at(BASE + nth * PAGE), Access::Read);
                let all = machine.allocations_asked() <= nth;
                machine.set_failures(FailurePlan::Off);
                assert_eq!(faulted.is_ok(), all, "{faulted:?}");
                if all {
                    break;
                }
            }
            let from = BASE + LEN / 2;
            mm.userfault_register(&handler, at(from), LEN / 2, UserfaultModes::MISSING).unwrap();
            for nth in 0.. {
                machine.set_failures(FailurePlan::Nth(nth));
                let answered = mm.userfault_zeropage(at(from + nth * PAGE), PAGE, AnswerMode::WAKE).all();
                let all = machine.allocations_asked() <= nth;
                machine.set_failures(FailurePlan::Off);
                assert_eq!(answered.is_ok(), all, "{answered:?}");
                if all {
                    break;
                }
            }
            mm.userfault_unregister(at(from), LEN / 2).unwrap();
            handler.close();
            store_all(machine, mm, BASE, LEN);
        });
        drop(file);
    };
    let case = ("no memory", 0, NO_MEMORY);
    check(Ground::Pieces, &HostedConfig::new(32 * MIB), &config(only(0)), &[case]);
}

#[test]
fn memory_that_is_not_stored_to() {
    for case in LARGE {
        check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(only(9)), &[case]);
    }
    for case in SMALL {
        check(Ground::Pieces, &HostedConfig::new(32 * MIB), &config(only(0)), &[case]);
        check(Ground::Pieces, &HostedConfig::new(32 * MIB), &config(only(4)), &[case]);
    }
}
