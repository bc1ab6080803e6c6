//! Each verb fails at each allocation in turn, every CPU goes on storing, the verb is tried again, and every
//! CPU stores once more. A failed verb made its flushes and undid its counts, and contents are as they were.

use std::collections::BTreeMap;

use hosted::{FailurePlan, Hosted, HostedConfig};
use quire::addr::{Order, VirtAddr};
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::manager::Config;
use quire::platform::FileId;
use quire::vm::{Access, Advice, Backing, FolioPolicy, ForkStrategy, MapRequest, Remap, Sharing};

use crate::vm::world::{MIB, Manager, R, RW, Space, anonymous, load, run, store, with_config};

const CPUS: u32 = 3;
const BASE: u64 = 0x4000_0000;
const LEN: u64 = 4 * MIB;
const SMALL: u64 = BASE + 2 * LEN;
const SHARED: u64 = BASE + 3 * LEN;
const OF_FILE: u64 = BASE + 4 * LEN;
const FILE: FileId = FileId(5);
/// Where programs store: 4 KiB pages, pages inside 2 MiB leaves, shared anonymous memory, private and shared
/// pages of a file.
const PLACES: [u64; 10] = [
    BASE,
    BASE + 0x5000,
    BASE + 0x1f_f000,
    BASE + 0x20_0000,
    BASE + 0x20_3000,
    BASE + 0x3f_f000,
    SMALL,
    SHARED,
    OF_FILE,
    OF_FILE + LEN,
];

type Verb = for<'m> fn(&Manager<'_>, &Space<'m>) -> Result<Option<Space<'m>>, MmError>;

fn fault(error: FaultError) -> MmError {
    assert!(matches!(error, FaultError::OutOfMemory | FaultError::Io), "{error:?}");
    MmError::NoMemory
}

fn frame(manager: &Manager<'_>, mm: &Space<'_>, addr: u64) -> Option<quire::addr::Frame> {
    manager.pages().platform().probe(mm.root(), VirtAddr(addr)).map(|leaf| leaf.frame)
}

const VERBS: [(&str, Verb); 30] = [
    ("fork", |_, mm| mm.fork().map(Some)),
    ("fork and a store", |_, mm| {
        let child = mm.fork()?;
        mm.fault(VirtAddr(BASE + 0x5000), Access::Write).map_err(fault)?;
        Ok(Some(child))
    }),
    ("munmap a page", |_, mm| mm.munmap(VirtAddr(BASE + MIB), 4096).map(|()| None)),
    ("munmap the middle", |_, mm| mm.munmap(VirtAddr(BASE + MIB), 2 * MIB).map(|()| None)),
    ("mprotect a page", |_, mm| mm.mprotect(VirtAddr(BASE + 0x5000), 4096, R).map(|()| None)),
    ("mprotect the middle", |_, mm| mm.mprotect(VirtAddr(BASE + MIB), 2 * MIB, R).map(|()| None)),
    ("mprotect and back", |_, mm| {
        mm.mprotect(VirtAddr(BASE + MIB), 2 * MIB, quire::arch::Protection::NONE)?;
        mm.mprotect(VirtAddr(BASE + MIB), 2 * MIB, RW).map(|()| None)
    }),
    ("mremap, growing", |_, mm| mm.mremap(VirtAddr(BASE + MIB), MIB, 2 * MIB, Remap::MayMove).map(|_| None)),
    ("mremap to a place", |_, mm| {
        mm.mremap(VirtAddr(BASE), 3 * MIB, 2 * MIB, Remap::Fixed(VirtAddr(BASE / 4))).map(|_| None)
    }),
    ("mremap and leave", |_, mm| {
        mm.mremap(VirtAddr(BASE + MIB), MIB, MIB, Remap::DontUnmap(VirtAddr(0))).map(|_| None)
    }),
    ("mmap over the middle", |_, mm| mm.mmap(&anonymous(BASE + MIB, 2 * MIB)).map(|_| None)),
    ("mmap, populating", |_, mm| {
        let request = MapRequest { populate: true, ..anonymous(BASE + 8 * LEN, 16 * 4096) };
        mm.mmap(&request).map(|_| None)
    }),
    ("brk", |_, mm| {
        let grown = VirtAddr(BASE / 2 + MIB);
        if mm.brk(grown) == grown { Ok(None) } else { Err(MmError::NoMemory) }
    }),
    ("MADV_DONTNEED", |_, mm| mm.madvise(VirtAddr(BASE + MIB), 2 * MIB, Advice::DontNeed).map(|()| None)),
    ("MADV_FREE", |_, mm| mm.madvise(VirtAddr(BASE + MIB), 2 * MIB, Advice::Free).map(|()| None)),
    ("MADV_WILLNEED", |_, mm| mm.madvise(VirtAddr(OF_FILE), 8 * 4096, Advice::WillNeed).map(|()| None)),
    ("MADV_HUGEPAGE", |_, mm| mm.madvise(VirtAddr(BASE + MIB), MIB, Advice::HugePage).map(|()| None)),
    ("MADV_NOHUGEPAGE", |_, mm| mm.madvise(VirtAddr(BASE + MIB), MIB, Advice::NoHugePage).map(|()| None)),
    ("MADV_COLLAPSE", |_, mm| mm.madvise(VirtAddr(BASE), 2 * MIB, Advice::Collapse).map(|()| None)),
    ("MADV_POPULATE_READ", |_, mm| {
        mm.madvise(VirtAddr(OF_FILE), 8 * 4096, Advice::PopulateRead).map(|()| None)
    }),
    ("MADV_POPULATE_WRITE", |_, mm| {
        mm.madvise(VirtAddr(OF_FILE), 8 * 4096, Advice::PopulateWrite).map(|()| None)
    }),
    ("mlock", |_, mm| mm.mlock(VirtAddr(SMALL), 16 * 4096, false).map(|()| None)),
    ("mlock and munlock", |_, mm| {
        mm.mlock(VirtAddr(BASE + MIB), 4096, true)?;
        mm.munlock(VirtAddr(BASE + MIB), 4096).map(|()| None)
    }),
    ("tracking", |_, mm| mm.clear_soft_dirty(VirtAddr(BASE + MIB), 2 * MIB).map(|()| None)),
    ("a fault in a hole", |_, mm| {
        mm.fault(VirtAddr(SMALL + 0x3000), Access::Write).map_err(fault).map(|_| None)
    }),
    ("a fault of shared anonymous memory", |_, mm| {
        mm.fault(VirtAddr(SHARED + 0x3000), Access::Write).map_err(fault).map(|_| None)
    }),
    ("a fault of a file", |_, mm| {
        mm.fault(VirtAddr(OF_FILE + 0x3000), Access::Write).map_err(fault).map(|_| None)
    }),
    ("migration", |manager, mm| {
        let frames = PLACES.iter().filter_map(|&at| frame(manager, mm, at));
        frames.for_each(|frame| _ = manager.migrate(frame));
        Ok(None)
    }),
    ("splitting folios", |manager, mm| {
        let frames = [BASE, BASE + 2 * MIB].iter().filter_map(|&at| frame(manager, mm, at));
        frames.for_each(|frame| _ = manager.split_folio(frame, Order::FRAME));
        Ok(None)
    }),
    ("reclaim and truncation", |manager, _| {
        manager.reclaim();
        let file = manager.open(FILE)?;
        file.truncate(3 * 4096).map_err(|_| MmError::NoMemory).map(|()| None)
    }),
];

