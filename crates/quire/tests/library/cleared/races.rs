//! Two CPUs fault on the same page at once. The one that comes too late frees the folio that it has taken or cleared: it is
//! still known to be zero, and no fault clears it again.

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::Order;
use quire::page_alloc::{Gfp, Urgency};
use quire::stats::Stat;
use quire::vm::Access;
use testkit::{PATIENCE, held_up, order};

use super::alloc::write_to;
use super::support::{
    BASE, Ground, MIB, at, cleared_again, config, only, report, store_all, sweep, take, unmarked,
};
use crate::vm::world::{Manager, Space, anonymous, run, store};

const LEN: u64 = 4 * MIB;
/// Page tables that a fault may need.
const TABLES: u64 = 3;

/// What both CPUs find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    /// No page table, and free memory that is known to be zero.
    Nothing,
    /// The page table, in which another page is mapped.
    Table,
    /// The same, and free memory that must be cleared.
    Soiled,
}

/// Stores to all free memory.
fn soil(machine: &Hosted, manager: &Manager<'_>) {
    let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
    let all: Vec<_> = std::iter::from_fn(|| take(manager, gfp, Order::FRAME)).collect();
    for frame in all {
        write_to(machine, frame, Order::FRAME);
        manager.pages().free_raw(frame, Order::FRAME).unwrap();
    }
    manager.pages().lists().drain_all();
}

/// Both CPUs fault, and the first is held up at the call `moment`. Returns how many calls there are, and how many frames the
/// one that came too late has freed.
fn fault_at_once(
    machine: &Hosted,
    manager: &Manager<'_>,
    mm: &Space<'_>,
    (folio, before): (Order, Before),
    moment: u64,
) -> (u64, u64) {
    mm.mmap(&anonymous(BASE, LEN)).unwrap();
    if before != Before::Nothing {
        store(machine, mm, BASE + if folio < Order::BLOCK { MIB } else { 2 * MIB }, 1).unwrap();
    }
    match before {
        Before::Soiled => soil(machine, manager),
        Before::Nothing | Before::Table => sweep(machine, manager),
    }
    machine.take_cleared_again();
    let (lacking, freed) = (unmarked(machine, manager), manager.stat(Stat::Pgfree));
    let fault = || _ = mm.fault(at(BASE), Access::Write).unwrap();
    let held = held_up(machine, InterruptPlan::Nth(moment), PATIENCE, fault, fault);
    let freed = manager.stat(Stat::Pgfree) - freed;
    let (again, after) = (report(machine), unmarked(machine, manager));
    let place = format!("at moment {moment} of {}, {folio:?}, {before:?}", held.calls);
    // A page table that comes too late loses its mark: the free of a table does not look at its entries.
    let tables = if before == Before::Nothing { TABLES } else { 0 };
    let lost = after.saturating_sub(lacking);
    assert!(again == 0 && lost <= tables, "{again} frames were cleared again, {lost} have no mark {place}");
    store_all(machine, mm, BASE, folio.bytes());
    mm.munmap(at(BASE), LEN).unwrap();
    manager.pages().lists().drain_all();
    (held.calls, freed)
}

#[test]
fn a_fault_that_comes_too_late_keeps_the_mark_of_its_folio() {
    for before in [Before::Nothing, Before::Table, Before::Soiled] {
        for (number, ground) in [(0, Ground::Pieces), (4, Ground::Pieces), (9, Ground::Blocks)] {
            let (machine, folio) = (HostedConfig::new(24 * MIB).with_cpus(2), order(number));
            let again = cleared_again(machine, &config(only(number)), |machine, manager| {
                let kept = ground.hold(manager);
                sweep(machine, manager);
                run(manager, |mm| {
                    let (mut moment, mut calls, mut late) = (0, 0, 0);
                    while moment <= calls {
                        let (of_fault, freed) = fault_at_once(machine, manager, mm, (folio, before), moment);
                        late += u64::from(freed >= folio.frames());
                        (moment, calls) = (moment + 1, of_fault);
                    }
                    assert!(late > 0, "no CPU came too late in {moment} moments, {folio:?}, {before:?}");
                });
                kept.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
            });
            assert_eq!(again, 0);
        }
    }
}
