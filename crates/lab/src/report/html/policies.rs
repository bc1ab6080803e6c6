//! Advice about other policies than the sizes of anonymous folios, in sentences.

use maud::{Markup, html};
use serde::Deserialize;

use super::page::mebibytes;
use super::plot::thousands;
use crate::output::duration;

/// What an advice says of them.
#[derive(Deserialize)]
pub(super) struct Policies {
    #[serde(default)]
    pub(super) memory_high_bytes: Option<u64>,
    #[serde(default)]
    fragmentation: Option<Fragmentation>,
    #[serde(default)]
    defrag: Option<Defrag>,
    #[serde(default)]
    hugetlb: Option<Pools>,
    #[serde(default)]
    code: Option<Code>,
    #[serde(default)]
    shmem: Option<Shmem>,
    #[serde(default)]
    reach: Option<Reach>,
}

/// Of referenced bits, or of what DAMON saw.
#[derive(Deserialize)]
struct Reach {
    /// None in what older versions wrote.
    #[serde(default)]
    damon: Option<Damon>,
    interval_ns: u64,
    process: Option<ReferencedProcess>,
    tlb_last_4k: u64,
    tlb_last_2m: u64,
    overhead_percent: Option<f64>,
}

#[derive(Deserialize)]
struct Damon {
    regions: u64,
    samples: u64,
}

#[derive(Deserialize)]
struct ReferencedProcess {
    program: String,
    intervals: u64,
    median_bytes: u64,
    most_bytes: u64,
    entries_4k: u64,
    with_2m: With2m,
}

#[derive(Deserialize)]
struct With2m {
    least_2m: u64,
    most_2m: u64,
    least_4k: u64,
    most_4k: u64,
}

#[derive(Deserialize)]
struct Fragmentation {
    percent: f64,
}

#[derive(Deserialize)]
struct Defrag {
    sets: Vec<Bounds>,
}

#[derive(Deserialize)]
struct Bounds {
    folio: String,
    falls_back: Faults,
    waits: Faults,
    waiting_faults: u64,
}

#[derive(Deserialize)]
struct Faults {
    faults: u64,
    time_ns: f64,
}

#[derive(Deserialize)]
struct Pools {
    used_2m: u64,
    used_1g: u64,
    refused: u64,
    pages_2m: Option<u64>,
    faults_saved: u64,
    #[serde(rename = "do")]
    commands: Vec<String>,
}

#[derive(Deserialize)]
struct Code {
    pages: u64,
    entries_2m: u64,
    entries_4k: u64,
    tlb_first_4k: u64,
    pays: bool,
    how: Option<String>,
}

#[derive(Deserialize)]
struct Shmem {
    names: Vec<String>,
    chosen: Option<String>,
    sets: Vec<ShmemSet>,
    #[serde(rename = "do")]
    commands: Vec<String>,
}

#[derive(Deserialize)]
struct ShmemSet {
    folio: String,
    faults: u64,
    memory_bytes: u64,
}

/// Of a set of sizes.
pub(super) struct SetCounts<'a> {
    pub(super) name: &'a str,
    pub(super) fell_back: u64,
    pub(super) above_high: u64,
}

