use super::*;

fn failing(plan: FailurePlan, questions: u64) -> Vec<u64> {
    let failures = Failures::default();
    failures.set(plan);
    let failed = (0..questions).filter(|_| failures.fail()).collect::<Vec<_>>();
    let counted = if plan == FailurePlan::Off { 0 } else { questions };
    assert_eq!((failures.asked(), failures.failed()), (counted, failed.len() as u64));
    failed
}

#[test]
fn plans_fail_what_they_name() {
    assert!(failing(FailurePlan::Off, 10).is_empty());
    assert!(failing(FailurePlan::Count, 10).is_empty());
    assert_eq!(failing(FailurePlan::Nth(3), 10), [3]);
    assert_eq!(failing(FailurePlan::From(7), 10), [7, 8, 9]);
    assert_eq!(failing(FailurePlan::Every(4), 10), [3, 7]);
    assert!(failing(FailurePlan::Every(0), 10).is_empty());
}

#[test]
fn seeded_plans_repeat_and_keep_their_rate() {
    let plan = FailurePlan::Seeded { seed: 42, one_in: 10 };
    let failed = failing(plan, 10_000);
    assert_eq!(failed, failing(plan, 10_000));
    assert!((800..1200).contains(&failed.len()), "{} of 10000 failed at one in 10", failed.len());
    assert_ne!(failed, failing(FailurePlan::Seeded { seed: 43, one_in: 10 }, 10_000));
}

#[test]
fn a_new_plan_counts_from_zero() {
    let failures = Failures::default();
    failures.set(FailurePlan::Nth(0));
    assert!(failures.fail() && !failures.fail());
    failures.set(FailurePlan::Nth(0));
    assert!(failures.fail());
    failures.set(FailurePlan::Off);
    assert!(!failures.fail());
    assert_eq!(failures.asked(), 0);
}
