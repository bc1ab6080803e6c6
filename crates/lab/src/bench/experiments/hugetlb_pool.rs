//! What does it cost to grow and shrink a pool of huge pages, by the descriptor policy?

use crate::output::{Sheet, duration};
use serde_json::json;
use std::time::Duration;

use crate::bench::arms::pool::{self, Pools, price};
use crate::bench::code;
use crate::bench::counts;
use crate::bench::experiment::{Case, Experiment, Measured, TIME};
use crate::bench::goal::{
    Bound::{AtMost, Times},
    Goal,
    Over::BestOf,
};
use crate::bench::published;
use crate::bench::row::Row;
use crate::bench::runner::Runner;
use crate::bench::table;

/// The experiment `hugetlb-pool`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "hugetlb-pool",
    question: "How long does it take to grow a pool from nothing to N pages of 2 MiB, and to shrink it to \
     nothing, by the descriptor policy?",
    expectation: "in-block: at most as long as full on fresh memory, under 150 ns a page, no broadcast, no \
     allocation to shrink. batched: some times as long as full, more to shrink than to grow. per-page: \
     longest, because of its broadcasts. mask-tail: as batched without the grace periods. linux-saving \
     against linux: 1.7 times as long to grow and 2.5 to shrink at 9000 pages.",
    baseline: &["full"],
    per: "page",
    notes: &[
        "`fresh`: no block was ever in small pieces. `churned`: every second block of the memory has 8 movable \
         pages in use, and half of the pool's pages come from such blocks, whose pages move first (linux: in \
         a mapping half as large as the pool, 8 pages of each 2 MiB stay in use; for `grow` it is made anew where \
         the kernel has moved pages). `/busy`: a thread of \
         this process runs on the other CPU.",
        "Pages that join a pool are cleared only when used. Linux does more work: the system call, \
         statistics, compaction.",
        "Each repetition of Quire's arms starts a new machine, so growing splits the window's leaves each \
         time; Linux splits its own once, before the first repetition.",
        "Huge pages of the host stand behind the window, as in a kernel (`leaves_on_host_huge_pages`). The \
         library splits its leaves of 2 MiB, maps the tails anew and flushes; it writes descriptors by the \
         direct map, which stays in huge pages. Linux writes them through the window, by entries of 4 KiB \
         once a leaf is split: the arms that save pay less there than Linux. Records are host pages of 4 KiB.",
        "Pages that come from moved blocks join the pool 128 at a time: under `batched` and `mask-tail` two flushes for \
         those, and two for the others. Linux gathers all pages of the request.",
        "500000 pages are 1 TiB, which no Quire arm touches. Descriptors are: 16 GiB in `full`, up to 31 GiB in \
         `per-page`, `batched` and `mask-tail`, and in `linux` the pages themselves. A host with less skips those arms. The \
         churned ground is left out there.",
        "Quire's broadcasts use membarrier, which interrupts only processors that run a thread of this \
         process: none except under `/busy`. A kernel's flush interrupts every processor that is not idle.",
        "`/Ncpus` (`--ipi-price N`): the arm spins in each broadcast for as long as one takes with N CPUs. With 2: 11 us, \
         measured here (`per-page` at `shrink/9000/fresh`, with `/busy` less without, November 2026). With 252: 276 us \
         (Kravetz's virtual machine, 2023: time to free, before less batched, by page). With 16 and 64: 25.8 and 76.7 us, \
         on the straight line between; no published figure is known for them. These cases have 3000 pages, and 1000 at the highest price: a page waits for as many \
         broadcasts in both, so that its time is the same, and that of the published 524288 pages is a multiple.",
        "`mask-tail` follows Shutsemau's series of February 2026 for Linux (version 7) but for one thing: there no page waits \
         for a grace period, here a page of 1 GiB that joins waits for one, since it hides the heads of the 2 MiB \
         pages that it was before (decision 61).",
        "Linux has waited for grace periods since 2024, not in the figures of 2023. They are only computed: \
         10.5 ms each (Yu Zhao 2024: 538 s for 51300 of them).",
    ],
    own: &["in-block"],
    apart: &[],
    goals: &[
        Goal::new(
            "fresh memory: at most 1.0 of `full`",
            "in-block",
            &[
                "grow/1000/fresh",
                "shrink/1000/fresh",
                "grow/3000/fresh",
                "shrink/3000/fresh",
                "grow/9000/fresh",
                "shrink/9000/fresh",
            ],
            AtMost(1.0),
        )
        .over(BestOf(&["full"])),
        Goal::new(
            "churned memory: at most 1.1 of `full`",
            "in-block",
            &[
                "grow/1000/churned",
                "shrink/1000/churned",
                "grow/3000/churned",
                "shrink/3000/churned",
                "grow/9000/churned",
                "shrink/9000/churned",
            ],
            AtMost(1.1),
        )
        .over(BestOf(&["full"])),
        Goal::new(
            "9000 pages: under 150 ns a page",
            "in-block",
            &["grow/9000/fresh", "shrink/9000/fresh"],
            AtMost(150.0),
        ),
        Goal::new(
            "9000 pages: 30 times as fast as `linux-saving`",
            "in-block",
            &["grow/9000/fresh", "shrink/9000/fresh"],
            Times(30.0),
        )
        .over(BestOf(&["linux-saving"])),
        Goal::new(
            "500000 pages of 1 TiB: under 50 ms each way",
            "in-block",
            &["grow/500000/fresh", "shrink/500000/fresh"],
            AtMost(5e7),
        )
        .metric("request"),
        Goal::new("no broadcast", "in-block", &["grow/*", "shrink/*"], AtMost(0.0)).counter("broadcasts"),
        Goal::new("no allocation to shrink", "in-block", &["shrink/*"], AtMost(0.0)).counter("frames_needed"),
    ],
    file: file!(),
    code: &[
        code::LIBRARY_AND_MACHINE,
        &[
            "crates/lab/src/bench/arms/pool/",
            "crates/lab/src/bench/arms/clear/huge.rs",
            "crates/replay/src/host/memory.rs",
            "crates/replay/src/host/thp.rs",
        ],
    ],
    run,
    appendix: Some(beside_published),
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let sizes: &[u64] = runner.scale.pick(&[20], &[1000, 3000, 9000, 500_000]);
    let processors = (runner.cpus[0], runner.cpus.get(1).copied());
    let figures = published::figures("hvo")?;
    let mut cases = Vec::new();
    let plain = |pages| Pools {
        pages,
        grow: true,
        churned: false,
        busy: false,
        broadcast: Duration::ZERO,
        processors,
    };
    let mut add = |spec: Pools, modifier: &str| {
        cases.extend([true, false].map(|grow| case(Pools { grow, ..spec }, modifier)));
    };
    for &pages in sizes {
        add(plain(pages), "");
        // At the largest size only the scaling is of interest, and waits would take minutes.
        let small = pages < 100_000;
        if small && processors.1.is_some() {
            add(Pools { busy: true, ..plain(pages) }, "/busy");
        }
        if small {
            add(Pools { churned: true, ..plain(pages) }, "");
        }
    }
    for (pages, cpus) in priced(runner) {
        if let Some(price) = price::broadcast(&figures, cpus) {
            let broadcast = Duration::from_nanos(price as u64);
            add(Pools { broadcast, ..plain(pages) }, &format!("/{cpus}cpus"));
        }
    }
    runner.measure(experiment, &cases, &mut pool::all())
}

