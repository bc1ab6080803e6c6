//! Address spaces and their model in lockstep, on several CPUs, under every folio policy.

use std::time::Duration;

use fastrand::Rng;
use oracle::lockstep::{check_seed, in_time, seeds};
use oracle::machine::{MachineShape, check_machine};
use oracle::ops::{Draw, draw};

#[test]
fn address_spaces_and_model_agree() {
    agree(Duration::from_secs(9), |_| {});
}

/// Private memory that is forked over and over: what shares page tables must not show.
#[test]
fn families_and_model_agree() {
    agree(Duration::from_secs(5), Draw::families);
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
