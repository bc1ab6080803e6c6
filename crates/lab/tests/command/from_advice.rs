//! `quire verify` under what `quire advise` recommends.

use std::fs;

use serde_json::Value;

use crate::advise::{quire, text};
use crate::verify_settings::{number, program_with_shared_memory, verified, verify};

#[test]
fn what_advise_recommends_can_be_run_as_it_is() {
    let Some((directory, program)) = program_with_shared_memory() else { return };
    let advice = directory.path().join("advice.json");
    let output = quire(&["advise", "--format", "json", "--", &program, "shared", "16"]);
    fs::write(&advice, &output.stdout).expect("it is written");
    let advised: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let chosen = advised["shmem"]["chosen"].as_str().expect("sizes of shared memory are recommended");
    let line = verified(&["--advice", advice.to_str().expect("a name")]);
    assert_eq!(line["conditions"]["shmem"], chosen, "{line}");
    assert_eq!(line["command"], advised["command"], "{line}");
    for row in line["sizes"].as_array().expect("a list") {
        assert!(number(row, "/faults/error_percent").abs() < 10.0, "{row}");
    }
    let told = text(&verify(&["--advice", advice.to_str().expect("a name")]).stdout);
    assert!(told.contains(&format!("with folios of {chosen} for shared memory")), "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= 80), "{told}");
}