/// The sizes and CPUs of the cases with a price: each price once, since the time for a page does not depend on how many
/// there are, and the highest also with fewer pages, which shows that. With 9000 pages the waits alone took two minutes.
fn priced(runner: &Runner) -> Vec<(u64, u16)> {
    let (pages, fewer) = runner.scale.pick((20, None), (3000, Some(1000)));
    let cpus = &runner.price.cpus;
    let highest = fewer.into_iter().filter_map(|fewer| Some((fewer, *cpus.iter().max()?)));
    cpus.iter().map(|&cpus| (pages, cpus)).chain(highest).collect()
}

fn case(spec: Pools, modifier: &str) -> Case<Pools> {
    let verb = if spec.grow { "grow" } else { "shrink" };
    let state = if spec.churned { "churned" } else { "fresh" };
    let params = [
        ("huge_pages", json!(spec.pages)),
        ("churned", json!(spec.churned)),
        ("busy", json!(spec.busy)),
        ("broadcast_ns", json!(spec.broadcast.as_nanos() as u64)),
    ];
    let params = params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    Case { name: format!("{verb}/{}/{state}{modifier}", spec.pages), params, spec }
}

/// The cost of the saving, as a ratio to the same without it, beside the published ratios, and the counts.
fn beside_published(rows: &[Row]) -> anyhow::Result<String> {
    let median = |case: &str, arm: &str| {
        let wanted = |row: &&Row| row.case == case && row.arm == arm && row.metric == TIME.name;
        rows.iter().find(wanted).and_then(|row| row.median)
    };
    let over = |case: &str, arm: &str, base: &str| {
        let ratio = median(case, arm).zip(median(case, base)).map(|(time, base)| time / base);
        ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
    };
    let figures = published::figures("hvo")?;
    let header = [
        "case",
        "in-block / full",
        "batched / full",
        "mask-tail / full",
        "per-page / full",
        "linux-saving / linux",
        "linux-saving / in-block",
        "published, before: on / off",
        "published, batched: on / off",
    ];
    let mut text = Sheet::new(&table::heads(&header, rows), 1);
    for case in table::distinct(rows.iter().map(|row| row.case.as_str())) {
        let verb = if case.starts_with("grow") { "alloc" } else { "free" };
        text.add_row(vec![
            case.to_owned(),
            over(case, "in-block", "full"),
            over(case, "batched", "full"),
            over(case, "mask-tail", "full"),
            over(case, "per-page", "full"),
            over(case, "linux-saving", "linux"),
            over(case, "linux-saving", "in-block"),
            published_ratio(&figures, verb, "before"),
            published_ratio(&figures, verb, "batched"),
        ]);
    }
    Ok(format!(
        "time with the saving over the time without it (published: 500 000 pages on eight sockets, 524 288 in a virtual machine of 252 CPUs)\n{text}\n{}\n{}",
        computed(rows, &figures),
        counts::of_pools(rows, "request")
    ))
}

