//! Memory goes bad under programs: they are told when they touch it, and other programs are not affected.

use hosted::raw::RawPages;
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{FailurePlan, FaultCause, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{BlockNumber, Frame, Order, VirtAddr};
use quire::error::{FaultError, MemoryFailureError};
use quire::manager::Failed;
use quire::memmap::BlockState;
use quire::page_alloc::Gfp;
use quire::platform::FileId;
use quire::vm::{
    Access, Advice, Backing, File, FolioPolicy, ForkStrategy, MapRequest, MemoryFailure, OrderPolicy, Remap,
    Sharing,
};

use crate::migrate::support::{PAGE, find_frame, frame_at};
use crate::migrate::world::{FORKS, MIB, Manager, Space, anonymous, load, run, store};
use testkit::{PATIENCE, held_up, order, ranges_of, seed};

const BASE: u64 = 64 * MIB;

/// As `with_forks`, but in the end exactly the bad frames are missing.
pub(crate) fn with_bad(
    bytes: u64,
    fork: ForkStrategy,
    cpus: usize,
    test: impl FnOnce(&Hosted, &Manager<'_>),
) {
    let machine = HostedConfig::new(bytes).with_cpus(cpus).build().expect("the host refused a machine");
    machine.run_on(quire::cpu::CpuId(0), || {
        let config = quire::manager::Config { fork, ..Default::default() };
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).expect("no manager");
        manager.pages().lists().drain_local();
        let before = manager.meminfo().frames;
        test(&machine, &manager);
        manager.validate().expect("broken at the end");
        manager.pages().lists().drain_all();
        let after = manager.meminfo();
        assert_eq!(after.frames.used, before.used + after.bad, "only bad frames are lost");
        assert_eq!(after.bad, manager.pages().frames().bad_frames());
        machine.assert_clean();
    });
}

pub(crate) fn fail(manager: &Manager<'_>, frame: Frame) -> Result<MemoryFailure, MemoryFailureError> {
    match manager.memory_failure(frame)? {
        Failed::Memory(what) => Ok(what),
        Failed::Huge(what) => panic!("{what:?} of no pool"),
    }
}

#[test]
fn anonymous_memory_of_every_order_loses_one_page() {
    for fork in FORKS {
        for (number, pmd) in [(0, false), (4, false), (9, false), (9, true)] {
            with_bad(64 * MIB, fork, 1, |machine, manager| {
                manager.set_folio_policy(FolioPolicy::only(order(number)).with_pmd_mapped(pmd));
                run(manager, |mm| one_page_is_lost(machine, manager, mm));
            });
        }
    }
}

fn one_page_is_lost(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>) {
    mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
    (0..512).for_each(|page| store(machine, mm, BASE + page * PAGE, page + 1).unwrap());
    let child = mm.fork().unwrap();
    let lost = BASE + 77 * PAGE;
    let frame = frame_at(machine, mm, lost);
    let rss = mm.rss().anon;
    assert_eq!(fail(manager, frame), Ok(MemoryFailure::Anonymous));
    assert_eq!(fail(manager, frame), Err(MemoryFailureError::AlreadyPoisoned));
    assert_eq!(mm.rss().anon, rss - 1);
    assert!(manager.pages().frames().is_bad(frame));
    for access in [Access::Read, Access::Write] {
        assert_eq!(mm.fault(VirtAddr(lost), access).map(|_| ()), Err(FaultError::Poisoned));
        assert_eq!(child.fault(VirtAddr(lost), access).map(|_| ()), Err(FaultError::Poisoned));
    }
    for page in (0..512).filter(|&page| page != 77) {
        assert_eq!(load(machine, mm, BASE + page * PAGE), Ok(page + 1));
    }
    // The mark survives a fork, a move and a change of rights, and is dropped with its mapping.
    let grandchild = child.fork().unwrap();
    assert_eq!(grandchild.fault(VirtAddr(lost), Access::Read).map(|_| ()), Err(FaultError::Poisoned));
    let to = VirtAddr(BASE + 16 * MIB);
    child.mremap(VirtAddr(BASE + 70 * PAGE), 20 * PAGE, 20 * PAGE, Remap::Fixed(to)).unwrap();
    let there = VirtAddr(to.0 + 7 * PAGE);
    assert_eq!(child.fault(there, Access::Read).map(|_| ()), Err(FaultError::Poisoned));
    child.mprotect(to, 20 * PAGE, quire::arch::Protection::READ).unwrap();
    assert_eq!(child.fault(there, Access::Read).map(|_| ()), Err(FaultError::Poisoned));
    for mm in [mm, &child, &grandchild] {
        mm.validate().unwrap();
    }
    mm.madvise(VirtAddr(lost), PAGE, Advice::DontNeed).unwrap();
    assert_eq!(load(machine, mm, lost), Ok(0), "fresh memory");
    child.munmap(there, PAGE).unwrap();
    assert_eq!(child.fault(there, Access::Read).map(|_| ()), Err(FaultError::NotMapped));
    child.validate().unwrap();
    child.exit();
    grandchild.exit();
}

fn request<'a>(file: &'a File<'_, Hosted>, addr: u64, sharing: Sharing) -> MapRequest<'a> {
    let backing = Backing::File { file, page_offset: 0 };
    MapRequest { backing, sharing, ..anonymous(addr, 8 * PAGE) }
}

#[test]
fn pages_of_files_are_read_again_or_their_stores_are_lost() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        machine.files().set_size(FileId(4), 8 * PAGE);
        let file = manager.open(FileId(4)).unwrap();
        run(manager, |mm| {
            mm.mmap(&request(&file, BASE, Sharing::Shared)).unwrap();
            let other = manager.new_mm().unwrap();
            other.mmap(&request(&file, BASE, Sharing::Private)).unwrap();
            let words: Vec<_> = (0..8).map(|page| load(machine, mm, BASE + page * PAGE).unwrap()).collect();
            store(machine, mm, BASE + PAGE, 99).unwrap();
            other.fault(VirtAddr(BASE), Access::Read).unwrap();
            let (clean, dirty) = (frame_at(machine, mm, BASE), frame_at(machine, mm, BASE + PAGE));
            assert_eq!(fail(manager, clean), Ok(MemoryFailure::Dropped));
            assert_eq!(file.resident(), 7);
            assert_eq!(load(machine, mm, BASE), Ok(words[0]), "read again");
            assert_ne!(frame_at(machine, mm, BASE), clean);
            assert_eq!(fail(manager, dirty), Ok(MemoryFailure::PageLost));
            assert_eq!(mm.fault(VirtAddr(BASE + PAGE), Access::Read).map(|_| ()), Err(FaultError::Poisoned));
            let after = other.fault(VirtAddr(BASE + PAGE), Access::Read).map(|_| ());
            assert_eq!(after, Err(FaultError::Poisoned), "it was mapped there by a fault around");
            assert_eq!((file.dirty(), file.resident()), (0, 7));
            mm.munmap(VirtAddr(BASE), 8 * PAGE).unwrap();
            mm.mmap(&request(&file, BASE, Sharing::Shared)).unwrap();
            assert_eq!(load(machine, mm, BASE + PAGE), Ok(words[1]), "the file's word");
            other.validate().unwrap();
            other.exit();
        });
    });
}

