//! Pages of 1 GiB of files that shared mappings map piece by piece as they are cleared, in one address space
//! or in several. Any verb but a fault finds a page that is mapped by one leaf, or not at all.

use std::collections::BTreeMap;
use std::time::Instant;

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::error::FaultError;
use quire::hugetlb::HugeSize::Size1G;
use quire::vm::Sharing::{Private, Shared};
use quire::vm::{Access, Advice, Backing, FaultKind, File, MapRequest};
use quire::vm::{AnswerMode, UserfaultChanges, UserfaultModes};

use crate::hugetlb::pieces::{ALL_FREE, GIB, idle, leaf_bytes, with_machine, with_pages};
use crate::hugetlb::world::{BASE, HUGE, Manager, R, RW, Space, info, load, of_file, run, store, within};
use crate::watched::{Event, Watched};
use testkit::{seed, stress_time};

type Huge<'m> = File<'m, Hosted>;

/// A shared mapping of so many pages of the file.
fn shared<'f>(file: &'f Huge<'_>, pages: u64) -> MapRequest<'f> {
    of_file(file, Shared, BASE, (0, pages * 512))
}

/// Bytes that were cleared for pages since `before`, page tables left out.
fn cleared_since(machine: &Hosted, before: u64) -> u64 {
    (machine.counters().bytes_cleared - before) / HUGE * HUGE
}

/// The pause of a first touch: the bytes cleared before the fault returns. Each byte is cleared once, for
/// whatever address space.
#[test]
fn a_fault_waits_for_its_own_piece_in_every_address_space() {
    with_machine(1, 1, |machine, manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        let [first, second] = [(); 2].map(|()| manager.new_mm().unwrap());
        for mm in [&first, &second] {
            mm.mmap(&shared(&file, 1)).unwrap();
        }
        let before = machine.counters().bytes_cleared;
        within(&first, || {
            let outcome = first.fault(VirtAddr(BASE + 350 * HUGE + 4096), Access::Write).unwrap();
            assert_eq!((outcome.order, outcome.kind), (Order::BLOCK, FaultKind::FileMinor));
            assert_eq!(cleared_since(machine, before), HUGE, "the pause");
            store(machine, &first, BASE + 350 * HUGE, 7).unwrap();
            assert_eq!((first.rss().huge, file.huge_pages()), (512, (1, 0)));
        });
        within(&second, || {
            assert_eq!(load(machine, &second, BASE + 350 * HUGE), Ok(7));
            assert_eq!(cleared_since(machine, before), HUGE, "it was ready");
            store(machine, &second, BASE + 5 * HUGE, 8).unwrap();
            assert_eq!((leaf_bytes(machine, &second, BASE + 6 * HUGE), second.rss().huge), (None, 1024));
        });
        // 510 pieces, and the end.
        assert_eq!(idle(manager), 511);
        for (mm, at, word) in [(&first, 5, 8), (&second, 350, 7), (&first, 511, 0), (&second, 0, 0)] {
            within(mm, || {
                assert_eq!(leaf_bytes(machine, mm, BASE + at * HUGE), Some(GIB));
                assert_eq!((load(machine, mm, BASE + at * HUGE), mm.rss().huge), (Ok(word), GIB / 4096));
            });
        }
        assert_eq!(cleared_since(machine, before), GIB, "each byte once");
        [first, second].into_iter().for_each(|mm| mm.exit());
        assert_eq!(info(manager, Size1G).free, 0, "the file has it");
        drop(file);
    });
}

type Verb = (&'static str, for<'m> fn(&Hosted, &'m Manager<'m>, &Space<'m>, &Huge<'m>));