/// CPUs of the machines whose prices are computed.
const MACHINES: [u16; 4] = [2, 16, 64, price::MOST];

/// The time of the arms with a window if each broadcast and each grace period had its price.
fn computed(rows: &[Row], figures: &[published::Published]) -> String {
    let mut header = ["case", "arm", "broadcasts", "grace periods", "measured"].map(str::to_owned).to_vec();
    header.extend(MACHINES.map(|cpus| format!("{cpus} CPUs")));
    header.push(format!("{} CPUs, grace periods too", price::MOST));
    let mut text = Sheet::new(&header, 2);
    let is_plain = |row: &&Row| {
        row.metric == TIME.name && row.params["busy"] == false && row.params["broadcast_ns"] == 0
    };
    for row in rows.iter().filter(is_plain) {
        let count = |name: &str| row.counters.get(name).map(|&count| count as f64);
        let (Some(time), Some(broadcasts), Some(graces), Some(pages)) =
            (row.median, count("broadcasts"), count("grace_periods"), row.params["huge_pages"].as_f64())
        else {
            continue;
        };
        let with = |cpus| Some(time + broadcasts * price::broadcast(figures, cpus)? / pages);
        let shown = |time: Option<f64>| time.map(duration).unwrap_or_default();
        let mut cells = vec![row.case.clone(), row.arm.clone(), broadcasts.to_string(), graces.to_string()];
        cells.push(duration(time));
        cells.extend(MACHINES.map(|cpus| shown(with(cpus))));
        cells.push(shown(with(price::MOST).map(|time| time + graces * price::GRACE / pages)));
        text.add_row(cells);
    }
    let prices = MACHINES.map(|cpus| {
        let price = price::broadcast(figures, cpus).map(duration).unwrap_or_default();
        format!("{cpus} CPUs {price}: {}", price::source(cpus))
    });
    format!(
        "computed, not measured: time for each page with the price of each broadcast ({}), which the cases `/Ncpus` spend, \
         and of each grace period ({})\n{text}",
        prices.join("; "),
        duration(price::GRACE)
    )
}

/// The ratios of both published machines.
fn published_ratio(figures: &[published::Published], verb: &str, version: &str) -> String {
    let seconds = |machine: &str, saving: u8| {
        let variant = format!("hvo={saving} {version}");
        let wanted = |figure: &&published::Published| {
            figure.machine == machine && figure.variant == variant && figure.case.starts_with(verb)
        };
        figures.iter().find(wanted).and_then(published::Published::number)
    };
    let machines = table::distinct(figures.iter().map(|figure| figure.machine.as_str()));
    let ratio = |machine: &str| Some(seconds(machine, 1)? / seconds(machine, 0)?);
    let ratios: Vec<String> =
        machines.into_iter().filter_map(ratio).map(|ratio| format!("{ratio:.2}")).collect();
    ratios.join(", ")
}
