//! `quire calibrate` as a user runs it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// The command of a user with this cache, so that the cache of the user who runs the tests stays as it is.
fn quire(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(arguments).env("XDG_CACHE_HOME", cache).output().unwrap()
}

fn calibrate(arguments: &[&str]) -> Output {
    let nowhere = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nowhere");
    let output = quire(&nowhere, &[&["calibrate"], arguments].concat());
    assert!(!nowhere.exists(), "{arguments:?} is kept nowhere");
    output
}

/// What a small calibration saves, for tests that need just any.
pub(crate) fn calibration() -> &'static str {
    static SAVED: OnceLock<String> = OnceLock::new();
    SAVED.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("here.json");
        let measured = calibrate(&["--smoke", "--save", file.to_str().unwrap()]);
        assert!(measured.status.success(), "{}", text(&measured.stderr));
        std::fs::read_to_string(file).unwrap()
    })
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn what_is_measured_is_shown_saved_and_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("here.json");
    let file = file.to_str().unwrap();
    let measured = calibrate(&["--smoke", "--save", file]);
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    let shown = text(&measured.stdout);
    for wanted in
        ["clear, 1 threads", "copy, 1 threads", "movnti", "clear soon 1: ", "copy later 4: ", "4KiB"]
    {
        assert!(shown.contains(wanted), "`{wanted}` is not in\n{shown}");
    }
    let loaded = calibrate(&["--load", file, "--json"]);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    assert_eq!(text(&loaded.stderr), shown, "the same figures give the same tables");
    let saved = std::fs::read_to_string(file).unwrap();
    assert_eq!(text(&loaded.stdout), saved);
    check_stretches(shown, &saved);
    check_replay(directory.path(), &saved);
}

/// A replay clears by what is kept of this machine, and says so; by what is asked for before that; and by neither where it is
/// another machine's.
fn check_replay(cache: &Path, saved: &str) {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/gcc.qtrace");
    let replay =
        |more: &[&str]| quire(cache, &[&["replay", "--rounds", "1", "--json", "-", trace], more].concat());
    let source = |output: Output| {
        assert!(output.status.success(), "{}", text(&output.stderr));
        let line: Value = serde_json::from_str(text(&output.stdout)).unwrap();
        let source = &line["clear_policy"];
        let why = source["why"].as_str().unwrap_or_default().to_owned();
        // The report for readers says the same.
        assert!(text(&output.stderr).contains(&why), "{}", text(&output.stderr));
        (source["from"].as_str().unwrap().to_owned(), source["file"].as_str().map(str::to_owned), why)
    };
    let kept = cache.join("quire/calibration.json");
    let name = kept.to_str().unwrap();
    let (from, file, why) = source(replay(&[]));
    assert_eq!((from.as_str(), file), ("suggested", None));
    assert!(why.contains("`quire calibrate`"), "{why}");
    std::fs::create_dir(cache.join("quire")).unwrap();
    std::fs::write(&kept, saved).unwrap();
    let measured = ("measured".to_owned(), Some(name.to_owned()), String::new());
    assert_eq!(source(replay(&[])), measured);
    assert_eq!(source(replay(&["--calibration", name])), measured);
    let other = saved.replacen("\"last_cache_bytes\": ", "\"last_cache_bytes\": 1", 1);
    std::fs::write(&kept, other).unwrap();
    let (from, file, why) = source(replay(&[]));
    assert_eq!((from.as_str(), file), ("suggested", None));
    assert!(why.contains("caches of") && why.contains("calibrate anew"), "{why}");
    let refused = replay(&["--calibration", name]);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert_eq!(text(&refused.stderr).lines().count(), 1, "{}", text(&refused.stderr));
}

/// A name that is no text is shown as far as it is, and hinders nothing.
#[test]
fn a_calibration_may_have_any_name() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join(OsStr::from_bytes(b"\xff.json"));
    std::fs::write(&file, calibration()).unwrap();
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/gcc.qtrace");
    for more in [&["--json", "-"][..], &[]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(["replay", "--rounds", "1", "--calibration"]).arg(&file).args(more).arg(trace);
        let output = command.env("XDG_CACHE_HOME", directory.path()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        if !more.is_empty() {
            let line: Value = serde_json::from_slice(&output.stdout).unwrap();
            let name = line["clear_policy"]["file"].as_str().unwrap();
            assert!(name.ends_with("\u{fffd}.json"), "{name}");
        }
    }
}