/// Verbs that need the page complete it: what was stored stays, and one leaf maps it afterwards.
const COMPLETING: [Verb; 6] = [
    ("register", |_, manager, mm, _| {
        let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
        mm.userfault_register(&handler, VirtAddr(BASE), GIB, UserfaultModes::MISSING).unwrap();
        mm.userfault_unregister(VirtAddr(BASE), GIB).unwrap();
    }),
    ("mark", |_, _, mm, _| {
        mm.write_protect_marked(VirtAddr(BASE), GIB).unwrap();
        mm.remove_write_protect_marks(VirtAddr(BASE), GIB).unwrap();
    }),
    ("migrate", |machine, manager, mm, _| {
        let frame = mm.translate(VirtAddr(BASE + 77 * HUGE), Access::Read).unwrap().frame;
        assert_eq!(manager.migrate(frame), Ok(512 * 512));
        assert_eq!(load(machine, mm, BASE), Ok(0));
        assert_ne!(mm.translate(VirtAddr(BASE + 77 * HUGE), Access::Read).unwrap().frame, frame);
    }),
    ("mlock", |_, _, mm, _| mm.mlock(VirtAddr(BASE), GIB, false).unwrap()),
    ("private mapping", |machine, _, mm, file| {
        let own = MapRequest { addr: VirtAddr(BASE + 8 * GIB), sharing: Private, ..shared(file, 1) };
        mm.mmap(&own).unwrap();
        assert_eq!(load(machine, mm, BASE + 8 * GIB + 77 * HUGE), Ok(5));
        mm.munmap(VirtAddr(BASE + 8 * GIB), GIB).unwrap();
    }),
    ("mapping of parts", |machine, _, mm, file| {
        let parts = VirtAddr(BASE + 8 * GIB);
        mm.mmap(&MapRequest { addr: parts, ..shared(file, 1) }).unwrap();
        mm.madvise(parts, GIB, Advice::Split).unwrap();
        assert_eq!(load(machine, mm, parts.0 + 77 * HUGE), Ok(5));
        mm.munmap(parts, GIB).unwrap();
    }),
];

#[test]
fn verbs_complete_a_page_that_they_need() {
    for (name, verb) in COMPLETING {
        with_machine(2, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            run(manager, |mm| {
                mm.mmap(&shared(&file, 1)).unwrap();
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                verb(machine, manager, mm, &file);
                assert_eq!(load(machine, mm, BASE + 78 * HUGE), Ok(0), "{name}");
                assert_eq!(leaf_bytes(machine, mm, BASE + 511 * HUGE), Some(GIB), "{name}");
                assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(5), "{name}");
                assert_eq!(mm.rss().huge, GIB / 4096, "{name}");
                assert_eq!(idle(manager), 0, "{name}");
                store(machine, mm, BASE, 6).unwrap();
            });
            drop(file);
        });
    }
}

/// `read(2)` waits for nothing: what is not cleared yet reads as zero, whatever the memory held.
#[test]
fn a_piece_that_is_not_ready_reads_as_zeroes() {
    with_machine(1, 1, |machine, manager| {
        for round in 0..2 {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            run(manager, |mm| {
                mm.mmap(&shared(&file, 1)).unwrap();
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                let mut words = [9; 16];
                for (at, word) in [(77, 5), (78, 0), (511, 0)] {
                    assert_eq!(file.read_at(at * HUGE, &mut words), Ok(16));
                    assert_eq!(u64::from_le_bytes(*words.first_chunk().unwrap()), word, "{round} {at}");
                }
                // The next file's page is full of what this one leaves.
                (0..512).for_each(|piece| store(machine, mm, BASE + piece * HUGE, 9).unwrap());
            });
            drop(file);
        }
    });
}

/// Memory that a mapping gives up stays with the file, in pieces, and comes back by faults.
#[test]
fn unmapping_leaves_the_page_in_pieces() {
    type Unmaps = fn(&Space<'_>, &Huge<'_>);
    let verbs: [(&str, Unmaps); 3] = [
        ("munmap", |mm, file| {
            mm.munmap(VirtAddr(BASE), GIB).unwrap();
            mm.mmap(&shared(file, 1)).unwrap();
        }),
        ("dontneed", |mm, _| mm.madvise(VirtAddr(BASE), GIB, Advice::DontNeed).unwrap()),
        ("map over", |mm, file| _ = mm.mmap(&shared(file, 1)).unwrap()),
    ];
    for (name, verb) in verbs {
        for ended in [false, true] {
            with_machine(1, 1, |machine, manager| {
                let file = manager.huge_file(Size1G, GIB).unwrap();
                run(manager, |mm| {
                    mm.mmap(&shared(&file, 1)).unwrap();
                    let before = machine.counters().bytes_cleared;
                    store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                    verb(mm, &file);
                    assert_eq!((mm.rss().huge, file.huge_pages()), (0, (1, 0)), "{name}");
                    if ended {
                        assert_eq!(idle(manager), 512, "{name}");
                    }
                    assert_eq!(load(machine, mm, BASE + 77 * HUGE), Ok(5), "{name}");
                    assert_eq!(load(machine, mm, BASE + 78 * HUGE), Ok(0), "{name}");
                    let _ = idle(manager);
                    assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB), "{name}");
                    assert_eq!(cleared_since(machine, before), GIB, "{name}");
                });
                drop(file);
            });
        }
    }
}

