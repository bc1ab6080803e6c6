//! Charges for huge pages when a step fails: the pool, the file system and the group are each exactly at
//! their limit, and charges of the steps before the refusal are taken back.

use std::cell::Cell;

use hosted::{FailurePlan, Hosted};
use quire::addr::VirtAddr;
use quire::error::{FaultError, MmError};
use quire::hugetlb::{
    Charge, GroupCounters, HugeFsInfo, HugeFsLimits, HugeGroup, HugeSize::Size2M, PoolInfo,
};
use quire::vm::{Advice, File, HugeFs, MapRequest, Sharing};

use crate::hugetlb::world::{
    BASE, HUGE, Manager, Space, check, info, load, of_file, private, run, store, with_huge,
};

/// Pages that the tightest of the limits allows, and what the others allow.
const TIGHT: u64 = 3;
const WIDE: u64 = 6;
const FAR: u64 = BASE + 64 * HUGE;

/// Every counter of pages and reservations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Numbers {
    pool: PoolInfo,
    fs: HugeFsInfo,
    charged: [u64; 2],
}

/// A group that is charged, and a file system whose files are mapped.
struct Payers<'m, 'p> {
    manager: &'m Manager<'p>,
    fs: HugeFs<'m, Hosted>,
    group: HugeGroup,
}

impl<'m, 'p> Payers<'m, 'p> {
    /// Number `tightest` of the limits of the pool, the file system and the group is the tightest one.
    fn new(manager: &'m Manager<'p>, tightest: usize) -> Self {
        let limit = |number| if number == tightest { TIGHT } else { WIDE };
        let limits = HugeFsLimits { max: limit(1), min: 1 };
        let fs = manager.huge_fs(Size2M, limits).unwrap();
        let pools = manager.huge_pools();
        let group = pools.make_group(manager.pages(), HugeGroup::NONE).unwrap();
        for kind in [Charge::Usage, Charge::Reservation] {
            pools.set_group_max(group, Size2M, kind, limit(2));
        }
        Self { manager, fs, group }
    }

    fn charged(&self, kind: Charge) -> u64 {
        let GroupCounters { current, .. } =
            self.manager.huge_pools().group_counters(self.group, Size2M, kind);
        current
    }

    fn numbers(&self) -> Numbers {
        let charged = [Charge::Usage, Charge::Reservation].map(|kind| self.charged(kind));
        Numbers { pool: info(self.manager, Size2M), fs: self.fs.info(), charged }
    }
}

/// Runs `test` with each limit as the tightest, and checks that no charge is left at the end.
fn with_payers(test: impl Fn(&Hosted, &Payers<'_, '_>, &Space<'_>, &File<'_, Hosted>)) {
    for tightest in 0..3 {
        with_huge(if tightest == 0 { TIGHT } else { WIDE }, |machine, manager| {
            let payers = Payers::new(manager, tightest);
            let before = payers.numbers();
            let file = payers.fs.create(16 * HUGE).unwrap();
            run(manager, |mm| {
                mm.set_huge_group(payers.group);
                test(machine, &payers, mm, &file);
            });
            drop(file);
            assert_eq!(payers.numbers(), before, "limit {tightest}");
        });
    }
}

#[test]
fn a_refused_promise_is_not_charged() {
    with_payers(|machine, payers, mm, file| {
        for sharing in [Sharing::Shared, Sharing::Private] {
            let before = payers.numbers();
            let at = |pages| of_file(file, sharing, BASE, (0, pages));
            assert_eq!(mm.mmap(&at(TIGHT + 1)), Err(MmError::NoMemory));
            assert_eq!(payers.numbers(), before, "{sharing:?}");
            mm.mmap(&at(TIGHT)).unwrap();
            let reserved = payers.numbers();
            assert_eq!((reserved.fs.used, reserved.charged), (TIGHT, [0, TIGHT]));
            assert_eq!(mm.mmap(&of_file(file, sharing, FAR, (TIGHT, 1))), Err(MmError::NoMemory));
            assert_eq!(payers.numbers(), reserved, "{sharing:?}");
            (0..TIGHT).for_each(|page| store(machine, mm, BASE + page * HUGE, page).unwrap());
            assert_eq!(payers.charged(Charge::Usage), TIGHT);
            check(payers.manager);
            mm.munmap(VirtAddr(BASE), TIGHT * HUGE).unwrap();
            file.truncate(0).unwrap();
            assert_eq!(payers.numbers(), before, "{sharing:?}");
            file.truncate(16 * HUGE).unwrap();
        }
    });
}

