//! The verdict as one JSON object a line. `docs/advise-json.md` explains each field.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::calibrate::FaultSpread;
use crate::replay::{Heat, HeatRow, Part, Sample, Trial, order_name};

use super::baseline::Settings;
use super::case::Case;
use super::code;
use super::defrag;
use super::fragmentation;
use super::hugetlb;
use super::khugepaged;
use super::limit;
use super::objective::Goal;
use super::prices::{Prices, Source};
use super::processes;
use super::reach;
use super::shmem;
use super::translations::Translations;
use super::verdict::{AdviseRequest, Verdict};
use super::ways::Runtime;
use super::words::Names;
use crate::tlb::{Counts, Sampled};

/// The version of the fields below.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema: u32,
    trace: String,
    program: &'a str,
    program_version: &'a str,
    command: &'a [String],
    attached: bool,
    exit_code: Option<u8>,
    wall_ns: u64,
    events: u64,
    records_lost: u64,
    goal: Goal,
    max_waste_percent: f64,
    baseline: String,
    /// `null` if nothing is worth doing.
    chosen: Option<String>,
    best: Option<String>,
    recorded_large: bool,
    sets: Vec<Set<'a>>,
    left_out: &'a [String],
    plan: Option<Value>,
    prices: Value,
    tlb: Option<Value>,
    reach: Option<Value>,
    khugepaged: Option<Value>,
    fragmentation: Option<Value>,
    defrag: Option<Value>,
    memory_high_bytes: Option<u64>,
    code: Option<Value>,
    shmem: Option<Value>,
    hugetlb: Option<Value>,
    heat: Option<Value>,
    #[serde(rename = "do")]
    do_: Vec<String>,
    undo: Vec<String>,
    asks: Option<&'static str>,
    refuses: &'static str,
    commit: &'static str,
}

#[derive(Serialize)]
struct Set<'a> {
    folio: String,
    within_waste: bool,
    faults: u64,
    kinds: BTreeMap<&'static str, u64>,
    folios: BTreeMap<String, u64>,
    signals: u64,
    absorbed: u64,
    fell_back: u64,
    time_ns: f64,
    longest_ns: f64,
    memory_bytes: u64,
    wasted_bytes: u64,
    page_tables_bytes: u64,
    peak_rss_bytes: u64,
    above_high_bytes: Option<u64>,
    above_high_percent: Option<f64>,
    differences: u64,
    mappings: Vec<Value>,
    timeline: &'a [Sample],
    /// Of the baseline and of the best set.
    processes: Option<Vec<Value>>,
    tlb: Option<Value>,
}

