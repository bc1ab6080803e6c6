//! The comparison as text.

use std::fmt::Write;

use super::lines::{Line, Lost};
use super::machine::kernel_of;
use crate::bench::row::Row;
use crate::bench::table::{distinct, quantity, skipped};
use crate::output::Sheet;

/// The table, the cases that Quire loses, and what a reader must know.
pub(super) fn render(lines: &[Line<'_>], lost: &[Lost<'_>], rows: &[Row]) -> String {
    let kernel = rows.first().map(|row| kernel_of(&row.machine)).unwrap_or_default();
    let mut text = format!("{}\n", sheet(lines, &kernel));
    text.push_str(
        "times: how many times as fast Quire is; below 1 it is slower. best other: the fastest published design or \
         crate. published: how many times as fast its change made the kernel of its time, on its machine.\n",
    );
    let with_more = lines.iter().filter(|line| line.kernel.is_some() && !line.work.more.is_empty());
    let notes: Vec<(&str, &str)> = with_more.map(|line| (line.work.more, line.work.system)).collect();
    for more in distinct(notes.iter().map(|(more, _)| *more)) {
        let systems = distinct(notes.iter().filter(|note| note.0 == more).map(|note| note.1)).join("; ");
        let comparable = lines.iter().any(|line| line.work.more == more && line.work.is_comparable());
        let why = if comparable { "" } else { "; so there is no ratio" };
        let _ = writeln!(text, "note: the kernel's figures contain {more} as well: {systems}{why}");
    }
    let sources = distinct(lines.iter().filter_map(|line| Some(line.published.as_ref()?.1.as_str())));
    let _ = writeln!(text, "published by: {}", sources.join(", "));
    for (arm, reason, cases) in skipped(rows) {
        let _ = writeln!(text, "skipped: {arm} at {}: {reason}", cases.join(", "));
    }
    text.push_str(&told(lost));
    text
}

fn sheet(lines: &[Line<'_>], kernel: &str) -> Sheet {
    let header = ["work", "Quire", kernel, "times", "best other", "times", "published", "best other is"];
    let mut sheet = Sheet::new(&header.map(str::to_owned), 1);
    let mut system = "";
    for line in lines {
        if std::mem::replace(&mut system, line.work.system) != line.work.system {
            sheet.add_row(std::iter::once(system.to_owned()).chain(vec![String::new(); header.len() - 1]));
        }
        let over = |times: Option<f64>| times.map(factor).unwrap_or_default();
        sheet.add_row([
            format!("  {}", line.work.what),
            line.own.map(shown).unwrap_or_default(),
            line.kernel.map(shown).unwrap_or_default(),
            over(line.over_kernel()),
            line.other.map(shown).unwrap_or_default(),
            over(line.over_other()),
            line.published.as_ref().map(|(times, _)| factor(*times)).unwrap_or_default(),
            line.other.map(|row| row.arm.clone()).unwrap_or_default(),
        ]);
    }
    sheet
}

fn told(lost: &[Lost<'_>]) -> String {
    if lost.is_empty() {
        return "no measured case in which another arm is faster\n".to_owned();
    }
    let mut text = "cases that Quire loses, the worst first:\n".to_owned();
    for Lost { experiment, case, own, best, slower } in lost {
        let (own, arm, best) = (shown(own), &best.arm, shown(best));
        let _ = writeln!(
            text,
            "  {experiment} {case}: {own}, {arm} takes {best} ({} times as long)",
            factor(*slower)
        );
    }
    text
}

/// A figure in its unit.
pub(crate) fn shown(row: &Row) -> String {
    row.median.map(|median| quantity(median, &row.unit)).unwrap_or_default()
}

/// A ratio with two digits, or none behind the point from 10 on.
pub(crate) fn factor(ratio: f64) -> String {
    let digits = if ratio < 10.0 { 2 } else { 0 };
    format!("{ratio:.digits$}")
}