/// All policies of which something is known.
pub(super) fn section(policies: &Policies, sets: &[SetCounts<'_>]) -> Markup {
    let limit = policies.memory_high_bytes.map(|high| ("memory.high", limit(high, sets)));
    let pieces = policies.fragmentation.as_ref().map(|pieces| ("Fragmented memory", fragments(pieces, sets)));
    let pools = policies.hugetlb.as_ref().map(|pools| ("Huge pages of a pool", self::pools(pools)));
    let code = policies.code.as_ref().map(|code| ("Program text in huge pages", self::code(code)));
    let shmem = policies.shmem.as_ref().map(|shmem| ("Shared memory", self::shmem(shmem)));
    let defrag = policies.defrag.as_ref().map(|defrag| ("Compaction", self::defrag(defrag)));
    let reach = policies.reach.as_ref().map(|reach| ("TLB reach", self::reach(reach)));
    let told: Vec<_> = [reach, limit, pieces, defrag, pools, code, shmem].into_iter().flatten().collect();
    html! {
        @if !told.is_empty() {
            h2 { "Other policies" }
            @for (name, said) in told { p { b { (name) ": " } (said) } }
        }
    }
}

fn reach(reach: &Reach) -> Markup {
    let Some(process) = &reach.process else {
        return html! { "Unknown: no interval came to its end." };
    };
    let With2m { least_2m, most_2m, least_4k, most_4k } = &process.with_2m;
    let interval = duration(reach.interval_ns as f64);
    let took = |percent: f64| match reach.damon {
        Some(_) => format!(" DAMON's thread took {percent:.1} % of one CPU."),
        None => format!(" Clearing and reading the bits took {percent:.1} % of the time."),
    };
    html! {
        @match &reach.damon {
            None => { "A model from referenced bits, interval " (interval) ": " (process.program) " references " }
            Some(Damon { regions, samples }) => {
                "A model from DAMON, " (regions) " regions, each looked at every " (interval) ", " (samples)
                " looks to an interval: " (process.program) " accesses from one look to the next "
            }
        }
        (mebibytes(process.median_bytes)) " in the median of " (process.intervals) " intervals, "
        (mebibytes(process.most_bytes)) " in the process. That takes " (thousands(process.entries_4k as f64))
        " entries of 4 KiB, of which the last level has " (thousands(reach.tlb_last_4k as f64))
        "; with anonymous memory in 2 MiB " (thousands(*least_2m as f64)) " to " (thousands(*most_2m as f64))
        " of 2 MiB (of " (thousands(reach.tlb_last_2m as f64)) ") and " (thousands(*least_4k as f64))
        " to " (thousands(*most_4k as f64)) " of 4 KiB." (reach.overhead_percent.map(took).unwrap_or_default())
    }
}

fn limit(high: u64, sets: &[SetCounts<'_>]) -> Markup {
    let above: Vec<String> = sets
        .iter()
        .filter(|set| set.above_high > 0)
        .map(|set| format!("{} by {}", set.name, mebibytes(set.above_high)))
        .collect();
    html! {
        (mebibytes(high)) ": "
        @if above.is_empty() { "every set stays below it." } @else { "exceeded under " (above.join(", ")) "." }
    }
}

fn fragments(pieces: &Fragmentation, sets: &[SetCounts<'_>]) -> Markup {
    let failed: Vec<String> = sets
        .iter()
        .filter(|set| set.fell_back > 0)
        .map(|set| format!("{} under {}", thousands(set.fell_back as f64), set.name))
        .collect();
    html! {
        (format!("{:.0} %", pieces.percent)) " of free memory is in pieces below 2 MiB. "
        @if failed.is_empty() { "Every request for a larger folio finds one." }
        @else { "Requests for larger folios that find none: " (failed.join(", ")) "." }
    }
}

fn pools(pools: &Pools) -> Markup {
    html! {
        @if pools.used_2m + pools.used_1g + pools.refused > 0 {
            "The program itself maps " (pools.used_2m) " pages of 2 MiB and " (pools.used_1g) " of 1 GiB; "
            (pools.refused) " mappings were refused. "
        }
        @if let Some(pages) = pools.pages_2m {
            (pages) " pages of 2 MiB would save " (thousands(pools.faults_saved as f64)) " faults. "
        }
        @for command in &pools.commands { code { (command) } " " }
    }
}

fn code(code: &Code) -> Markup {
    html! {
        "About " (thousands(code.pages as f64)) " pages of code are used; the first instruction TLB has "
        (thousands(code.tlb_first_4k as f64)) " entries. In huge pages they need " (thousands(code.entries_2m as f64))
        " entries of 2 MiB and " (thousands(code.entries_4k as f64)) " of 4 KiB: "
        @if code.pays { "that may pay." } @else { "that saves little." }
        @if let Some(how) = &code.how { " How: " (how) }
    }
}

fn shmem(shmem: &Shmem) -> Markup {
    let told = |set: &ShmemSet| {
        let (faults, memory) = (thousands(set.faults as f64), mebibytes(set.memory_bytes));
        format!("{}: {faults} faults, {memory}", set.folio)
    };
    let chosen = |set: &&ShmemSet| shmem.chosen.as_ref() == Some(&set.folio);
    html! {
        (shmem.names.join(", ")) ". "
        @if let Some(now) = shmem.sets.first() { (told(now)) ". " }
        @match shmem.sets.iter().find(chosen) {
            Some(set) => { (told(set)) ". " }
            None => { "No other size of its folios is worth a change." }
        }
        @for command in &shmem.commands { code { (command) } " " }
    }
}

fn defrag(defrag: &Defrag) -> Markup {
    let faults = |faults: &Faults| {
        format!("{} faults in {}", thousands(faults.faults as f64), duration(faults.time_ns))
    };
    html! {
        @for set in &defrag.sets {
            (set.folio) ": " (faults(&set.falls_back)) " if nothing is compacted, or " (faults(&set.waits)) " of which "
            (thousands(set.waiting_faults as f64)) " wait for compaction. "
        }
    }
}