#[test]
fn shmem_remembers_what_it_lost() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        let file = manager.shmem(8 * PAGE).unwrap();
        run(manager, |mm| {
            mm.mmap(&request(&file, BASE, Sharing::Shared)).unwrap();
            (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let frame = frame_at(machine, mm, BASE + 3 * PAGE);
            machine.set_failures(FailurePlan::From(0));
            assert_eq!(fail(manager, frame), Err(MemoryFailureError::OutOfMemory));
            machine.set_failures(FailurePlan::Off);
            assert_eq!(load(machine, mm, BASE + 3 * PAGE), Ok(3));
            assert_eq!(fail(manager, frame), Ok(MemoryFailure::PageLost));
            let other = manager.new_mm().unwrap();
            other.mmap(&request(&file, BASE, Sharing::Private)).unwrap();
            for access in [Access::Read, Access::Write] {
                for mm in [mm, &other] {
                    let told = mm.fault(VirtAddr(BASE + 3 * PAGE), access).map(|_| ());
                    assert_eq!(told, Err(FaultError::Poisoned));
                }
            }
            other.fault(VirtAddr(BASE + 2 * PAGE), Access::Read).unwrap();
            other.validate().unwrap();
            other.exit();
            file.truncate(3 * PAGE).unwrap();
            file.truncate(8 * PAGE).unwrap();
            assert_eq!(load(machine, mm, BASE + 3 * PAGE), Ok(0), "a hole has nothing to lose");
        });
    });
}

