//! All tests, the time of each without a bug, and the bugs' places that it executes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::build::Program;
use crate::process::{Outcome, Switch, run};

/// Size of the file that the switch maps.
const REACHED_BYTES: usize = 4096;
/// A limit longer than any test takes.
const LONG: Duration = Duration::from_secs(60);

/// One test. It is kept between runs as long as its program is the same file.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Test {
    program: PathBuf,
    built: SystemTime,
    pub(crate) name: String,
    pub(crate) millis: u64,
    pub(crate) passes: bool,
    /// The bugs whose places it executes.
    pub(crate) reached: BTreeSet<u32>,
}

impl Test {
    pub(crate) fn is_of(&self, program: &Program) -> bool {
        self.program == program.path
    }
}

/// Runs each unmeasured test, alone and without a bug. Tests that fail count instructions, to which the
/// switches add.
pub(crate) fn measure(folder: &Path, programs: &[Program], jobs: usize) -> Result<Vec<Test>> {
    let path = folder.join("tests.jsonl");
    let mut wanted = Vec::new();
    for program in programs {
        let built = fs::metadata(&program.path)?.modified()?;
        wanted.extend(names(program)?.into_iter().map(|name| (program, built, name)));
    }
    let old: Vec<Test> = lines(&path)?;
    let same = |test: &&Test| {
        wanted
            .iter()
            .any(|(program, built, name)| test.is_of(program) && test.built == *built && test.name == *name)
    };
    let mut known: Vec<Test> = old.iter().filter(same).cloned().collect();
    wanted.retain(|(program, _, name)| !known.iter().any(|test| test.is_of(program) && test.name == *name));
    let file = Mutex::new(File::options().create(true).append(true).open(&path)?);
    let (next, fresh) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = |number: usize| -> Result<()> {
        let reached = folder.join(format!("reached.{number}"));
        while let Some((program, built, name)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let test = measure_one(program, *built, name, &reached)?;
            append(&file, &test)?;
            let mut fresh = fresh.lock().expect("no panic");
            fresh.push(test);
            eprint!("\r{} of {} tests measured ", fresh.len(), wanted.len());
        }
        Ok(())
    };
    in_parallel(jobs, worker)?;
    eprintln!();
    known.append(&mut fresh.into_inner().expect("no panic"));
    Ok(known)
}

/// Runs the worker `jobs` times in parallel.
pub(crate) fn in_parallel(jobs: usize, worker: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let worker = &worker;
        let handles: Vec<_> = (0..jobs).map(|number| scope.spawn(move || worker(number))).collect();
        handles.into_iter().try_for_each(|handle| handle.join().expect("no panic"))
    })
}

fn measure_one(program: &Program, built: SystemTime, name: &str, reached: &Path) -> Result<Test> {
    fs::write(reached, [0; REACHED_BYTES])?;
    let start = Instant::now();
    let outcome = run(program, &[name], LONG, Switch { number: None, reached: Some(reached) })?;
    let bytes = fs::read(reached)?;
    let numbers = (0u32..).zip(&bytes).filter(|&(_, &byte)| byte != 0).map(|(number, _)| number);
    Ok(Test {
        program: program.path.clone(),
        built,
        name: name.to_string(),
        millis: start.elapsed().as_millis() as u64,
        passes: outcome == Outcome::Passed,
        reached: numbers.collect(),
    })
}

/// The names of a program's tests.
fn names(program: &Program) -> Result<Vec<String>> {
    let output = Command::new(&program.path).arg("--list").current_dir(&program.folder).output();
    let text = String::from_utf8(output.with_context(|| program.path.display().to_string())?.stdout)?;
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_string).collect())
}

/// The values in a file with one on each line; none if there is no file.
pub(crate) fn lines<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Vec<T>> {
    let Ok(file) = File::open(path) else { return Ok(Vec::new()) };
    let mut values = Vec::new();
    for line in BufReader::new(file).lines() {
        // An interrupted run may have left half a line.
        values.extend(serde_json::from_str(&line?).ok());
    }
    Ok(values)
}

/// Adds a line.
pub(crate) fn append(file: &Mutex<File>, value: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(value)? + "\n";
    Ok(file.lock().expect("no panic").write_all(line.as_bytes())?)
}

#[cfg(test)]
impl Test {
    /// A test that executes no bug's place.
    pub(crate) fn sample(program: &Program, name: &str, millis: u64) -> Self {
        let (program, built) = (program.path.clone(), SystemTime::UNIX_EPOCH);
        Self { program, built, name: name.into(), millis, passes: true, reached: BTreeSet::new() }
    }
}
