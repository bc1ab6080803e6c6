//! Every allocation of a verb fails once: the verb then reports it, and nothing that a program or
//! `/proc/PID/maps` could see has changed (invariant 6).

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::error::{FaultError, MmError};
use quire::platform::FileId;
use quire::vm::{Access, Advice, Backing, FolioPolicy, ForkStrategy, MapRequest, Remap, Sharing, VmaInfo};

use crate::vm::world::{
    FORKS, MIB, Manager, R, RW, Space, anonymous, load, run, store, with_forks, with_manager,
};

const BASE: u64 = 0x4000_0000;
const LEN: u64 = 4 * MIB;
/// Where the scene has stored words: 4 KiB pages, and pages inside 2 MiB leaves.
const STORED: [u64; 6] = [0, 0x5000, 0x1f_f000, 0x20_0000, 0x20_3000, 0x3f_f000];

/// A large mapping with two 2 MiB folios, or with small pages, followed by one mapping each of small pages, a
/// file and shared memory.
fn scene(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, policy: FolioPolicy) {
    manager.set_folio_policy(policy);
    mm.mmap(&anonymous(BASE, LEN)).unwrap();
    // All pages are present, whatever the size of the folios.
    (0..LEN / 4096).for_each(|page| store(machine, mm, BASE + page * 4096 + 8, 1).unwrap());
    for (number, offset) in STORED.into_iter().enumerate() {
        store(machine, mm, BASE + offset, number as u64 + 1).unwrap();
    }
    manager.set_folio_policy(FolioPolicy::FRAMES);
    mm.mmap(&anonymous(BASE + 2 * LEN, 64 * 4096)).unwrap();
    store(machine, mm, BASE + 2 * LEN, 99).unwrap();
    mm.mmap(&MapRequest { sharing: Sharing::Shared, ..anonymous(BASE + 3 * LEN, 64 * 4096) }).unwrap();
    mm.set_brk_start(VirtAddr(BASE / 2));
    mm.brk(VirtAddr(BASE / 2 + 0x3000));
    fill_node_cache(manager, mm);
}

/// Makes mappings until the next one needs a frame for its node.
fn fill_node_cache(manager: &Manager<'_>, mm: &Space<'_>) {
    for at in (0..64).map(|number| 8 * BASE + number * 8192) {
        let before = manager.meminfo().frames.used;
        mm.mmap(&anonymous(at, 4096)).unwrap();
        if manager.meminfo().frames.used > before {
            mm.munmap(VirtAddr(at), 4096).unwrap();
            return;
        }
    }
    panic!("nodes take no memory");
}

#[derive(PartialEq, Eq, Debug)]
struct Seen {
    vmas: Vec<VmaInfo>,
    words: Vec<Result<u64, FaultError>>,
}

fn look(machine: &Hosted, mm: &Space<'_>) -> Seen {
    let mut vmas = Vec::new();
    mm.vmas(|vma| vmas.push(*vma));
    let at = STORED.into_iter().map(|offset| BASE + offset).chain([BASE + 2 * LEN, BASE + 3 * LEN]);
    Seen { vmas, words: at.map(|at| load(machine, mm, at)).collect() }
}

/// Runs `verb` on fresh scenes with its first, second, … allocation failing, until it makes no more: on large
/// folios, and on small ones whose tables a child shares.
fn at_every_allocation<E: PartialEq + std::fmt::Debug>(
    out_of_memory: E,
    least: u64,
    verb: impl Fn(&Manager<'_>, &Space<'_>) -> Result<(), E>,
) {
    for fork in FORKS {
        at_every_allocation_of(fork, &out_of_memory, least, &verb);
    }
}

