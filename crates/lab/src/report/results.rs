//! The files that keep results: one for each experiment, machine and state of the code, as JSON lines. It is named after
//! the first commit that was measured in this state.
//!
//! The first line is the [`Header`], each other one a [`Series`]: a metric of an arm in a case, with the spread of the
//! samples of each launch.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::bench::crossings::{self, Crossings};
use crate::bench::experiment::{Better, Counters, RATE, TIME};
use crate::bench::row::Row;
use crate::bench::stats::{Spread, mean_and_deviation};
use crate::output::{Target, quoted};

/// The common part of all lines of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub experiment: String,
    /// The commit of the first launch.
    pub commit: String,
    /// The hash of the measured code.
    pub code: String,
    /// The hash of the code that measured; empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub runner: String,
    /// The day of the last launch.
    pub taken: String,
    /// The machine, the kernel and the compiler.
    pub machine: Value,
    pub launches: Vec<Launch>,
}

/// The common part of one launch's lines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// Its commit, if it is not the first launch's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The load average of one minute when it began.
    pub load: Option<f64>,
    /// The share of the CPU time that other processes used meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// The share that the host of a virtual machine gave to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// The prices that only one side of a ratio pays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossings: Option<Crossings>,
    /// The rate of the time-stamp counter, which is measured anew for each launch.
    pub tsc_hertz: Option<f64>,
    /// The settings of transparent huge pages when it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thp: Option<Value>,
    /// A remark for the reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// A metric of an arm in a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub case: String,
    pub arm: String,
    pub metric: String,
    pub unit: String,
    pub better: Better,
    /// The number of each launch that has it, from 0, and the summary of its samples.
    pub launches: Vec<(usize, Spread)>,
    /// Of a rate: the number of each launch, and the standard deviation of its samples, as a share of their mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deviations: Vec<(usize, f64)>,
    /// Exact counts: of each the largest of a repetition, in all launches.
    #[serde(default, skip_serializing_if = "Counters::is_empty")]
    pub counters: Counters,
    /// Why there are no samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
}

impl Series {
    /// The figure of launch number `launch`.
    pub fn median_of(&self, launch: usize) -> Option<f64> {
        let found = self.launches.iter().find(|(number, _)| *number == launch);
        found.map(|(_, spread)| spread.figure(&self.metric))
    }

    /// The figure of all launches.
    pub fn figure(&self) -> Option<f64> {
        self.of_all().map(|spread| spread.figure(&self.metric))
    }

    /// The least and the largest median of several launches; of one launch its least and its largest sample.
    pub fn range(&self) -> Option<Range> {
        if let [(_, only)] = self.launches.as_slice() {
            return Some(Range { least: only.min, most: only.max, of_samples: true });
        }
        let medians: Vec<f64> = self.launches.iter().map(|(_, spread)| spread.median).collect();
        let Spread { min, max, .. } = Spread::of(&medians)?;
        Some(Range { least: min, most: max, of_samples: false })
    }

    /// The largest standard deviation of a launch, as a share of its mean.
    pub fn deviation(&self) -> Option<f64> {
        self.deviations.iter().map(|(_, share)| *share).max_by(f64::total_cmp)
    }

    /// The median of the launches' medians, with the smallest and the largest sample of all of them.
    pub fn of_all(&self) -> Option<Spread> {
        let medians: Vec<f64> = self.launches.iter().map(|(_, spread)| spread.median).collect();
        let each = || self.launches.iter().map(|(_, spread)| spread);
        let of_medians = Spread::of(&medians)?;
        Some(Spread {
            count: each().map(|spread| spread.count).sum(),
            min: each().map(|spread| spread.min).fold(f64::INFINITY, f64::min),
            max: each().map(|spread| spread.max).fold(f64::NEG_INFINITY, f64::max),
            ..of_medians
        })
    }
}

/// How far the figures of a series are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    pub least: f64,
    pub most: f64,
    /// Of the samples of one launch, which share what a launch has by chance; else of the launches' medians.
    pub of_samples: bool,
}

/// One file of results.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    pub header: Header,
    pub series: Vec<Series>,
}

/// Adds the launches of `files`, each the rows of one, to the files in `folder`; returns those that were written. Figures
/// that are refused leave the folder as it was, so that a second attempt counts nothing twice.
///
/// # Errors
/// Figures of a smoke run, of a build without optimisation or of sources that no commit has, a launch in which no arm
/// ran, and files that cannot be read or written.
pub fn keep(files: &[Vec<Row>], folder: &Path, remark: Option<&str>) -> Result<Vec<PathBuf>> {
    let mut changed = Vec::new();
    files.iter().try_for_each(|rows| add_rows(rows, folder, remark, &mut changed))?;
    for (path, results) in &changed {
        path.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .with_context(|| format!("cannot create {}", quoted(path)))?;
        Target::named(path)?.write(&results.bytes()?)?;
    }
    Ok(changed.into_iter().map(|(path, _)| path).collect())
}