#[test]
fn a_refused_page_is_not_charged() {
    with_payers(|machine, payers, mm, file| {
        for sharing in [Sharing::Shared, Sharing::Private] {
            let before = payers.numbers();
            mm.mmap(&MapRequest { noreserve: true, ..of_file(file, sharing, BASE, (0, 8)) }).unwrap();
            (0..TIGHT).for_each(|page| store(machine, mm, BASE + page * HUGE, page).unwrap());
            let used = payers.numbers();
            assert_eq!((used.fs.used, used.charged), (TIGHT, [TIGHT, 0]));
            for _ in 0..3 {
                assert_eq!(store(machine, mm, BASE + TIGHT * HUGE, 1), Err(FaultError::NoHugePage));
                assert_eq!(load(machine, mm, BASE + TIGHT * HUGE), Err(FaultError::NoHugePage));
                assert_eq!(payers.numbers(), used, "{sharing:?}");
            }
            // A page that is freed allows a new one.
            mm.madvise(VirtAddr(BASE), HUGE, Advice::DontNeed).unwrap();
            if sharing == Sharing::Shared {
                file.punch_hole(0..HUGE).unwrap();
            }
            store(machine, mm, BASE + TIGHT * HUGE, 1).unwrap();
            assert_eq!(payers.numbers(), used, "{sharing:?}");
            check(payers.manager);
            mm.munmap(VirtAddr(BASE), 8 * HUGE).unwrap();
            file.truncate(0).unwrap();
            assert_eq!(payers.numbers(), before, "{sharing:?}");
            file.truncate(16 * HUGE).unwrap();
        }
    });
}

/// Private pages, which no file system counts: a refused copy is not charged, and the parent takes its pages
/// back.
#[test]
fn a_refused_copy_is_not_charged() {
    with_payers(|machine, payers, mm, _| {
        let most = TIGHT.min(info(payers.manager, Size2M).free - 1);
        mm.mmap(&MapRequest { noreserve: true, ..private(BASE, most) }).unwrap();
        (0..most).for_each(|page| store(machine, mm, BASE + page * HUGE, page).unwrap());
        let child = mm.fork().unwrap();
        let mut before = payers.numbers();
        mm.switch_out();
        child.switch_in();
        let mut copies = 0;
        while store(machine, &child, BASE + copies * HUGE, 1).is_ok() {
            copies += 1;
            assert!(copies < most, "no limit was reached");
            before = payers.numbers();
        }
        assert_eq!(payers.numbers(), before);
        assert_eq!(load(machine, &child, BASE + copies * HUGE), Ok(copies), "it reads what was there");
        child.switch_out();
        mm.switch_in();
        check(payers.manager);
        drop(child);
        assert_eq!(payers.numbers().charged, [most, 0]);
    });
}

/// Memory for nodes, tables and counts fails at each allocation of each verb: the counters are as before, and
/// the verb works afterwards.
#[test]
fn a_verb_that_fails_at_any_allocation_is_not_charged() {
    type Verb = for<'m> fn(&Space<'m>, &File<'_, Hosted>) -> Result<Option<Space<'m>>, MmError>;
    let verbs: [(&str, Verb); 6] = [
        ("shared", |mm, file| mm.mmap(&of_file(file, Sharing::Shared, FAR, (0, 2))).map(|_| None)),
        ("private", |mm, file| mm.mmap(&of_file(file, Sharing::Private, FAR, (0, 2))).map(|_| None)),
        ("anonymous", |mm, _| mm.mmap(&private(FAR, 2)).map(|_| None)),
        ("munmap", |mm, _| mm.munmap(VirtAddr(BASE + HUGE), HUGE).map(|()| None)),
        ("fork", |mm, _| mm.fork().map(Some)),
        ("mremap", |mm, _| {
            let to = quire::vm::Remap::Fixed(VirtAddr(FAR));
            mm.mremap(VirtAddr(BASE), 2 * HUGE, 2 * HUGE, to).map(|_| None)
        }),
    ];
    let failures = Cell::new(0);
    for (name, verb) in verbs {
        for nth in 0.. {
            let failed = Cell::new(0);
            with_huge(8, |machine, manager| {
                let payers = Payers::new(manager, 3);
                let file = payers.fs.create(4 * HUGE).unwrap();
                run(manager, |mm| {
                    mm.set_huge_group(payers.group);
                    mm.mmap(&private(BASE, 3)).unwrap();
                    store(machine, mm, BASE, 1).unwrap();
                    let before = payers.numbers();
                    machine.set_failures(FailurePlan::Nth(nth));
                    let outcome = verb(mm, &file);
                    failed.set(failed.get() + machine.allocations_failed());
                    machine.set_failures(FailurePlan::Off);
                    if outcome.is_err() {
                        failures.set(failures.get() + 1);
                        assert_eq!(payers.numbers(), before, "{name}, allocation {nth}");
                        store(machine, mm, BASE, 2).unwrap();
                        verb(mm, &file).expect("there is memory").inspect(|child| child.validate().unwrap());
                    }
                    check(manager);
                });
            });
            if failed.get() == 0 {
                break;
            }
        }
    }
    assert!(failures.get() >= 4, "{} failures", failures.get());
}