/// A machine whose CPUs all run the address space: large leaves or small ones, shared anonymous memory, a
/// file.
fn scene(machine: &Hosted, manager: &Manager<'_>, mm: &Space<'_>, policy: FolioPolicy) {
    (1..CPUS).for_each(|cpu| machine.run_on(CpuId(cpu), || mm.switch_in()));
    manager.set_folio_policy(policy);
    mm.mmap(&anonymous(BASE, LEN)).unwrap();
    (0..LEN / 4096).for_each(|page| store(machine, mm, BASE + page * 4096 + 8, 1).unwrap());
    manager.set_folio_policy(FolioPolicy::FRAMES);
    mm.mmap(&anonymous(SMALL, 64 * 4096)).unwrap();
    mm.mmap(&MapRequest { sharing: Sharing::Shared, ..anonymous(SHARED, 64 * 4096) }).unwrap();
    machine.files().set_size(FILE, 64 * 4096);
    let file = manager.open(FILE).unwrap();
    for (at, sharing) in [(OF_FILE, Sharing::Private), (OF_FILE + LEN, Sharing::Shared)] {
        let backing = Backing::File { file: &file, page_offset: 0 };
        mm.mmap(&MapRequest { backing, sharing, ..anonymous(at, 32 * 4096) }).unwrap();
    }
    mm.set_brk_start(VirtAddr(BASE / 2));
    mm.brk(VirtAddr(BASE / 2 + 0x3000));
}

type Contents = BTreeMap<u64, Result<u64, FaultError>>;

/// Every CPU stores a word of its own to every writable place. Returns what all of them then find.
fn everyone_stores(machine: &Hosted, mm: &Space<'_>, round: u64) -> Contents {
    let mut contents = Contents::new();
    for cpu in 0..CPUS {
        machine.run_on(CpuId(cpu), || {
            for place in PLACES {
                let (at, word) = (place + 64 + 8 * u64::from(cpu), round << 32 | place | u64::from(cpu));
                let stored = store(machine, mm, at, word).map(|()| word);
                contents.insert(at, stored.or_else(|_| load(machine, mm, at)));
            }
        });
    }
    everyone_finds(machine, mm, &contents, "the stored words");
    contents
}