/// Every stretch was measured, on every number of threads; one of them is marked, and is the policy's.
fn check_stretches(shown: &str, saved: &str) {
    let saved: Value = serde_json::from_str(saved).unwrap();
    let figures = saved["stretches"].as_array().unwrap();
    let lengths = ["512KiB", "1MiB", "2MiB", "4MiB", "8MiB"];
    let threads = figures.iter().map(|figure| figure["threads"].as_u64().unwrap()).max().unwrap();
    assert_eq!(figures.len() as u32, lengths.len() as u32 * (threads.ilog2() + 1));
    assert!(figures.iter().all(|figure| figure["fill_ns_per_mib"].as_u64().unwrap() > 0));
    let marked: Vec<&str> =
        lengths.into_iter().filter(|length| shown.contains(&format!("* {length} "))).collect();
    let [chosen] = marked[..] else { panic!("{marked:?} are marked in\n{shown}") };
    assert!(shown.contains(&format!("\nstretch: {chosen}\n")), "{chosen} is marked in\n{shown}");
}

#[test]
fn what_cannot_be_read_or_written_is_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing/here.json");
    for arguments in [["--load", missing.to_str().unwrap()], ["--save", missing.to_str().unwrap()]] {
        let refused = calibrate(&arguments);
        assert!(!refused.status.success() && refused.stdout.is_empty());
        assert!(
            text(&refused.stderr).lines().next_back().unwrap().starts_with("quire: cannot "),
            "{arguments:?}"
        );
    }
}

/// Linux's faults are measured under the settings of a copy, so that no other run's are disturbed. They are put back.
#[test]
fn prices_of_the_kernel_are_saved_and_settings_put_back() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("sys/kernel/mm/transparent_hugepage");
    let settings = [("hugepages-64kB", "never"), ("hugepages-2048kB", "inherit")];
    for (size, value) in settings {
        std::fs::create_dir_all(root.join(size)).unwrap();
        std::fs::write(root.join(size).join("enabled"), value).unwrap();
    }
    std::fs::create_dir_all(directory.path().join("run")).unwrap();
    let file = directory.path().join("prices.json");
    let name = file.to_str().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(["calibrate", "--kernel", "--smoke", "--save", name]);
    let measured = command.env("QUIRE_SETTINGS", directory.path()).output().unwrap();
    assert!(measured.status.success(), "{}", text(&measured.stderr));
    for (size, value) in settings {
        // The kernel reads a write from its start; a file keeps what was behind it.
        let text = std::fs::read_to_string(root.join(size).join("enabled")).unwrap();
        assert_eq!(text.lines().next(), Some(value), "{size}");
    }
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let prices = saved["fault_ns"].as_object().unwrap();
    assert_eq!(prices.keys().collect::<Vec<_>>(), ["2048", "4", "64"], "{saved}");
    assert!(prices.values().all(|price| price.as_f64().unwrap() > 0.0), "{saved}");
    let recycled = saved["recycled_ns"].as_object().unwrap();
    assert!(prices.keys().eq(recycled.keys()), "{saved}");
    for kib in prices.keys() {
        assert!(recycled[kib].as_f64().unwrap() > 0.0, "{saved}");
        let of = |part: &str| saved["fault_spread"][kib][part].as_f64().expect("a time");
        let [median, p99, longest] = ["median_ns", "p99_ns", "longest_ns"].map(of);
        assert!(0.0 < median && median <= p99 && p99 <= longest, "{kib}: {saved}");
    }
    let shown = text(&measured.stdout);
    assert!(["4KiB", "64KiB", "2MiB"].iter().all(|size| shown.contains(size)), "{shown}");
    match saved["recorder_ns"].as_object() {
        Some(kinds) => {
            assert_eq!(kinds.keys().collect::<Vec<_>>(), ["anon", "cow-copy", "file-minor"], "{saved}");
            assert!(shown.contains("a fault takes longer in a recording by"), "{shown}");
        }
        // Without the right to record.
        None => {
            let said = text(&measured.stderr);
            assert!(said.contains("what a recording adds to a fault is not known"), "{said}");
            assert!(!said.contains("lacks faults"), "a recording that was permitted is whole: {said}");
        }
    }
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/gcc.qtrace");
    // `sudo` gives root another home directory than that of the user, for whom the prices are.
    let kept = directory.path().join("var/cache/quire/kernel-prices.json");
    std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
    std::fs::copy(&file, &kept).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(["advise", "--format", "json", trace]).env_remove("XDG_CACHE_HOME");
    command.env("HOME", directory.path()).env("QUIRE_SETTINGS", directory.path());
    let advised: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(
        (&advised["prices"]["from"], &advised["prices"]["file"]),
        (&"measured".into(), &kept.to_str().into())
    );
    let advised = quire(directory.path(), &["advise", "--format", "json", "--prices", name, trace]);
    let line: Value = serde_json::from_slice(&advised.stdout).unwrap();
    assert_eq!(line["prices"]["from"], "measured");
    assert_eq!(line["prices"]["ns"]["anon-4K"], prices["4"]);
    assert_eq!(line["prices"]["faults"]["64K"], saved["fault_spread"]["64"]);
}
