//! Page tables and their model in lockstep, with CPUs that access what is mapped through modelled TLBs.

use std::cell::Cell;
use std::time::Duration;

use fastrand::Rng;
use hosted::FailurePlan;
use oracle::lockstep::{check_list, in_time, seeds};
use oracle::pagetable::{TableLockstep, TableOp, draw_tables};
use quire::tlb::ZapStrategy;

/// Seeds in a row are taken apart in different ways.
fn zap(seed: u64) -> ZapStrategy {
    ZapStrategy::ALL[seed as usize % ZapStrategy::ALL.len()]
}

fn source(ops: &[TableOp]) -> String {
    ops.iter().map(|op| format!("    {op:?},\n")).collect()
}

#[test]
fn page_tables_and_model_agree() {
    let (mut runs, mut large) = (0, 0);
    for seed in seeds(Duration::from_secs(2)) {
        let label = format!("QUIRE_SEED={seed}");
        let ops = draw_tables(&mut Rng::with_seed(seed), 200);
        let mapped = Cell::new(0);
        let check = |ops: &[TableOp]| TableLockstep::check(ops, zap(seed)).map(|large| mapped.set(large));
        if let Err((what, shorter)) = in_time(&label, || check_list(&ops, &check)) {
            panic!("{label} fails: {what}\nshortened:\n{}", source(&shorter));
        }
        (runs, large) = (runs + 1, large + mapped.get());
    }
    // One seed alone may have none.
    assert!(large > 0 || runs < 5, "no leaf of 2 MiB was mapped");
    println!("{runs} page tables agreed, with {large} leaves of 2 MiB");
}

#[test]
fn a_lost_flush_is_noticed() {
    let (mut tried, mut noticed) = (0, 0);
    for seed in 1..=12 {
        let ops = draw_tables(&mut Rng::with_seed(seed), 120);
        for n in 0..8 {
            tried += 1;
            noticed += u32::from(TableLockstep::check_losing(&ops, zap(seed), FailurePlan::Nth(n)).is_err());
        }
    }
    println!("{noticed} of {tried} lost flushes were noticed");
    assert!(noticed * 6 >= tried, "only {noticed} of {tried} lost flushes were noticed");
}
