use super::*;

const LIMITS: Limits = Limits { turns: 160, time: Duration::from_secs(3600), percent: 2.0 };

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| at.to_string()).collect()
}

/// Programs whose runs differ by a tenth, as on a machine whose clock changes: the advised one takes one unit of time, each
/// other one so much of it.
fn drawn(seed: u64, others: &[f64]) -> Vec<Against> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut time = move |length: f64| {
        // Twelve draws are about normally distributed, with a deviation of one.
        let chance: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        (1e8 * length * (1.0 + chance / 14.0)) as u64
    };
    let turn = |_, running: &[usize]| {
        let lengths = std::iter::once(1.0).chain(running.iter().map(|&at| others[at]));
        Ok(lengths.map(&mut time).collect())
    };
    RunOff::of(LIMITS, names(others.len()), turn).unwrap().unwrap().against
}

#[test]
fn a_run_off_is_seldom_deceived() {
    let seeds = 200;
    let holds = |others: &[f64]| {
        let holds = |against: Vec<Against>| against.iter().all(|one| one.between_percent.1 <= LIMITS.percent);
        (0..seeds).filter(|&seed| holds(drawn(seed, others))).count()
    };
    let fails = |others: &[f64]| {
        (0..seeds).filter(|&seed| drawn(seed, others)[0].between_percent.0 > LIMITS.percent).count()
    };
    // At the border itself either answer may be given in one of twenty cases; further away the right one is.
    let border = 1.0 / 1.02;
    let (alone, among) = ([border], [border, 1.1, border, 1.2, border]);
    assert!(holds(&alone) <= 10 && fails(&alone) <= 10, "{} and {}", holds(&alone), fails(&alone));
    assert!(holds(&among) <= 10 && fails(&among) <= 10, "{} and {}", holds(&among), fails(&among));
    assert_eq!((holds(&[1.1, 0.92, 1.1]), fails(&[1.04; 9])), (0, 0));
    assert!(fails(&[1.1, 0.9, 1.1]) >= 190, "{}", fails(&[1.1, 0.9, 1.1]));
    assert!(holds(&[1.04; 9]) >= 150, "{}", holds(&[1.04; 9]));
}

#[test]
fn a_set_leaves_when_it_is_known_not_to_be_faster() {
    let mut ran = [0; 3];
    let turn = |turn: usize, running: &[usize]| {
        running.iter().for_each(|&at| ran[at] += 1);
        // The first takes as long, the second may be faster, the third takes longer.
        let times = [100, if turn.is_multiple_of(2) { 90 } else { 110 }, 150];
        Ok(std::iter::once(100).chain(running.iter().map(|&at| times[at])).collect())
    };
    let against = RunOff::of(LIMITS, names(3), turn).unwrap().unwrap().against;
    assert_eq!(ran, [10, 160, 10]);
    let told: Vec<_> = against.iter().map(|one| (one.folio.as_str(), one.turns)).collect();
    assert_eq!(told, [("1", 160), ("0", 10), ("2", 10)], "what may be faster comes first");
    assert_eq!((against[1].longer_percent, against[1].between_percent), (0.0, (0.0, 0.0)));
}

#[test]
fn a_run_off_ends_when_a_set_is_faster() {
    let turn = |_, running: &[usize]| Ok(vec![130, 129, 100][..=running.len()].to_vec());
    let against = RunOff::of(LIMITS, names(2), turn).unwrap().unwrap().against;
    assert_eq!((against[0].folio.as_str(), against[0].turns, against[0].longer_percent), ("1", 10, 30.0));
}

#[test]
fn ten_turns_are_too_few_among_many_sets() {
    let turn = |_, running: &[usize]| Ok([&[130][..], &vec![100; running.len()]].concat());
    let told = |others| {
        let against = RunOff::of(LIMITS, names(others), turn).unwrap().unwrap().against;
        (against[0].turns, against[0].between_percent)
    };
    // Ten values above the median are a chance of one in 1024. Each of ten sets may have one in 1000, each of eleven less.
    assert_eq!([told(10), told(11)], [(10, (30.0, 30.0)), (20, (30.0, 30.0))]);
}

#[test]
fn a_run_off_keeps_to_its_limits() {
    // It may be faster, and it may not.
    let turn = |turn: usize, running: &[usize]| {
        let other = if turn.is_multiple_of(2) { 90 } else { 110 };
        Ok(std::iter::once(100).chain(running.iter().map(|_| other)).collect())
    };
    let turns = |limits| RunOff::of(limits, names(2), turn).unwrap().map(|run_off| run_off.against[0].turns);
    assert_eq!(turns(Limits { turns: 0, ..LIMITS }), None);
    assert_eq!(turns(Limits { turns: 15, ..LIMITS }), Some(15));
    // Fewer would tell nothing.
    assert_eq!(turns(Limits { turns: 3, ..LIMITS }), Some(10));
    assert_eq!(turns(Limits { time: Duration::ZERO, ..LIMITS }), Some(10));
    assert_eq!(RunOff::of(LIMITS, names(0), turn).unwrap(), None);
    assert!(RunOff::of(LIMITS, names(1), |_, _| anyhow::bail!("killed")).is_err());
}