fn at_every_allocation_of<E: PartialEq + std::fmt::Debug>(
    fork: ForkStrategy,
    out_of_memory: &E,
    least: u64,
    verb: impl Fn(&Manager<'_>, &Space<'_>) -> Result<(), E>,
) {
    let shares = fork == ForkStrategy::Share;
    let policy = if shares { FolioPolicy::FRAMES } else { FolioPolicy::only(Order::BLOCK) };
    let mut failed = 0;
    for nth in 0.. {
        let mut done = false;
        with_forks(HostedConfig::new(64 * MIB), fork, |machine, manager| {
            run(manager, |mm| {
                scene(machine, manager, mm, policy);
                let before = look(machine, mm);
                let child = shares.then(|| mm.fork().expect("memory"));
                machine.set_failures(FailurePlan::Nth(nth));
                let outcome = verb(manager, mm);
                done = machine.allocations_failed() == 0;
                machine.set_failures(FailurePlan::Off);
                match outcome {
                    Ok(()) => {}
                    Err(error) => {
                        assert_eq!(&error, out_of_memory, "allocation {nth}");
                        assert_eq!(look(machine, mm), before, "allocation {nth}");
                        failed += 1;
                        // With memory it works, so the failure left nothing behind.
                        verb(manager, mm).expect("memory");
                    }
                }
                mm.validate().expect("broken address space");
                child.inspect(|child| child.validate().expect("broken child"));
            });
        });
        if done {
            break;
        }
    }
    assert!(failed >= least, "{fork:?}: {failed} allocations made the verb fail, want at least {least}");
}

fn verb(least: u64, verb: impl Fn(&Manager<'_>, &Space<'_>) -> Result<(), MmError>) {
    at_every_allocation(MmError::NoMemory, least, verb);
}

#[test]
fn mmap_fails_whole() {
    verb(1, |_, mm| mm.mmap(&MapRequest { prot: R, ..anonymous(BASE - MIB, MIB) }).map(drop));
    verb(1, |_, mm| {
        let shared =
            MapRequest { sharing: Sharing::Shared, ..MapRequest { len: 8192, ..MapRequest::default() } };
        mm.mmap(&shared).map(drop)
    });
    // Over the middle of both large leaves.
    verb(3, |_, mm| mm.mmap(&MapRequest { prot: R, ..anonymous(BASE + MIB, 2 * MIB) }).map(drop));
}

#[test]
fn munmap_fails_whole() {
    verb(2, |_, mm| mm.munmap(VirtAddr(BASE + MIB), 4096));
    verb(2, |_, mm| mm.munmap(VirtAddr(BASE + MIB), 2 * MIB));
}

#[test]
fn mprotect_fails_whole() {
    verb(2, |_, mm| mm.mprotect(VirtAddr(BASE + MIB), 2 * MIB, R));
    verb(2, |_, mm| mm.mprotect(VirtAddr(BASE + MIB), 4096, quire::arch::Protection::NONE));
}

#[test]
fn madvise_and_mlock_fail_whole() {
    verb(1, |_, mm| mm.madvise(VirtAddr(BASE + MIB), MIB, Advice::HugePage));
    verb(1, |_, mm| mm.madvise(VirtAddr(BASE + MIB), 4096, Advice::DontNeed));
    verb(1, |_, mm| mm.madvise(VirtAddr(BASE + MIB), 4096, Advice::Free));
    verb(1, |_, mm| mm.mlock(VirtAddr(BASE + MIB), 4096, true));
}

#[test]
fn tracking_fails_whole() {
    verb(2, |_, mm| mm.clear_soft_dirty(VirtAddr(BASE + MIB), 2 * MIB));
    verb(2, |_, mm| mm.write_protect_marked(VirtAddr(BASE + MIB), 2 * MIB));
    verb(1, |_, mm| mm.remove_write_protect_marks(VirtAddr(BASE + MIB), 4096));
}

#[test]
fn mremap_fails_whole() {
    verb(2, |_, mm| mm.mremap(VirtAddr(BASE + MIB), MIB, 2 * MIB, Remap::MayMove).map(drop));
    verb(2, |_, mm| mm.mremap(VirtAddr(BASE), 3 * MIB, 2 * MIB, Remap::Fixed(VirtAddr(BASE / 4))).map(drop));
    verb(2, |_, mm| mm.mremap(VirtAddr(BASE + MIB), MIB, MIB, Remap::DontUnmap(VirtAddr(0))).map(drop));
}

#[test]
fn brk_stays_where_it_is() {
    let grown = VirtAddr(BASE / 2 + MIB);
    verb(1, |_, mm| if mm.brk(grown) == grown { Ok(()) } else { Err(MmError::NoMemory) });
}

#[test]
fn fork_fails_whole() {
    verb(4, |_, mm| mm.fork().map(drop));
}

