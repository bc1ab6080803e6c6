//! A check that finds nothing proves nothing unless it finds what is there: one flush is lost, and the lockstep must
//! notice, by a stale word, a stale right or a frame that is freed while a translation reaches it (invariant 2).

use fastrand::Rng;
use hosted::FailurePlan;
use oracle::lockstep::{check_steps, in_time};
use oracle::machine::{MachineShape, check_machine};
use oracle::ops::{Draw, draw};

/// Lost flushes of which each run tries one.
const TRIES: u64 = 60;

#[test]
fn a_lost_flush_is_noticed() {
    // The panics of the runs that notice are expected and would fill the output.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut lost, mut noticed) = (0, 0);
    for seed in 1.. {
        if lost >= TRIES {
            break;
        }
        let mut rng = Rng::with_seed(seed);
        let machine = MachineShape { cpus: 3, ..MachineShape::new(&mut rng) };
        let shape = Draw::new(&mut rng, 200, 3);
        let steps = draw(&mut rng, &shape);
        let counting = machine.clone().losing(FailurePlan::Count);
        let run = |machine: &MachineShape| {
            let mut flushes = 0;
            let run = |steps: &[_]| check_machine(machine, &shape.files, seed, steps);
            let checked =
                in_time(&format!("seed {seed}"), || check_steps(&steps, &|steps| run(steps).map(drop)));
            if checked.is_ok() {
                flushes = run(&steps).map_or(0, |counts| counts.flushes);
            }
            (checked, flushes)
        };
        let (checked, flushes) = run(&counting);
        assert_eq!(checked, Ok(()), "seed {seed} fails with every flush done");
        for n in (0..flushes).step_by((flushes / 6).max(1) as usize) {
            lost += 1;
            noticed += u64::from(run(&machine.clone().losing(FailurePlan::Nth(n))).0.is_err());
        }
    }
    drop(std::panic::take_hook());
    println!("{noticed} of {lost} lost flushes were noticed");
    assert!(noticed * 4 >= lost, "only {noticed} of {lost} lost flushes were noticed");
}
