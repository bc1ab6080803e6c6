//! A limit on memory (`memory.high` of a control group): which sets keep below it, and by how much and how long others exceed it.

use super::case::Case;
use super::lines::labelled;
use super::verdict::Verdict;
use super::words::{percent, size};

/// The share of the recorded time in whose steps memory is above the limit at some moment; `None` without a limit.
pub(super) fn time_above(case: &Case) -> Option<f64> {
    let (high, steps) = (case.score.high?, &case.figures.timeline);
    let above = steps.iter().filter(|step| step.resident > high).count();
    Some(above as f64 / steps.len().max(1) as f64)
}

/// For readers; nothing without a limit.
pub(super) fn text(verdict: &Verdict) -> String {
    let Some(high) = verdict.baseline().score.high else { return String::new() };
    let (below, above): (Vec<&Case>, Vec<&Case>) =
        verdict.cases.iter().partition(|case| case.score.above() == 0);
    let names = |cases: &[&Case]| cases.iter().map(|case| case.name()).collect::<Vec<_>>().join(", ");
    let mut said = format!("memory.high of {}: ", size(high));
    said += &match (&below[..], &above[..]) {
        (_, []) => "every set stays below it".to_owned(),
        ([], _) => "every set exceeds it".to_owned(),
        (below, _) => format!("{} stay below it", names(below)),
    };
    let mut text = labelled("limit:", &said);
    let mut shown = vec![verdict.baseline()];
    shown.extend(verdict.telling());
    let (shown, others): (Vec<&Case>, Vec<&Case>) =
        above.into_iter().partition(|case| shown.iter().any(|shown| shown.set() == case.set()));
    for case in shown {
        text += &labelled("", &format!("{} exceeds it by {}", case.name(), excess(case)));
    }
    let excesses = || others.iter().map(|case| case.score.above());
    if let (Some(least), Some(most)) = (excesses().min(), excesses().max()) {
        let said = format!("{} others exceed it, by {} to {}", others.len(), size(least), size(most));
        text += &labelled("", &said);
    }
    text + &labelled(
        "assumed:",
        "nothing is reclaimed, and all memory is charged to the program's group, with the file pages that it uses",
    )
}

/// How much and how long, and how much of it Linux cannot drop.
fn excess(case: &Case) -> String {
    let peak = &case.figures.peak;
    let (above, file) = (case.score.above(), peak.file);
    let lasts = percent(time_above(case).unwrap_or(0.0));
    let rest = match above.saturating_sub(file) {
        0 => "file pages that can be dropped are more than that".to_owned(),
        rest => format!("{} of it are no file pages, and need a swap", size(rest)),
    };
    format!("{}, in {lasts} of the time; {rest}", size(above))
}
