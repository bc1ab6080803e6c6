//! `quire bench` as a user runs it: what it prints, what it writes, and that the machine is as before.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lab::bench::folio::{Folio, PAGE};
use lab::bench::row::Row;
use lab::bench::stats::Summary;
use lab::host::thp::{selected, sizes};
use lab::settings::Places;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use everything::NAMES;

mod allocators;
mod clears;
mod compare;
mod counts;
mod crossings;
mod everything;
mod gigantic;
mod guests;
mod instructions;
mod pages;
mod pools;
mod report;
mod restore_pools;

fn quire(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.arg("bench").args(arguments);
    command
}

fn output(arguments: &[&str]) -> Output {
    quire(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn rows(lines: &str) -> Vec<Row> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Tests that change or read the settings of the machine take turns.
fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

type Settings = BTreeMap<PathBuf, String>;

fn settings() -> Settings {
    let places = Places::of_this_machine();
    let files = sizes(&places.settings).into_values().chain([places.min_free]);
    files.filter_map(|path| Some((path.clone(), selected(&path)?))).collect()
}

/// The settings before any run has changed them, at a moment at which no run of another process has. They are put back first,
/// since an earlier one may have been killed.
fn settled() -> Settings {
    let (journal, since) = (Places::of_this_machine().journal(), Instant::now());
    loop {
        let restored = Command::new(env!("CARGO_BIN_EXE_quire")).arg("restore").output().unwrap();
        assert!(restored.status.success(), "{}", text(&restored.stderr));
        let found = (!journal.exists()).then(settings);
        if let Some(found) = found.filter(|_| !journal.exists()) {
            return found;
        }
        assert!(since.elapsed() < Duration::from_secs(600), "a run has changed the settings for long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether this user may change the folio-size settings at all: the other tests cover the logic without.
fn may_change_settings() -> bool {
    let sizes = sizes(&Places::of_this_machine().settings);
    sizes.values().next().is_some_and(|path| std::fs::OpenOptions::new().write(true).open(path).is_ok())
}

#[test]
fn a_smoke_run_of_everything_writes_whole_lines_and_restores_the_machine() {
    let _alone = alone();
    let before = settled();
    let (table, rows) = everything::smoke();
    assert_eq!(settings(), before);
    let cases = |experiment: &str| -> BTreeSet<String> {
        rows.iter().filter(|row| row.experiment == experiment).map(|row| row.case.clone()).collect()
    };
    let folios: BTreeSet<String> = Folio::all().map(Folio::name).collect();
    let populated = folios.iter().map(|name| format!("{name}/populate"));
    assert_eq!(cases("fault"), folios.iter().cloned().chain(populated).collect());
    check_taking_apart(&rows, &cases, &folios);
    check_aged(&rows, &cases("aged"));
    check_page_alloc(&rows, &cases("page-alloc"));
    check_other_allocator_experiments(&rows);
    check_storm(&rows);
    clears::check(&rows);
    gigantic::check(&rows);
    pools::check(&rows);
    guests::check(&rows);
    assert!(table.contains("252 CPUs, grace periods too"), "{table}");
    assert!(table.contains("published, before") && table.contains("published, batched"), "{table}");
}

/// Every case of the experiments that take address spaces apart is there, our own arms leave none out, and what is exact
/// is as it must be.
fn check_taking_apart(rows: &[Row], cases: &impl Fn(&str) -> BTreeSet<String>, folios: &BTreeSet<String>) {
    let with = |modifiers: &[&str]| -> BTreeSet<String> {
        folios.iter().flat_map(|folio| modifiers.iter().map(move |one| format!("{folio}{one}"))).collect()
    };
    let and = |mut all: BTreeSet<String>, more: &[&str]| {
        all.extend(more.iter().map(|one| (*one).to_owned()));
        all
    };
    let cold = |names: &BTreeSet<String>| names.iter().map(|name| format!("{name}/cold")).collect();
    let shuffled = and(folios.clone(), &["4KiB/shuffled"]);
    let warm = ["4KiB", "4KiB/shuffled", "64KiB", "2MiB-pte", "2MiB-pmd"];
    let both = and(cold(&shuffled), &warm);
    assert_eq!((cases("dontneed"), cases("exit")), (both.clone(), both.clone()));
    let run_by = ["4KiB/2cpus", "4KiB/idle", "64KiB/2cpus", "64KiB/idle", "2MiB-pmd/2cpus", "2MiB-pmd/idle"];
    assert_eq!(cases("unmap"), and(and(both, &["4KiB/page-by-page"]), &run_by));
    counts::check(rows);
    assert_eq!(cases("protect"), and(cold(folios), &["4KiB", "64KiB", "2MiB-pte", "2MiB-pmd"]));
    assert_eq!(cases("move"), with(&["/cold/alike-1GiB", "/cold/alike-2MiB", "/cold/alike-4KiB"]));
    let mut forks = folios.clone();
    for folio in ["4KiB", "64KiB", "2MiB-pte", "2MiB-pmd"] {
        forks.extend(["write1", "write10", "write100"].map(|writes| format!("{folio}/{writes}")));
    }
    assert_eq!(cases("fork"), forks);
    let churns = ["4KiB", "64KiB", "2MiB"].map(str::to_owned);
    let beside = churns.iter().flat_map(|piece| [2, 4].map(|threads| format!("{piece}/{threads}threads")));
    let verbs = ["verbs", "verbs/2threads", "verbs/4threads"].map(str::to_owned);
    let overlapping = [2, 4].map(|threads| format!("verbs-overlapping/{threads}threads"));
    let all = churns.iter().cloned().chain(beside).chain(verbs).chain(overlapping);
    assert_eq!(cases("churn"), all.collect());
    let apart = ["unmap", "dontneed", "exit", "protect", "move", "fork", "churn"];
    for row in rows.iter().filter(|row| apart.contains(&row.experiment.as_str())) {
        let name = format!("{} {} {}", row.experiment, row.case, row.arm);
        // The kernel may lack a folio size or refuse to choose one; our own arms and its single frames have no excuse.
        if row.arm != "linux" || row.case.starts_with("4KiB") && !row.case.ends_with("/idle") {
            assert_eq!(row.skipped, None, "{name}");
        }
        if let (true, Some(locks)) = (row.metric == "time", row.counters.get("locks")) {
            assert!(
                *locks >= row.counters["block_lock"] && *locks > 0,
                "{name}: locks of every kind are counted"
            );
        }
        if row.case.contains("/shuffled") {
            let pages = row.params["pages"].as_u64().unwrap();
            assert!(row.counters["frames_in_sequence"] <= pages / 20, "{name} is not shuffled");
        }
    }
    let arms = |experiment: &str| -> BTreeSet<&str> {
        rows.iter().filter(|row| row.experiment == experiment).map(|row| row.arm.as_str()).collect()
    };
    for experiment in ["unmap", "dontneed", "exit", "churn"] {
        assert_eq!(arms(experiment), ["quire", "per-page", "runs", "linux"].into(), "{experiment}");
    }
    assert_eq!(arms("fork"), ["copied", "shared", "linux"].into());
    for row in rows.iter().filter(|row| row.experiment == "churn" && row.arm != "linux") {
        let others = row.params["threads"].as_u64().unwrap() - 1;
        let (ipis, received) = (row.counters["ipis"], row.counters["nr_tlb_remote_flush_received"]);
        assert_eq!(ipis == 0, others == 0, "{}: interrupts go to CPUs that run it", row.case);
        // One request interrupts all the others that run the address space.
        assert!((ipis..=ipis * others).contains(&received), "{}: {received} of {ipis}", row.case);
    }
}

/// Every verb is called on memory that has lived among frames that others got by turns.
fn check_aged(rows: &[Row], cases: &BTreeSet<String>) {
    let verbs = ["unmap", "dontneed", "exit", "fork", "protect", "move", "collapse", "fault", "unmap/4KiB"];
    assert_eq!(*cases, verbs.map(str::to_owned).into());
    for row in rows.iter().filter(|row| row.experiment == "aged" && row.arm == "quire") {
        assert_eq!(row.skipped, None, "{}", row.case);
        let turns = row.params["other_bytes"].as_u64().unwrap() / (4 * PAGE as u64) / 16;
        let in_sequence = row.counters["other_in_sequence"];
        assert!((1..=turns * 15).contains(&in_sequence), "{}: {in_sequence} of {turns} turns", row.case);
    }
}

/// Every case of `page-alloc` is there, and no arm but `linux` leaves one out.
fn check_page_alloc(rows: &[Row], cases: &BTreeSet<String>) {
    let on = |name: &str, threads: u32| match threads {
        1 => name.to_owned(),
        _ => format!("{name}/{threads}threads"),
    };
    let mut expected: BTreeSet<String> = [1, 2, 4].map(|threads| on("pair", threads)).into();
    let bulk = ["bulk-alloc/1024", "bulk-free/1024", "single-alloc/1024", "single-free/1024"];
    for name in bulk.into_iter().chain(["random-free/1024", "random-free/1024/bulk", "pair-2MiB"]) {
        expected.extend([1, 2].map(|threads| on(name, threads)));
    }
    for threads in [1, 2, 4] {
        expected.extend([1, 32, 1024].map(|batch| on(&format!("batch/{batch}"), threads)));
    }
    expected.extend((1..=8).map(|order| format!("pair/order{order}")));
    let others = ["cross-free/2threads", "few-free/2threads", "few-free/4threads", "near-exhaustion"];
    expected.extend(others.into_iter().chain(allocators::SCATTERED).map(str::to_owned));
    assert_eq!(*cases, expected);
    for row in rows.iter().filter(|row| row.experiment == "page-alloc" && row.arm != "linux") {
        assert_eq!(row.skipped.is_some(), allocators::leaves_out(row), "{} {}", row.case, row.arm);
    }
    let linux = rows.iter().filter(|row| row.arm == "linux" && row.skipped.is_none());
    assert!(linux.filter(|row| row.experiment == "page-alloc" && row.metric == "time").count() > 10);
    for row in rows.iter().filter(|row| row.case == "near-exhaustion" && row.skipped.is_none()) {
        let left = row.counters.get("left");
        assert!(left.is_none_or(|left| *left == 0), "{}: {left:?} frames left when out of memory", row.arm);
        let tells = OURS.contains(&row.arm.as_str()) || row.arm == "owned-blocks";
        assert!(tells == left.is_some() || row.arm.starts_with("buddy-"), "{}", row.arm);
    }
}

/// The experiments around the page allocator: every arm of ours takes part, and what is exact is as it must be.
fn check_other_allocator_experiments(rows: &[Row]) {
    let of = |experiment: &str, metric: &str| -> Vec<&Row> {
        rows.iter().filter(|row| row.experiment == experiment && row.metric == metric).collect()
    };
    let interrupts = of("pcp-interrupt", "rate");
    assert_eq!(interrupts.len(), 4 * 5 * OURS.len());
    for row in interrupts {
        let served = row.counters["pairs_by_interrupts"] * 80;
        let pairs = row.counters["interrupts"] * 80;
        let share = match row.case.rsplit('/').next().unwrap() {
            "0" => 0,
            "1of16" => 5,
            "1of4" => 20,
            "1of2" => 40,
            "3of4" => 60,
            other => panic!("{other}"),
        };
        assert_eq!(served, pairs * share, "{} {}", row.case, row.arm);
    }
    let pairs: Vec<&str> = of("time-bench", "cycles")
        .into_iter()
        .filter_map(|row| (row.case == "page_alloc_put").then_some(row.arm.as_str()))
        .collect();
    assert_eq!(pairs, OURS);
    for experiment in ["page-test", "brk-test"] {
        for row in of(experiment, "rate") {
            assert_eq!(
                row.counters["operations"],
                row.params["operations"].as_u64().unwrap(),
                "{}",
                row.case
            );
        }
        assert!(of(experiment, "time").iter().all(|row| row.skipped.is_none()), "{experiment}");
    }
    for experiment in ["mapcount", "khugepaged"] {
        let rows = of(experiment, "time");
        assert!(rows.len() >= 5 && rows.iter().all(|row| row.skipped.is_none()), "{experiment}");
    }
    let collapses = of("collapse", "time");
    let watched = collapses.iter().find(|row| row.case == "direct/watched").unwrap();
    assert!(watched.arm == "quire" && watched.counters["atomics_of_4_tables"] > 0, "{watched:?}");
    assert!(collapses.iter().all(|row| row.arm != "quire" || row.skipped.is_none()), "collapse");
    let blocks = of("mobility", "whole-blocks");
    assert_eq!(blocks.len(), 4 * 2);
    for pair in blocks.chunks(2) {
        let [quire, mixing] = pair else { panic!("{} has no second arm", pair[0].case) };
        assert_eq!((quire.arm.as_str(), mixing.arm.as_str()), ("quire", "no-grouping"));
        assert!(quire.median > mixing.median, "{}: grouping leaves no more whole blocks", quire.case);
    }
    for row in blocks {
        let (whole, pinned) = (row.median.unwrap(), row.counters["pinned_blocks"] as f64);
        let first = row.counters["whole_at_first"] as f64;
        assert!(whole + pinned <= first + 1.0, "{} {}: {whole} of {first} whole", row.case, row.arm);
        assert!(whole > 0.0 && row.counters["pinned_frames"] > 0, "{} {}", row.case, row.arm);
        // The same requests, so the same frames wherever they fall: exact in every repetition.
        assert!(row.samples.iter().all(|sample| *sample == whole), "{} {}", row.case, row.arm);
    }
}

/// A storm comes to aged memory, and shares of areas are told where there are several.
fn check_storm(rows: &[Row]) {
    let of = |metric: &'static str| {
        rows.iter().filter(move |row| row.experiment == "mobility" && row.metric == metric)
    };
    let shares: Vec<(&str, &str)> =
        of("untainted-areas").map(|row| (row.case.as_str(), row.arm.as_str())).collect();
    assert_eq!(shares, [("storm", "quire"), ("storm", "no-grouping")]);
    for row in of("untainted-areas") {
        let tainted = row.counters["tainted_areas"];
        assert!((1..=4).contains(&tainted), "{}: {tainted} of 4 GiB have frames that stay", row.arm);
        assert_eq!(row.median, Some(100.0 * (1.0 - tainted as f64 / 4.0)), "{}", row.arm);
    }
    // Shares of four areas are coarse. Groups keep these frames in fewer blocks, and in no more areas.
    let [quire, mixing] = [0, 1].map(|arm| &of("untainted-areas").nth(arm).unwrap().counters);
    let fewer = |name: &str| (quire[name], mixing[name]);
    let ((blocks, mixed), (areas, mixed_areas)) = (fewer("pinned_blocks"), fewer("tainted_areas"));
    assert!(blocks < mixed, "{blocks} blocks with groups, {mixed} without");
    assert!(areas <= mixed_areas, "{areas} areas with groups, {mixed_areas} without");
    for row in of("whole-blocks").filter(|row| row.case == "storm") {
        let (first, aged) = (row.counters["whole_at_first"], row.counters["whole_before_storm"]);
        assert!(aged * 16 <= first, "{}: {aged} of {first} blocks are whole in aged memory", row.arm);
    }
}

/// Our own arms of the experiments on the page allocator.
const OURS: [&str; 3] = ["quire", "irq-off", "task-only"];

/// Metrics that are what is left after something was taken off: in a short run they may be nothing or less.
const REMAINDERS: [&str; 6] = ["clear", "rest", "alloc", "free", "alloc-cycles", "free-cycles"];

/// Metrics that may be nothing: shares of memory, and waits.
const SHARES: [&str; 6] =
    ["coverage", "coverage-end", "untouched", "untainted-areas", "stall", "worst-stall"];

/// What every line must hold.
fn check(row: &Row) {
    let name = format!("{} {} {} {}", row.experiment, row.case, row.arm, row.metric);
    match &row.skipped {
        Some(reason) => {
            assert!(!reason.is_empty() && row.samples.is_empty() && row.median.is_none(), "{name}")
        }
        None => {
            assert_eq!(row.samples.len(), 1, "{name}");
            assert_eq!(row.median, Summary::of(&row.samples).map(|summary| summary.median), "{name}");
            assert!(
                REMAINDERS.contains(&row.metric.as_str())
                    || SHARES.contains(&row.metric.as_str())
                    || row.experiment == "brackets" && row.metric != "time"
                    || row.samples.iter().all(|sample| *sample > 0.0),
                "{name}"
            );
            assert!(!row.counters.is_empty(), "{name}");
        }
    }
    assert!(
        ["ns", "cycles", "ops/s", "blocks", "GiB/s", "%", "pages", "brackets"].contains(&row.unit.as_str()),
        "{name}: {}",
        row.unit
    );
    assert!(!row.commit.is_empty(), "{name}");
    for key in ["cpu", "cpus", "kernel", "memory_bytes", "rustc", "thp", "tsc_hertz"] {
        assert!(!row.machine[key].is_null(), "{name}: machine has no {key}");
    }
    assert_eq!(row.params["smoke"], true, "{name}");
    if let (Some(folios), Some(bytes)) = (row.counters.get("folios"), row.params.get("folio_bytes")) {
        // The kernel counts for the whole machine, and one or two may be another process's.
        let populated = folios * bytes.as_u64().unwrap();
        assert!(populated >= row.params["pages"].as_u64().unwrap() * PAGE as u64, "{name}");
    }
}

#[test]
fn json_to_standard_output_is_nothing_but_lines() {
    let _alone = alone();
    let output = output(&["boot", "--smoke", "--json", "-"]);
    assert!(output.status.success());
    let rows = rows(&text(&output.stdout));
    assert_eq!(rows.len(), 2 * 2);
    assert!(rows.iter().all(|row| row.experiment == "boot"));
    assert!(text(&output.stderr).contains("ratio ="));
}

#[test]
fn the_list_names_every_experiment() {
    let output = output(&["--list"]);
    assert!(output.status.success());
    let names: Vec<String> =
        text(&output.stdout).lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(names, NAMES);
}

#[test]
fn an_unknown_name_is_refused_with_a_list_of_the_names() {
    let output = output(&["unmap", "no-such", "--smoke"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty(), "nothing may run before every name is known");
    let (told, names) = (text(&output.stderr), NAMES.join(", "));
    assert!(told.starts_with("error: invalid value 'no-such' for '[NAME]...'"), "{told}");
    assert!(told.contains(&format!("[possible values: {names}]")), "{told}");
}

#[test]
fn a_result_file_that_cannot_be_written_is_said_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("missing/results.json");
    let output = output(&["--json", file.to_str().unwrap()]);
    assert!(!output.status.success() && output.stdout.is_empty());
    let error = text(&output.stderr);
    let line = error.lines().find(|line| line.starts_with("quire: cannot write")).unwrap_or_default();
    assert!(line.contains("results.json") && line.contains("directory that exists"), "{error}");
}

/// A run of small cases and many rounds. It does not outlive its test.
struct LongRun(Child);

impl LongRun {
    /// Starts a run, and stops it at a moment when the settings are changed: it puts them back between its cases.
    fn stopped_while_changed(before: &Settings) -> Self {
        let run = Self(
            quire(&["fault", "--smoke", "--rounds", "5000"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let deadline = Instant::now() + Duration::from_secs(600);
        loop {
            assert!(Instant::now() < deadline, "the run never changed the settings");
            if settings() != *before {
                run.signal(Signal::SIGSTOP);
                waitpid(run.pid(), Some(WaitPidFlag::WUNTRACED)).unwrap();
                if settings() != *before {
                    return run;
                }
                run.signal(Signal::SIGCONT);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().try_into().unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }
}

impl Drop for LongRun {
    fn drop(&mut self) {
        // A run that ended already can be neither killed nor waited for: that is no error.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_settings_come_back_after_a_kill_and_after_a_signal() {
    let _alone = alone();
    if !may_change_settings() {
        eprintln!("this user may not change the folio-size settings: tested on a copy only");
        return;
    }
    let before = settled();
    drop(LongRun::stopped_while_changed(&before));
    assert_ne!(settings(), before, "a kill leaves no time to put anything back");
    assert!(output(&["--smoke", "protect"]).status.success());
    assert_eq!(settings(), before, "the next run puts back what the killed one left");

    let mut stopped = LongRun::stopped_while_changed(&before);
    stopped.signal(Signal::SIGTERM);
    stopped.signal(Signal::SIGCONT);
    assert!(!stopped.0.wait().unwrap().success());
    assert_eq!(settings(), before, "a signal is answered by putting back");
    assert!(!Places::of_this_machine().journal().exists());
}
