//! The table of one program, in 80 columns.

use std::fmt::Write;

use super::compare::{
    Advice, Compared, FAULT_TIME_PERCENT, FAULTS_PERCENT, Figure, RSS_PERCENT, Row, Verdict, rss_grain,
    time_grain,
};
use super::conditions::Told;
use super::processes::{ProcessFigure, Processes};
use super::run_off::Against;
use crate::output::{duration, quoted};

const COLUMNS: usize = 80;

/// How many processes are named whose peak is not as predicted.
const MISSED_SHOWN: usize = 4;

/// What the figures are, and what the comparison leaves out.
const NOTE: &str = "\
Predicted faults: those of the recorded run, less what a replay under the size
saves against one under 4K. Peak RSS: of the largest process, if not said
otherwise. Measured: medians.";

/// For a program of little memory.
const STOPPED: &str = "\
Each process was stopped at its end, to read its peak; the times contain that.
";

pub(super) fn section(compared: &Compared) -> String {
    let mut text = heading(compared) + &conditions(compared);
    text.push_str("                  faults                       peak RSS, MiB       seconds\n");
    text.push_str("size predicted measured   error  spread predicted measured  error kernel     run\n");
    for row in &compared.sizes {
        let _ = writeln!(text, "{}", line(row));
    }
    fault_times(&mut text, compared);
    for row in &compared.sizes {
        notes(&mut text, row);
    }
    let judged = |of: fn(&Row) -> Option<&Figure>, what, allowed| {
        let figures: Vec<&Figure> = compared.sizes.iter().filter_map(of).collect();
        let reached = figures.iter().filter(|figure| figure.verdict != Verdict::Missed).count();
        let all = figures.len();
        match all {
            0 => String::new(),
            _ => format!("{what}: {reached} of {all} within {allowed} %"),
        }
    };
    let or_spread = ", or within the runs' own spread.\n";
    let or_middle = ", or the spread of the runs' middle half.\n";
    let grain = mib(rss_grain());
    let or_grain = format!(", the runs' own spread, or {grain} MiB (kernel's count).\n");
    let of_each = processes(compared);
    let mut further = judged(|row| row.huge_bytes.as_ref(), "Leaves of 2 MiB", FAULTS_PERCENT);
    further += if further.is_empty() { "" } else { ", or 2 MiB, or the runs' own spread.\n" };
    let pool = judged(|row| row.pool_bytes.as_ref(), "Pages of the pool", FAULTS_PERCENT);
    further += &pool;
    further += if pool.is_empty() { "" } else { or_spread };
    let assumed = match compared.prices_measured {
        true => "",
        false => "\n(prices assumed: `calibrate --kernel`)",
    };
    let or_samples = match compared.sampled_runs {
        0 => String::new(),
        runs => format!(", or {} (whole samples){assumed}.\n", duration(time_grain(runs) as f64)),
    };
    text + &judged(|row| Some(&row.faults), "Faults", FAULTS_PERCENT)
        + or_middle
        + &judged(|row| Some(&row.peak_rss_bytes), "Peak RSS", RSS_PERCENT)
        + &or_grain
        + &of_each
        + &further
        + &judged(|row| row.fault_ns.as_ref(), "Time in faults", FAULT_TIME_PERCENT)
        + &or_samples
        + &compared.advice.as_ref().map_or_else(String::new, advice)
        + NOTE
        + "\n"
        + if compared.stopped_at_exit { STOPPED } else { "" }
}

/// How many processes have the predicted peak, and which of the others are the furthest from it. Says nothing of a program
/// that has one process.
fn processes(compared: &Compared) -> String {
    let of = |row: &Row| {
        row.processes.matched.iter().map(|one| (row.folio.clone(), one.clone())).collect::<Vec<_>>()
    };
    let all: Vec<(String, ProcessFigure)> = compared.sizes.iter().flat_map(of).collect();
    let error = |one: &ProcessFigure| one.peak_rss_bytes.error_percent.abs();
    let mut missed: Vec<&(String, ProcessFigure)> =
        all.iter().filter(|(_, one)| one.peak_rss_bytes.verdict == Verdict::Missed).collect();
    missed.sort_by(|(_, one), (_, other)| error(other).total_cmp(&error(one)));
    let unmatched =
        |of: fn(&Processes) -> usize| compared.sizes.iter().map(|row| of(&row.processes)).max().unwrap_or(0);
    let (replay, runs) = (unmatched(|each| each.only_predicted), unmatched(|each| each.only_measured));
    if all.len() <= compared.sizes.len() && replay + runs == 0 {
        return String::new();
    }
    let mut text =
        format!("Peak RSS of each process: {} of {} within these.\n", all.len() - missed.len(), all.len());
    if replay + runs > 0 {
        let _ = writeln!(text, "        Not compared: {replay} only in the replay, {runs} only in the runs.");
    }
    for (folio, ProcessFigure { program, number, peak_rss_bytes: figure, .. }) in
        missed.into_iter().take(MISSED_SHOWN)
    {
        let (predicted, measured) = (mib(figure.predicted), mib(figure.measured.median));
        let error = figure.error_percent;
        let program = quoted(program);
        let _ = writeln!(
            text,
            "        {program} {number} under {folio}: {predicted}, {measured} measured, {error:+.1}%"
        );
    }
    text
}