/// A frame goes bad in a folio of 1 GiB that is being cleared piece by piece: the program is told if its page
/// was there.
#[test]
fn memory_goes_bad_while_a_folio_forms() {
    const GIB: u64 = 1 << 30;
    with_bad(2 * GIB + 256 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::GIGANTIC));
        // No folio of that size is known to be zero.
        let all = std::iter::from_fn(|| manager.pages().alloc_raw(Gfp::USER, Order::GIGANTIC).ok());
        Vec::from_iter(all).into_iter().for_each(|at| manager.pages().free_raw(at, Order::GIGANTIC).unwrap());
        run(manager, |mm| {
            mm.mmap(&anonymous(GIB, GIB)).unwrap();
            store(machine, mm, GIB, 1).unwrap();
            let start = frame_at(machine, mm, GIB);
            assert_eq!(fail(manager, start.add(3)), Ok(MemoryFailure::Anonymous));
            assert_eq!(fail(manager, start.add(5 * 512 + 3)), Ok(MemoryFailure::Free));
            assert_eq!(load(machine, mm, GIB), Ok(1));
            assert!(load(machine, mm, GIB + 3 * PAGE).is_err());
            assert_eq!(load(machine, mm, GIB + (5 * 512 + 3) * PAGE), Ok(0));
            assert!(!manager.clear_ahead());
        });
    });
}

/// The page that replaces a lost one belongs to the file, whatever its frame was used for before.
#[test]
fn what_stands_for_a_lost_page_may_be_lost_too() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(order(0)));
        run(manager, |mm| {
            // Free frames were anonymous memory, and their descriptors still say so.
            let filled = VirtAddr(4 * BASE);
            mm.mmap(&anonymous(filled.0, 64 * MIB)).unwrap();
            mm.madvise(filled, 64 * MIB, Advice::PopulateWrite).unwrap_err();
            for page in (0..64 * MIB / PAGE).step_by(2) {
                mm.madvise(filled.add(page * PAGE), PAGE, Advice::DontNeed).unwrap();
            }
            let file = manager.shmem(8 * PAGE).unwrap();
            mm.mmap(&request(&file, BASE, Sharing::Shared)).unwrap();
            (0..8).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
            let mut lost = frame_at(machine, mm, BASE + 3 * PAGE);
            for round in 0..3 {
                let before = held_frames(machine, manager);
                assert_eq!(fail(manager, lost), Ok(MemoryFailure::PageLost), "round {round}");
                let new = Vec::from_iter(held_frames(machine, manager).difference(&before).copied());
                assert_eq!((new.len(), file.resident()), (1, 8), "one stands for it");
                lost = new[0];
                let told = mm.fault(VirtAddr(BASE + 3 * PAGE), Access::Read).map(|_| ());
                assert_eq!(told, Err(FaultError::Poisoned));
            }
            assert_eq!(load(machine, mm, BASE + 4 * PAGE), Ok(4));
        });
    });
}

fn held_frames(machine: &Hosted, manager: &Manager<'_>) -> BTreeSet<Frame> {
    let all = ranges_of(machine).into_iter().flat_map(|range| range.frames.start.0..range.frames.end().0);
    all.map(Frame).filter(|&frame| manager.pages().frames().is_held(frame)).collect()
}

#[test]
fn a_failure_may_lack_memory_at_every_allocation() {
    for fork in FORKS {
        with_bad(64 * MIB, fork, 1, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(true));
            run(manager, |mm| {
                mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
                (0..512).for_each(|page| store(machine, mm, BASE + page * PAGE, page).unwrap());
                let child = mm.fork().unwrap();
                let mut lost = Vec::new();
                for index in 0..20 {
                    let page = 20 * index + 3;
                    machine.set_failures(FailurePlan::Nth(index % 5));
                    let done = fail(manager, frame_at(machine, mm, BASE + page * PAGE));
                    machine.set_failures(FailurePlan::Off);
                    match done {
                        Ok(MemoryFailure::Anonymous) => lost.push(page),
                        Err(MemoryFailureError::OutOfMemory) => {}
                        other => panic!("{other:?}"),
                    }
                    for page in 0..512 {
                        let word = load(machine, mm, BASE + page * PAGE);
                        let expected =
                            if lost.contains(&page) { Err(FaultError::Poisoned) } else { Ok(page) };
                        assert_eq!(word, expected, "page {page}");
                    }
                    manager.validate().unwrap();
                    mm.validate().unwrap();
                    child.validate().unwrap();
                }
                assert!(!lost.is_empty());
                child.exit();
            });
        });
    }
}

