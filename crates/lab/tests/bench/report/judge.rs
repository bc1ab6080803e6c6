//! Which figures reach their goals, and which arms are faster than ours.

use lab::bench::goal::{Bound, Goal, Over};
use lab::bench::row::Row;
use lab::report::judge::{Verdict, newest, processor, reached_in_all, slower, verdicts};
use serde_json::json;

use super::{kept, row};

/// Two launches of `unmap` in which `quire` takes 2 and 20, `linux` 10.
fn two_launches() -> Vec<Vec<Row>> {
    let launch = |time: f64| {
        vec![row("unmap", "4KiB", "quire", "time", &[time]), row("unmap", "4KiB", "linux", "time", &[10.0])]
    };
    vec![launch(2.0), launch(20.0)]
}

#[test]
fn a_goal_is_judged_launch_by_launch() {
    let all = kept(&two_launches());
    let measured = newest(&all);
    let reached = |goal: Goal| -> Vec<(f64, bool)> {
        verdicts(&goal, &measured[0])
            .iter()
            .flat_map(|verdict| verdict.launches.clone())
            .map(|judged| (judged.value, judged.is_met))
            .collect()
    };
    let times = Goal::new("", "quire", &["4KiB"], Bound::Times(5.0)).over(Over::BestOf(&["linux", "absent"]));
    assert_eq!(reached(times), [(5.0, true), (0.5, false)]);
    let most = Goal::new("", "quire", &["4*"], Bound::AtMost(2.0));
    assert_eq!(reached(most), [(2.0, true), (20.0, false)]);
    let ratio = Goal::new("", "quire", &["4KiB"], Bound::AtMost(1.0)).over(Over::ArmInCase("linux", "4KiB"));
    assert_eq!(reached(ratio), [(0.2, true), (2.0, false)]);
    let first = Over::FirstOf(&["absent", "linux", "quire"]);
    assert_eq!(
        reached(Goal::new("", "quire", &["4KiB"], Bound::Times(1.0)).over(first)),
        [(5.0, true), (0.5, false)]
    );
    assert!(reached(Goal::new("", "quire", &["8KiB"], Bound::AtMost(2.0))).is_empty(), "not measured");
}

/// A launch may lack a case. What is told of all cases is of launches that have them all.
#[test]
fn a_goal_for_several_cases_is_judged_in_launches_that_have_them() {
    let at = |case: &str, time: f64| row("unmap", case, "quire", "time", &[time]);
    let all = kept(&[
        vec![at("8KiB", 9.0)],
        vec![at("4KiB", 1.0), at("8KiB", 1.0)],
        vec![at("4KiB", 1.0), at("8KiB", 9.0)],
        vec![at("4KiB", 1.0)],
    ]);
    let goal = Goal::new("", "quire", &["4KiB", "8KiB"], Bound::AtMost(2.0));
    let measured = newest(&all);
    assert_eq!(reached_in_all(&verdicts(&goal, &measured[0])), (1, 2));
}

#[test]
fn a_faster_arm_is_found_with_the_launches_in_which_it_is() {
    let all = kept(&two_launches());
    let found =
        slower(&newest(&all)[0]).iter().map(|slower| (slower.ratio, slower.launches)).collect::<Vec<_>>();
    assert_eq!(found, [(1.1, (1, 2))], "the median of 2 and 20 over 10");
    let faster =
        vec![row("unmap", "4KiB", "quire", "time", &[2.0]), row("unmap", "4KiB", "linux", "time", &[10.0])];
    assert!(slower(&newest(&kept(&[faster]))[0]).is_empty());
}

#[test]
fn a_case_is_taken_from_the_newest_run_that_has_it() {
    let old =
        vec![row("unmap", "4KiB", "quire", "time", &[1.0]), row("unmap", "8KiB", "quire", "time", &[1.0])];
    let row = row("unmap", "4KiB", "quire", "time", &[1.0]);
    let new = vec![Row { commit: "newer".to_owned(), code: "other".to_owned(), ..row }];
    let mut all = kept(&[old, new]);
    for results in &mut all {
        let day = if results.header.commit == "newer" { "2026-02-01" } else { "2026-01-31" };
        results.header.taken = day.to_owned();
    }
    let measured = newest(&all);
    let from = |case: usize| {
        (measured[0].cases[case].name, measured[0].cases[case].run.results.header.commit.as_str())
    };
    assert_eq!([from(0), from(1)], [("4KiB", "newer"), ("8KiB", "0123456789ab")]);
}

