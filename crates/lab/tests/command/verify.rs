//! `quire verify` on the running kernel, where this user may change its settings.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::host::thp::{root, selected, sizes};
use lab::settings::Places;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Longer than other runs hold the settings.
const PATIENCE: Duration = Duration::from_secs(600);

/// All settings that a run changes, at a moment at which no run of another process has changed them.
pub(crate) fn settled() -> BTreeMap<PathBuf, Option<String>> {
    let journal = Places::of_this_machine().journal();
    until("another run has changed the settings for long", || {
        let found = (!journal.exists()).then(settings)?;
        (!journal.exists()).then_some(found)
    })
}

fn settings() -> BTreeMap<PathBuf, Option<String>> {
    let khugepaged = ["max_ptes_none", "pages_to_scan", "scan_sleep_millisecs"]
        .map(|name| root().join("khugepaged").join(name));
    let shmem = sizes(&root()).into_values().map(|path| path.with_file_name("shmem_enabled"));
    let pools = ["hugepages-2048kB", "hugepages-1048576kB"]
        .map(|size| Places::of_this_machine().pools.join(size).join("nr_hugepages"));
    let all = sizes(&root()).into_values().chain(khugepaged).chain(shmem).chain(pools);
    let all = all.chain([root().join("shmem_enabled")]);
    all.map(|path| (path.clone(), selected(&path))).collect()
}

/// Whether this user may choose the folio sizes of the kernel, these (in KiB) among them.
pub(crate) fn may_choose(wanted: &[usize]) -> bool {
    let sizes = sizes(&root());
    let mut paths = wanted.iter().map(|kib| sizes.get(kib));
    paths.all(|path| path.is_some_and(|path| OpenOptions::new().write(true).open(path).is_ok()))
}

fn quire(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).args(arguments).output().expect("quire runs")
}

