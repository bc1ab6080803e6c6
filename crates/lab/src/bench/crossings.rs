//! The price of a call, a trap and a system call here. Where one side of a ratio pays for one that the other side does
//! not have, these stand beside it.

use std::hint::black_box;
use std::sync::OnceLock;

use rustix::mm::Advice;
use rustix::process::getppid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::folio::PAGE;
use super::linux::region::Region;
use super::stats::Summary;
use crate::host::cycles::{Moment, Span};
use crate::output::duration;

/// The prices, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossings {
    /// A call of a function that does nothing.
    pub call: f64,
    /// A page fault that allocates nothing: the read of an absent page, which gets the kernel's page of zeroes.
    pub trap: f64,
    /// A system call that only reads a number (`getppid`).
    pub system_call: f64,
}

/// What the arm `linux` pays for, and the arms of Quire do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pays {
    Traps,
    SystemCalls,
    Both,
}

/// The experiments in which only one side crosses into the kernel.
const ONE_SIDED: &[(&str, Pays)] = &[
    ("page-alloc", Pays::Both),
    ("page-test", Pays::Both),
    ("brk-test", Pays::SystemCalls),
    ("fault", Pays::Traps),
    ("unmap", Pays::SystemCalls),
    ("dontneed", Pays::SystemCalls),
    ("exit", Pays::SystemCalls),
    ("fork", Pays::SystemCalls),
    ("protect", Pays::SystemCalls),
    ("move", Pays::SystemCalls),
    ("aged", Pays::SystemCalls),
    ("churn", Pays::Both),
    ("collapse", Pays::SystemCalls),
    ("collapse-thp", Pays::SystemCalls),
    ("clear", Pays::SystemCalls),
    ("first-touch", Pays::Traps),
    ("mlock-gigantic", Pays::SystemCalls),
    ("hugetlb-pool", Pays::SystemCalls),
    ("demote", Pays::SystemCalls),
    ("postcopy", Pays::Both),
];

/// The name of the prices in the description of the machine.
pub const NAME: &str = "crossings";

/// Times that each is measured; the middle one counts.
const ROUNDS: usize = 11;
/// Calls of a round.
const CALLS: usize = 20_000;
/// Pages of a round, and one more before them: one page table.
const PAGES: usize = 511;

impl Crossings {
    /// Those of this machine, measured once for each process; none where memory cannot be mapped.
    pub fn here() -> Option<Self> {
        static HERE: OnceLock<Option<Crossings>> = OnceLock::new();
        *HERE.get_or_init(|| {
            let call = black_box(nothing as fn(usize) -> usize);
            Some(Self {
                call: middle(CALLS, || (0..CALLS).fold(0, |sum, turn| sum ^ call(turn)))?,
                trap: traps()?,
                system_call: middle(CALLS, || {
                    (0..CALLS).map(|_| getppid()).for_each(|id| _ = black_box(id))
                })?,
            })
        })
    }

    /// Those in the description of a machine.
    pub fn of(machine: &Value) -> Option<Self> {
        serde_json::from_value(machine.get(NAME)?.clone()).ok()
    }

    /// The sentence for the figures of `experiment`, if only one side crosses there.
    pub fn said(experiment: &str, here: Option<Self>) -> Option<String> {
        let pays = match ONE_SIDED.iter().find(|(name, _)| *name == experiment)?.1 {
            Pays::Traps => "traps",
            Pays::SystemCalls => "system calls",
            Pays::Both => "traps and system calls",
        };
        let prices = here.map_or_else(
            || "their prices were not measured".to_owned(),
            |here| {
                let [call, trap, system_call] = [here.call, here.trap, here.system_call].map(duration);
                format!("a call that does nothing takes {call}, a trap {trap}, a system call {system_call}")
            },
        );
        Some(format!(
            "Only the arms of Linux pay for {pays}, where those of Quire have calls; here {prices}."
        ))
    }
}

/// Whether the sentence is said of `experiment`.
pub fn is_one_sided(experiment: &str) -> bool {
    one_sided().any(|name| name == experiment)
}

/// The experiments of which it is said.
pub fn one_sided() -> impl Iterator<Item = &'static str> {
    ONE_SIDED.iter().map(|(name, _)| *name)
}

#[inline(never)]
fn nothing(turn: usize) -> usize {
    turn
}

/// Nanoseconds of one of the `count` pieces of `work`.
fn middle<R>(count: usize, work: impl Fn() -> R) -> Option<f64> {
    let round = |_| {
        let start = Moment::now();
        black_box(work());
        start.until(Moment::now()).nanoseconds / count as f64
    };
    Some(Summary::of(&(0..ROUNDS).map(round).collect::<Vec<_>>())?.median)
}

/// Nanoseconds of a page fault.
fn traps() -> Option<f64> {
    let mut region = Region::map((1 + PAGES) * PAGE).ok()?;
    // Else one fault would map the huge page of zeroes.
    region.advise(Advice::LinuxNoHugepage).ok()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        region.advise(Advice::LinuxDontNeed).ok()?;
        let bytes = region.as_bytes();
        // The first page brings the page table.
        let start = black_box(bytes[0]);
        let begin = Moment::now();
        let sum = (1..=PAGES).fold(start, |sum, page| sum | black_box(bytes[page * PAGE]));
        let span: Span = begin.until(Moment::now());
        times.push(span.nanoseconds / PAGES as f64);
        black_box(sum);
    }
    Some(Summary::of(&times)?.median)
}

#[cfg(test)]
mod tests;
