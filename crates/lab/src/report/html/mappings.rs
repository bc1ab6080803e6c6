//! The mappings of advice: which of them save time, and a plan that gives folios to some of them alone.

use maud::{Markup, html};
use serde::Deserialize;

use super::page::mebibytes;
use super::plot::thousands;
use crate::output::duration;

/// A mapping under a set of sizes.
#[derive(Deserialize)]
pub(super) struct Mapping {
    program: String,
    kind: String,
    file: Option<String>,
    address: u64,
    bytes: u64,
    faults: u64,
    time_ns: f64,
    wasted_bytes: u64,
}

/// Folios for some mappings alone.
#[derive(Deserialize)]
pub(super) struct Plan {
    pub(super) folio: String,
    pub(super) faults: u64,
    pub(super) time_ns: f64,
    pub(super) memory_bytes: u64,
    pub(super) wasted_bytes: u64,
    mappings: Vec<Mapping>,
    #[serde(rename = "do")]
    commands: Vec<String>,
    undo: Vec<String>,
}

/// Mappings that the page shows, those that save most first.
const MOST: usize = 12;

/// A mapping before and after a change.
type Pair<'a> = (&'a Mapping, &'a Mapping);

fn pairs<'a>(before: &'a [Mapping], after: &'a [Mapping]) -> Vec<Pair<'a>> {
    let pair = |new: &'a Mapping| Some((before.iter().find(|old| old.is_the_same_as(new))?, new));
    let mut pairs: Vec<Pair<'a>> = after.iter().filter_map(pair).collect();
    pairs.sort_by(|one, other| saved_ns(other).total_cmp(&saved_ns(one)));
    pairs
}

fn saved_ns((before, after): &Pair<'_>) -> f64 {
    before.time_ns - after.time_ns
}

/// Where one set for all memory saves its time.
pub(super) fn saved(folio: &str, before: &[Mapping], after: &[Mapping]) -> Markup {
    html! {
        h2 { "Where the time is saved" }
        div.scroll { table {
            thead { tr {
                th { "mapping" } th { "size" } th { "faults now" } th { (folio) } th { "time saved" }
                th { "never touched" }
            } }
            tbody { @for pair in pairs(before, after).iter().take(MOST) { tr {
                td { (pair.1.name()) }
                td { (mebibytes(pair.1.bytes)) }
                td { (thousands(pair.0.faults as f64)) }
                td { (thousands(pair.1.faults as f64)) }
                td { (duration(saved_ns(pair))) }
                td { (mebibytes(pair.1.wasted_bytes)) }
            } } }
        } }
    }
}

/// The plan, with what makes each mapping ask for its folios. `asks` is the program's setting for memory of `malloc`.
pub(super) fn plan(plan: &Plan, before: &[Mapping], asks: Option<&str>) -> Markup {
    html! {
        h2 { "Folios of " (plan.folio) " for these mappings alone" }
        div.scroll { table.stacked {
            thead { tr {
                th { "mapping" } th { "size" } th { "faults" } th { "time saved" } th { "never touched" }
                th.word { "how to set it" }
            } }
            tbody { @for pair in pairs(before, &plan.mappings) { tr {
                td { (pair.1.name()) }
                td data-name="size" { (mebibytes(pair.1.bytes)) }
                td data-name="faults" { (thousands(pair.0.faults as f64)) " → " (thousands(pair.1.faults as f64)) }
                td data-name="time saved" { (duration(saved_ns(&pair))) }
                td data-name="never touched" { (mebibytes(pair.1.wasted_bytes)) }
                td.word data-name="how to set it" { code { "madvise(MADV_HUGEPAGE)" } }
            } } }
        } }
        @if let Some(asks) = asks { p { "Or by a setting of the program: " code { (asks) } } }
        @if !plan.commands.is_empty() {
            p { "First let memory that asks have them:" } pre { (plan.commands.join("\n")) }
            p { "Undo:" } pre { (plan.undo.join("\n")) }
        }
    }
}

impl Mapping {
    fn is_the_same_as(&self, other: &Self) -> bool {
        (&self.program, &self.kind, &self.file, self.address)
            == (&other.program, &other.kind, &other.file, other.address)
    }

    fn name(&self) -> String {
        let place = self.file.clone().unwrap_or_else(|| format!("{:#x}", self.address));
        format!("{}: {} {place}", self.program, self.kind)
    }
}