#[test]
fn a_program_is_measured_beside_its_prediction() {
    if !may_choose(&[64]) {
        eprintln!("no folios of 64 KiB that this user may choose: not tested");
        return;
    }
    let before = settled();
    // 30 MB in pieces of the heap: a folio more or less at its start does not matter.
    let script = "head -c 40000000 /dev/zero | tail -c 30000000";
    // Sampled runs take most of the time, and a run of this program has ten samples or so.
    let options = ["verify", "--sizes", "4k,64K", "--runs", "3", "--sampled-runs", "2", "--run-off", "10"];
    let output = quire(&[&options[..], &["--format", "json", "--", "sh", "-c", script]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    assert_eq!(settled(), before, "the settings are as before");
    let compared: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON: nothing said");
    assert_eq!((&compared["program"], &compared["runs"]), (&"sh".into(), &3.into()));
    let rows = compared["sizes"].as_array().expect("a list");
    assert_eq!(rows.len(), 2);
    for (row, size) in rows.iter().zip(["4K", "64K"]) {
        assert_eq!(row["folio"], size);
        assert_eq!(row["exit_codes"], Value::from(vec![0]));
        let number = |pointer: &str| row.pointer(pointer).and_then(Value::as_f64).expect(pointer);
        assert!(number("/faults/measured/least") > 20.0, "{row}");
        assert!(number("/run_ns/median") > 0.0, "{row}");
        assert!(number("/peak_rss_bytes/measured/median") > 5e5, "{row}");
        // A loose bound: a busy machine may reclaim and migrate.
        assert!(number("/faults/error_percent").abs() < 20.0, "{row}");
        if compared["sampled_runs"] == 0 {
            assert!(error.contains("the time in faults is not measured: "), "{error}");
        } else {
            let ns = number("/fault_ns/measured/median");
            assert!(ns > 1e5 && ns < number("/run_ns/median") * 10.0, "{row}");
        }
        let length = |pointer: &str| row.pointer(pointer).and_then(Value::as_array).map(Vec::len);
        assert_eq!(length("/samples").unwrap_or(0) as u64, compared["sampled_runs"].as_u64().unwrap());
        for each in ["/each_recording/faults", "/each_recording/fault_ns"] {
            assert_eq!(length(each).map(|length| length as u64), compared["recordings"].as_u64(), "{each}");
        }
        assert!(number("/parts/anon-4K/faults") > 0.0 && number("/parts/anon-4K/each_ns") > 50.0, "{row}");
    }
    // The shell, and what it starts. The folios of the heap are those of `tail`.
    for row in rows {
        let matched = row["processes"]["matched"].as_array().expect("a list");
        let names: Vec<_> = matched.iter().map(|one| one["program"].as_str().expect("text")).collect();
        assert!(names[0] == "sh" && names.contains(&"head") && names.contains(&"tail"), "{row}");
        let peak = |name: &str| {
            let one = matched.iter().find(|one| one["program"] == name).expect("it was seen");
            let of = |pointer: &str| one.pointer(pointer).and_then(Value::as_f64).expect("a number");
            (of("/peak_rss_bytes/predicted"), of("/peak_rss_bytes/measured/median"))
        };
        let ((small, small_measured), (large, large_measured)) = (peak("head"), peak("tail"));
        assert!(small < large / 5.0 && small_measured < large_measured / 5.0, "{row}");
        assert!((large / large_measured - 1.0).abs() < 0.1, "{row}");
    }
    let unsampled_ns = compared["unsampled_ns"].as_f64().expect("a number");
    assert!((0.0..1e4).contains(&unsampled_ns), "{unsampled_ns}");
    // Without a control group it is not known.
    let sampling_percent = compared["sampling_percent"].as_f64().unwrap_or(0.0);
    assert!((0.0..100.0).contains(&sampling_percent), "{sampling_percent}");
    // The program is recorded once before it is run, and once in each turn of sampled runs.
    assert_eq!(compared["recordings"].as_u64(), compared["sampled_runs"].as_u64().map(|runs| runs + 1));
    let advice = &compared["advice"];
    let [least, most] = [0, 1].map(|end: usize| advice["between_percent"][end].as_f64());
    assert!(least <= most && least.is_some(), "{advice}");
    assert!(["4K", "64K"].iter().any(|size| advice["folio"] == *size), "{advice}");
    let against = advice["run_off"]["against"].as_array().expect("a list");
    assert!(against.len() == 1 && against[0]["folio"] != advice["folio"], "the other size: {advice}");
    assert_eq!(against[0]["turns"], 10, "{advice}");
    let least = rows.iter().filter_map(|row| row.pointer("/run_ns/median")?.as_u64()).min();
    assert_eq!(advice["best_run_ns"].as_u64(), least);
}

/// Whether `verify` samples runs here, on settings that this user may change.
fn samples() -> bool {
    may_choose(&[64]) && Command::new("perf").arg("--version").output().is_ok()
}

/// A sampled run ended with its first process, and the faults of those that this one had left running were not seen.
#[test]
fn a_sampled_run_lasts_as_long_as_all_that_the_program_started() {
    if !samples() {
        eprintln!("no settings that this user may change, or no perf: not tested");
        return;
    }
    let before = settled();
    let script = "(head -c 40000000 /dev/zero | tail -c 30000000 >/dev/null) & exit 0";
    let options = ["verify", "--sizes", "4K", "--runs", "1", "--sampled-runs", "2", "--run-off", "0"];
    let output =
        quire(&[&options[..], &["--rest", "1s", "--format", "json", "--", "sh", "-c", script]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(settled(), before, "the settings are as before");
    let compared: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    let ns = |pointer: &str| compared.pointer(pointer).and_then(Value::as_f64).expect(pointer);
    let (measured, predicted) = (ns("/sizes/0/fault_ns/measured/median"), ns("/sizes/0/fault_ns/predicted"));
    assert!(measured > predicted / 2.0, "{compared}");
}

/// The program of a sampled run went on when `verify` was killed.
#[test]
fn the_program_that_is_sampled_ends_with_the_command() {
    if !samples() {
        eprintln!("no settings that this user may change, or no perf: not tested");
        return;
    }
    let before = settled();
    // Only sampled runs are in a group of their own, where one can be made.
    let script = "grep -q quire-verify /proc/self/cgroup || exit 0; echo $$ >number && mv number sampled && exec sleep 1000";
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut verify = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["verify", "--sizes", "4K", "--runs", "1", "--sampled-runs", "1", "--run-off", "0"])
            .args(["--", "sh", "-c", script])
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("quire runs");
        let sampled = until("the program was not sampled", || {
            let ended = verify.try_wait().expect("it is ours").is_some();
            let number = std::fs::read_to_string(directory.path().join("sampled")).ok();
            (ended || number.is_some()).then_some(number)
        });
        let Some(sampled) = sampled else {
            let output = verify.wait_with_output().expect("it is ours");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("no control group can be made"), "{said}");
            return;
        };
        kill(Pid::from_raw(verify.id() as i32), signal).expect("it is ours");
        assert!(!verify.wait().expect("it is ours").success(), "{signal}");
        ends(&sampled);
        assert!(quire(&["restore"]).status.success());
        assert_eq!(settled(), before, "{signal}: the settings are as before");
    }
}

/// Waits until the process with this number has ended.
fn ends(number: &str) {
    let command_line = PathBuf::from("/proc").join(number.trim()).join("cmdline");
    // One that has ended has none.
    until("the program goes on", || {
        std::fs::read(&command_line).unwrap_or_default().is_empty().then_some(())
    });
}

/// A program that was recorded between the sampled runs went on after an interrupt, or `verify` did: the recorder and the thread
/// that puts settings back both wait for the signal, and one of them gets it. Neither sees SIGKILL.
#[test]
fn the_program_that_is_recorded_again_ends_with_the_command() {
    if !samples() {
        eprintln!("no settings that this user may change, or no perf: not tested");
        return;
    }
    let before = settled();
    // Recorded programs are kept from large folios: the second one of these says its number, and sleeps.
    let script = "grep -q 'THP_enabled:.*0' /proc/self/status || exit 0; \
                  test -e first && echo $$ >number && mv number second && exec sleep 1000; echo >first";
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut verify = Command::new(env!("CARGO_BIN_EXE_quire"))
            .args(["verify", "--sizes", "4K", "--runs", "1", "--sampled-runs", "1", "--", "sh", "-c", script])
            .current_dir(&directory)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("quire runs");
        let recorded = until("the program was not recorded again", || {
            std::fs::read_to_string(directory.path().join("second")).ok()
        });
        kill(Pid::from_raw(verify.id() as i32), signal).expect("it is ours");
        assert!(!verify.wait().expect("it is ours").success(), "{signal}");
        ends(&recorded);
        assert!(quire(&["restore"]).status.success());
        assert_eq!(settled(), before, "{signal}: the settings are as before");
    }
}

/// Waits until there is something.
fn until<T>(otherwise: &str, mut there_is: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < PATIENCE, "{otherwise}");
        if let Some(found) = there_is() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_program_that_cannot_be_run_is_an_error() {
    let output = quire(&["verify", "--", "/no such program"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{error}");
    assert!(output.stdout.is_empty());
    assert!(error.starts_with("quire: "), "{error}");
    for wrong in
        [&["verify"][..], &["verify", "a.qtrace", "--", "true"], &["verify", "--sizes", "3K", "--", "true"]]
    {
        assert_eq!(quire(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

/// The process of one run, stopped at the end of each process or not.
#[test]
fn a_run_gets_its_real_time_signals() {
    for options in [&["--see-peak"][..], &[]] {
        for (script, code) in [("trap 'exit 7' 34; kill -34 $$; exit 1", 7), ("kill -34 $$", 128 + 34)] {
            let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
            quire.arg("verify-run").args(options).args(["--", "sh", "-c", script]);
            let output = quire.output().expect("quire runs");
            let counted = String::from_utf8_lossy(&output.stdout);
            assert!(counted.starts_with(&format!("{{\"exit_code\":{code},")), "{output:?}");
        }
    }
}
