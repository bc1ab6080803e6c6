//! Runs the tests that execute a bug's place, with the bug, until one of them fails.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::build::{self, Program};
use crate::copy::{self, Sources};
use crate::process::{Outcome, Switch, run as run_tests};
use crate::sample::{List, Mutant, locate};
use crate::suite::{self, Test, append, in_parallel};

/// Path from the repository's root.
pub(crate) const RESULTS: &str = "target/mutants/results.jsonl";
/// Tests up to this many milliseconds run before longer ones.
const WAVES: [u64; 6] = [40, 150, 500, 1500, 5000, u64::MAX];
/// Milliseconds of tests in one process.
const AT_ONCE: u64 = 4000;
/// Further runs of a failing test, until it fails once more.
const AGAIN: usize = 2;
/// The tests are worth a campaign if this many of a hundred pass without a bug.
const PASSING: usize = 97;

/// The verdict on a bug.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verdict {
    /// A test failed.
    Caught,
    /// A test did not end.
    Hangs,
    /// Every test passed.
    Survived,
    /// No test executes its place.
    Unreached,
}

/// A line of the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcomes {
    /// Which bug: [`Mutant::key`].
    pub(crate) key: String,
    pub(crate) number: u32,
    pub(crate) verdict: Verdict,
    /// The test that found it.
    pub(crate) test: Option<String>,
    /// Tests that execute its place.
    pub(crate) tests: usize,
    pub(crate) seconds: f64,
}

/// The numbers that a command selects, and whether it keeps existing results.
pub(crate) fn wanted(list: &List, first: Option<usize>, only: Vec<u32>) -> (Vec<u32>, bool) {
    if only.is_empty() {
        let all = list.mutants.iter().filter(|mutant| mutant.is_bug()).map(|mutant| mutant.number);
        (all.take(first.unwrap_or(usize::MAX)).collect(), true)
    } else {
        (only, false)
    }
}

/// The last result of each bug.
pub(crate) fn results(root: &Path) -> Result<HashMap<String, Outcomes>> {
    let all: Vec<Outcomes> = suite::lines(&root.join(RESULTS))?;
    Ok(all.into_iter().map(|outcome| (outcome.key.clone(), outcome)).collect())
}

/// Runs the bugs of these numbers.
pub(crate) fn run(root: &Path, list: &List, jobs: usize, (numbers, resume): &(Vec<u32>, bool)) -> Result<()> {
    let sources = Sources::read(root)?;
    let located = locate(&sources, &list.mutants);
    if located.len() < list.mutants.len() {
        eprintln!("{} bugs have no place any more: draw the list again", list.mutants.len() - located.len());
    }
    let programs = build::programs(&copy::write(root, &sources, &located)?)?;
    let folder = root.join(copy::BELOW);
    let tests = suite::measure(&folder, &programs, jobs)?;
    let passing = tests.iter().filter(|test| test.passes).count();
    ensure!(
        passing * 100 >= tests.len() * PASSING,
        "only {passing} of {} tests pass without a bug",
        tests.len()
    );
    tests.iter().filter(|test| !test.passes).for_each(|test| eprintln!("left out: {}", test.name));
    let done = results(root)?;
    let waiting: Vec<&Mutant> = located
        .iter()
        .map(|(mutant, _)| mutant)
        .filter(|mutant| numbers.contains(&mutant.number) && !(*resume && done.contains_key(&mutant.key())))
        .collect();
    let file = Mutex::new(File::options().create(true).append(true).open(root.join(RESULTS))?);
    let (next, ended, start) = (AtomicUsize::new(0), AtomicUsize::new(0), Instant::now());
    in_parallel(jobs, |_| {
        while let Some(mutant) = waiting.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = try_one(&programs, &tests, mutant)?;
            append(&file, &outcome)?;
            let ended = ended.fetch_add(1, Ordering::Relaxed) + 1;
            let hourly = ended as f64 * 3600.0 / start.elapsed().as_secs_f64();
            let (number, verdict, test) = (mutant.number, outcome.verdict, outcome.test.unwrap_or_default());
            eprintln!("{ended}/{} ({hourly:.0} an hour) {number} {verdict:?} {test}", waiting.len());
        }
        Ok(())
    })
}