/// Files as they will be written.
type Changed = Vec<(PathBuf, Results)>;

/// Adds the rows of one file.
fn add_rows(rows: &[Row], folder: &Path, remark: Option<&str>, changed: &mut Changed) -> Result<()> {
    if rows.iter().any(|row| row.params.get("smoke").is_some_and(|smoke| smoke == true)) {
        bail!("a smoke run says nothing about speed: run `quire bench` without --smoke");
    }
    if rows.iter().any(|row| row.machine.get("opt_level").is_none_or(|level| level != "3")) {
        bail!("these figures are of a build without --release, and are not to be compared with others");
    }
    if let Some(row) = rows.iter().find(|row| row.commit.ends_with("-dirty")) {
        bail!(
            "these figures are of sources that differ from commit {}: commit, build and measure again",
            row.commit
        );
    }
    let mut rest = rows;
    while let Some(first) = rest.first() {
        // An experiment that starts programs describes the machine for each of them, with another load. So the rows of a
        // launch are those until one has been there before.
        let mut seen = HashSet::new();
        let mut alike = |row: &Row| {
            (&row.experiment, &row.commit) == (&first.experiment, &first.commit)
                && lasting(&row.machine) == lasting(&first.machine)
                && seen.insert((row.case.clone(), row.arm.clone(), row.metric.clone()))
        };
        let end = rest.iter().position(|row| !alike(row)).unwrap_or(rest.len());
        let (launch, others) = rest.split_at(end);
        add_launch(first, launch, folder, remark, changed)?;
        rest = others;
    }
    Ok(())
}

/// The description of a machine without what is another at each launch.
fn lasting(machine: &Value) -> Value {
    let mut machine = machine.clone();
    machine.as_object_mut().map(|all| all.remove(crossings::NAME));
    let mut apart = |name: &str| machine.as_object_mut()?.remove(name)?.as_f64();
    // Folio sizes too: each arm sets those that it needs, and another bench may do so at the same time. Each launch keeps
    // those that it began with.
    for name in ["load_at_start", "tsc_hertz", "cpu_of_others", "cpu_stolen", "thp"] {
        apart(name);
    }
    // Rounded, since it varies: a pool's saved descriptors add to it, for one.
    let memory = apart("memory_bytes").map(|bytes| (bytes / f64::from(1 << 30)).round());
    machine["memory_gib"] = json!(memory);
    machine
}

/// Adds the rows of one launch of one experiment; `first` is one of them.
fn add_launch(
    first: &Row,
    rows: &[Row],
    folder: &Path,
    remark: Option<&str>,
    changed: &mut Changed,
) -> Result<()> {
    if rows.iter().all(|row| row.samples.is_empty()) {
        let reason = first.skipped.as_deref().unwrap_or("no samples");
        bail!("no arm of {} ran: {reason}", first.experiment);
    }
    let machine = lasting(&first.machine);
    let now = |name: &str| first.machine.get(name)?.as_f64();
    let (load, tsc_hertz) = (now("load_at_start"), now("tsc_hertz"));
    let (others, stolen) = (now("cpu_of_others"), now("cpu_stolen"));
    let rounded = |share: Option<f64>, parts: f64| share.map(|share| (share * parts).round() / parts);
    let directory = folder.join(&first.experiment);
    let at = file_of(first, &machine, &directory, changed)?;
    let (path, results) = &mut changed[at];
    let same_code = (&results.header.code, &results.header.runner) == (&first.code, &first.runner);
    if !same_code || results.header.machine != machine {
        bail!(
            "{} has figures of other code or of another state of the machine: remove it, or measure a clean commit",
            quoted(path)
        );
    }
    results.header.taken = today();
    let number = results.header.launches.len();
    let remark = remark.map(str::to_owned);
    results.header.launches.push(Launch {
        commit: (first.commit != results.header.commit).then(|| first.commit.clone()),
        load: rounded(load, 100.0),
        others: rounded(others, 1000.0),
        stolen: rounded(stolen, 1000.0),
        crossings: Crossings::of(&first.machine),
        tsc_hertz,
        thp: first.machine.get("thp").cloned(),
        remark,
    });
    rows.iter().for_each(|row| results.add(number, row));
    Ok(())
}

