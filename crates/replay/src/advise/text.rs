//! The verdict for readers: lines with a label each, within 80 columns.

use std::fmt::Write;

use crate::output::{Sheet, Width, quoted, sparkline};
use crate::replay::{FolioSet, Sample, Trial};

use super::baseline::{Change, Settings};
use super::case::Case;
use super::code;
use super::defrag;
use super::fragmentation;
use super::hugetlb;
use super::khugepaged;
use super::known;
use super::limit;
use super::lines::{COLUMNS, labelled, listed};
use super::mappings;
use super::objective::{Goal, Score};
use super::processes;
use super::reach;
use super::shmem;
use super::verdict::{AdviseRequest, Verdict};
use super::ways::Runtime;
use super::words::{Names, change, count, percent, size, time};
use crate::tlb::Sampled;

/// Everything on one trace. `exit_code` is that of a program that was recorded just now.
pub(super) fn section(
    trial: &Trial,
    verdict: &Verdict,
    (settings, request): (&Settings, AdviseRequest<'_>),
    exit_code: Option<u8>,
) -> String {
    let mut text = heading(trial, verdict, request, exit_code);
    let names = Names::new(trial, &verdict.baseline().figures.parts);
    match verdict.chosen() {
        Some(case) => {
            text += &gain(&format!("{}:", case.name()), &verdict.baseline().score, &case.score, trial);
            text += &why(verdict, case, &names);
            text += &not(verdict, case, request);
        }
        None if verdict.plan.is_none() => {
            return text
                + &nothing(trial, verdict, request)
                + &walks(trial, verdict)
                + &further(trial, verdict, &names)
                + "\n";
        }
        None => {
            text += &labelled("all:", "no set of sizes for all memory is worth a change within the waste");
        }
    }
    text += &plan(trial, verdict, settings, &names);
    if let Some(case) = verdict.chosen() {
        text += &commands(trial, verdict.baseline(), case, settings);
        text += &over_time(trial, verdict.baseline(), case);
    }
    text += &walks(trial, verdict);
    text += &further(trial, verdict, &names);
    text + &known::text(trial, verdict) + &table(verdict, request) + "\n"
}

/// Other policies of memory.
fn further(trial: &Trial, verdict: &Verdict, names: &Names<'_>) -> String {
    let none = String::new;
    verdict.reach.as_ref().map_or_else(none, reach::text)
        + &trial.fragments().map_or_else(none, |fragments| fragmentation::text(fragments, verdict))
        + &verdict.defrag.as_ref().map_or_else(none, defrag::text)
        + &verdict.khugepaged.as_ref().map_or_else(none, |beside| khugepaged::text(beside, trial))
        + &verdict.pools.as_ref().map_or_else(none, |pools| hugetlb::text(pools, trial, names))
        + &verdict.code.as_ref().map_or_else(none, |code| code::text(code, trial))
        + &verdict.shmem.as_ref().map_or_else(none, shmem::text)
        + &limit::text(verdict)
        + &processes::text(trial, verdict)
}

fn heading(trial: &Trial, verdict: &Verdict, request: AdviseRequest<'_>, exit_code: Option<u8>) -> String {
    let header = trial.header();
    let version = match header.program.version.as_str() {
        "" => String::new(),
        version => format!(" {}", quoted(version)),
    };
    let faults: u64 = verdict.baseline().score.faults;
    let code = exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
    let from = if request.baseline.is_some() { "as asked" } else { "the settings of this machine" };
    let mut text = labelled(
        &format!("{}{version}:", quoted(&header.program.name)),
        &format!(
            "{}{code}; {} faults and {} at the peak with folios of {} ({from})",
            lasted(header.attached, trial.wall_ns()),
            count(faults),
            size(verdict.baseline().score.memory),
            verdict.baseline().name(),
        ),
    );
    if trial.lost() > 0 {
        text += &labelled("", &format!("{} records were lost: figures are too low", count(trial.lost())));
    }
    if !header.thp_disabled {
        let said = "folios were not off while it was recorded: of each that it got, only the page that faulted counts \
                    as touched";
        text += &labelled("", said);
    }
    text
}

/// How long the program ran, or how much of it is known.
fn lasted(attached: bool, wall_ns: u64) -> String {
    match (attached, wall_ns) {
        (_, 0) => "recorded without an event".to_owned(),
        (true, ns) => format!("recorded for {} while it ran", time(ns as f64)),
        (false, ns) => format!("ran {}", time(ns as f64)),
    }
}

/// What a set changes.
fn gain(label: &str, before: &Score, after: &Score, trial: &Trial) -> String {
    let wall_ns = trial.wall_ns() as f64;
    let saved = if wall_ns > 0.0 { (before.time_ns - after.time_ns) / wall_ns } else { 0.0 };
    let run_time = match saved {
        saved if saved.abs() < 0.0005 => "run time ±0 %".to_owned(),
        saved => format!("run time {:+.1} %", -100.0 * saved),
    };
    labelled(
        label,
        &format!(
            "faults {} → {} ({}), time in faults {} → {} (predicted; {run_time}), memory {} → {} ({}), {} of it never touched",
            count(before.faults),
            count(after.faults),
            change(before.faults as f64, after.faults as f64),
            time(before.time_ns),
            time(after.time_ns),
            size(before.memory),
            size(after.memory),
            change(before.memory as f64, after.memory as f64),
            percent(after.waste()),
        ),
    )
}

fn why(verdict: &Verdict, case: &Case, names: &Names<'_>) -> String {
    let gains = verdict.gains(case);
    let (causes, share) = mappings::causes(&gains);
    let [first, ..] = &causes[..] else { return String::new() };
    let all: f64 = gains.iter().map(mappings::Gain::saved_ns).filter(|ns| *ns > 0.0).sum();
    let one = |gain: &&mappings::Gain| match causes.len() {
        1 => names.prose(&gain.part),
        _ => format!("{} ({})", names.prose(&gain.part), percent(gain.saved_ns() / all)),
    };
    let said: Vec<String> = causes.iter().map(one).collect();
    let number = match causes.len() {
        1 => "one mapping".to_owned(),
        many => format!("{many} mappings"),
    };
    let mut text = if share < 0.5 {
        let many = gains.iter().filter(|gain| gain.saved_ns() > 0.0).count();
        labelled(
            "why:",
            &format!("many mappings gain a little, {} in all; the most: {}", count(many as u64), said[0]),
        )
    } else {
        let said = said.join("; ");
        labelled("why:", &format!("{} of the saved time comes from {number}: {said}", percent(share)))
    };
    let wasted = gains.iter().max_by_key(|gain| gain.part.wasted).filter(|gain| {
        gain.part.wasted * 2 > case.score.wasted
            && gain.part.wasted >= 64 << 10
            && gain.part.key != first.part.key
    });
    if let Some(gain) = wasted {
        let share = gain.part.wasted as f64 / case.score.wasted.max(1) as f64;
        let said = format!("{} of the untouched memory is in {}", percent(share), names.prose(&gain.part));
        text += &labelled("", &said);
    }
    text
}

/// Why not another set: the one that saves more, 2 MiB, and the next smaller.
fn not(verdict: &Verdict, case: &Case, request: AdviseRequest<'_>) -> String {
    let before = verdict.baseline().score.time_ns;
    let saved = |score: &Score| before - score.time_ns;
    let own = saved(&case.score);
    let mut said = Vec::new();
    let faster = verdict.cases.iter().filter(|other| !other.score.is_within(request.most_waste));
    let faster = faster.min_by(|a, b| a.score.time_ns.total_cmp(&b.score.time_ns));
    let block = verdict.cases.iter().find(|other| other.set().orders().eq([9]) && other.set() != case.set());
    if let Some(other) = faster.filter(|other| saved(&other.score) > own) {
        let more = percent((saved(&other.score) - own) / before.max(1.0));
        let waste = percent(other.score.waste());
        said.push(format!(
            "{} would save {more} more, and {waste} of memory would be untouched",
            other.name()
        ));
    }
    let higher = verdict.cases.iter().filter(|other| {
        other.score.is_within(request.most_waste) && other.score.above() > case.score.above()
    });
    let higher = higher.min_by(|a, b| a.score.time_ns.total_cmp(&b.score.time_ns));
    if let Some(other) = higher.filter(|other| saved(&other.score) > own) {
        let more = percent((saved(&other.score) - own) / before.max(1.0));
        said.push(format!(
            "{} would save {more} more, and exceed memory.high by {}",
            other.name(),
            size(other.score.above())
        ));
    }
    if let Some(block) = block.filter(|block| faster.is_none_or(|other| other.set() != block.set())) {
        let (share, waste) = (part_of(saved(&block.score), own), percent(block.score.waste()));
        said.push(format!("{} saves {share}, {waste} untouched, and needs 2 MiB in one piece", block.name()));
    }
    let single = || verdict.cases.iter().filter(|other| other.set().orders().count() == 1);
    let other = match case.score.sizes {
        0 | 1 => {
            let largest = case.set().orders().last().unwrap_or(0);
            single().rfind(|other| other.set().orders().all(|order| order < largest))
        }
        // A user who wants one size alone.
        _ => single()
            .filter(|other| other.score.is_within(request.most_waste))
            .min_by(|a, b| a.score.time_ns.total_cmp(&b.score.time_ns)),
    };
    if let Some(other) = other.filter(|_| own > 0.0) {
        let alone = if case.score.sizes > 1 { " alone" } else { "" };
        said.push(format!("{}{alone} saves {}", other.name(), part_of(saved(&other.score), own)));
    }
    if said.is_empty() { String::new() } else { labelled("not:", &said.join("; ")) }
}

/// What a set saves, by what the chosen one does.
fn part_of(saved: f64, own: f64) -> String {
    if saved <= 0.0 { "nothing".to_owned() } else { format!("{} of that", percent(saved / own.max(1.0))) }
}

fn nothing(trial: &Trial, verdict: &Verdict, request: AdviseRequest<'_>) -> String {
    if verdict.recorded_large {
        let said = "none: folios may have been large while it was recorded, so smaller ones have too few faults here; \
                    start the program by `quire advise -- COMMAND`";
        return labelled("verdict:", said);
    }
    let before = &verdict.baseline().score;
    let Some(best) = verdict.best.map(|at| &verdict.cases[at]) else {
        return labelled(
            "verdict:",
            "every set of sizes leaves more memory untouched than --max-waste allows",
        );
    };
    if best.set() == verdict.baseline().set() {
        return labelled("verdict:", "nothing to do: no other set of sizes is better for this goal");
    }
    let after = &best.score;
    let said = match request.goal {
        Goal::Throughput => format!(
            "{} of the run time and {} of the faults",
            percent((before.time_ns - after.time_ns).max(0.0) / trial.wall_ns().max(1) as f64),
            percent(before.faults.saturating_sub(after.faults) as f64 / before.faults.max(1) as f64),
        ),
        Goal::Memory => {
            format!(
                "{} of memory",
                percent(before.memory.saturating_sub(after.memory) as f64 / before.memory as f64)
            )
        }
        Goal::Latency => {
            format!("{} of the longest fault", percent(1.0 - after.longest_ns / before.longest_ns.max(1.0)))
        }
    };
    labelled("verdict:", &format!("nothing worth doing: the best, {}, saves {said}", best.name()))
}

/// What the TLBs miss under the chosen set, or else under the one that misses least.
fn walks(trial: &Trial, verdict: &Verdict) -> String {
    let Some(translations) = &verdict.translations else { return String::new() };
    let counts = &translations.run.counts;
    let chosen = verdict.best.filter(|_| verdict.changes);
    let least = || (0..verdict.cases.len()).min_by_key(|&at| counts[at].walks + counts[at].fetch_walks);
    let Some(at) = chosen.or_else(least) else { return String::new() };
    let (now, then) = (&counts[0], &counts[at]);
    let ((data, fetches), (data_then, fetches_then)) =
        (translations.walks_per_thousand(now), translations.walks_per_thousand(then));
    let mut said = format!(
        "with {}, of 1,000 data accesses {data:.2} → {data_then:.2} miss all levels, of 1,000 instruction fetches \
         {fetches:.2} → {fetches_then:.2}",
        verdict.cases[at].name()
    );
    let share = |counts| Some(translations.time_ns(counts)? / trial.wall_ns().max(1) as f64);
    let ns = translations.walk_ns.map(time);
    let _ = match (ns, share(now).zip(share(then))) {
        (Some(ns), Some((now, then))) => {
            write!(said, "; walks take about {} → {} of the run time, {ns} each", percent(now), percent(then))
        }
        (Some(_), None) => write!(said, "; the program was ended early"),
        (None, _) => write!(said, "; what a walk takes could not be measured"),
    };
    let code = &translations.code;
    let (fetches, share_of_code) = (translations.walks_per_thousand(code).1, share(code).zip(share(then)));
    let _ = write!(said, "; with program text in 2M too, {fetches:.2}");
    if let Some((with, without)) = share_of_code {
        let _ = write!(said, " and {} instead of {} of the run time", percent(with), percent(without));
    }
    let million = |number: u64| format!("{:.1}", number as f64 / 1e6);
    let run = &translations.run;
    let _ = write!(
        said,
        "; from {} million accesses and {} million fetches; {}",
        million(run.accesses),
        million(run.fetches),
        translations.processor
    );
    let mut text = labelled("TLB:", &said);
    if let Some(Sampled { windows, share, walks_per_thousand: each }) = &run.sampled {
        let ((least, most), (least_then, most_then)) = (each[0], each[at]);
        let said = format!(
            "estimated from {windows} windows of one length, {} of the run, equally far apart; from window to window \
             {least:.2} to {most:.2} → {least_then:.2} to {most_then:.2} of 1,000 data accesses miss all levels",
            percent(*share)
        );
        text += &labelled("", &said);
    }
    text
}

fn plan(trial: &Trial, verdict: &Verdict, settings: &Settings, names: &Names<'_>) -> String {
    let Some(plan) = &verdict.plan else { return String::new() };
    let where_to: Vec<String> = plan.asking.iter().map(|gain| names.prose(&gain.part)).collect();
    let name = plan.set.unrequested().name();
    let mut text = labelled(
        "better:",
        &format!("{name} only where it pays, by madvise(MADV_HUGEPAGE) on {}", where_to.join("; ")),
    );
    text += &gain("", &verdict.baseline().score, &plan.score, trial);
    let requests = settings.requests(plan.set);
    text += &listed("first:", requests.iter().map(|change| change.run.as_str()));
    text += &listed("undo:", requests.iter().map(|change| change.undo.as_str()));
    text + &asks(trial, settings)
}

/// The commands for the whole machine, and ways for this program alone.
fn commands(trial: &Trial, before: &Case, case: &Case, settings: &Settings) -> String {
    let changes = match settings.changes(case.set()) {
        Ok(changes) => changes,
        Err(order) => {
            let name = crate::replay::order_name(order);
            return labelled(
                "do:",
                &format!("this kernel has no anonymous folios of {name}: Linux 6.8 or later has"),
            );
        }
    };
    if changes.is_empty() {
        return labelled("do:", "nothing: this machine has these settings");
    }
    let mut text = listed("do:", changes.iter().map(|change| change.run.as_str()));
    text += &listed("undo:", changes.iter().map(|change| change.undo.as_str()));
    let new = |after: FolioSet, before: FolioSet| !after.is_within(before);
    let asked = new(case.set().requested(), before.set().requested());
    if !asked && !new(case.set(), before.set()) {
        let refuses = Runtime::of(&trial.files()).refuses();
        return text + &labelled("or:", &format!("for this program alone: {refuses}"));
    }
    // Memory that asks gets what all memory gets too.
    if asked || !settings.set().unrequested().is_within(case.set()) {
        return text;
    }
    let requests = settings.requests(case.set());
    let run: Vec<&str> = requests.iter().map(|change: &Change| change.run.as_str()).collect();
    let ask = asks(trial, settings);
    if ask.is_empty() {
        return text;
    }
    text += &listed("or only for programs that ask:", run.into_iter());
    text + &ask
}

/// The setting that makes the program ask.
fn asks(trial: &Trial, settings: &Settings) -> String {
    let setting = Runtime::of(&trial.files()).asks(settings.overall.as_deref());
    setting.map_or_else(String::new, |setting| labelled("with:", setting))
}

fn over_time(trial: &Trial, before: &Case, after: &Case) -> String {
    let most = |case: &Case, of: fn(&Sample) -> u64| case.figures.timeline.iter().map(of).max().unwrap_or(0);
    let highest = most(before, |sample| sample.resident).max(most(after, |sample| sample.resident)) as f64;
    let mut text = labelled("memory:", &format!("over {}", time(trial.wall_ns() as f64)));
    for (name, case) in [("before", before), ("after", after)] {
        let values = case.figures.timeline.iter().map(|sample| sample.resident as f64);
        let line = sparkline(values, highest);
        let _ = writeln!(text, "  {name:<7}{line} {}", size(most(case, |sample| sample.resident)));
    }
    for case in [before, after] {
        let untouched = most(case, |sample| sample.wasted);
        if untouched > 0 {
            let values = case.figures.timeline.iter().map(|sample| sample.wasted as f64);
            let _ = writeln!(text, "  unused {} {}", sparkline(values, highest), size(untouched));
        }
    }
    let tables = |case: &Case| size(most(case, |sample| sample.page_tables));
    let _ = writeln!(text, "  page tables {} → {} at the most", tables(before), tables(after));
    text
}

/// Every set that was tried.
fn table(verdict: &Verdict, request: AdviseRequest<'_>) -> String {
    let header = ["folios", "faults", "time in faults", "memory", "untouched", "longest fault", "tables"];
    let mut rows = Sheet::new(&header.map(str::to_owned), 1);
    for (at, case) in verdict.cases.iter().enumerate() {
        let score = &case.score;
        let mark = match at {
            0 => " (now)",
            at if verdict.changes && verdict.best == Some(at) => " *",
            _ => "",
        };
        let over = if score.is_within(request.most_waste) { "" } else { "!" };
        rows.add_row([
            format!("{}{mark}", case.name()),
            count(score.faults),
            time(score.time_ns),
            format!("{}{}", if score.above() > 0 { "!" } else { "" }, size(score.memory)),
            format!("{over}{}", percent(score.waste())),
            time(score.longest_ns),
            size(case.figures.peak.page_tables),
        ]);
    }
    let width = Width::of_output().columns.map(|columns| columns.min(COLUMNS));
    let mut text = format!("{}\n", rows.fit(width));
    for why in &verdict.left_out {
        text += &labelled("", why);
    }
    text
}
