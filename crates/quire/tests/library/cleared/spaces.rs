//! Programs: what they map, store to, share and give up.

use hosted::{Hosted, HostedConfig};
use quire::addr::{Order, VirtRange};
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::limits::CLEAR_STRETCH_BYTES;
use quire::page_alloc::{Gfp, MemoryRange, NodeSet};
use quire::platform::FileId;
use quire::vm::{Access, Advice, Backing, Collapser, File, MapRequest, Placement, Remap, Sharing, Splitter};
use testkit::ranges_of;

use super::alloc::write_to;
use super::support::{BASE, Case, Ground, MIB, PAGE, at, check, config, idle, only, store_all};
use crate::vm::world::{Manager, R, RW, Space, anonymous, load, run, store};
use crate::watched::Watched;

const LEN: u64 = 8 * MIB;

fn of_file<'f>(file: &'f File<'_, Hosted>, len: u64, sharing: Sharing) -> MapRequest<'f> {
    MapRequest { sharing, backing: Backing::File { file, page_offset: 0 }, ..anonymous(BASE, len) }
}

fn map(mm: &Space<'_>) {
    mm.mmap(&anonymous(BASE, LEN)).unwrap();
}

/// A child of the program runs.
fn fork(mm: &Space<'_>, test: impl FnOnce(&Space<'_>)) {
    let child = mm.fork().unwrap();
    mm.switch_out();
    child.switch_in();
    test(&child);
    child.switch_out();
    child.exit();
    mm.switch_in();
}

/// With folios of 2 MiB. One frame or two are page tables whose entries were all taken away.
const CASES: [Case; 17] = [
    ("faults", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("populate", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            mm.madvise(at(BASE), LEN, Advice::PopulateWrite).unwrap();
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("munmap and madvise", 1, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            for _ in 0..3 {
                store_all(machine, mm, BASE, LEN);
                mm.madvise(at(BASE + MIB), 3 * MIB, Advice::DontNeed).unwrap();
                store_all(machine, mm, BASE, LEN);
                mm.madvise(at(BASE + 3 * MIB), 4 * MIB, Advice::Free).unwrap();
                mm.munmap(at(BASE + 5 * MIB), 2 * MIB).unwrap();
                mm.mmap(&anonymous(BASE + 5 * MIB, 2 * MIB)).unwrap();
            }
        })
    }),
    ("reads of nothing", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            (BASE..BASE + LEN).step_by(4096).for_each(|at| assert_eq!(load(machine, mm, at), Ok(0)));
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("mlock", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            mm.mlock(at(BASE), LEN, false).unwrap();
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("mprotect and mremap", 1, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            mm.mprotect(at(BASE), MIB, R).unwrap();
            mm.mprotect(at(BASE), MIB, RW).unwrap();
            mm.mremap(at(BASE), 4 * MIB, 4 * MIB, Remap::Fixed(at(BASE + 16 * MIB))).unwrap();
            store_all(machine, mm, BASE + 16 * MIB, 4 * MIB);
        })
    }),
    ("fork", 2, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            fork(mm, |child| store_all(machine, child, BASE, LEN / 2));
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("collapse", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            let _ = mm.madvise(at(BASE), LEN, Advice::Collapse);
            store_all(machine, mm, BASE, LEN);
            let mut collapser = Collapser::default();
            for _ in 0..4 {
                manager.collapse_ahead(&mut collapser);
            }
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("collapse with few holes", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN - MIB);
            let _ = mm.madvise(at(BASE), LEN, Advice::Collapse);
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("collapse with many holes", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            (0..LEN / MIB).for_each(|n| store_all(machine, mm, BASE + n * MIB, MIB / 4));
            let _ = mm.madvise(at(BASE), LEN, Advice::Collapse);
            store_all(machine, mm, BASE, LEN);
        })
    }),
    ("underused", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            let _ = mm.madvise(at(BASE), LEN, Advice::Collapse);
            let mut splitter = Splitter::new(0);
            for _ in 0..4 {
                manager.split_underused(&mut splitter, 100);
            }
        })
    }),
    ("shmem", 0, |machine, manager| {
        let file = manager.shmem(LEN).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, LEN, Sharing::Shared)).unwrap();
            store_all(machine, mm, BASE, LEN);
            file.punch_hole(MIB + 100..3 * MIB + 300).unwrap();
            file.truncate(LEN - MIB + 77).unwrap();
            store_all(machine, mm, BASE, LEN - MIB);
        });
        drop(file);
    }),
    ("file", 0, |machine, manager| {
        machine.files().set_size(FileId(3), LEN);
        let file = manager.open(FileId(3)).unwrap();
        run(manager, |mm| {
            mm.mmap(&of_file(&file, LEN, Sharing::Private)).unwrap();
            mm.madvise(at(BASE), LEN, Advice::PopulateRead).unwrap();
            store_all(machine, mm, BASE, LEN / 2);
        });
        file.truncate(MIB + 5).unwrap();
        manager.reclaim();
    }),
    ("page tables", 0, |machine, manager| {
        run(manager, |mm| {
            let far = 3 << 30;
            for n in 0..16 {
                mm.mmap(&anonymous(BASE + n * far, PAGE)).unwrap();
                store(machine, mm, BASE + n * far, 1).unwrap();
            }
            (0..16).step_by(2).for_each(|n| mm.munmap(at(BASE + n * far), PAGE).unwrap());
        })
    }),
    ("migration", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            (0..8).for_each(|n| {
                let mut frames = Vec::new();
                mm.mapped(VirtRange::new(at(BASE + n * MIB), at(BASE + n * MIB + PAGE)), |found| {
                    frames.push(found.frames.start)
                });
                frames.into_iter().for_each(|frame| _ = manager.migrate(frame));
            });
            manager.compact(NodeSet::ALL);
        })
    }),
    ("contig", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            mm.madvise(at(BASE), LEN / 2, Advice::DontNeed).unwrap();
            if let Ok(run) = manager.alloc_contig(Gfp::USER, 2, 1) {
                write_to(machine, run.frames().start, Order::new(10).unwrap());
                assert!(manager.pages().free_contig(run).is_ok());
            }
        })
    }),
    ("idle", 0, |machine, manager| {
        run(manager, |mm| {
            map(mm);
            store_all(machine, mm, BASE, LEN);
            mm.madvise(at(BASE), LEN / 2, Advice::DontNeed).unwrap();
            idle(manager);
            store_all(machine, mm, BASE, LEN);
        })
    }),
];