/// One line.
pub(super) fn line(
    (trace, trial): (&std::path::Path, &Trial),
    verdict: &Verdict,
    (settings, request): (&Settings, AdviseRequest<'_>),
    exit_code: Option<u8>,
) -> anyhow::Result<Vec<u8>> {
    let header = trial.header();
    let names = Names::new(trial, &verdict.baseline().figures.parts);
    let changes = verdict.chosen().and_then(|case| settings.changes(case.set()).ok()).unwrap_or_default();
    let runtime = Runtime::of(&trial.files());
    let report = Report {
        schema: SCHEMA,
        trace: trace.display().to_string(),
        program: &header.program.name,
        program_version: &header.program.version,
        command: &header.command,
        attached: header.attached,
        exit_code,
        wall_ns: trial.wall_ns(),
        events: header.events,
        records_lost: trial.lost(),
        goal: request.goal,
        max_waste_percent: request.most_waste * 100.0,
        baseline: verdict.baseline().name(),
        chosen: verdict.chosen().map(Case::name),
        best: verdict.best.map(|at| verdict.cases[at].name()),
        recorded_large: verdict.recorded_large,
        sets: (0..verdict.cases.len()).map(|at| set((trial, verdict), at, &names, request)).collect(),
        left_out: &verdict.left_out,
        plan: verdict.plan.as_ref().map(|plan| {
            json!({
                "folio": plan.set.unrequested().name(),
                "mappings": plan.asking.iter().map(|gain| part(&gain.part, &names, gain.ns)).collect::<Vec<_>>(),
                "faults": plan.score.faults,
                "time_ns": plan.score.time_ns,
                "memory_bytes": plan.score.memory,
                "wasted_bytes": plan.score.wasted,
                "do": settings.requests(plan.set).into_iter().map(|change| change.run).collect::<Vec<_>>(),
                "undo": settings.requests(plan.set).into_iter().map(|change| change.undo).collect::<Vec<_>>(),
            })
        }),
        prices: prices(&verdict.prices),
        tlb: verdict.translations.as_ref().map(translations),
        reach: verdict.reach.as_ref().map(reach::json),
        khugepaged: verdict.khugepaged.as_ref().map(khugepaged::json),
        fragmentation: trial.fragments().map(fragmentation::json),
        defrag: verdict.defrag.as_ref().map(defrag::json),
        memory_high_bytes: request.high,
        code: verdict.code.as_ref().map(|code| code::json(code, trial)),
        shmem: verdict.shmem.as_ref().map(|shmem| shmem::json(shmem, request.most_waste)),
        hugetlb: verdict.pools.as_ref().map(|pools| hugetlb::json(pools, &names)),
        heat: trial.heat()?.map(|heat| self::heat(&heat, trial)),
        do_: changes.iter().map(|change| change.run.clone()).collect(),
        undo: changes.into_iter().map(|change| change.undo).collect(),
        asks: runtime.asks(settings.overall.as_deref()),
        refuses: runtime.refuses(),
        commit: crate::host::machine::commit(),
    };
    let mut line = serde_json::to_vec(&report)?;
    line.push(b'\n');
    Ok(line)
}

fn set<'a>(
    (trial, verdict): (&Trial, &'a Verdict),
    at: usize,
    names: &Names<'_>,
    request: AdviseRequest<'_>,
) -> Set<'a> {
    let case = &verdict.cases[at];
    let (figures, score) = (&case.figures, &case.score);
    let kinds = quire::vm::FaultKind::NAMES.into_iter().zip(figures.kinds);
    let folios = (0..).zip(figures.folios);
    Set {
        folio: case.name(),
        within_waste: score.is_within(request.most_waste),
        faults: score.faults,
        kinds: kinds.filter(|(_, count)| *count > 0).collect(),
        folios: folios
            .filter(|(_, count)| *count > 0)
            .map(|(order, count)| (order_name(order), count))
            .collect(),
        signals: figures.signals,
        absorbed: figures.absorbed,
        fell_back: figures.fell_back,
        time_ns: score.time_ns,
        longest_ns: score.longest_ns,
        memory_bytes: score.memory,
        wasted_bytes: score.wasted,
        page_tables_bytes: figures.peak.page_tables,
        peak_rss_bytes: figures.peak_rss,
        above_high_bytes: request.high.map(|_| score.above()),
        above_high_percent: limit::time_above(case).map(|share| share * 100.0),
        differences: figures.differences,
        mappings: figures.parts.iter().map(|own| part(own, names, case.ns(own))).collect(),
        timeline: &figures.timeline,
        processes: (at == 0 || verdict.best == Some(at)).then(|| processes::json(trial, case)),
        tlb: verdict.translations.as_ref().map(|run| missed(run, &run.run.counts[at], Some(at))),
    }
}

fn part(part: &Part, names: &Names<'_>, time_ns: f64) -> Value {
    json!({
        "program": names.program(part),
        "kind": Names::kind(part),
        "file": names.file(part),
        "address": part.address,
        "bytes": part.bytes,
        "faults": part.faults(),
        "time_ns": time_ns,
        "resident_bytes": part.resident,
        "wasted_bytes": part.wasted,
    })
}

fn heat(heat: &Heat, trial: &Trial) -> Value {
    let program = heat.program.and_then(|name| trial.names().get(name.0 as usize));
    let row = |row: &HeatRow| json!({ "start": row.start, "end": row.end, "pages": row.pages });
    let rows: Vec<_> = heat.rows.iter().map(row).collect();
    json!({ "source": heat.source, "pid": heat.pid, "program": program, "rows": rows })
}

/// What the TLBs miss.
fn missed(translations: &Translations, counts: &Counts, at: Option<usize>) -> Value {
    let sampled = translations.run.sampled.as_ref();
    json!({
        "window_walks_per_thousand": sampled.zip(at).map(|(sampled, at)| sampled.walks_per_thousand[at]),
        "second_level": counts.second,
        "walks": counts.walks,
        "fetch_second_level": counts.fetch_second,
        "fetch_walks": counts.fetch_walks,
        "time_ns": translations.time_ns(counts),
    })
}

fn translations(translations: &Translations) -> Value {
    json!({
        "processor": translations.processor,
        "accesses": translations.run.accesses,
        "fetches": translations.run.fetches,
        "ended_early": translations.run.cut,
        "walk_ns": translations.walk_ns,
        "with_code_in_2m": missed(translations, &translations.code, None),
        "sampled": translations.run.sampled.as_ref().map(sampled),
    })
}

fn sampled(sampled: &Sampled) -> Value {
    json!({ "windows": sampled.windows, "percent": sampled.share * 100.0 })
}

fn prices(prices: &Prices) -> Value {
    let (from, file, why) = match &prices.source {
        Source::Measured { file, .. } => ("measured", Some(file.display().to_string()), None),
        Source::Assumed { why, .. } => ("assumed", None, Some(why)),
    };
    let spread = |(order, spread): (&u8, &FaultSpread)| (order_name(*order), json!(spread));
    let spreads: BTreeMap<String, Value> = prices.spreads.iter().map(spread).collect();
    json!({ "from": from, "file": file, "why": why, "ns": prices.named(), "faults": spreads })
}
