use fastrand::Rng;

use super::*;

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    *rng.choice(all).expect("there are some")
}

/// Few values, so that equals are common.
fn score(rng: &mut Rng, high: Option<u64>) -> Score {
    let any = 1.0 + 999.0 * rng.f64();
    let (time_ns, longest_ns) = (one_of(rng, &[100.0, 102.0, 150.0, any]), one_of(rng, &[10.0, 10.2, 20.0]));
    let memory = rng.u64(1..2000);
    let wasted = (memory as f64 * 0.2 * rng.f64()) as u64;
    Score { sizes: rng.usize(..4), faults: rng.u64(1..50), time_ns, longest_ns, memory, wasted, high }
}

/// What the page says: the first number counts, and numbers that are as good as equal are told apart by the rest.
fn counts(baseline: &Score, score: &Score, rule: Rule) -> (f64, f64) {
    match rule.goal {
        Goal::Latency => (score.longest_ns, baseline.longest_ns / 20.0),
        Goal::Throughput => (score.time_ns, (baseline.time_ns / 20.0).min(rule.wall_ns as f64 / 200.0)),
        Goal::Memory => (score.memory as f64, baseline.memory as f64 / 1000.0),
    }
}

#[test]
fn what_is_chosen_is_what_the_page_says() {
    for seed in 1..500 {
        println!("seed {seed}");
        let rng = &mut Rng::with_seed(seed);
        let goal = one_of(rng, &[Goal::Latency, Goal::Throughput, Goal::Memory]);
        let most = one_of(rng, &[0.0, 0.05, 1.0]);
        let high = rng.bool().then(|| rng.u64(1..2000));
        let rule = Rule { goal, most_waste: most, wall_ns: one_of(rng, &[0, 500, u64::MAX]) };
        // The baseline's limit is that of no score.
        let baseline = score(rng, None);
        let scores: Vec<Score> = (0..rng.usize(..8)).map(|_| score(rng, high)).collect();
        check_choice(rule, &baseline, &scores, high);
    }
}

fn check_choice(rule: Rule, baseline: &Score, scores: &[Score], high: Option<u64>) {
    let is_allowed = |score: &&Score| score.wasted as f64 / score.memory as f64 <= rule.most_waste;
    let mut allowed: Vec<&Score> = scores.iter().filter(is_allowed).collect();
    let above = |score: &Score| high.map_or(0, |high| score.memory.max(high) - high);
    let least = allowed.iter().map(|score| above(score)).min();
    allowed.retain(|score| Some(above(score)) == least);
    let chosen = rule.choose(baseline, scores).map(|at| &scores[at]);
    assert_eq!(chosen.is_some(), !allowed.is_empty(), "{rule:?} {scores:?}");
    let Some(chosen) = chosen else { return };
    assert!(allowed.contains(&chosen), "{chosen:?} wastes too much");
    let (own, equal) = counts(baseline, chosen, rule);
    for other in &allowed {
        assert!(own <= counts(baseline, other, rule).0 + equal, "{other:?} is better than {chosen:?}");
    }
    let least = allowed.iter().map(|other| counts(baseline, other, rule).0).fold(f64::MAX, f64::min);
    for other in allowed.iter().filter(|other| counts(baseline, other, rule).0 <= least + equal) {
        if rule.goal != Goal::Throughput {
            assert!(chosen.time_ns <= other.time_ns, "{other:?} takes less time than {chosen:?}");
        } else {
            let (own, its) = ((chosen.sizes, chosen.memory), (other.sizes, other.memory));
            assert!(own <= its, "{other:?} is simpler than {chosen:?}");
        }
    }
}

/// A rule that judges without regard to waste.
fn rule(goal: Goal, wall_ns: u64) -> Rule {
    Rule { goal, most_waste: 1.0, wall_ns }
}

/// The faults of `make` take a third of its run time: sets "equal within 5 %" of that were 2 % of the run apart, and the one of
/// less memory was chosen.
#[test]
fn times_are_equal_within_a_twentieth_of_the_time_in_faults_and_half_a_per_cent_of_the_run_time() {
    let baseline = Score { faults: 100, time_ns: 1000.0, memory: 1000, ..Score::default() };
    let small = Score { time_ns: 540.0, memory: 900, ..baseline };
    let fast = Score { time_ns: 500.0, ..baseline };
    let chosen = |wall_ns| rule(Goal::Throughput, wall_ns).choose(&baseline, &[baseline, small, fast]);
    assert_eq!(chosen(100_000), Some(1), "40 ns are less than 50, and than 500");
    assert_eq!(chosen(1000), Some(2), "40 ns are more than 5");
    assert_eq!(chosen(8000), Some(1), "as many as 40");
}

#[test]
fn a_change_is_worth_a_hundredth_of_the_run_time_or_half_of_the_faults() {
    let baseline = Score { faults: 100, time_ns: 1000.0, longest_ns: 10.0, memory: 1000, ..Score::default() };
    let worth = |faults, time_ns, wall_ns| {
        rule(Goal::Throughput, wall_ns).is_worth(&baseline, &Score { faults, time_ns, ..baseline })
    };
    assert!(worth(90, 900.0, 10_000), "a hundredth of the run time");
    assert!(!worth(90, 901.0, 10_000), "less");
    assert!(worth(50, 999.0, 1_000_000), "half of the faults");
    assert!(!worth(51, 999.0, 1_000_000), "less");
    assert!(!worth(10, 1000.0, 1_000_000), "fewer faults that take as long");
    assert!(!worth(10, 2000.0, 0), "fewer faults that take longer");
}

#[test]
fn a_limit_comes_before_all_goals() {
    let high = Some(900);
    let baseline =
        Score { faults: 9, time_ns: 9.0, longest_ns: 10.0, memory: 1000, high, ..Score::default() };
    for goal in [Goal::Latency, Goal::Throughput, Goal::Memory] {
        let worth = |memory| {
            rule(goal, 1).is_worth(&baseline, &Score { memory, faults: 99, time_ns: 99.0, ..baseline })
        };
        assert!(worth(900), "it stays below");
        assert!(worth(990) && !worth(991), "a hundredth of memory is relief");
        let free = Score { memory: 1001, faults: 0, time_ns: 0.0, longest_ns: 0.0, ..baseline };
        assert!(!rule(goal, 1).is_worth(&baseline, &free), "it goes further beyond");
    }
}

#[test]
fn memory_and_latency_have_measures_of_their_own() {
    let baseline = Score { faults: 9, time_ns: 9.0, longest_ns: 10.0, memory: 1000, ..Score::default() };
    let worth = |score: Score, goal| rule(goal, 1).is_worth(&baseline, &score);
    assert!(worth(Score { memory: 990, ..baseline }, Goal::Memory));
    assert!(!worth(Score { memory: 991, time_ns: 0.0, ..baseline }, Goal::Memory));
    assert!(worth(Score { longest_ns: 5.0, ..baseline }, Goal::Latency));
    assert!(!worth(Score { longest_ns: 5.1, time_ns: 0.0, ..baseline }, Goal::Latency));
    assert!(!worth(baseline, Goal::Memory) && !worth(baseline, Goal::Throughput));
}

/// An idle service takes no fault that a folio could spare: 4K was advised, since no fault was half as long.
#[test]
fn without_a_fault_no_change_makes_the_longest_shorter() {
    let baseline = Score { faults: 3, memory: 1000, ..Score::default() };
    assert!(!rule(Goal::Latency, 1000).is_worth(&baseline, &Score { sizes: 0, ..baseline }));
}
