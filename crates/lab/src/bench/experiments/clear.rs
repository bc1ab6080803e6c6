//! How fast is memory cleared?

use crate::output::Sheet;
use serde_json::json;

use crate::bench::arms::clear::KERNELS;
use crate::bench::arms::clear::{self, Fill, Populating, RATE, Setting};
use crate::bench::beside;
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured};
use crate::bench::goal::{
    Bound::{AtLeast, Times},
    Goal,
    Over::{self, BestOf},
};
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The experiment `clear`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "clear",
    question: "How fast does each way clear 1 GiB per thread, by extent size, and how fast is 1 GiB \
     populated by large pages?",
    expectation: "Non-temporal stores: two to four times as fast as stores through the caches from some MiB \
     on, slower below 64 KiB because of the fence after each extent. The policy: at least 95 % of the \
     fastest at 1 GiB. Populating: 2.2 times as fast as linux with one thread, 4 times with two.",
    baseline: &["linux", "string"],
    per: "call",
    notes: &[
        "A case names the extent: `4KiB` clears 1 GiB by calls of 4 KiB each. No cache holds the memory \
         before, except the end of the GiB before. With two threads each clears its own GiB; `time` is from \
         the first start to the last end.",
        "`populate/...`: each thread populates 1 GiB by one call. The ratio there is against linux's huge \
         pages, elsewhere against the string instruction. Each kernel by itself clears the same memory as \
         `quire`, as an upper bound; `linux` clears other pages.",
        "`contiguous` has the shape in which Linux clears since 7.0, by our own loop: in `populate/...` on pages of a pool.",
        "The policy was calibrated in this run, before the first case.",
    ],
    own: &["quire-pool", "quire"],
    apart: &[],
    goals: &[
        Goal::new(
            "extents of 1 GiB: 0.95 of the best kernel by itself",
            "quire",
            &["1GiB", "1GiB/2threads"],
            AtLeast(0.95),
        )
        .metric("rate")
        .over(BestOf(KERNELS)),
        Goal::new(
            "populating by pages of a pool, one thread: 2.2 times as fast as `linux`",
            "quire-pool",
            &["populate/2MiB", "populate/1GiB"],
            Times(2.2),
        )
        .over(BestOf(&["linux"])),
        Goal::new(
            "populating by a pool's pages of 2 MiB, two threads: 4 times `linux` with one",
            "quire-pool",
            &["populate/2MiB/2threads"],
            AtLeast(4.0),
        )
        .metric("rate")
        .over(Over::ArmInCase("linux", "populate/2MiB")),
        Goal::new(
            "populating by a pool's pages of 1 GiB, two threads: 4 times `linux` with one",
            "quire-pool",
            &["populate/1GiB/2threads"],
            AtLeast(4.0),
        )
        .metric("rate")
        .over(Over::ArmInCase("linux", "populate/1GiB")),
    ],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &[
            "crates/lab/src/bench/arms/clear/",
            "crates/replay/src/calibrate/",
            "crates/replay/src/host/thp.rs",
        ],
    ],
    run,
    appendix: Some(goals),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let setting = Setting::of(runner)?;
    let bytes = runner.scale.pick(4 * MIB, GIB);
    let extents: &[u64] = runner.scale.pick(
        &[4 * KIB, 2 * MIB],
        &[4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 2 * MIB, 8 * MIB, 32 * MIB, 128 * MIB, GIB],
    );
    let threads = |count: &usize| *count <= runner.cpus.len();
    let threads: Vec<usize> = [1, 2].into_iter().filter(threads).collect();
    let fill = |&extent| threads.iter().map(move |&threads| fill_case(Fill { extent, bytes, threads }));
    let cases: Vec<_> = extents.iter().flat_map(fill).collect();
    let mut measured = runner.measure(experiment, &cases, &mut clear::fills(&setting))?;

    let pages: &[usize] = runner.scale.pick(&[2 << 20], &[2 << 20, 1 << 30]);
    let populate = |&page| {
        let case = move |&threads: &usize| populate_case(Populating { page, bytes: bytes as usize, threads });
        threads.iter().map(case)
    };
    let cases: Vec<_> = pages.iter().flat_map(populate).collect();
    let populated = runner.measure(experiment, &cases, &mut clear::populates(&setting))?;
    measured.rows.extend(populated.rows);
    let about = populated.about.into_iter();
    measured.about.extend(about);
    Ok(measured)
}

