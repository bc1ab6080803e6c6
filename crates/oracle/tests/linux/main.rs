//! The model against the Linux that runs this test: the same operations, as system calls inside a window of this
//! process. What the model calls Linux's behaviour is so.

mod smaps;
mod subject;

use std::time::Duration;

use fastrand::Rng;
use oracle::lockstep::{Lockstep, check_seed, in_time, seeds};
use oracle::ops::{Draw, Left, Step, draw};
use oracle::space::Rules;
use subject::Linux;

/// One thread at a time owns the window.
static WINDOW: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn rules() -> Rules {
    let limit = std::fs::read_to_string("/proc/self/limits").expect("Linux");
    let line = limit.lines().find(|line| line.starts_with("Max stack size")).expect("is always there");
    let soft = line.split_whitespace().nth(3).expect("is always there");
    Rules { stack_limit: soft.parse().unwrap_or(u64::MAX), ..Rules::default() }
}

fn run(files: &[(u64, u64)], seed: u64, steps: &[Step]) -> Result<(), String> {
    let mut lockstep = Lockstep::new(Linux::new(files), rules(), 1, files, seed);
    lockstep.run(steps).map_err(|divergence| format!("{divergence:?}"))
}

#[test]
fn the_model_agrees_with_this_kernel() {
    let _window = WINDOW.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut done = 0;
    for seed in seeds(Duration::from_secs(4)) {
        let mut rng = Rng::with_seed(seed);
        let mut shape = Draw::new(&mut rng, 200, 1);
        shape.without(&[Left::Fork, Left::Heap]);
        shape.narrow(512);
        let steps = subject::possible(draw(&mut rng, &shape));
        let files = shape.files.clone();
        let checked = in_time(&format!("QUIRE_SEED={seed}"), || {
            check_seed(seed, &steps, &|steps| run(&files, seed, steps))
        });
        if let Err(report) = checked {
            panic!("{report}");
        }
        done += 1;
    }
    println!("{done} runs of 200 operations agreed");
}
