//! What does it cost to populate memory, by folio size?

use serde_json::{Value, json};

use crate::bench::arms::fault::{self, Fault, Populate};
use crate::bench::code;
use crate::bench::experiment::{Case, Experiment, Measured, REST};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::goal::{Bound::AtMost, Goal};
use crate::bench::runner::Runner;

/// The experiment `fault`.
pub const EXPERIMENT: Experiment = Experiment {
    name: "fault",
    question: "What does it cost to populate 1 GiB of anonymous memory, by folio size, and how much of it is clearing?",
    expectation: "linux: half a microsecond a page or more at 4 KiB, most of it trap, charge and descriptor; \
     it falls towards the clearing rate (some 50 to 100 ns a page) as folios grow, and is flat from 64 KiB \
     on.",
    baseline: &["linux"],
    per: "call",
    notes: &[
        "Cases without a modifier write one byte to each 4 KiB page in address order: one fault per folio. \
         `/populate` populates the whole range by one call (MADV_POPULATE_WRITE).",
        "`clear` is the time to clear as many bytes, as this arm clears them, right before and with nothing in between; \
         `rest` is `time` minus `clear`, in every arm. It is `negative` where the running kernel clears its folios faster \
         than this process clears its own memory by the same instruction: then `rest` says nothing about linux.",
        "The memory was populated and freed once before, so that the host of a virtual machine has brought \
         it in.",
    ],
    own: &["quire"],
    apart: &[],
    goals: &[Goal::new(
        "a page of 4 KiB without its clearing: under 150 ns (39 ms for 1 GiB)",
        "quire",
        &["4KiB"],
        AtMost(150.0 * 262_144.0),
    )
    .metric(REST.name)],
    file: file!(),
    code: &[code::LIBRARY_AND_MACHINE, &["crates/lab/src/bench/arms/fault/"]],
    run,
    appendix: None,
};

fn run(experiment: &Experiment, runner: &Runner) -> anyhow::Result<Measured> {
    let bytes = runner.scale.pick(8 << 20, 1 << 30);
    let both =
        |folio| [Populate::Touch, Populate::Call].map(|populate| case(Fault { bytes, folio, populate }));
    let cases: Vec<Case<Fault>> = Folio::all().flat_map(both).collect();
    runner.measure(experiment, &cases, &mut fault::all())
}

fn case(spec: Fault) -> Case<Fault> {
    let modifier = match spec.populate {
        Populate::Touch => "",
        Populate::Call => "/populate",
    };
    let params = [
        ("bytes", json!(spec.bytes)),
        ("pages", json!(spec.bytes / PAGE)),
        ("folio_bytes", json!(spec.folio.bytes())),
        ("pmd_mapped", json!(spec.folio.pmd)),
    ];
    let params = params.into_iter().map(|(name, value): (&str, Value)| (name.to_owned(), value)).collect();
    Case { name: format!("{}{modifier}", spec.folio.name()), params, spec }
}
