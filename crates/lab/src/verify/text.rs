//! The table of one program, in 80 columns.

use std::fmt::Write;

use super::compare::{Compared, FAULTS_PERCENT, Figure, RSS_PERCENT, Row, Verdict};
use crate::output::quoted;

const COLUMNS: usize = 80;

/// What the figures are, and what the comparison leaves out.
const NOTE: &str = "\
Predicted faults: those of the recorded run, less what a replay under the size
saves against one under 4K. Peak RSS: of the largest process. Measured: medians.";

/// For a program of little memory.
const STOPPED: &str = "\
Each process was stopped at its end, to read its peak; the times contain that.
";

pub(super) fn section(compared: &Compared) -> String {
    let mut text = heading(compared);
    text.push_str("                  faults                       peak RSS, MiB       seconds\n");
    text.push_str("size predicted measured   error  spread predicted measured  error kernel     run\n");
    for row in &compared.sizes {
        let _ = writeln!(text, "{}", line(row));
    }
    for row in &compared.sizes {
        notes(&mut text, row);
    }
    let judged = |of: fn(&Row) -> &Figure, what, allowed| {
        let reached = compared.sizes.iter().filter(|row| of(row).verdict != Verdict::Missed).count();
        let sizes = compared.sizes.len();
        format!("{what}: {reached} of {sizes} within {allowed} %, or within the runs' own spread.\n")
    };
    text + &judged(|row| &row.faults, "Faults", FAULTS_PERCENT)
        + &judged(|row| &row.peak_rss_bytes, "Peak RSS", RSS_PERCENT)
        + NOTE
        + "\n"
        + if compared.stopped_at_exit { STOPPED } else { "" }
}

fn heading(compared: &Compared) -> String {
    let command = compared.command.iter().map(|word| quoted(word).to_string()).collect::<Vec<_>>().join(" ");
    let runs = format!(", {} runs of each size", compared.runs);
    let room = COLUMNS - runs.len();
    let command = match command.chars().count() <= room {
        true => command,
        false => command.chars().take(room - 1).chain(['…']).collect(),
    };
    format!("{command}{runs}\n")
}

fn line(row: &Row) -> String {
    let (faults, rss) = (&row.faults, &row.peak_rss_bytes);
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let seconds = |ns: u64| format!("{:.3}", ns as f64 / 1e9);
    format!(
        "{:<4}{:>10}{:>9}{:>8}{:>8}{:>10}{:>9}{:>7}{:>7}{:>8}",
        row.folio,
        faults.predicted,
        faults.measured.median,
        format!("{:+.1}%", faults.error_percent),
        format!("{:.1}%", faults.measured.spread_percent),
        mib(rss.predicted),
        mib(rss.measured.median),
        format!("{:+.1}%", rss.error_percent),
        seconds(row.kernel_ns.median),
        seconds(row.run_ns.median)
    )
}

fn notes(text: &mut String, row: &Row) {
    if row.fell_back > 0 {
        let _ = writeln!(text, "{}: {} faults of the system found no free folio.", row.folio, row.fell_back);
    }
    if row.exit_codes.iter().any(|code| *code != 0) {
        let codes: Vec<String> = row.exit_codes.iter().map(u8::to_string).collect();
        let _ = writeln!(text, "{}: the program ended with {}.", row.folio, codes.join(", "));
    }
}

#[cfg(test)]
mod tests;
