//! Replays on a machine whose free memory is in pieces, so that faults find no large folios.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::{Map, Value, json};

use super::case::Case;
use super::lines::labelled;
use super::verdict::Verdict;
use super::words::{count, percent};
use crate::output::quoted;
use crate::replay::{Fragments, order_name};

/// What `--fragmentation` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asked {
    /// This share of free memory.
    Share(f64),
    /// As on this machine.
    Machine,
}

/// Parses `machine`, or 0 to 100 per cent.
pub(super) fn parse(text: &str) -> Result<Asked, String> {
    if text == "machine" {
        return Ok(Asked::Machine);
    }
    let percent = super::parse_percent(text).map_err(|error| format!("{error}, or machine"))?;
    Ok(Asked::Share(percent / 100.0))
}

impl Asked {
    /// The pieces; `buddyinfo` is the kernel's file about those of this machine.
    ///
    /// # Errors
    /// A file that cannot be read, or does not say it.
    pub(super) fn fragments(self, buddyinfo: &Path) -> Result<Fragments> {
        match self {
            Self::Share(share) => Ok(Fragments::even(share)),
            Self::Machine => {
                let name = || format!("cannot read {}", quoted(buddyinfo));
                let text = fs::read_to_string(buddyinfo).with_context(name)?;
                Fragments::of(&text).ok_or_else(|| anyhow!("{} names no free memory", quoted(buddyinfo)))
            }
        }
    }
}

/// What becomes of large folios, for readers.
pub(super) fn text(fragments: &Fragments, verdict: &Verdict) -> String {
    let mut said =
        format!("{} of free memory is in pieces below 2 MiB at the start; ", percent(fragments.share()));
    let one = |case: &Case| {
        let larger: u64 = case.figures.folios.iter().skip(1).sum();
        match case.figures.fell_back {
            0 => format!("under {} every request for a larger folio finds one", case.name()),
            failed => format!(
                "under {} {} requests for larger folios find none, {} find one",
                case.name(),
                count(failed),
                count(larger)
            ),
        }
    };
    said += &verdict.telling().into_iter().map(one).collect::<Vec<_>>().join("; ");
    labelled("pieces:", &said)
        + &labelled(
            "assumed:",
            "free memory is what the largest set needs; in the table no compaction joins pieces (as with defrag `never`), \
             and what is in use between them stays",
        )
}

/// The same for programs.
pub(super) fn json(fragments: &Fragments) -> Value {
    let by_size: Map<String, Value> = (0..)
        .zip(fragments.by_order())
        .map(|(order, share)| (order_name(order), (share * 100.0).into()))
        .collect();
    json!({ "percent": fragments.share() * 100.0, "percent_by_size": by_size })
}