fn modifier(threads: usize) -> &'static str {
    if threads == 1 { "" } else { "/2threads" }
}

fn fill_case(spec: Fill) -> Case<Fill> {
    let params = [("extent_bytes", spec.extent), ("bytes", spec.bytes), ("threads", spec.threads as u64)];
    let params = params.map(|(name, value)| (name.to_owned(), json!(value))).into_iter().collect();
    Case { name: format!("{}{}", extent_name(spec.extent), modifier(spec.threads)), params, spec }
}

fn populate_case(spec: Populating) -> Case<Populating> {
    let params = [("page_bytes", spec.page), ("bytes", spec.bytes), ("threads", spec.threads)];
    let params = params.map(|(name, value)| (name.to_owned(), json!(value))).into_iter().collect();
    let name = format!("populate/{}{}", extent_name(spec.page as u64), modifier(spec.threads));
    Case { name, params, spec }
}

/// `4KiB`, `2MiB`, `1GiB`.
pub(super) fn extent_name(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= GIB => format!("{}GiB", bytes / GIB),
        bytes if bytes >= MIB => format!("{}MiB", bytes / MIB),
        bytes => format!("{}KiB", bytes / KIB),
    }
}

/// The policy beside the fastest kernel of the run, populating beside the running kernel, and the goals.
fn goals(rows: &[Row]) -> anyhow::Result<String> {
    let rate = |case: &str, arm: &str| {
        let wanted = |row: &&Row| row.case == case && row.arm == arm && row.metric == RATE.name;
        rows.iter().find(wanted).and_then(|row| row.median)
    };
    let shown = |rate: Option<f64>| rate.map(|rate| format!("{rate:.1}")).unwrap_or_default();
    let header = ["case", "quire, GiB/s", "roof, GiB/s", "its arm", "quire / roof", "to reach"];
    let mut roofs = Sheet::new(&header.map(str::to_owned), 1);
    let header = [
        "case",
        "quire-pool, GiB/s",
        "quire, GiB/s",
        "linux, GiB/s",
        "linux-thp, GiB/s",
        "quire-pool / linux",
        "quire / linux-thp",
        "quire-pool / roof",
        "roof / linux",
        "to reach",
    ];
    let mut populated = Sheet::new(&table::heads(&header, rows), 1);
    let roof = |case: &str| {
        let raw = clear::raw().into_iter().filter_map(|arm| Some((arm, rate(case, arm)?)));
        raw.max_by(|one, other| one.1.total_cmp(&other.1))
    };
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let own = rate(case, "quire");
        if case.starts_with("populate/") {
            let raw = roof(case).map(|roof| roof.1);
            let own_pool = rate(case, "quire-pool");
            let (pool, thp) = (rate(case, "linux"), rate(case, "linux-thp"));
            let wanted = if case.ends_with("/2threads") { "4 times linux with one" } else { "2.2" };
            // Two threads are compared with one thread of the running kernel.
            let alone = rate(case.trim_end_matches("/2threads"), "linux");
            let thp_alone = rate(case.trim_end_matches("/2threads"), "linux-thp");
            populated.add_row([
                case.to_owned(),
                shown(own_pool),
                shown(own),
                shown(pool),
                shown(thp),
                beside::relative(own_pool, alone),
                beside::relative(own, thp_alone),
                // The memory's rate bounds every way to populate, and it varies with the host's other guests.
                beside::relative(own_pool, raw),
                beside::relative(raw, alone),
                wanted.to_owned(),
            ]);
            continue;
        }
        let roof = roof(case);
        let wanted = if case.starts_with("1GiB") { "0.95" } else { "" };
        roofs.add_row([
            case.to_owned(),
            shown(own),
            shown(roof.map(|roof| roof.1)),
            roof.map(|roof| roof.0.to_owned()).unwrap_or_default(),
            beside::relative(own, roof.map(|roof| roof.1)),
            wanted.to_owned(),
        ]);
    }
    Ok(format!(
        "the policy and the best raw rate of this run\n{roofs}\npopulating, over linux with one thread\n{populated}\n{}",
        counts::of_clearing(rows)
    ))
}
