//! A report as tables.

use std::fmt::Write;

use super::faults;
use super::policy::exact_bytes;
use super::report::{Cost, PolicySource, Report};
use crate::output::{self, Sheet, line, quoted};

/// The first lines of a trace's section.
pub(super) fn heading(report: &Report) -> String {
    let recorded = &report.recorded;
    let mut text = format!(
        "{}: {} {} (`{}`)\n{} events in {}, recorded on Linux {}{}; {} processes\n",
        quoted(&report.trace),
        quoted(&report.program),
        quoted_version(&report.program_version),
        command(&report.command),
        recorded.events,
        duration(recorded.wall_ns),
        quoted(&recorded.kernel),
        if recorded.thp_disabled { " with transparent huge pages off" } else { "" },
        report.processes,
    );
    if recorded.tier == "user" {
        text += "recorded as an ordinary user: access kinds are guessed, Linux's fault times and faults from kernel mode are missing\n";
    }
    if !recorded.thp_disabled {
        text += "recorded with transparent huge pages as they were set: one fault may have brought in up to 2 MiB, so folios of less have too few faults, and of each folio only the page that faulted counts as touched\n";
    }
    if report.pages_present_before > 0 {
        let _ = writeln!(
            text,
            "{} pages were present before the recording attached: no figure contains the faults that brought them in; \
             flushes and cleared bytes contain their return here",
            report.pages_present_before
        );
    }
    if recorded.records_lost > 0 {
        let _ = writeln!(
            text,
            "{} records were lost when it was recorded: figures are too low",
            recorded.records_lost
        );
    }
    text + &clear_policy(&report.clear_policy)
}

/// By which policy memory was cleared and copied.
fn clear_policy(source: &PolicySource) -> String {
    let mut text = "memory is cleared and copied as ".to_owned();
    text += match source.from {
        "measured" => "was measured best on this machine",
        _ => "the processor suggests",
    };
    if let Some(file) = &source.file {
        let _ = write!(text, " ({})", quoted(file));
    }
    if let Some(why) = &source.why {
        let _ = write!(text, ": {}", line(why));
    }
    text + "\n"
}

/// The arguments as a shell would take them.
fn command(arguments: &[String]) -> String {
    arguments.iter().map(|argument| quoted(argument).to_string()).collect::<Vec<_>>().join(" ")
}

/// A version, which may be empty.
fn quoted_version(version: &str) -> String {
    if version.is_empty() { String::new() } else { quoted(version).to_string() }
}

/// Everything about one folio size.
pub(super) fn section(report: &Report) -> String {
    let mut text = format!(
        "replayed with folios of {} on a machine of {} and {} CPUs\n",
        report.folio,
        exact_bytes(report.memory_bytes),
        report.cpus
    );
    let _ = writeln!(text, "{}", costs_table("fault", faults::kinds(), report, &report.faults, true));
    text += &major(report);
    let verbs = report.verbs.keys().copied();
    let _ = writeln!(text, "{}", costs_table("verb", verbs, report, &report.verbs, false));
    let _ = writeln!(text, "{}", memory_table(report));
    text + &counts(report)
}

fn costs_table<'a>(
    what: &str,
    names: impl Iterator<Item = &'a str>,
    report: &Report,
    costs: &std::collections::BTreeMap<&'static str, Cost>,
    total: bool,
) -> String {
    let timed = !report.checked;
    let mut header = vec![what.to_owned(), "count".to_owned()];
    if timed {
        header.extend(["Quire median", "Quire sum"].map(str::to_owned));
    }
    header.extend(["Linux median", "Linux sum"].map(str::to_owned));
    if timed {
        header.push("Linux / Quire".to_owned());
    }
    let mut rows = Sheet::new(&header, 1);
    // Keeps the sums and their ratio where the medians do not fit too.
    rows.prefer(if timed { vec![1, 3, 5, 6] } else { vec![1, 3] });
    let mut add = |name: &str, cost: &Cost| {
        let mut cells = vec![name.to_owned(), cost.count.to_string()];
        if timed {
            cells.extend([optional(cost.quire_median_ns), optional(cost.quire_ns)]);
        }
        cells.extend([optional(cost.linux_median_ns), optional(cost.linux_ns)]);
        if timed {
            cells.push(ratio(cost.linux_ns, cost.quire_ns));
        }
        rows.add_row(cells);
    };
    for name in names {
        if let Some(cost) = costs.get(name) {
            add(name, cost);
        }
    }
    if total {
        let (quire_ns, linux_ns) = report.fault_ns();
        let count = costs.values().map(|cost| cost.count).sum();
        let all = Cost { count, quire_ns, quire_median_ns: None, linux_ns, linux_median_ns: None };
        add("all recorded", &all);
    }
    rows.to_string()
}