#[test]
fn programs_that_store_to_what_they_have() {
    for number in [0, 2, 4, 6, 8] {
        let cases = CASES.map(|(name, _, case)| (name, 0, case));
        check(Ground::Pieces, &HostedConfig::new(32 * MIB), &config(only(number)), &cases);
    }
    check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(only(9)), &CASES);
}

/// Leaves below 2 MiB are mapped dirty: that they were not stored through is not known. Larger ones keep the mark.
#[test]
fn memory_that_is_populated_and_never_stored_to() {
    const UNTOUCHED: fn(&Hosted, &Manager<'_>) = |_, manager| {
        run(manager, |mm| {
            map(mm);
            mm.madvise(at(BASE), LEN, Advice::PopulateWrite).unwrap();
        });
    };
    for (number, ground, expected) in
        [(0, Ground::Pieces, 2048), (4, Ground::Pieces, 2048), (9, Ground::Blocks, 0)]
    {
        let machine = HostedConfig::new(32 * MIB);
        check(ground, &machine, &config(only(number)), &[("untouched", expected, UNTOUCHED)]);
    }
}

/// A collapse prefers a target that is not known to be zero when it stores to most of it. Where all free memory is zero, it
/// clears the holes nevertheless.
#[test]
fn holes_that_a_collapse_fills() {
    let collapses = CASES.iter().filter(|(name, ..)| name.starts_with("collapse with"));
    for (&(name, _, case), expected) in collapses.zip([256, 0]) {
        check(Ground::Blocks, &HostedConfig::new(64 * MIB), &config(only(0)), &[(name, expected, case)]);
    }
}

/// A killed task frees a folio that it has cleared in part, and no mark says which part.
#[test]
fn a_task_that_is_killed_in_a_fault() {
    let machine = HostedConfig::new(32 * MIB).watching_clears().build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let stale = ranges_of(&machine).into_iter().map(|range| MemoryRange { zeroed: false, ..range });
        let manager =
            hosted::raw::memory_manager(&watched, &stale.collect::<Vec<_>>(), &config(only(9))).unwrap();
        let mm = manager.new_mm().unwrap();
        let (addr, prot, placement) = (at(BASE), RW, Placement::Fixed);
        mm.mmap(&MapRequest { addr, len: 2 * MIB, prot, placement, ..MapRequest::default() }).unwrap();
        // It lives at the first two of the reschedule points.
        watched.dies_after(Some(2));
        assert_eq!(mm.fault(addr, Access::Write).err(), Some(FaultError::Dying));
        watched.dies_after(None);
        assert_eq!(machine.frames_cleared_again(), 0);
        mm.fault(addr, Access::Write).unwrap();
        assert_eq!(machine.frames_cleared_again(), 3 * CLEAR_STRETCH_BYTES / PAGE);
    });
}