#[test]
fn processors_of_one_name_and_other_features_are_apart() {
    let run = |commit: &str, features: &[&str]| {
        let row = row("unmap", "4KiB", "quire", "time", &[1.0]);
        let mut machine = row.machine.clone();
        machine["features"] = json!(features);
        vec![Row { commit: commit.to_owned(), machine, ..row }]
    };
    let all = kept(&[run("1111", &["avx2"]), run("2222", &["avx2", "avx512f"])]);
    let measured = newest(&all);
    let names: Vec<String> = measured.iter().map(|one| processor(one.cases[0].run.results)).collect();
    assert_eq!(names, ["A CPU (avx2)", "A CPU (avx2, avx512f)"]);
}

#[test]
fn of_the_runs_of_a_day_that_of_todays_code_is_taken() {
    let now = lab::bench::code::hash(lab::bench::experiments::unmap::EXPERIMENT.code);
    // By the names of their commits the run of today's code would come first.
    let run = |commit: &str, code: &str| {
        let row = row("unmap", "4KiB", "quire", "time", &[1.0]);
        vec![Row { commit: commit.to_owned(), code: code.to_owned(), ..row }]
    };
    let all = kept(&[run("1111", &now), run("2222", "other")]);
    assert_eq!(newest(&all)[0].cases[0].run.results.header.commit, "1111");
}

/// Linux 6.1 has no folios of 64 KiB, and a goal over it alone was not judged there.
#[test]
fn the_guest_is_judged_over_a_later_linux_where_6_1_has_no_such_folios() {
    let of = |case: &str, arm: &str, count: f64| row("guest", case, arm, "instructions", &[count]);
    let all = kept(&[vec![
        of("munmap/4KiB", "linux-6.1", 100.0),
        of("munmap/4KiB", "linux-6.12", 10.0),
        of("munmap/4KiB", "quire", 4.0),
        of("munmap/64KiB", "linux-6.12", 160.0),
        of("munmap/64KiB", "quire", 10.0),
    ]]);
    let measured = newest(&all);
    let goal = measured[0].experiment.goals.iter().find(|goal| goal.what.starts_with("munmap")).unwrap();
    let first = |one: &Verdict<'_>| (one.launches[0].value, one.launches[0].is_met);
    let verdicts = verdicts(goal, &measured[0]);
    let found: Vec<_> = verdicts.iter().map(|one| (one.case, first(one))).collect();
    assert_eq!(found, [("munmap/4KiB", (0.04, true)), ("munmap/64KiB", (0.0625, false))]);
}

#[test]
fn losses_of_churn_are_misses_with_each_number_of_threads() {
    let rows = ["4KiB", "64KiB/2threads", "verbs-overlapping/4threads"].map(|case| {
        [("quire", 3.0), ("linux", 2.0)].map(|(arm, time)| row("churn", case, arm, "time", &[time]))
    });
    let all = kept(&[rows.concat()]);
    let measured = newest(&all);
    let goals = measured[0].experiment.goals.iter().flat_map(|goal| verdicts(goal, &measured[0]));
    let missed: Vec<_> = goals.filter(|verdict| verdict.reached() == 0).map(|verdict| verdict.case).collect();
    assert_eq!(missed, ["4KiB", "64KiB/2threads", "verbs-overlapping/4threads"]);
}

#[test]
fn collapse_thp_has_more_rounds_unless_they_are_given() {
    let [thp, unmap] = ["collapse-thp", "unmap"]
        .map(|name| lab::bench::experiments::ALL.iter().find(|experiment| experiment.name == name).unwrap());
    let rounds = |experiment, smoke, given| lab::bench::scale(experiment, smoke, given).rounds;
    assert_eq!([rounds(thp, false, None), rounds(unmap, false, None)], [31, 11]);
    assert_eq!([rounds(thp, true, None), rounds(thp, false, Some(5))], [1, 5]);
}