fn memory_table(report: &Report) -> String {
    let peak = &report.peak;
    let mut rows = Sheet::new(&["memory at its peak".to_owned(), "KiB".to_owned(), "share".to_owned()], 1);
    let kinds = [
        ("anonymous", peak.anonymous),
        ("  of it wasted: never touched", peak.wasted),
        ("file (page cache)", peak.file),
        ("shared", peak.shared),
        ("page tables", peak.page_tables),
        ("metadata: blocks and descriptors", peak.metadata),
        ("metadata: mappings and files", peak.records),
        ("all", peak.total),
    ];
    for (name, bytes) in kinds {
        let share = 100.0 * bytes as f64 / peak.total.max(1) as f64;
        rows.add_row(vec![name.to_owned(), (bytes / 1024).to_string(), format!("{share:.1} %")]);
    }
    rows.to_string()
}

fn counts(report: &Report) -> String {
    let flushes = &report.flushes;
    let list = |items: Vec<String>| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    let folios = list(report.folios.iter().map(|(size, count)| format!("{count} of {size}")).collect());
    let mut text = format!(
        "folios brought in by faults: {folios}\n\
         flushes: {} local, {} remote ({} IPIs), {} of whole address spaces, {} pages, {} avoided; page-table pages at the peak: {}\n\
         cleared {}, copied {}; {} page-cache pages mapped around faults\n",
        flushes.local,
        flushes.remote,
        flushes.ipis,
        flushes.whole,
        flushes.pages,
        flushes.avoided,
        report.peak.page_tables / 4096,
        kib(report.bytes_cleared),
        kib(report.bytes_copied),
        report.pages_mapped_around,
    );
    text += &fell_back(report);
    if report.pages_touched_around > 0 {
        let _ = writeln!(
            text,
            "{} pages that Linux mapped around faults were touched one by one",
            report.pages_touched_around
        );
    }
    if !report.calls_skipped.is_empty() {
        let skipped =
            list(report.calls_skipped.iter().map(|(name, count)| format!("{count} {name}")).collect());
        let _ = writeln!(text, "calls not replayed: {skipped}");
    }
    text + &verdict(report)
}

/// The checks, and Quire's differences from Linux.
fn verdict(report: &Report) -> String {
    findings(report) + &conditions(report)
}

/// What is not as it should be, a line each.
fn findings(report: &Report) -> String {
    let mut text = String::new();
    if let Some(first) = &report.first_difference {
        let _ = writeln!(
            text,
            "{} answers differ from the recorded ones, the first at {first}",
            report.differences
        );
    }
    if report.not_judged > 0 {
        let _ = writeln!(
            text,
            "{} answers differ and are not judged: the recording does not tell the order of the calls before them",
            report.not_judged
        );
    }
    if report.frames_leaked > 0 {
        let _ = writeln!(text, "{} frames did not come back at exit", report.frames_leaked);
    }
    text
}

