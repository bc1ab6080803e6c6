//! Runs of one program side by side: what each folio size gives in each of them.

use std::collections::BTreeSet;

use anyhow::Result;
use maud::{Markup, html};

use super::page::{MIB, Section, command, mebibytes};
use super::plot::{self, Mark, Named, thousands};
use crate::output::duration;

/// The marks of runs in a plot, and the classes of their keys. Further runs stand in the table alone.
const MARKS: [(Mark, &str); 3] = [
    (Mark::Circle, "key circle one"),
    (Mark::Triangle, "key triangle two"),
    (Mark::Cross, "key cross three"),
];

/// What a file says of one program.
pub(super) struct Run {
    /// What was run, and the command that wrote the figures: others are not comparable.
    pub(super) of: Subject,
    /// The name of the file.
    pub(super) file: String,
    pub(super) sizes: Vec<Size>,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) program: String,
    pub(super) command: Vec<String>,
    /// What its figures are: `predicted` by a replay, or `measured`.
    pub(super) are: &'static str,
}

/// Figures under one set of folio sizes.
pub(super) struct Size {
    pub(super) folio: String,
    pub(super) faults: u64,
    pub(super) peak_bytes: u64,
    /// Nanoseconds in faults, if they are known.
    pub(super) fault_ns: Option<f64>,
}

/// A section for each program of which there are several runs.
///
/// # Errors
/// A plot that cannot be drawn.
pub(super) fn sections(runs: &[Run]) -> Result<Vec<Section>> {
    let first = |(at, run): &(usize, &Run)| !runs[..*at].iter().any(|before| before.of == run.of);
    let groups = runs.iter().enumerate().filter(first).map(|(_, run)| {
        let group: Vec<&Run> = runs.iter().filter(|other| other.of == run.of).collect();
        (&run.of, group)
    });
    groups.filter(|(_, group)| group.len() > 1).map(|(of, group)| section(of, &group)).collect()
}

fn section(of: &Subject, runs: &[&Run]) -> Result<Section> {
    let marked = || runs.iter().zip(MARKS);
    let body = html! {
        p.soft { code { (command(&of.command)) } ", figures " (of.are) "." }
        div.cards { div.card {
            h2 { "Faults against memory at the peak" }
            div.soft { @for (run, (_, class)) in marked() { span class=(class) { (run.file) } } }
            (plot(&marked().map(|(run, (mark, _))| (*run, mark)).collect::<Vec<_>>())?)
            @if runs.len() > MARKS.len() { p.soft { "The first " (MARKS.len()) " of " (runs.len()) " runs." } }
        } }
        (table(runs))
    };
    Ok(Section { title: format!("{} side by side", of.program), body })
}

fn plot(runs: &[(&Run, Mark)]) -> Result<Markup> {
    let point = |mark, size: &Size| Named {
        mark,
        name: size.folio.clone(),
        at: (size.peak_bytes as f64 / MIB, size.faults.max(1) as f64),
    };
    let points: Vec<Named> =
        runs.iter().flat_map(|(run, mark)| run.sizes.iter().map(|size| point(*mark, size))).collect();
    let told: Vec<String> = runs
        .iter()
        .flat_map(|(run, _)| run.sizes.iter().map(move |size| (run, size)))
        .map(|(run, size)| {
            format!("{}, {}: {} faults, {}.", run.file, size.folio, size.faults, mebibytes(size.peak_bytes))
        })
        .collect();
    plot::named(&points, ["MiB at the peak", "faults"], &told.join(" "))
}

/// A row for each set of sizes; a run that lacks it has dashes.
fn table(runs: &[&Run]) -> Markup {
    let mut seen = BTreeSet::new();
    let all = runs.iter().flat_map(|run| &run.sizes).map(|size| size.folio.as_str());
    let folios: Vec<&str> = all.filter(|folio| seen.insert(*folio)).collect();
    let size = |run: &Run, folio: &str| -> [String; 3] {
        let Some(size) = run.sizes.iter().find(|size| size.folio == folio) else {
            return ["–", "–", "–"].map(str::to_owned);
        };
        let time = size.fault_ns.map_or_else(|| "–".to_owned(), duration);
        [thousands(size.faults as f64), mebibytes(size.peak_bytes), time]
    };
    html! {
        div.scroll { table {
            thead {
                tr { th {} @for run in runs { th colspan="3" { (run.file) } } }
                tr { th { "folios" } @for _ in runs { th { "faults" } th { "peak" } th { "in faults" } } }
            }
            tbody { @for folio in folios { tr {
                td { (folio) }
                @for run in runs { @for cell in size(run, folio) { td { (cell) } } }
            } } }
        } }
    }
}
