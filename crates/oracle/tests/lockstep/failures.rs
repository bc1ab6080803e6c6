//! Memory that runs out: at every allocation in turn, from every allocation on, at random, and on machines that are too
//! small. What fails must have changed nothing that its caller can see, or reports how far it got (invariant 6), and all
//! memory must come back (invariant 8).

use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::FailurePlan;
use oracle::lockstep::{budget, check_seed, in_time, seeds};
use oracle::machine::{MachineShape, check_machine};
use oracle::ops::prelude::*;
use oracle::ops::{Draw, draw};
use oracle::space::PAGE;
use quire::vm::FolioPolicy;

struct Case {
    seed: u64,
    machine: MachineShape,
    files: Vec<(u64, u64)>,
    steps: Vec<Step>,
}

fn case(seed: u64, count: usize) -> Case {
    let mut rng = Rng::with_seed(seed);
    let machine = MachineShape::new(&mut rng);
    let mut shape = Draw::new(&mut rng, count, 4);
    if seed % 4 == 1 {
        shape.file_collapses(&mut rng);
    }
    shape.one_sharing(&mut rng);
    if seed.is_multiple_of(2) {
        shape.families();
    }
    let steps = draw(&mut rng, &shape);
    Case { seed, machine, files: shape.files, steps }
}

fn check(case: &Case, machine: &MachineShape) {
    let checked = in_time(&format!("QUIRE_SEED={} {machine:?}", case.seed), || {
        let run = |steps: &[Step]| check_machine(machine, &case.files, case.seed, steps).map(drop);
        check_seed(case.seed, &case.steps, &run)
    });
    if let Err(report) = checked {
        panic!("{machine:?}, files {:?}\n{report}", case.files);
    }
}

/// How often the operations ask for frames when all goes well.
fn allocations(case: &Case) -> u64 {
    let counting = MachineShape { failures: FailurePlan::Count, ..case.machine.clone() };
    check_machine(&counting, &case.files, case.seed, &case.steps).expect("nothing fails here").allocations
}

#[test]
fn any_one_allocation_may_fail() {
    let (start, limit) = (Instant::now(), budget(Duration::from_secs(2)));
    let (mut injected, mut cases) = (0, 0);
    for seed in seeds(limit) {
        let case = case(seed, 40);
        let total = allocations(&case);
        // All of them where they are few; else those that come in even steps, from a drawn first.
        let step = (total / 60).max(1);
        let first = Rng::with_seed(seed).u64(..step);
        for n in (first..total).step_by(step as usize) {
            check(&case, &case.machine.clone().failing(FailurePlan::Nth(n)));
            injected += 1;
            if start.elapsed() > limit {
                break;
            }
        }
        cases += 1;
        if start.elapsed() > limit {
            break;
        }
    }
    println!("{injected} failures in {cases} lists of 40 operations");
}

#[test]
fn every_allocation_from_one_on_may_fail() {
    for seed in seeds(Duration::from_secs(2)) {
        let case = case(seed, 40);
        let total = allocations(&case);
        for n in [0, total / 4, total / 2, total * 3 / 4] {
            check(&case, &case.machine.clone().failing(FailurePlan::From(n)));
        }
    }
}

#[test]
fn allocations_may_fail_at_random() {
    for seed in seeds(Duration::from_secs(2)) {
        let case = case(seed, 200);
        let one_in = [2, 10, 100, 1000][seed as usize % 4];
        check(&case, &case.machine.clone().failing(FailurePlan::Seeded { seed, one_in }));
    }
}

#[test]
fn a_small_machine_runs_out_and_recovers() {
    for seed in seeds(Duration::from_secs(2)) {
        let case = case(seed, 200);
        let bytes = Rng::with_seed(seed).u64(1..24) << 20;
        check(&case, &case.machine.clone().small(bytes));
    }
}

/// Memory is full but for a few frames; a store to a private page of a file needs one for the file's page, which could
/// be given up again, and one for the copy.
#[test]
fn a_fault_that_could_give_up_what_it_just_read_ends() {
    for free in 1..8 {
        let at = |page| Window(page, 0);
        let map = |page, pages: u64, what| {
            let len = pages * PAGE;
            Mmap(MapOp {
                at: at(page),
                len,
                prot: Rw,
                placement: Fixed,
                what,
                grows_down: false,
                populate: false,
                locked: false,
            })
        };
        let ops = [
            map(0, 400, Anonymous),
            map(400, 1, File { file: 1, page: 0, shared: false }),
            Touch(at(0), 400),
            Madvise(at(0), free * PAGE, DontNeed),
            Store(at(400), 0),
        ];
        let case = Case {
            seed: free,
            machine: MachineShape { cpus: 1, ..MachineShape::new(&mut Rng::with_seed(free)) },
            files: vec![(1, PAGE)],
            steps: ops.into_iter().map(|op| Step { cpu: 0, space: 0, op }).collect(),
        };
        let machine = MachineShape { policy: FolioPolicy::FRAMES, ..case.machine.clone().small(1 << 20) };
        check(&case, &machine);
    }
}