fn try_one(programs: &[Program], tests: &[Test], mutant: &Mutant) -> Result<Outcomes> {
    let start = Instant::now();
    let reach = |test: &&Test| test.passes && test.reached.contains(&mutant.number);
    let reaching: Vec<&Test> = tests.iter().filter(reach).collect();
    let outcome = |verdict, test| Outcomes {
        key: mutant.key(),
        number: mutant.number,
        verdict,
        test,
        tests: reaching.len(),
        seconds: start.elapsed().as_secs_f64(),
    };
    if reaching.is_empty() {
        return Ok(outcome(Verdict::Unreached, None));
    }
    for (program, tests) in groups(programs, tests, &reaching) {
        match try_group(program, tests, mutant.number)? {
            Outcome::Passed => {}
            Outcome::Failed(test) => return Ok(outcome(Verdict::Caught, Some(test))),
            Outcome::Hangs(test) => return Ok(outcome(Verdict::Hangs, Some(test))),
        }
    }
    Ok(outcome(Verdict::Survived, None))
}

/// Runs tests with a bug. A test that fails once and not again alone has found nothing.
fn try_group(program: &Program, mut tests: Vec<&Test>, number: u32) -> Result<Outcome> {
    let switch = Switch { number: Some(number), reached: None };
    loop {
        let failed = match run_tests(program, &names(&tests), expected(&tests), switch)? {
            Outcome::Failed(name) => name,
            other => return Ok(other),
        };
        let Some(at) = tests.iter().position(|test| test.name == failed) else {
            return Ok(Outcome::Failed(failed));
        };
        let alone = [tests.remove(at)];
        for _ in 0..AGAIN {
            match run_tests(program, &names(&alone), expected(&alone), switch)? {
                Outcome::Passed => {}
                other => return Ok(other),
            }
        }
        if tests.is_empty() {
            return Ok(Outcome::Passed);
        }
    }
}

fn names<'a>(tests: &[&'a Test]) -> Vec<&'a str> {
    tests.iter().map(|test| test.name.as_str()).collect()
}

/// The time of the tests without a bug.
fn expected(tests: &[&Test]) -> Duration {
    tests.iter().map(|test| Duration::from_millis(test.millis)).sum()
}

/// The tests in the order in which they run: short ones first, and among them those of the program with the
/// largest share of its tests there.
fn groups<'a>(
    programs: &'a [Program],
    tests: &[Test],
    reaching: &[&'a Test],
) -> Vec<(&'a Program, Vec<&'a Test>)> {
    let part_of = |program: &Program| {
        let all = tests.iter().filter(|test| test.is_of(program)).count().max(1);
        let here = reaching.iter().filter(|test| test.is_of(program)).count();
        here * 1000 / all
    };
    let mut waves: BTreeMap<(usize, std::cmp::Reverse<usize>, usize), Vec<&Test>> = BTreeMap::new();
    for (at, program) in programs.iter().enumerate() {
        let part = part_of(program);
        for test in reaching.iter().copied().filter(|test| test.is_of(program)) {
            let wave = WAVES.iter().position(|&most| test.millis <= most).unwrap_or(WAVES.len());
            waves.entry((wave, std::cmp::Reverse(part), at)).or_default().push(test);
        }
    }
    let mut groups = Vec::new();
    for ((_, _, at), mut tests) in waves {
        tests.sort_by_key(|test| test.millis);
        let mut sum = 0;
        for test in tests {
            if sum == 0 || sum + test.millis > AT_ONCE {
                groups.push((&programs[at], Vec::new()));
                sum = 0;
            }
            sum += test.millis.max(1);
            groups.last_mut().expect("a group").1.push(test);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_tests_run_first_and_long_ones_alone() {
        let programs = ["general", "special"].map(|name| Program { path: name.into(), folder: "f".into() });
        let [general, special] = &programs;
        let tests = [
            Test::sample(general, "elsewhere", 1),
            Test::sample(general, "a", 1),
            Test::sample(special, "b", 2),
            Test::sample(special, "long", 9000),
            Test::sample(general, "longer", 10_000),
            Test::sample(special, "c", 1),
        ];
        let reaching: Vec<&Test> = tests.iter().skip(1).collect();
        let groups = groups(&programs, &tests, &reaching);
        let groups: Vec<_> =
            groups.iter().map(|(program, tests)| (program.path.to_str(), names(tests))).collect();
        let expected = [
            (Some("special"), vec!["c", "b"]),
            (Some("general"), vec!["a"]),
            (Some("special"), vec!["long"]),
            (Some("general"), vec!["longer"]),
        ];
        assert_eq!(groups, expected);
    }
}
