//! `quire verify` with khugepaged.

use serde_json::Value;

use crate::advise::{text, words};
use crate::verify_settings::{number, program, verified, verify};

#[test]
fn khugepaged_collapses_as_much_as_predicted() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path(), &[2048]) else { return };
    let settings = "max_ptes_none=511,pages_to_scan=65536,scan_sleep_millisecs=20";
    let line =
        verified(&["--runs", "1", "--sizes", "2M", "--khugepaged", settings, "--", &program, "grows", "16"]);
    let row = &line["sizes"][0];
    if row["exit_codes"] != Value::from(vec![0]) {
        eprintln!("khugepaged had no processor for a minute: not tested");
        return;
    }
    let mib = f64::from(1 << 20);
    let [predicted, measured] =
        ["predicted", "measured/median"].map(|of| number(row, &format!("/huge_bytes/{of}")) / mib);
    // 16 MiB have six or seven whole ranges.
    assert!(measured >= 10.0 && (predicted - measured).abs() <= 4.0, "{line}");
    let held = verified(&["--runs", "1", "--sizes", "4K", "--", &program, "grows", "16"]);
    assert_eq!(held["sizes"][0]["huge_bytes"], Value::Null, "khugepaged is held: {held}");
    let refused = verify(&["--sizes", "64K", "--khugepaged", settings, "--", &program, "grows", "16"]);
    let why = words(&text(&refused.stderr));
    assert!(!refused.status.success() && why.contains("folios of 2M are off"), "{why}");
}