/// Of several sizes, each line of what is not as it should be, with the sizes for which it holds if these are
/// not all.
fn findings_of(reports: &[Report]) -> String {
    let all: Vec<(&str, String)> =
        reports.iter().map(|report| (report.folio.as_str(), findings(report))).collect();
    let mut lines: Vec<&str> = Vec::new();
    for line in all.iter().flat_map(|(_, text)| text.lines()) {
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let mut text = String::new();
    for line in lines {
        let with = all.iter().filter(|(_, text)| text.lines().any(|own| own == line));
        let sizes: Vec<&str> = with.map(|(size, _)| *size).collect();
        if sizes.len() < all.len() {
            let _ = write!(text, "folios of {}: ", sizes.join(", "));
        }
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Of what the figures are.
fn conditions(report: &Report) -> String {
    if report.checked {
        return "check: no divergence, all memory back at exit\n".to_owned();
    }
    format!(
        "times on Quire (the fastest of {} rounds) are without trap and without interrupts to other CPUs, \
         less {} ns for the clock; those on Linux contain the recorder's\n",
        report.rounds, report.clock_ns
    )
}

/// One line for each folio size.
pub(super) fn sweep(reports: &[Report]) -> String {
    let timed = reports.iter().all(|report| !report.checked);
    let mut header: Vec<String> = [
        "folios",
        "faults",
        "absorbed",
        "peak KiB",
        "anonymous KiB",
        "page tables KiB",
        "wasted KiB",
        "wasted",
        "cleared KiB",
    ]
    .map(str::to_owned)
    .to_vec();
    if timed {
        header.extend(["fault time", "all verbs"].map(str::to_owned));
    }
    let mut rows = Sheet::new(&header, 1);
    // A user chooses a size by its faults, peak, share of waste and fault time.
    rows.prefer([1, 3, 7, 9, 4, 10, 8, 5, 6, 2]);
    for report in reports {
        let peak = &report.peak;
        let wasted = 100.0 * peak.wasted as f64 / peak.anonymous.max(1) as f64;
        let mut cells = vec![
            report.folio.clone(),
            report.faults_taken.to_string(),
            report.absorbed().to_string(),
            (peak.total / 1024).to_string(),
            (peak.anonymous / 1024).to_string(),
            (peak.page_tables / 1024).to_string(),
            (peak.wasted / 1024).to_string(),
            format!("{wasted:.1} %"),
            (report.bytes_cleared / 1024).to_string(),
        ];
        if timed {
            cells.extend([optional(report.fault_ns().0), optional(report.quire_ns)]);
        }
        rows.add_row(cells);
    }
    let mut text = format!("{rows}\n");
    reports.iter().for_each(|report| text += &fell_back(report));
    if let Some(linux) = reports.first().and_then(|report| report.fault_ns().1) {
        let small = reports.iter().all(|report| report.recorded.thp_disabled);
        let each = if small { ", one of 4K each" } else { "" };
        let _ = writeln!(text, "Linux took {} for all recorded faults{each}", duration(linux));
    }
    text += &reports.first().map(major).unwrap_or_default();
    text + &findings_of(reports) + &reports.first().map(conditions).unwrap_or_default()
}

/// Says so if recorded faults waited for a disk.
fn major(report: &Report) -> String {
    match report.faults_major {
        0 => String::new(),
        count => format!(
            "{count} of the recorded faults waited for a disk, {} in all, which the times of Linux leave out\n",
            duration(report.major_ns)
        ),
    }
}

/// Says so if the size of the machine has decided the figures.
fn fell_back(report: &Report) -> String {
    match report.faults_fell_back {
        0 => String::new(),
        count => format!(
            "{count} faults found no free folio of {} in {}, and brought in single frames: give more than --memory {}\n",
            report.folio,
            exact_bytes(report.memory_bytes),
            exact_bytes(report.memory_bytes)
        ),
    }
}

fn duration(ns: u64) -> String {
    output::duration(ns as f64)
}

fn optional(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), duration)
}

fn ratio(linux: Option<u64>, quire: Option<u64>) -> String {
    match (linux, quire) {
        (Some(linux), Some(quire)) if quire > 0 => format!("{:.1}", linux as f64 / quire as f64),
        _ => String::new(),
    }
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes / 1024)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::costs::Stopwatch;
    use super::super::need::Bounds;
    use super::super::policy::FolioSet;
    use super::super::progress::Progress;
    use super::super::report::Context;
    use super::super::run::{Purpose, World};
    use super::super::survey::Survey;
    use super::*;
    use crate::calibrate::Chosen;

    #[test]
    fn a_sweep_tells_what_one_of_its_sizes_has_lost() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/gcc.qtrace");
        let mut progress = Progress::new("gcc".to_owned());
        let survey = Survey::of(&path, Bounds::NONE, &mut progress).expect("it is whole");
        let (watch, machine) = (Stopwatch::new(), Value::Null);
        let clear = Chosen { policy: None, file: None, why: None };
        let (memory_bytes, cpus) = (256 << 20, 2);
        let mut world = World::new(memory_bytes, cpus, Purpose::Counts).expect("a machine");
        let context = Context {
            path: &path,
            survey: &survey,
            watch: &watch,
            machine: &machine,
            memory_bytes,
            cpus,
            rounds: 1,
            check: false,
            clear: &clear,
        };
        let mut reports: Vec<Report> = FolioSet::each()
            .take(2)
            .map(|size| {
                let outcome = world.replay(&path, &survey, size, &watch, &mut progress);
                Report::new(&context, &outcome.expect("it is replayed"))
            })
            .collect();
        assert!(!sweep(&reports).contains("did not come back"));
        reports[1].frames_leaked = 3;
        let text = sweep(&reports);
        assert!(text.contains("folios of 16K: 3 frames did not come back"), "{text}");
        reports[0].frames_leaked = 3;
        let text = sweep(&reports);
        assert!(text.contains("\n3 frames did not come back"), "{text}");
        assert_eq!(text.matches("did not come back").count(), 1, "{text}");
    }
}