/// A file that drops the page returns it to its pool with the marks of the blocks that are zero.
#[test]
fn a_file_cancels_a_page_that_it_drops() {
    type Drops = (&'static str, fn(Huge<'_>) -> Option<Huge<'_>>);
    let verbs: [Drops; 3] = [
        ("truncate", |file| {
            file.truncate(0).unwrap();
            Some(file)
        }),
        ("punch", |file| {
            file.punch_hole(0..GIB).unwrap();
            Some(file)
        }),
        ("close", |file| {
            drop(file);
            None
        }),
    ];
    for (name, drops) in verbs {
        with_machine(1, 1, |machine, manager| {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            run(manager, |mm| {
                mm.mmap(&MapRequest { noreserve: true, ..shared(&file, 1) }).unwrap();
                let before = machine.counters().bytes_cleared;
                store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
                assert!(manager.clear_ahead());
                let file = drops(file);
                if file.is_none() {
                    mm.munmap(VirtAddr(BASE), GIB).unwrap();
                }
                assert_eq!((info(manager, Size1G), mm.rss().huge), (ALL_FREE(1), 0), "{name}");
                assert_eq!(idle(manager), 0, "{name}");
                // One of the two blocks that were cleared was stored to.
                let other = manager.huge_file(Size1G, GIB).unwrap();
                let at = BASE + 8 * GIB;
                mm.mmap(&MapRequest { addr: VirtAddr(at), ..shared(&other, 1) }).unwrap();
                assert_eq!(load(machine, mm, at + 77 * HUGE), Ok(0), "{name}");
                let _ = idle(manager);
                assert_eq!(cleared_since(machine, before), GIB + HUGE, "{name}");
            });
        });
    }
}

/// An answer of a handler of faults finds a whole page.
#[test]
fn a_handler_resumes_on_a_whole_page() {
    with_machine(1, 1, |machine, manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        let handler = manager.userfault(UserfaultChanges::NONE).unwrap();
        let watched = VirtAddr(BASE + 8 * GIB);
        run(manager, |mm| {
            mm.mmap(&shared(&file, 1)).unwrap();
            mm.mmap(&MapRequest { addr: watched, ..shared(&file, 1) }).unwrap();
            mm.userfault_register(&handler, watched, GIB, UserfaultModes::MINOR).unwrap();
            store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
            assert_eq!(mm.userfault_continue(watched, GIB, AnswerMode::default()).bytes, GIB);
            assert_eq!(load(machine, mm, watched.0 + 77 * HUGE), Ok(5));
            assert_eq!(load(machine, mm, watched.0 + 78 * HUGE), Ok(0));
            assert_eq!(leaf_bytes(machine, mm, BASE), Some(GIB));
        });
        drop(file);
    });
}

#[test]
fn a_frame_that_goes_bad_costs_the_page() {
    with_machine(2, 1, |machine, manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        run(manager, |mm| {
            mm.mmap(&shared(&file, 1)).unwrap();
            store(machine, mm, BASE + 77 * HUGE, 5).unwrap();
            let frame = mm.translate(VirtAddr(BASE + 77 * HUGE), Access::Read).unwrap().frame;
            manager.memory_failure(frame).unwrap();
            assert_eq!(mm.fault(VirtAddr(BASE + 77 * HUGE), Access::Read), Err(FaultError::Poisoned));
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Read), Err(FaultError::Poisoned));
            assert_eq!(mm.rss().huge, 0);
        });
        drop(file);
        assert_eq!(info(manager, Size1G).total, 1);
    });
}

/// A killed task leaves nothing half mapped. What it cleared is not cleared again.
#[test]
fn a_task_that_dies_leaves_no_piece_behind() {
    let machine = HostedConfig::new(2 * GIB).build().unwrap();
    let watched = Watched::new(&machine);
    with_pages(&watched, &machine, 1, |manager| {
        let file = manager.huge_file(Size1G, GIB).unwrap();
        let mm = manager.new_mm().unwrap();
        let backing = Backing::File { file: &file, page_offset: 0 };
        mm.mmap(&MapRequest { len: GIB, sharing: Shared, backing, huge: None, ..base() }).unwrap();
        watched.events();
        for lives in 0..3 {
            watched.dies_after(Some(lives));
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Write), Err(FaultError::Dying));
            watched.dies_after(Some(lives));
            assert!(!manager.clear_ahead());
            assert_eq!((mm.rss().huge, file.huge_pages()), (0, (1, 0)));
            mm.validate().unwrap();
        }
        watched.dies_after(None);
        mm.fault(VirtAddr(BASE + 7 * HUGE), Access::Write).unwrap();
        assert_eq!(mm.rss().huge, 512);
        for lives in [0, 1, 7] {
            watched.dies_after(Some(lives));
            assert!(mm.mlock(VirtAddr(BASE), GIB, false).is_err(), "it waits for no more than a piece");
            assert_eq!(mm.rss().huge, 512);
            watched.dies_after(None);
            mm.munlock(VirtAddr(BASE), GIB).unwrap();
        }
        mm.mlock(VirtAddr(BASE), GIB, false).unwrap();
        let frames = |event: Event| if let Event::Clear(frames, _) = event { frames.count } else { 0 };
        let cleared: u64 = watched.events().into_iter().map(frames).filter(|&frames| frames > 1).sum();
        let most = GIB / 4096 + 9 * 512;
        assert!(cleared < most, "only pieces that were given up are cleared again: {cleared}");
        mm.exit();
    });
}