/// The place in `changed` of the file that a launch with the row `first` on `machine` belongs to: that of the same code,
/// measured in the same way, whatever the commit; else one of its own.
fn file_of(first: &Row, machine: &Value, directory: &Path, changed: &mut Changed) -> Result<usize> {
    let path = directory.join(format!("{}-{}.jsonl", slug(machine), first.commit));
    let is_alike = |results: &Results| {
        let header = &results.header;
        let same_code = (&header.code, &header.runner) == (&first.code, &first.runner);
        let is_of_it = header.experiment == first.experiment && header.machine == *machine;
        same_code && !header.code.is_empty() && !header.runner.is_empty() && is_of_it
    };
    let known = changed.iter().position(|(other, _)| *other == path);
    if let Some(at) = known.or_else(|| changed.iter().position(|(_, results)| is_alike(results))) {
        return Ok(at);
    }
    let at = changed.len();
    if path.exists() {
        let results = read(&path)?;
        changed.push((path, results));
        return Ok(at);
    }
    let others = if directory.exists() { entries(directory)? } else { Vec::new() };
    for other in others.into_iter().filter(|path| is_results(path)) {
        let results = read(&other)?;
        if is_alike(&results) {
            changed.push((other, results));
            return Ok(at);
        }
    }
    let header = Header {
        experiment: first.experiment.clone(),
        commit: first.commit.clone(),
        code: first.code.clone(),
        runner: first.runner.clone(),
        taken: String::new(),
        machine: machine.clone(),
        launches: Vec::new(),
    };
    changed.push((path, Results { header, series: Vec::new() }));
    Ok(at)
}

impl Results {
    fn add(&mut self, launch: usize, row: &Row) {
        // Left out: values over time, which have their own table.
        let counters =
            row.counters.iter().filter(|(name, _)| row.metric == TIME.name && !name.contains("_at_"));
        let same = |series: &&mut Series| {
            (&series.case, &series.arm, &series.metric) == (&row.case, &row.arm, &row.metric)
        };
        let series = match self.series.iter_mut().find(same) {
            Some(series) => series,
            None => {
                self.series.push(Series {
                    case: row.case.clone(),
                    arm: row.arm.clone(),
                    metric: row.metric.clone(),
                    unit: row.unit.clone(),
                    better: row.better,
                    launches: Vec::new(),
                    deviations: Vec::new(),
                    counters: Counters::new(),
                    skipped: None,
                });
                let last = self.series.len() - 1;
                &mut self.series[last]
            }
        };
        for (name, count) in counters {
            let known = series.counters.entry(name.clone()).or_insert(*count);
            *known = (*known).max(*count);
        }
        series.skipped.clone_from(&row.skipped);
        let deviation = (row.metric == RATE.name).then(|| mean_and_deviation(&row.samples)).flatten();
        // To a thousandth of a percent.
        let share = deviation.map(|(mean, by)| (by / mean * 1e5).round() / 1e5);
        series.deviations.extend(share.map(|share| (launch, share)));
        series.launches.extend(Spread::of(&row.samples).map(|spread| (launch, spread.rounded())));
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&self.header)?;
        bytes.push(b'\n');
        for series in &self.series {
            serde_json::to_writer(&mut bytes, series)?;
            bytes.push(b'\n');
        }
        Ok(bytes)
    }
}

/// The machine in a file name: processor, number of CPUs, and a hash of the rest.
fn slug(machine: &Value) -> String {
    let model = machine.get("cpu").and_then(Value::as_str).unwrap_or("unknown");
    let words = model.split(|letter: char| !letter.is_ascii_alphanumeric());
    let noise = ["", "r", "tm", "cpu", "processor"];
    let words: Vec<String> =
        words.map(str::to_ascii_lowercase).filter(|word| !noise.contains(&word.as_str())).collect();
    let cpus = machine.get("cpus").and_then(Value::as_u64).unwrap_or(0);
    format!("{}-{cpus}cpus-{:04x}", words.join("-"), crc32fast::hash(machine.to_string().as_bytes()) & 0xffff)
}

/// As `2026-01-31`.
fn today() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string().chars().take(10).collect()
}

/// Every file of results below `folder`, in the order of their names.
///
/// # Errors
/// A file that cannot be read, or that is not one of results.
pub fn load(folder: &Path) -> Result<Vec<Results>> {
    let mut paths = Vec::new();
    for directory in entries(folder)? {
        if directory.is_dir() {
            paths.extend(entries(&directory)?);
        }
    }
    paths.retain(|path| is_results(path));
    paths.iter().map(|path| read(path)).collect()
}

fn is_results(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "jsonl")
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let cannot = || format!("cannot read {}; give the folder of the results by --results", quoted(folder));
    let read = fs::read_dir(folder).with_context(cannot)?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// The text of a file, or an error that names it.
pub(super) fn text_of(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", quoted(path)))
}

fn read(path: &Path) -> Result<Results> {
    let text = text_of(path)?;
    let wrong = || format!("{} is no file of results", quoted(path));
    let mut lines = text.lines();
    let header = serde_json::from_str(lines.next().unwrap_or_default()).with_context(wrong)?;
    let series: Result<Vec<Series>, _> = lines.map(serde_json::from_str).collect();
    Ok(Results { header, series: series.with_context(wrong)? })
}
