//! The model against Linux.

use std::time::Duration;

use fastrand::Rng;
use oracle::lockstep::{Lockstep, check_seed, in_time, seeds};
use oracle::ops::{At, Draw, Left, Op, Step, To, draw};
use oracle::space::{Kind, PAGE};

use crate::alone;
use crate::subject::{Linux, locks_freely};

/// Bytes that one operation may cover: what the model takes for free behind the window is not.
const NEAR: u64 = (1 << 14) * PAGE;

fn run(files: &[(u64, u64)], seed: u64, steps: &[Step]) -> Result<(), String> {
    let mut lockstep = Lockstep::new(Linux::new(files, 0), Linux::rules(), 1, files, seed);
    lockstep.run(steps).map_err(|divergence| format!("{divergence:?}"))
}

/// The operations that can be compared with the model: see `docs/linux-differences.md` for locked memory of which a part
/// moves.
fn possible(steps: Vec<Step>) -> Vec<Step> {
    let locks = |step: &Step| match step.op {
        Op::Mmap(map) => map.locked,
        Op::Mlock(..) | Op::Mlockall(..) => true,
        _ => false,
    };
    let any_lock = steps.iter().any(locks);
    // What is given out lies at the window's end, behind which more is mapped than the model knows.
    let here = |at: &At| matches!(at, At::Window(..) | At::Null);
    let near = |len: u64| len < NEAR;
    let fits = |step: &Step| match &step.op {
        Op::Mremap(_, _, _, To::DontUnmap(_) | To::FixedDontUnmap(_)) if any_lock => false,
        Op::Mmap(map) => here(&map.at) && (near(map.len) || map.len == u64::MAX),
        Op::Mremap(at, old, new, To::FixedTo(to) | To::FixedDontUnmap(to) | To::DontUnmap(to)) => {
            here(at) && here(to) && near(*old) && near(*new)
        }
        Op::Mremap(at, old, new, To::InPlace | To::MayMove) => here(at) && near(*old) && near(*new),
        Op::Munmap(at, len) | Op::Madvise(at, len, _) | Op::Mprotect(at, len, _) => here(at) && near(*len),
        Op::Mlock(at, len, _) | Op::Munlock(at, len) => here(at) && near(*len),
        Op::Store(at, _) | Op::Load(at, _) | Op::Touch(at, _) => here(at),
        Op::Access(at, kind) => here(at) && *kind != Kind::Exec,
        Op::Truncate(..) | Op::Fork | Op::Exit | Op::Mlockall(..) | Op::Munlockall => true,
        Op::Brk(_) | Op::ClearAhead(_) | Op::Collapse(..) => false,
    };
    steps.into_iter().filter(fits).collect()
}

#[test]
fn the_model_agrees_with_this_kernel() {
    let _alone = alone();
    let mut done = 0;
    for seed in seeds(Duration::from_secs(2)) {
        let mut rng = Rng::with_seed(seed);
        let mut shape = Draw::new(&mut rng, 200, 1);
        shape.without(&[Left::Heap]);
        if !locks_freely() {
            shape.without(&[Left::Locks]);
        }
        shape.narrow(512);
        let steps = possible(draw(&mut rng, &shape));
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
