//! The results of the campaign, by part of the library and by kind of bug.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

use crate::campaign::{Outcomes, RESULTS, Verdict, results};
use crate::operators::Class;
use crate::sample::{List, Mutant};

/// The goal: this many of a hundred are caught.
const CAUGHT: usize = 95;

/// The number of bugs with each verdict.
#[derive(Default)]
struct Row {
    caught: usize,
    hangs: usize,
    survived: usize,
    unreached: usize,
}

impl Row {
    fn add(&mut self, verdict: Verdict) {
        *match verdict {
            Verdict::Caught => &mut self.caught,
            Verdict::Hangs => &mut self.hangs,
            Verdict::Survived => &mut self.survived,
            Verdict::Unreached => &mut self.unreached,
        } += 1;
    }

    fn found(&self) -> usize {
        self.caught + self.hangs
    }

    fn all(&self) -> usize {
        self.found() + self.survived + self.unreached
    }
}

/// Prints the tables and the survivors; true if enough were caught and each survivor is explained.
pub(crate) fn print(root: &Path, list: &List) -> Result<bool> {
    let results = results(root)?;
    let known: Vec<(&Mutant, &Outcomes)> = list
        .mutants
        .iter()
        .filter(|mutant| mutant.is_bug())
        .filter_map(|mutant| results.get(&mutant.key()).map(|outcome| (mutant, outcome)))
        .collect();
    let (constant, unseen) = (list.constant, list.unseen);
    let bugs = list.mutants.iter().filter(|mutant| mutant.is_bug()).count();
    println!("{bugs} bugs, drawn with seed {} from {} places;", list.seed, list.places);
    println!("{constant} places in constants and {unseen} in statistics and hints have none;");
    println!("{} more were drawn and mean the same with the bug.\n", list.mutants.len() - bugs);
    println!("{}\n", table("part", &known, |mutant| mutant.module()));
    println!("{}\n", table("kind", &known, |mutant| kind(mutant.class)));
    let mut all = Row::default();
    known.iter().for_each(|(_, outcome)| all.add(outcome.verdict));
    let mut unexplained = 0;
    for (mutant, outcome) in &known {
        if matches!(outcome.verdict, Verdict::Survived | Verdict::Unreached) {
            unexplained += usize::from(mutant.explained.is_none());
            print_survivor(mutant, outcome);
        }
    }
    let seconds: f64 = known.iter().map(|(_, outcome)| outcome.seconds).sum();
    let hourly = all.all() as f64 * 3600.0 / seconds.max(1.0);
    println!("{} of {} caught; {hourly:.0} an hour and job. Details: {RESULTS}", all.found(), all.all());
    Ok(unexplained == 0 && all.all() == bugs && all.found() * 100 >= all.all() * CAUGHT)
}

fn kind(class: Class) -> String {
    let at = Class::ALL.iter().position(|other| *other == class).unwrap_or_default();
    let name = serde_json::to_value(class).ok();
    let name = name.as_ref().and_then(|name| name.as_str()).unwrap_or_default();
    format!("{} {name}", at + 1)
}

fn table(what: &str, known: &[(&Mutant, &Outcomes)], group: impl Fn(&Mutant) -> String) -> Table {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for (mutant, outcome) in known {
        rows.entry(group(mutant)).or_default().add(outcome.verdict);
    }
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    table.set_header([what, "bugs", "caught", "of those by hanging", "survived", "not reached"]);
    for (name, row) in rows {
        let counts = [row.all(), row.found(), row.hangs, row.survived, row.unreached];
        table.add_row(std::iter::once(name).chain(counts.map(|count| count.to_string())));
    }
    table
}

fn print_survivor(mutant: &Mutant, outcome: &Outcomes) {
    let Mutant { number, file, line, function, original, mutated, .. } = mutant;
    println!("{number}: {file}:{line} `{function}` {:?}, {} tests", mutant.operator, outcome.tests);
    println!("    - {}", one_line(original));
    println!("    + {}", one_line(mutated));
    println!("    {}\n", mutant.explained.as_deref().unwrap_or("not explained"));
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
