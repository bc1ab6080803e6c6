//! What does it cost to collapse the 4 KiB leaves of a 1 GiB page into one, and how long does another CPU
//! wait?

use crate::output::Sheet;
use quire::vm::CollapseSteps;
use serde_json::json;

use crate::bench::arms::collapse_huge::{self, Collapse, To};
use crate::bench::beside::{median, relative};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::BestOf,
};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `collapse`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "collapse",
    question: "How long does it take to collapse the 262144 leaves of a huge page of 1 GiB into one, by the \
     way of counting map counts, and how long does a CPU wait that touches the page?",
    expectation: "quire: reading the entries takes 0.1 to 0.15 ms; with freeing 513 tables and changing 512 \
     counts, 0.2 to 0.4 ms; staged a little more, with no step over 100 us. per-frame: 262144 locked \
     instructions more, each on its own cache line, 1.5 ms and up. head-only: as quire. A CPU that touches \
     the page waits for one flush, 5 to 30 us. as-posted: as per-frame, and a virtual CPU waits as long.",
    baseline: &["head-only"],
    per: "call",
    notes: &[
        "The page belongs to a file; `N spaces` map it by leaves of 4 KiB, and one of them collapses its \
         mapping. Frames stay where they are, but Linux copies them.",
        "`direct`: from 4 KiB to 1 GiB in one step. `staged`: 64 tables of 4 KiB leaves at a time become leaves of 2 \
         MiB, which then become one; the whole page is checked first. `2MiB`: to leaves of 2 MiB only.",
        "`step` is the longest time between two reschedule points: an upper bound on how long the address space's \
         lock was held.",
        "`touched`: another CPU reads all over the page, through the software MMU; `worst-stall` is its longest \
         read that met the collapse, in all repetitions (0: none did). `guest`: a virtual CPU loads and stores \
         through second-stage tables that have every other page, and faults on the others; its larger copies \
         are part of the time. `switched_away`: how often the scheduler took a processor from one of the two threads \
         meanwhile. A wait in which that happened is as long as what ran instead.",
        "In both, a CPU that waits for the other polls for 200 us before it sleeps: the longest poll of Linux's idle \
         governor `haltpoll`. Linux does not poll everywhere, and no thread of a virtual CPU that waits in the host's fault. \
         So waits below 200 us have no wake-up, which takes tens of microseconds; those of `as-posted` are longer and have \
         one, which favours `quire`. Before November 30, 2026 they slept at once.",
        "Published (Houghton, v2, January and February 2023): about 1 s with a map count for each frame, \
         nearly all of it atomic decrements, while no virtual CPU can touch the page; 10 to 30 ms for the \
         start of the notifier bracket.",
    ],
    own: &["quire"],
    apart: &["quire-direct"],
    goals: &[
        Goal::new("leaves of 4 KiB become one of 1 GiB: under 0.5 ms", "quire", &["direct"], AtMost(5e5)),
        Goal::new(
            "leaves of 4 KiB become one of 1 GiB: 8 times as fast as `per-frame`",
            "quire",
            &["direct"],
            Times(8.0),
        )
        .over(BestOf(&["per-frame"])),
        Goal::new("the same in stages: at most 1.3 of one step", "quire", &["staged"], AtMost(1.3))
            .over(BestOf(&["quire-direct"])),
        Goal::new(
            "the same in stages: the longest step takes at most 100 us (median of the repetitions)",
            "quire",
            &["staged"],
            AtMost(1e5),
        )
        .metric("step"),
        Goal::new(
            "a CPU that touches the page waits at most 50 us",
            "quire",
            &["staged/touched", "direct/touched"],
            AtMost(5e4),
        )
        .metric("worst-stall"),
        Goal::new("with a secondary MMU: under 0.5 ms in all", "quire", &["staged/guest"], AtMost(5e5)),
        Goal::new("a virtual CPU waits at most 50 us", "quire", &["staged/guest"], AtMost(5e4))
            .metric("worst-stall"),
        Goal::new(
            "a virtual CPU waits a tenth as long as with the collapse as posted",
            "quire",
            &["staged/guest"],
            Times(10.0),
        )
        .over(BestOf(&["as-posted"]))
        .metric("worst-stall"),
        Goal::new("no notifier bracket", "quire", &["staged/guest", "direct/guest"], AtMost(0.0))
            .counter("invalidate_brackets"),
    ],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &["crates/lab/src/bench/arms/collapse_huge/", "crates/lab/src/bench/arms/collapse/call.rs"],
    ],
    run,
    appendix: Some(beside_each_other),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let other = (runner.cpus.len() > 1).then(|| runner.cpus[1]);
    let direct = To::Gigantic(CollapseSteps::Direct);
    let staged = To::Gigantic(CollapseSteps::Staged);
    let stepped = runner.scale.pick(0, 4);
    // What it touches takes memory of the host.
    let guest_bytes = runner.scale.pick(16 << 20, 1 << 30);
    let plain =
        Collapse { to: direct, spaces: 1, touched_on: None, virtual_cpu: false, guest_bytes, stepped };
    let mut cases = vec![
        case("direct", plain),
        case("staged", Collapse { to: staged, ..plain }),
        case("2MiB", Collapse { to: To::Large, ..plain }),
        case("direct/8spaces", Collapse { spaces: 8, ..plain }),
        case("staged/8spaces", Collapse { to: staged, spaces: 8, ..plain }),
    ];
    if other.is_some() {
        let ways = [("staged", staged), ("direct", direct)];
        for (name, to) in ways.into_iter().take(runner.scale.pick(1, 2)) {
            let touched = Collapse { to, touched_on: other, ..plain };
            cases.push(case(&format!("{name}/touched"), touched));
            cases.push(case(&format!("{name}/guest"), Collapse { virtual_cpu: true, ..touched }));
        }
    }
    let mut arms = collapse_huge::all();
    let mut watched = None;
    if runner.scale.smoke {
        // An instruction that is watched takes 10 us.
        let one_table = case("direct/watched", Collapse { stepped: 1, ..plain });
        watched = Some(runner.measure(experiment, &[one_table], &mut arms[..1])?);
        // Making eight mappings takes long, and so does the kernel's search for a gigabyte of contiguous 2
        // MiB.
        cases.retain(|case| !case.name.ends_with("8spaces") && case.name != "2MiB");
    }
    let mut measured = runner.measure(experiment, &cases, &mut arms)?;
    measured.rows.extend(watched.into_iter().flat_map(|watched| watched.rows));
    Ok(measured)
}

fn case(name: &str, spec: Collapse) -> Case<Collapse> {
    let params = [
        ("bytes", json!(1u64 << 30)),
        ("spaces", json!(spec.spaces)),
        ("touched", json!(spec.touched_on.is_some())),
    ];
    let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Case { name: name.to_owned(), params, spec }
}

fn beside_each_other(rows: &[Row]) -> anyhow::Result<String> {
    let header = [
        "case",
        "per-frame / quire",
        "quire / head-only",
        "quire / head-only-by-leaf",
        "staged / direct",
        "as-posted / quire",
        "linux / quire",
    ];
    let mut text = Sheet::new(&table::heads(&header, rows), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let over = |arm, base| relative(median(rows, arm, case), median(rows, base, case));
        text.add_row(vec![
            case.to_owned(),
            over("per-frame", "quire"),
            over("quire", "head-only"),
            over("quire", "head-only-by-leaf"),
            over("quire", "quire-direct"),
            over("as-posted", "quire"),
            over("linux", "quire"),
        ]);
    }
    Ok(format!("times over each other\n{text}\n{}", counts::of_pools(rows, "collapse")))
}
