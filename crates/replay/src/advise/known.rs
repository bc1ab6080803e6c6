//! How far to trust a verdict: what is known, measured, assumed and unknown.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::calibrate::FaultSpread;
use crate::output::quoted;
use crate::replay::{Trial, order_name};

use super::lines::labelled;
use super::prices::Source;
use super::verdict::Verdict;
use super::words::{count, time};

/// What is known, assumed and unknown.
pub(super) fn text(trial: &Trial, verdict: &Verdict) -> String {
    let events = count(trial.header().events);
    let mut known = format!("faults and memory, by a replay of {events} events");
    let differences = verdict.baseline().figures.differences;
    if differences > 0 {
        let _ = write!(known, ", of which {} went otherwise than on Linux", count(differences));
    }
    let mut text = labelled("known:", &known);
    text += &match &verdict.prices.source {
        Source::Measured { file, recorded } => {
            let file = quoted(file);
            let said = match recorded {
                true => {
                    format!("how much longer larger folios take ({file}); 4K and other kinds as recorded")
                }
                false => {
                    format!("what Linux takes for a fault by folio size ({file}); other kinds as recorded")
                }
            };
            labelled("measured:", &said)
        }
        Source::Assumed { recorded, first_ns, further_ns, why } => {
            let first = if *recorded { "as recorded" } else { "as usual, since this trace has no times" };
            labelled(
                "assumed:",
                &format!(
                    "a fault of 4K takes {} ({first}), each further 4K {}; {why}",
                    time(*first_ns),
                    time(*further_ns)
                ),
            )
        }
    };
    text += &single_faults(verdict);
    let tlb = match (&verdict.translations, &verdict.reach) {
        (Some(_), _) => String::new(),
        (None, Some(reach)) => format!("TLB misses ({}), ", reach.tells_no_accesses()),
        (None, None) => "TLB (no samples), ".to_owned(),
    };
    let collapses = if verdict.khugepaged.is_some() { "" } else { "khugepaged, " };
    text + &labelled("unknown:", &format!("{tlb}{collapses}compaction where memory is fragmented"))
}

/// How far single faults are apart, of the sizes that the program gets now and would get.
fn single_faults(verdict: &Verdict) -> String {
    let cases = [Some(verdict.baseline()), verdict.best.map(|at| &verdict.cases[at])];
    let spreads: BTreeMap<u8, FaultSpread> =
        cases.into_iter().flatten().flat_map(|case| verdict.prices.spreads_of(&case.figures)).collect();
    let words = spreads.into_iter().map(|(order, spread)| {
        let [median, p99, longest] = [spread.median_ns, spread.p99_ns, spread.longest_ns].map(time);
        format!("{} {median}, {p99}, {longest}", order_name(order))
    });
    let words: Vec<String> = words.collect();
    match words.is_empty() {
        true => String::new(),
        false => labelled("", &format!("one fault, median, 99 % and longest: {}", words.join("; "))),
    }
}
