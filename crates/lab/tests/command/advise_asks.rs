//! `quire verify` on memory that asks for folios.

use std::fs;

use serde_json::Value;

use crate::advise::quire;
use crate::verify_settings::{number, program, verified};

/// Half of the memory of this program asks, so that its faults tell which sizes all memory has and which that
/// half.
#[test]
fn memory_that_asks_has_sizes_of_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path(), &[2048]) else { return };
    let advice = directory.path().join("advice.json");
    let output = quire(&["advise", "--format", "json", "--baseline", "4K", "--", &program, "asks", "16"]);
    let mut advised: Value = serde_json::from_slice(&output.stdout).expect("an object");
    let sets: Vec<String> =
        advised["sets"].as_array().expect("sets").iter().map(|set| set["folio"].to_string()).collect();
    let both = "64K, 2M by madvise";
    assert!(sets.contains(&format!("\"{both}\"")), "{sets:?}");
    advised["chosen"] = both.into();
    fs::write(&advice, advised.to_string()).expect("it is written");
    let line = verified(&["--advice", advice.to_str().expect("a name")]);
    let rows = line["sizes"].as_array().expect("a list");
    let row = |folio: &str| rows.iter().find(|row| row["folio"] == folio).unwrap_or_else(|| panic!("{line}"));
    let faults = |folio: &str| number(row(folio), "/faults/measured/median");
    // 4096 pages against 128 folios of 64 KiB, and 4 of 2 MiB or somewhat more where the mapping is not
    // aligned.
    assert!(faults("4K") - faults(both) > 3300.0, "{line}");
    assert!(number(row(both), "/faults/error_percent").abs() < 10.0, "{line}");
}