/// An access by a program that is told when its memory is lost, and then maps it anew.
fn touch(machine: &Hosted, mm: &Space<'_>, addr: u64, word: u64) -> bool {
    loop {
        match machine.write(VirtAddr(addr), &word.to_le_bytes()) {
            Ok(()) => return true,
            Err(fault) => {
                assert!(matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection), "{fault:?}");
                match mm.fault(VirtAddr(addr), Access::Write) {
                    Ok(_) => {}
                    Err(FaultError::Poisoned) => {
                        mm.madvise(VirtAddr(addr & !(PAGE - 1)), PAGE, Advice::DontNeed).expect("mapped");
                        return false;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
    }
}

#[test]
fn frames_go_bad_while_threads_fault_fork_and_unmap() {
    let first = seed(fastrand::u64(..));
    println!("QUIRE_SEED={first}");
    with_bad(96 * MIB, FORKS[first as usize % 2], 3, |machine, manager| {
        let policy = FolioPolicy::FRAMES.with(order(4), OrderPolicy::Always);
        manager.set_folio_policy(
            policy.with(Order::BLOCK, OrderPolicy::Always).with_pmd_mapped(first.is_multiple_of(3)),
        );
        let mm = manager.new_mm().unwrap();
        let (stop, told) = (AtomicBool::new(false), Mutex::new(HashMap::new()));
        machine.spawn_cpus(3, |cpu| {
            let mut rng = Rng::with_seed(first.wrapping_add(cpu.0.into()));
            if cpu.0 == 2 {
                for _ in 0..300 {
                    // Mostly a frame in use.
                    let addr = BASE + rng.u64(..4096) * PAGE;
                    let mapped = find_frame(machine, &mm, addr).filter(|_| rng.u32(..4) > 0);
                    let frame = mapped.unwrap_or(Frame(rng.u64(..96 * 256)));
                    let done = fail(manager, frame);
                    *told.lock().unwrap().entry(format!("{done:?}")).or_insert(0) += 1;
                    if rng.u32(..4) == 0 {
                        let block = quire::addr::BlockNumber(rng.u32(..40)).first_frame();
                        manager.move_out(quire::addr::FrameRange::new(block, 512));
                    }
                }
                stop.store(true, Ordering::Relaxed);
                return;
            }
            mm.switch_in();
            let own = BASE + u64::from(cpu.0) * 8 * MIB;
            while !stop.load(Ordering::Relaxed) {
                let (at, pages) = (own + rng.u64(..256) * PAGE, rng.u64(1..900));
                mm.mmap(&anonymous(at, pages * PAGE)).expect("memory");
                let stored: Vec<_> =
                    (0..pages).map(|page| touch(machine, &mm, at + page * PAGE, page + at)).collect();
                let child = (rng.u32(..4) == 0).then(|| mm.fork().expect("memory"));
                for (page, stored) in (0..pages).zip(stored) {
                    match load(machine, &mm, at + page * PAGE) {
                        Ok(word) => assert!(!stored || word == page + at, "page {page} holds {word}"),
                        Err(error) => assert_eq!(error, FaultError::Poisoned),
                    }
                }
                mm.munmap(VirtAddr(at), pages * PAGE).expect("mapped");
                if let Some(child) = child {
                    child.validate().unwrap();
                    child.exit();
                }
            }
            mm.switch_out();
            manager.pages().lists().drain_local();
        });
        println!("{:?}", told.lock().unwrap());
        mm.validate().unwrap();
        mm.exit();
    });
}

/// A fault allocates a folio, clears it, and maps it: a frame of it may go bad in between.
#[test]
fn a_folio_that_goes_bad_before_it_is_mapped_is_looked_at_then() {
    for pmd in [false, true] {
        with_bad(256 * MIB, ForkStrategy::Copy, 3, |machine, manager| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(pmd));
            let (mm, stop) = (manager.new_mm().unwrap(), AtomicBool::new(false));
            let (pages, marked) = (manager.pages(), AtomicU64::new(0));
            machine.spawn_cpus(3, |cpu| {
                if cpu.0 == 2 {
                    let end = Instant::now() + Duration::from_millis(400);
                    while Instant::now() < end && marked.load(Ordering::Relaxed) < 40 {
                        let flying = (0..128).map(BlockNumber).find(|&number| {
                            let state = pages.memmap().block(number).state();
                            state == BlockState::Folio && pages.counts().mapcount(number.first_frame()) == 0
                        });
                        let Some(number) = flying else { continue };
                        if fail(manager, number.first_frame().add(77)) == Ok(MemoryFailure::Marked) {
                            marked.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    stop.store(true, Ordering::Relaxed);
                    return;
                }
                mm.switch_in();
                let own = BASE + u64::from(cpu.0) * 8 * MIB;
                while !stop.load(Ordering::Relaxed) {
                    mm.mmap(&anonymous(own, 8 * MIB)).expect("memory");
                    for at in (0..8 * MIB).step_by(2 * MIB as usize) {
                        touch(machine, &mm, own + at, 1);
                        // The failure treats the frame as part of a free folio for a moment only.
                        let addr = own + at + 77 * PAGE;
                        let told = (0..100_000).any(|_| {
                            let frame = find_frame(machine, &mm, addr);
                            !frame.is_some_and(|frame| pages.frames().is_bad(frame))
                        });
                        assert!(told, "a program uses a frame that is known to be bad");
                    }
                    // A folio of which a part is unmapped is split.
                    mm.munmap(VirtAddr(own + 70 * PAGE), 20 * PAGE).expect("mapped");
                    manager.pages().split_deferred(u64::MAX);
                    mm.munmap(VirtAddr(own), 8 * MIB).expect("mapped");
                }
                mm.switch_out();
                manager.pages().lists().drain_local();
            });
            println!("{} marked on their way", marked.load(Ordering::Relaxed));
            mm.validate().unwrap();
            mm.exit();
        });
    }
}

/// A frame does not name its file: all files are searched, whatever their names.
#[test]
fn the_file_of_a_bad_frame_is_found_whatever_its_name() {
    with_bad(64 * MIB, ForkStrategy::Copy, 1, |machine, manager| {
        run(manager, |mm| {
            // More names than the table of files has lists.
            for name in 0..512 {
                machine.files().set_size(FileId(name), PAGE);
                let file = manager.open(FileId(name)).unwrap();
                mm.mmap(&request(&file, BASE, Sharing::Shared)).unwrap();
                load(machine, mm, BASE).unwrap();
                let frame = frame_at(machine, mm, BASE);
                assert_eq!(fail(manager, frame), Ok(MemoryFailure::Dropped), "file {name}");
                assert_eq!(file.resident(), 0);
                mm.munmap(VirtAddr(BASE), 8 * PAGE).unwrap();
            }
        });
    });
}

/// A folio is split at any moment at which one of its frames goes bad. The program that uses it on is told.
#[test]
fn a_frame_goes_bad_while_its_folio_is_split() {
    with_bad(1024 * MIB, ForkStrategy::Copy, 2, |machine, manager| {
        manager.set_folio_policy(FolioPolicy::only(Order::BLOCK).with_pmd_mapped(false));
        let scene = |moment| {
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            mm.mmap(&anonymous(BASE, 2 * MIB)).unwrap();
            store(machine, &mm, BASE, 1).unwrap();
            mm.munmap(VirtAddr(BASE + MIB), MIB).unwrap();
            mm.switch_out();
            let frame = frame_at(machine, &mm, BASE);
            let (plan, split) = (InterruptPlan::Nth(moment), || manager.pages().split_deferred(u64::MAX));
            let held = held_up(machine, plan, PATIENCE, || fail(manager, frame), split);
            assert_eq!(held.first, Ok(MemoryFailure::Anonymous), "at moment {moment} of {}", held.calls);
            assert!(manager.pages().frames().is_bad(frame), "at moment {moment} of {}", held.calls);
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Read).map(|_| ()), Err(FaultError::Poisoned));
            mm.exit();
            (held.calls, held.in_time && held.second > 0)
        };
        let (calls, _) = scene(u64::MAX);
        let in_time = (0..calls.min(200)).filter(|&moment| scene(moment).1).count();
        assert!(in_time > 5, "{in_time} of {calls}");
    });
}