#[test]
fn faults_fail_whole() {
    let fault = |addr: u64, access: Access| {
        at_every_allocation(FaultError::OutOfMemory, 1, move |_, mm| {
            mm.fault(VirtAddr(addr), access).map(drop)
        });
    };
    // The place after the next has no table yet.
    fault(BASE + 2 * LEN + 0x3000, Access::Write);
    fault(BASE + 3 * LEN + 0x3000, Access::Read);
    at_every_allocation(FaultError::OutOfMemory, 2, |_, mm| {
        let Ok(child) = mm.fork() else { return Err(FaultError::OutOfMemory) };
        let stored = mm.fault(VirtAddr(BASE + 0x5000), Access::Write).map(drop);
        drop(child);
        stored
    });
}

#[test]
fn large_folios_give_way_to_small_ones() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        run(manager, |mm| {
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            mm.mmap(&anonymous(BASE, LEN)).unwrap();
            machine.set_failures(FailurePlan::Nth(0));
            let outcome = mm.fault(VirtAddr(BASE + 0x1000), Access::Write).unwrap();
            machine.set_failures(FailurePlan::Off);
            assert_eq!(outcome.order, Order::FRAME);
        });
    });
}

#[test]
fn file_faults_leave_no_page_behind() {
    at_every_allocation(FaultError::OutOfMemory, 1, |manager, mm| {
        let file = manager.open(FileId(5)).map_err(|_| FaultError::OutOfMemory)?;
        manager.pages().platform().files().set_size(FileId(5), MIB);
        let backing = Backing::File { file: &file, page_offset: 0 };
        let at = BASE + 5 * LEN;
        if mm.mmap(&MapRequest { backing, ..anonymous(at, MIB) }).is_err() {
            return Err(FaultError::OutOfMemory);
        }
        let stored = mm.fault(VirtAddr(at), Access::Write).map(drop);
        mm.munmap(VirtAddr(at), MIB).map_err(|_| FaultError::OutOfMemory)?;
        stored
    });
}

#[test]
fn a_failing_pager_is_a_bus_error_and_leaves_nothing() {
    with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
        machine.files().set_size(FileId(9), 3 * 4096);
        let file = manager.open(FileId(9)).unwrap();
        run(manager, |mm| {
            let backing = Backing::File { file: &file, page_offset: 0 };
            mm.mmap(&MapRequest { backing, ..anonymous(BASE, 8 * 4096) }).unwrap();
            machine.files().set_read_failures(FailurePlan::Nth(0));
            assert_eq!(mm.fault(VirtAddr(BASE), Access::Read), Err(FaultError::Io));
            assert_eq!((file.resident(), mm.rss().file), (0, 0));
            mm.fault(VirtAddr(BASE), Access::Read).unwrap();
            assert_eq!(mm.fault(VirtAddr(BASE + 3 * 4096), Access::Read), Err(FaultError::BeyondEnd));
        });
    });
}

/// Locked mappings that become writable get their pages in between, so many of them are changed in parts.
#[test]
fn mprotect_of_many_locked_mappings_stops_between_two() {
    let (mut stopped, mut done, mut nth) = (false, false, 0);
    while !done {
        with_manager(HostedConfig::new(64 * MIB), |machine, manager| {
            run(manager, |mm| {
                for page in 0..20 {
                    mm.mmap(&MapRequest { prot: R, ..anonymous(BASE + page * 8192, 8192) }).unwrap();
                    let advice = if page % 2 == 0 { Advice::DontDump } else { Advice::DoDump };
                    mm.madvise(VirtAddr(BASE + page * 8192), 8192, advice).unwrap();
                }
                mm.mlock(VirtAddr(BASE), 20 * 8192, false).unwrap();
                fill_node_cache(manager, mm);
                machine.set_failures(FailurePlan::Nth(nth));
                let outcome = mm.mprotect(VirtAddr(BASE), 20 * 8192 - 4096, RW);
                done = machine.allocations_failed() == 0;
                machine.set_failures(FailurePlan::Off);
                let mut writable = Vec::new();
                mm.vmas(|vma| writable.push(vma.protection == RW));
                let changed = writable.iter().take_while(|&&may| may).count();
                match outcome {
                    Ok(()) => assert_eq!((changed, writable.len() > 20), (20, true)),
                    Err(error) => {
                        assert_eq!((error, changed % 16), (MmError::NoMemory, 0), "allocation {nth}");
                        assert!(writable[changed..20].iter().all(|may| !may));
                        stopped |= changed == 16;
                        mm.mprotect(VirtAddr(BASE), 20 * 8192 - 4096, RW).expect("memory");
                    }
                }
            });
        });
        nth += 1;
    }
    assert!(stopped, "no allocation failed between two parts");
}
