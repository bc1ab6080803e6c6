use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Map;

use super::{REPEATED, Runner, Scale, order};
use crate::bench::experiment::{Arm, Case, Experiment, Measured, Prepared, Sample, Skip};

const FEW: Scale = Scale { smoke: true, warmups: 1, rounds: 3 };

const QUESTION: Experiment = Experiment {
    name: "question",
    question: "",
    expectation: "",
    baseline: &["first"],
    per: "call",
    notes: &[],
    own: &["first"],
    apart: &[],
    goals: &[],
    file: "",
    code: &[],
    run: |_, _| Ok(Measured { rows: Vec::new(), about: Vec::new() }),
    appendix: None,
};

/// Writes its name down whenever it runs, and gives up from the run `until` on.
struct Noting {
    name: &'static str,
    log: Rc<RefCell<Vec<&'static str>>>,
    checksum: u64,
    until: usize,
}

/// Counts 3, 2, 1 in its measured rounds, and gives up once in the second of them.
struct Falling;

struct ReadyToFall {
    left: u64,
    tries: u64,
}

impl Arm<()> for Falling {
    fn name(&self) -> &'static str {
        "falling"
    }

    fn about(&self) -> &'static str {
        ""
    }

    fn setup(&mut self, (): &()) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(ReadyToFall { left: 5, tries: 0 }))
    }
}

impl Prepared for ReadyToFall {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.tries += 1;
        if self.tries == 3 {
            return Err(Skip("not now".to_owned()));
        }
        self.left -= 1;
        Ok(Sample::new(1.0, 1).count("left", self.left))
    }
}

struct Ready<'a>(&'a Noting, usize);

impl Arm<()> for Noting {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        ""
    }

    fn setup(&mut self, (): &()) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(Ready(self, 0)))
    }
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.0.log.borrow_mut().push(self.0.name);
        if self.1 == self.0.until {
            return Err(Skip("enough".to_owned()));
        }
        self.1 += 1;
        Ok(Sample::new(self.1 as f64, self.0.checksum).count("runs", self.1 as u64))
    }
}

fn measure(arms: [(&'static str, u64, usize); 2]) -> (anyhow::Result<Measured>, Vec<&'static str>) {
    let log = Rc::new(RefCell::new(Vec::new()));
    let arm = |(name, checksum, until)| {
        Box::new(Noting { name, log: Rc::clone(&log), checksum, until }) as Box<dyn Arm<()>>
    };
    let cases = [Case { name: "case".to_owned(), params: Map::new(), spec: () }];
    let measured = Runner::new(FEW, 7).measure(&QUESTION, &cases, &mut arms.map(arm));
    let log = log.borrow().clone();
    (measured, log)
}

#[test]
fn the_order_is_a_permutation_that_gives_every_arm_every_place() {
    for arms in 1..6 {
        let mut places = vec![vec![false; arms]; arms];
        for round in 0..arms {
            for (place, arm) in order(arms, round, 42).into_iter().enumerate() {
                assert!(!places[arm][place], "arm {arm} stands in place {place} twice");
                places[arm][place] = true;
            }
        }
        assert!(places.iter().flatten().all(|seen| *seen));
    }
    assert!(order(0, 3, 1).is_empty());
}

#[test]
fn every_arm_follows_every_other_one_equally_often() {
    for arms in 2..12 {
        let rounds = if arms % 2 == 0 { arms } else { 2 * arms };
        let mut follows = vec![vec![0; arms]; arms];
        for round in 0..rounds {
            for pair in order(arms, round, 3).windows(2) {
                follows[pair[0]][pair[1]] += 1;
            }
        }
        for (one, row) in follows.iter().enumerate() {
            let right = |other: usize| row[other] == if one == other { 0 } else { rounds / arms };
            assert!((0..arms).all(right), "{arms} arms: {follows:?}");
        }
    }
}

#[test]
fn arms_take_turns_and_warm_ups_are_not_kept() {
    let (measured, log) = measure([("first", 1, usize::MAX), ("second", 1, usize::MAX)]);
    let rows = measured.unwrap().rows;
    assert_eq!(log.len(), 2 * (FEW.warmups + FEW.rounds));
    assert!(log.chunks(2).all(|round| round[0] != round[1]), "{log:?}");
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row.samples, [2.0, 3.0, 4.0]);
        assert_eq!(row.median, Some(3.0));
        assert_eq!(row.counters["runs"], 4);
        assert_eq!(row.skipped, None);
    }
}

#[test]
fn an_arm_that_gives_up_is_kept_with_its_reason_and_without_samples() {
    let (measured, log) = measure([("first", 1, 2), ("second", 1, usize::MAX)]);
    let rows = measured.unwrap().rows;
    assert_eq!(log.iter().filter(|arm| **arm == "first").count(), 2 + 2, "a second try: {log:?}");
    assert_eq!(rows.len(), 2);
    let first = rows.iter().find(|row| row.arm == "first").unwrap();
    assert_eq!((first.samples.len(), first.median, first.skipped.as_deref()), (0, None, Some("enough")));
    assert_eq!(rows.iter().find(|row| row.arm == "second").unwrap().samples.len(), 3);
}

#[test]
fn the_largest_count_of_a_repetition_is_kept_and_second_tries_are_counted() {
    let cases = [Case { name: "case".to_owned(), params: Map::new(), spec: () }];
    let mut arms: [Box<dyn Arm<()>>; 1] = [Box::new(Falling)];
    let rows = Runner::new(FEW, 7).measure(&QUESTION, &cases, &mut arms).unwrap().rows;
    assert_eq!((rows[0].counters["left"], rows[0].counters[REPEATED]), (3, 1));
}

#[test]
fn different_work_is_refused() {
    let (measured, _) = measure([("first", 1, usize::MAX), ("second", 2, usize::MAX)]);
    let error = measured.err().unwrap().to_string();
    assert!(
        error.contains("first") && error.contains("second") && error.contains("not comparable"),
        "{error}"
    );
}

#[test]
fn cases_can_be_left_out_by_name() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let arm = Noting { name: "first", log: Rc::clone(&log), checksum: 1, until: usize::MAX };
    let case = |name: &str| Case { name: name.to_owned(), params: Map::new(), spec: () };
    let cases = [case("pair"), case("pair/2threads"), case("bulk")];
    let runner = Runner::new(FEW, 7).only("pair");
    let rows = runner.measure(&QUESTION, &cases, &mut [Box::new(arm) as Box<dyn Arm<()>>]).unwrap().rows;
    let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(names, ["pair", "pair/2threads"]);
}