fn base() -> MapRequest<'static> {
    crate::hugetlb::world::private(BASE, 1)
}

/// Every allocation may fail: the file has the page then, or its pool has.
#[test]
fn memory_may_be_short_at_any_step() {
    with_machine(1, 1, |machine, manager| {
        let mut nth = 0;
        loop {
            let file = manager.huge_file(Size1G, GIB).unwrap();
            let mm = manager.new_mm().unwrap();
            mm.mmap(&MapRequest { noreserve: true, ..shared(&file, 1) }).unwrap();
            machine.set_failures(FailurePlan::Nth(nth));
            let touched = mm.fault(VirtAddr(BASE + 3 * HUGE), Access::Write).is_ok();
            let forked = mm.fork().map(quire::vm::Mm::exit).is_ok();
            machine.set_failures(FailurePlan::Off);
            let whole = touched && forked;
            mm.validate().unwrap();
            mm.fault(VirtAddr(BASE + 3 * HUGE), Access::Write).unwrap();
            mm.exit();
            drop(file);
            assert_eq!(info(manager, Size1G), ALL_FREE(1), "{nth}");
            if whole && nth > 20 {
                break;
            }
            nth += 1;
        }
    });
}

/// Random verbs of two address spaces on two pages of one file, compared word by word with a model through
/// the software MMU.
#[test]
fn random_verbs_in_lockstep() {
    let mut rng = fastrand::Rng::with_seed(seed(fastrand::u64(..)));
    println!("seed {}", rng.get_seed());
    with_machine(4, 1, |machine, manager| {
        let end = Instant::now() + stress_time();
        while Instant::now() < end {
            let file = manager.huge_file(Size1G, 2 * GIB).unwrap();
            let mut words = BTreeMap::<u64, u64>::new();
            let spaces = [(); 2].map(|()| manager.new_mm().unwrap());
            for mm in &spaces {
                mm.mmap(&MapRequest { noreserve: true, ..shared(&file, 2) }).unwrap();
            }
            for step in 0..60 {
                let mm = &spaces[rng.usize(..2)];
                let page = rng.u64(..2) * GIB;
                let at = page + rng.u64(..512) * HUGE + rng.u64(..2) * 8;
                match rng.u32(..15) {
                    0..=5 => {
                        within(mm, || store(machine, mm, BASE + at, step).unwrap());
                        words.insert(at, step);
                    }
                    6..=8 => {
                        let word = words.get(&at).copied().unwrap_or(0);
                        within(mm, || assert_eq!(load(machine, mm, BASE + at), Ok(word)));
                        let mut bytes = [1; 8];
                        assert_eq!(file.read_at(at, &mut bytes), Ok(8));
                        assert_eq!(u64::from_le_bytes(bytes), word);
                    }
                    9 => _ = (0..rng.u32(..400)).take_while(|_| manager.clear_ahead()).count(),
                    10 => mm.madvise(VirtAddr(BASE + page), GIB, Advice::DontNeed).unwrap(),
                    11 => {
                        mm.mprotect(VirtAddr(BASE + page), GIB, R).unwrap();
                        mm.mprotect(VirtAddr(BASE + page), GIB, RW).unwrap();
                    }
                    12 => mm.fork().unwrap().exit(),
                    13 => {
                        file.punch_hole(page..page + GIB).unwrap();
                        words.retain(|at, _| !(page..page + GIB).contains(at));
                    }
                    _ => {
                        if let Some(found) = mm.translate(VirtAddr(BASE + at), Access::Read) {
                            let _moved = manager.migrate(found.frame);
                        }
                    }
                }
            }
            spaces.into_iter().for_each(|mm| {
                within(&mm, || {
                    words.iter().for_each(|(&at, &word)| assert_eq!(load(machine, &mm, BASE + at), Ok(word)))
                });
                mm.exit();
            });
            drop(file);
            assert_eq!(info(manager, Size1G), ALL_FREE(4));
        }
    });
}
