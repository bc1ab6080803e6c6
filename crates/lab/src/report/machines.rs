//! The runs and the machines of the page of measured figures.

use std::fmt::Write;

use serde_json::Value;

use super::judge::{self, Run};
use super::markdown::{Table, wrapped};
use super::results::Launch;
use crate::bench::table::distinct;

/// The machines of all runs. Each has one letter on all pages.
pub(super) struct Machines(Vec<String>);

impl Machines {
    pub(super) fn of(runs: &[Run<'_>]) -> Self {
        let described: Vec<String> = runs.iter().map(|run| description(*run)).collect();
        Self(distinct(described.iter().map(String::as_str)).into_iter().map(str::to_owned).collect())
    }

    /// A table of runs, and the machines that it names by letters.
    pub(super) fn tables(&self, runs: &[Run<'_>]) -> String {
        let header = [
            "run",
            "experiment",
            "machine",
            "commit",
            "compiler",
            "day",
            "launches",
            "load",
            "others, stolen",
            "transparent huge pages",
            "remark",
        ];
        let mut table = Table::new(&header);
        let mut numbers: Vec<Vec<String>> = vec![Vec::new(); self.0.len()];
        for run in runs {
            let described = description(*run);
            let place = self.0.iter().position(|machine| *machine == described).unwrap_or_default();
            numbers[place].push(run.number.to_string());
            table.row(&row(*run, &letter(place)));
        }
        let mut text = String::new();
        let with_runs = self.0.iter().zip(&numbers).enumerate().filter(|(_, (_, runs))| !runs.is_empty());
        for (place, (described, runs)) in with_runs {
            let line = format!("{} (runs {}): {described}", letter(place), runs.join(", "));
            let _ = writeln!(text, "{}", wrapped(&line, "- "));
        }
        format!("{text}\n{}", table.0)
    }
}

/// `A` to `Z`, then `A1` and so on.
fn letter(place: usize) -> String {
    let letter = char::from(b'A' + (place % 26) as u8);
    if place < 26 { letter.to_string() } else { format!("{letter}{}", place / 26) }
}

fn row(run: Run<'_>, machine: &str) -> [String; 11] {
    let header = &run.results.header;
    let word = |name: &str| header.machine.get(name).and_then(Value::as_str).unwrap_or("unknown").to_owned();
    let loads: Vec<f64> = header.launches.iter().filter_map(|launch| launch.load).collect();
    let load =
        match (loads.iter().copied().min_by(f64::total_cmp), loads.iter().copied().max_by(f64::total_cmp)) {
            (Some(least), Some(most)) => format!("{least:.1} to {most:.1}"),
            _ => "unknown".to_owned(),
        };
    let most =
        |share: fn(&Launch) -> Option<f64>| header.launches.iter().filter_map(share).max_by(f64::total_cmp);
    let quiet = match (most(|launch| launch.others), most(|launch| launch.stolen)) {
        (Some(others), Some(stolen)) => format!("{:.1} %, {:.1} %", others * 100.0, stolen * 100.0),
        _ => "not recorded".to_owned(),
    };
    let later = header.launches.iter().filter_map(|launch| launch.commit.as_deref());
    let commits = distinct(std::iter::once(header.commit.as_str()).chain(later));
    let remarks = distinct(header.launches.iter().filter_map(|launch| launch.remark.as_deref()));
    let settings: Vec<String> = header.launches.iter().map(huge_pages).collect();
    [
        run.number.to_string(),
        header.experiment.clone(),
        machine.to_owned(),
        commits.join(", "),
        word("rustc"),
        header.taken.clone(),
        header.launches.len().to_string(),
        load,
        quiet,
        distinct(settings.iter().map(String::as_str)).join("; "),
        remarks.join("; "),
    ]
}

/// The settings of transparent huge pages when a launch began: those of all sizes, and the sizes with another one.
fn huge_pages(launch: &Launch) -> String {
    let Some(thp) = &launch.thp else { return "not recorded".to_owned() };
    let word = |name: &str| thp.get(name).and_then(Value::as_str);
    let mut text = word("enabled").unwrap_or("none").to_owned();
    if let Some(defrag) = word("defrag") {
        let _ = write!(text, ", defrag {defrag}");
    }
    for (size, setting) in thp.get("sizes").and_then(Value::as_object).into_iter().flatten() {
        if let Some(setting) = setting.as_str().filter(|setting| *setting != "never") {
            let _ = write!(text, ", {size} {setting}");
        }
    }
    text
}

/// Processor, memory, kernel, and what the kernel does for each page and against each weakness of the processor.
fn description(run: Run<'_>) -> String {
    let machine = &run.results.header.machine;
    let number = |name: &str| machine.get(name).and_then(Value::as_u64);
    let float = |name: &str| machine.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let word = |name: &str| machine.get(name).and_then(Value::as_str);
    let mut text = judge::processor(run.results);
    if let (Some(family), Some(model)) = (number("family"), number("model")) {
        let _ = write!(text, ", family {family}, model {model}");
    }
    let kind = match machine.get("virtual").and_then(Value::as_bool) {
        Some(true) => "a virtual machine with ",
        _ => "",
    };
    let _ = write!(text, "; {kind}{} CPUs and {} GiB", float("cpus"), float("memory_gib"));
    let _ = write!(text, "; Linux {}", word("kernel").unwrap_or("unknown"));
    for (name, said) in [("init_on_alloc", "init_on_alloc"), ("memory_cgroup", "memory cgroup")] {
        if let Some(held) = machine.get(name).and_then(Value::as_bool) {
            let _ = write!(text, ", {}{said}", if held { "" } else { "no " });
        }
    }
    for (name, value) in machine.get("settings").and_then(Value::as_object).into_iter().flatten() {
        if let Some(value) = value.as_str() {
            let _ = write!(text, ", {name} {value}");
        }
    }
    let mitigations = machine.get("mitigations").and_then(Value::as_object);
    let said =
        mitigations.into_iter().flatten().filter_map(|(weakness, does)| Some((weakness, does.as_str()?)));
    let said: Vec<String> = said.map(|(weakness, does)| format!("{weakness} ({does})")).collect();
    match (mitigations, said.as_slice()) {
        (None, _) => text += "; mitigations not recorded",
        (Some(_), []) => text += "; no mitigations",
        (Some(_), said) => {
            let _ = write!(text, "; weaknesses: {}", said.join(", "));
        }
    }
    text
}