fn everyone_finds(machine: &Hosted, mm: &Space<'_>, contents: &Contents, when: &str) {
    for cpu in 0..CPUS {
        machine.run_on(CpuId(cpu), || {
            for (&at, &expected) in contents {
                assert_eq!(load(machine, mm, at), expected, "{when}: {at:#x} as CPU {cpu}");
            }
        });
    }
}

/// A child finds at private addresses what was there at the fork.
fn child_finds(machine: &Hosted, (mm, child): (&Space<'_>, &Space<'_>), contents: &Contents, when: &str) {
    mm.switch_out();
    child.switch_in();
    let private = |at: u64| !(SHARED..OF_FILE).contains(&at) && at < OF_FILE + LEN;
    for (&at, &expected) in contents.iter().filter(|&(&at, _)| private(at)) {
        assert_eq!(load(machine, child, at), expected, "{when}: {at:#x} of the child");
    }
    child.validate().expect("broken child");
    child.switch_out();
    mm.switch_in();
}

/// Every count agrees with a recount.
fn recount(machine: &Hosted, manager: &Manager<'_>, spaces: &[&Space<'_>], when: &str) {
    machine.check_translations();
    let sum = |of: fn(quire::vm::Rss) -> u64| spaces.iter().map(|mm| of(mm.rss())).sum::<u64>();
    for mm in spaces {
        mm.validate().unwrap_or_else(|fault| panic!("{when}: {fault}"));
    }
    manager.validate().unwrap_or_else(|fault| panic!("{when}: {fault:?}"));
    let info = manager.meminfo();
    assert_eq!(info.anon, sum(|rss| rss.anon), "{when}: anonymous pages");
    assert_eq!(info.mapped, sum(|rss| rss.file + rss.shmem), "{when}: mapped pages");
}

/// One scene with one failure. Returns whether the failure happened.
fn once(fork: ForkStrategy, policy: FolioPolicy, (name, verb): (&str, Verb), plan: FailurePlan) -> bool {
    let when = format!("{name}, {fork:?}, {plan:?}");
    let config = Config { fork, ..Config::default() };
    let mut failed = false;
    with_config(HostedConfig::new(64 * MIB).with_cpus(CPUS as usize), config, |machine, manager| {
        run(manager, |mm| {
            scene(machine, manager, mm, policy);
            let older = (fork == ForkStrategy::Share).then(|| {
                let before = everyone_stores(machine, mm, 1);
                (mm.fork().expect("memory"), before)
            });
            let before = everyone_stores(machine, mm, 2);
            machine.set_failures(plan);
            machine.files().set_read_failures(plan);
            let mut outcome = verb(manager, mm);
            failed = machine.allocations_failed() > 0;
            machine.set_failures(FailurePlan::Off);
            machine.files().set_read_failures(FailurePlan::Off);
            for round in 3..5 {
                let child = outcome.as_ref().ok().and_then(Option::as_ref);
                let spaces = [Some(mm), older.as_ref().map(|(child, _)| child), child];
                let spaces = spaces.into_iter().flatten().collect::<Vec<_>>();
                recount(machine, manager, &spaces, &when);
                if outcome.is_err() {
                    everyone_finds(machine, mm, &before, &when);
                }
                let contents = everyone_stores(machine, mm, round);
                older.iter().for_each(|(older, then)| child_finds(machine, (mm, older), then, &when));
                if let Some(child) = child.filter(|_| round == 3) {
                    child_finds(machine, (mm, child), &before, &when);
                }
                recount(machine, manager, &spaces, &when);
                if outcome.is_ok() {
                    break;
                }
                outcome = verb(manager, mm);
                assert!(outcome.is_ok(), "{when}: {:?} with memory", outcome.err());
                if let Ok(Some(child)) = &outcome {
                    everyone_stores(machine, mm, 9);
                    child_finds(machine, (mm, child), &contents, &when);
                }
            }
            (1..CPUS).for_each(|cpu| machine.run_on(CpuId(cpu), || mm.switch_out()));
        });
    });
    failed
}

fn at_every_allocation(fork: ForkStrategy, policy: FolioPolicy) {
    for verb in VERBS {
        for plan in [FailurePlan::Nth, FailurePlan::From] {
            let mut number = 0;
            while once(fork, policy, verb, plan(number)) {
                // The first ones one by one; of hundreds of similar ones, some.
                number += 1 + number / 12;
            }
        }
    }
}

#[test]
fn verbs_on_small_leaves_may_fail_and_be_tried_again() {
    at_every_allocation(ForkStrategy::Copy, FolioPolicy::FRAMES);
}

#[test]
fn verbs_on_large_leaves_may_fail_and_be_tried_again() {
    at_every_allocation(ForkStrategy::Copy, FolioPolicy::only(Order::BLOCK));
}

#[test]
fn verbs_on_shared_tables_may_fail_and_be_tried_again() {
    at_every_allocation(ForkStrategy::Share, FolioPolicy::FRAMES);
}
