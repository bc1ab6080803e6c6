//! How fast are the per-CPU lists when interrupts allocate too?

use crate::output::Sheet;
use serde_json::{Value, json};

use crate::bench::arms::interrupts::{self, Arrival, Inside, Interrupts, Pattern, ROUND};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured, Metric, RATE, TIME};
use crate::bench::goal::{Bound::AtMost, Goal, Over};
use crate::bench::ours::guards;
use crate::bench::row::Row;
use crate::bench::runner::Runner;

/// The experiment `pcp-interrupt`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "pcp-interrupt",
    question: "How fast are order-0 pairs when a share of the requests comes from interrupts?",
    expectation: "irq-off: the same for every share. task-only: slows down sharply as the share grows, since \
     interrupts take the store's locks (the reason for its revert in Linux). quire: at a share of a half, \
     within 1.3 of its time without interrupts.",
    baseline: &["irq-off"],
    per: "pair",
    notes: &[
        "Every round of 80 pairs has one soft interrupt, which serves the share (up to 60 requests) or \
         nothing, so every case pays for entering it.",
        "`receive`: interrupts allocate the share, the task allocates the rest and frees all frames. `pairs`: each \
         context frees what it allocated.",
        "In these cases interrupts arrive between two calls of the task. In those of `inside` they arrive by signals of a \
         timer, at any instruction of a task that does nothing but pairs; each makes 8 pairs, of which the middle is \
         shown. For `quire`, `time` is of those that came while the code below used a list, so that they had to use \
         the list of the next level, and `between` of the others. `inside/hard-in-soft` is a hard interrupt in a soft one \
         in the task, so that the third level serves it. With `irq-off` an interrupt waits until the call is over, and \
         with `task-only` it goes to the store, wherever it came.",
        "`interrupted` is the pair of the task in which an interrupt came, without the interrupt's own pairs, and `signal` the \
         same where the task makes no pair: nearly all of it is the host's work for a signal, which a kernel's \
         interrupt does not have.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[
        Goal::new(
            "half of the requests from interrupts: within 1.3 of none",
            "quire",
            &["receive/1of2"],
            AtMost(1.3),
        )
        .over(Over::Case("receive/0")),
        Goal::new(
            "half of the requests from interrupts: within 1.3 of none",
            "quire",
            &["pairs/1of2"],
            AtMost(1.3),
        )
        .over(Over::Case("pairs/0")),
        Goal::new(
            "half of the requests from interrupts: within 1.3 of none",
            "quire",
            &["receive/2threads/1of2"],
            AtMost(1.3),
        )
        .over(Over::Case("receive/2threads/0")),
        Goal::new(
            "half of the requests from interrupts: within 1.3 of none",
            "quire",
            &["pairs/2threads/1of2"],
            AtMost(1.3),
        )
        .over(Over::Case("pairs/2threads/0")),
    ],
    file: file!(),
    code: &[code::FRAMES, &["crates/lab/src/bench/arms/interrupts/"]],
    run,
    appendix: Some(cliff),
};

/// The shares: their names, and the pairs of a round.
const SHARES: [(&str, usize); 5] =
    [("0", 0), ("1of16", ROUND / 16), ("1of4", ROUND / 4), ("1of2", ROUND / 2), ("3of4", ROUND * 3 / 4)];

/// The families of cases: name, pattern, threads.
const FAMILIES: [(&str, Pattern, usize); 4] = [
    ("receive", Pattern::Receive, 1),
    ("pairs", Pattern::Pairs, 1),
    ("receive/2threads", Pattern::Receive, 2),
    ("pairs/2threads", Pattern::Pairs, 2),
];

/// Interrupts that arrive inside calls.
const ARRIVALS: [(&str, Arrival); 3] = [
    ("inside/soft", Arrival::Soft),
    ("inside/hard", Arrival::Hard),
    ("inside/hard-in-soft", Arrival::HardInSoft),
];

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let rounds = runner.scale.pick(20, 2_000);
    let mut cases = Vec::new();
    for (family, pattern, threads) in FAMILIES {
        for (share, by_interrupt) in SHARES {
            let cpus = runner.cpus.clone();
            let spec = Interrupts { pattern, by_interrupt, rounds, threads, cpus };
            cases.push(case(format!("{family}/{share}"), spec));
        }
    }
    let between = runner.measure(experiment, &cases, &mut interrupts::all())?;
    let wanted = runner.scale.pick(64, 512);
    let inside = ARRIVALS.map(|(name, arrival)| Case {
        name: name.to_owned(),
        params: [("wanted".to_owned(), json!(wanted))].into_iter().collect(),
        spec: Inside { arrival, wanted },
    });
    let inside = runner.measure(experiment, &inside, &mut interrupts::all_inside())?;
    Ok(Measured { rows: [between.rows, inside.rows].concat(), about: between.about })
}

fn case(name: String, spec: Interrupts) -> Case<Interrupts> {
    let params = [
        ("round", json!(ROUND)),
        ("by_interrupt", json!(spec.by_interrupt)),
        ("rounds", json!(spec.rounds)),
        ("threads", json!(spec.threads)),
        ("oversubscribed", json!(spec.threads > spec.cpus.len())),
    ];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name, params, spec }
}

/// Each arm's throughput by share, and its time over its own without requests from interrupts.
fn cliff(rows: &[Row]) -> anyhow::Result<String> {
    let shares = SHARES.map(|(share, _)| share.to_owned());
    let mut header = vec!["case".to_owned(), "arm".to_owned()];
    header.extend(shares.clone().map(|share| format!("{share}, M pairs/s")));
    header.extend(shares.into_iter().skip(1).map(|share| format!("{share} over 0")));
    let mut text = Sheet::new(&header, 2);
    for (family, _, _) in FAMILIES {
        for arm in guards::NAMES {
            let median = |share: &str, metric: Metric| {
                let case = format!("{family}/{share}");
                let wanted = |row: &&Row| row.case == case && row.arm == arm && row.metric == metric.name;
                rows.iter().find(wanted).and_then(|row| row.median)
            };
            let mut cells = vec![family.to_owned(), arm.to_owned()];
            cells.extend(SHARES.map(|(share, _)| match median(share, RATE) {
                Some(rate) => format!("{:.1}", rate / 1e6),
                None => String::new(),
            }));
            let alone = median(SHARES[0].0, TIME);
            cells.extend(SHARES[1..].iter().map(|(share, _)| match median(share, TIME).zip(alone) {
                Some((time, alone)) => format!("{:.2}", time / alone),
                None => String::new(),
            }));
            text.add_row(cells);
        }
    }
    let says = "pairs a second by the share of the requests from interrupts, and the time of a pair over the \
     same arm's at share 0 (wanted for quire at 1of2: at most 1.3)";
    Ok(format!("{says}\n{text}"))
}
