//! Address spaces and their model in lockstep, on several CPUs, under every folio policy.

use std::cell::Cell;
use std::time::Duration;

use fastrand::Rng;
use oracle::lockstep::{check_seed, given_seed, in_time, long, seeds};
use oracle::machine::{MachineShape, RunCounts, check_machine};
use oracle::ops::{Draw, Step, draw};

#[test]
fn address_spaces_and_model_agree() {
    agree(Duration::from_secs(5), |_| {});
}

/// Private memory that is forked over and over: what shares page tables must not show.
#[test]
fn families_and_model_agree() {
    agree(Duration::from_secs(3), Draw::families);
}

/// Small pages that become large ones between everything else, by call and in the background.
#[test]
fn collapses_and_model_agree() {
    agree_while_collapsing(Duration::from_secs(3), |shape, _| shape.collapses());
}

/// The same with pages of files, which are stored to, cut off, written back and copied privately meanwhile.
#[test]
fn collapses_of_files_and_model_agree() {
    agree_while_collapsing(Duration::from_secs(3), Draw::file_collapses);
}

fn agree_while_collapsing(time: Duration, draw_more: impl Fn(&mut Draw, &mut Rng)) {
    let (mut runs, mut collapsed) = (0, 0);
    for seed in seeds(time) {
        let mut rng = Rng::with_seed(seed);
        let machine = MachineShape::of_small_folios(&mut rng);
        let mut shape = Draw::new(&mut rng, 200, 4);
        draw_more(&mut shape, &mut rng);
        let steps = draw(&mut rng, &shape);
        let counted = Cell::new(RunCounts::default());
        let run = |steps: &[Step]| {
            check_machine(&machine, &shape.files, seed, steps).map(|counts| counted.set(counts))
        };
        let checked = in_time(&format!("QUIRE_SEED={seed}"), || check_seed(seed, &steps, &run));
        if let Err(report) = checked {
            panic!("{machine:?}, files {:?}\n{report}", shape.files);
        }
        (runs, collapsed) = (runs + 1, collapsed + counted.get().collapsed);
    }
    // One seed alone may have none.
    assert!(collapsed > 0 || runs < 5, "nothing was collapsed");
    println!("{runs} machines of 200 operations agreed, with {collapsed} collapses");
}

/// Folios of 1 GiB, which come piece by piece while mappings change, and as one leaf in the end.
#[test]
fn gigantic_folios_and_model_agree() {
    let (mut runs, mut formed) = (0, 0);
    // Each has GiB to make dirty and to clear: the first of the usual ones as many as all others, and it
    // forms no leaf.
    let (without, most) = if long() || given_seed().is_some() { (0, usize::MAX) } else { (1, 4) };
    for seed in seeds(Duration::from_secs(2)).skip(without).take(most) {
        let mut rng = Rng::with_seed(seed);
        let machine = MachineShape::gigantic(&mut rng);
        let mut shape = Draw::new(&mut rng, 120, 2);
        shape.gigantic();
        let steps = draw(&mut rng, &shape);
        let counted = Cell::new(RunCounts::default());
        let run = |steps: &[Step]| {
            check_machine(&machine, &shape.files, seed, steps).map(|counts| counted.set(counts))
        };
        let checked = in_time(&format!("QUIRE_SEED={seed}"), || check_seed(seed, &steps, &run));
        if let Err(report) = checked {
            panic!("{machine:?}, files {:?}\n{report}", shape.files);
        }
        runs += 1;
        formed += counted.get().gigantic;
    }
    // One seed alone may have none.
    assert!(formed > 0 || runs < most.min(5), "no folio became one leaf");
    println!("{runs} machines of 120 operations agreed, with {formed} leaves of 1 GiB");
}

fn agree(limit: Duration, form: impl Fn(&mut Draw)) {
    let mut runs = 0;
    for seed in seeds(limit) {
        let mut rng = Rng::with_seed(seed);
        let machine = MachineShape::new(&mut rng);
        let mut shape = Draw::new(&mut rng, 300, 4);
        form(&mut shape);
        let steps = draw(&mut rng, &shape);
        let checked = in_time(&format!("QUIRE_SEED={seed}"), || {
            check_seed(seed, &steps, &|steps| check_machine(&machine, &shape.files, seed, steps).map(drop))
        });
        if let Err(report) = checked {
            panic!("{machine:?}, files {:?}\n{report}", shape.files);
        }
        runs += 1;
    }
    println!("{runs} machines of 300 operations agreed");
}
