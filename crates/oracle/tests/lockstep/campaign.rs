//! The campaign on a few small runs, and that it catches what is broken on purpose. Long ones: `docs/testing/drawn.md`.

use fastrand::Rng;
use hosted::FailurePlan;
use oracle::campaign::{Failure, Run};
use oracle::lockstep::{Answer, Tally};
use oracle::machine::MachineShape;
use oracle::space::Rules;
use quire::error::{FaultError, MmError};

#[test]
fn runs_of_a_campaign_agree_and_reach_rare_answers() {
    let (mut tally, mut drawn) = (Tally::default(), 0);
    for seed in 1..=24 {
        let run = Run::draw(seed, 600);
        tally.merge(&run.check().unwrap_or_else(|failure| panic!("{failure}")));
        drawn += run.steps.len() as u64;
    }
    assert_eq!(tally.operations(), drawn);
    println!("{tally}");
    let rare = [
        ("mmap", Answer::Failed(MmError::Exists)),
        ("mremap", Answer::Failed(MmError::Fault)),
        ("madvise", Answer::Failed(MmError::NoMemory)),
        ("mlockall", Answer::Failed(MmError::Invalid)),
        ("store", Answer::Fault(FaultError::BeyondEnd)),
        ("touch", Answer::Fault(FaultError::OutOfMemory)),
        ("fetch", Answer::Fault(FaultError::Protection)),
    ];
    for (name, answer) in rare {
        assert!(tally.times(name, answer) > 0, "{name} was never answered {answer:?}");
    }
}

/// What memory that ran out left of an `madvise` may be two amounts of work, where the word that a load sees is right in both.
#[test]
fn partial_work_that_no_load_can_tell_apart_ends_the_search() {
    Run::draw(3_000_827, 3000).check().unwrap_or_else(|failure| panic!("{failure}"));
}

/// As the fuzzer's target `mm` does them, with bytes that no coverage guides.
#[test]
fn any_bytes_are_a_run_that_agrees() {
    let mut tally = Tally::default();
    for seed in 1..=120 {
        let mut bytes = vec![0; 1500];
        Rng::with_seed(seed).fill(&mut bytes);
        let done = Run::decode(&bytes).check().unwrap_or_else(|failure| panic!("bytes of {seed}: {failure}"));
        tally.merge(&done);
    }
    println!("{tally}");
    assert!(tally.times("mmap", Answer::Failed(MmError::Overflow)) > 0);
    assert!(tally.times("munmap", Answer::Failed(MmError::Invalid)) > 0);
    assert_eq!(Run::decode(&[]).steps, []);
}

/// The first of these runs that fails on machines changed so.
fn first_failure(change: impl Fn(MachineShape) -> MachineShape) -> Failure {
    // The panics of runs that fail are expected and would fill the output.
    std::panic::set_hook(Box::new(|_| {}));
    let failure = (1..=24).find_map(|seed| {
        let run = Run::draw(seed, 600);
        let machine = change(run.machine.clone());
        run.on(machine).check().err()
    });
    drop(std::panic::take_hook());
    *failure.expect("none of 24 runs noticed")
}

fn is_shrunk(failure: &Failure) {
    println!("{failure}");
    assert!(failure.first < 600);
    assert!(failure.run.steps.len() <= 40, "{} operations are left", failure.run.steps.len());
    assert!(failure.to_string().contains("let steps = [\n    Step { cpu: "), "printed as source");
    assert!(failure.again().is_some(), "the shortened run fails as well");
}

#[test]
fn a_campaign_notices_lost_flushes() {
    is_shrunk(&first_failure(|machine| machine.losing(FailurePlan::Every(3))));
}

/// A model that wants no gap below stacks differs from the library where a stack grows or a mapping is placed below one.
#[test]
fn a_campaign_notices_a_model_that_is_wrong() {
    is_shrunk(&first_failure(|machine| MachineShape {
        rules: Rules { stack_gap: 0, ..machine.rules },
        ..machine
    }));
}
