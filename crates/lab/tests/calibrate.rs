//! `quire calibrate` as a user runs it.

use std::process::{Command, Output};

fn calibrate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire")).arg("calibrate").args(arguments).output().unwrap()
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
}

/// Every stretch was measured, on every number of threads; one of them is marked, and is the policy's.
fn check_stretches(shown: &str, saved: &str) {
    let saved: serde_json::Value = serde_json::from_str(saved).unwrap();
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