/// The run under the advice beside the best one.
fn advice(advice: &Advice) -> String {
    let Advice { folio, best, waste_percent, longer_percent, .. } = advice;
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
    let (run, least) = (seconds(advice.run_ns), seconds(advice.best_run_ns));
    let beside = match folio == best {
        true => "the fastest".to_owned(),
        false => format!("fastest {best} {least} ({longer_percent:+.1}%)"),
    };
    let line = wrapped(
        "Advice: ",
        &[
            format!("{folio},"),
            format!("untouched {waste_percent:.1} %;"),
            format!("{run},"),
            format!("{beside}."),
        ],
    );
    if let Some(first) = advice.run_off.as_ref().and_then(|run_off| run_off.against.first()) {
        return line + &further(first, advice.verdict);
    }
    let (least, most) = advice.between_percent;
    let turns = format!("        Turn by turn {least:+.1} to {most:+.1} %");
    match advice.verdict {
        Verdict::Within | Verdict::WithinGrain => line,
        Verdict::WithinSpread => line + &turns + ": cannot be told by these runs.\n",
        Verdict::Missed => line + &turns + ".\n",
    }
}

/// The set of the run-off that may be the fastest.
fn further(first: &Against, verdict: Verdict) -> String {
    let Against { folio, turns, longer_percent, between_percent: (least, most) } = first;
    let verdict = match verdict {
        Verdict::Missed => "slower",
        Verdict::WithinSpread => "open",
        Verdict::Within | Verdict::WithinGrain => "within 2 %",
    };
    let beside = format!("beside {folio} {longer_percent:+.1} %,");
    let between = format!("{least:+.1} to {most:+.1} %: {verdict}.");
    wrapped("        ", &[format!("{turns} further turns:"), beside, between])
}

/// Parts with spaces between, in as many lines as they need.
fn wrapped(start: &str, parts: &[String]) -> String {
    let mut text = start.to_owned();
    let mut used = start.len();
    for (at, part) in parts.iter().enumerate() {
        if at > 0 && used + 1 + part.len() > COLUMNS {
            text.push_str("\n        ");
            used = 8;
        } else if at > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(part);
        used += part.len();
    }
    text + "\n"
}

/// The table of the time in faults, if it was measured.
fn fault_times(text: &mut String, compared: &Compared) {
    if compared.sampled_runs == 0 {
        return;
    }
    let Compared { unsampled_ns, sampling_percent, .. } = compared;
    let less =
        sampling_percent.map_or_else(String::new, |percent| format!(", over {:.3}", 1.0 + percent / 100.0));
    let _ = writeln!(text, "     time in faults, ms: samples, and {unsampled_ns:.0} ns of a fault{less}");
    text.push_str("size predicted measured   error  spread deviation  runs\n");
    for row in &compared.sizes {
        let Some(time) = &row.fault_ns else { continue };
        let ms = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
        let _ = writeln!(
            text,
            "{}{:>9}{:>8}{:>8}{:>10}{:>6}",
            named(&row.folio, &ms(time.predicted)),
            ms(time.measured.median),
            format!("{:+.1}%", time.error_percent),
            format!("{:.1}%", time.measured.spread_percent),
            row.deviation_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}%")),
            row.samples.len(),
        );
    }
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

/// What else was set.
fn conditions(compared: &Compared) -> String {
    let Told { shmem, pool, khugepaged } = &compared.conditions;
    let mut text = String::new();
    if let Some(set) = shmem {
        let _ = writeln!(text, "with folios of {set} for shared memory (within_size)");
    }
    if let Some(pages) = pool {
        let _ = writeln!(text, "with free huge pages: {pages}");
    }
    for setting in khugepaged.iter().flat_map(|settings| settings.split(',')) {
        let _ = writeln!(text, "with khugepaged: {setting}");
    }
    text
}

/// A name before the first column of figures; one that is too long has a line of its own.
fn named(name: &str, first: &str) -> String {
    match 14_usize.checked_sub(name.len()).filter(|room| *room > first.len()) {
        Some(room) => format!("{name}{first:>room$}"),
        None => format!("{name}\n{first:>14}"),
    }
}

fn line(row: &Row) -> String {
    let (faults, rss) = (&row.faults, &row.peak_rss_bytes);
    let seconds = |ns: u64| format!("{:.3}", ns as f64 / 1e9);
    format!(
        "{}{:>9}{:>8}{:>8}{:>10}{:>9}{:>7}{:>7}{:>8}",
        named(&row.folio, &faults.predicted.to_string()),
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

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn notes(text: &mut String, row: &Row) {
    for (figure, what) in [
        (&row.huge_bytes, "in leaves of 2 MiB at the end"),
        (&row.pool_bytes, "of the pool in use at the most"),
    ] {
        let Some(Figure { predicted, measured, error_percent, .. }) = figure else { continue };
        let (predicted, measured) = (mib(*predicted), mib(measured.median));
        let _ = writeln!(
            text,
            "{}: {measured} MiB {what},\n        {predicted} predicted ({error_percent:+.1}%).",
            row.folio
        );
    }
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
