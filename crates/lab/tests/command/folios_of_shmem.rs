//! `quire verify` with folios of shared memory.

use serde_json::Value;

use crate::verify_settings::{number, program_with_shared_memory, verified};

#[test]
fn shared_memory_has_the_faults_that_are_predicted() {
    let Some((_directory, program)) = program_with_shared_memory() else { return };
    let with =
        |more: &[&str]| verified(&[&["--sizes", "4K"], more, &["--", &program, "shared", "16"]].concat());
    let (single, folios) = (with(&["--shmem", "4K"]), with(&["--shmem", "64K"]));
    let faults = |line: &Value| {
        ["predicted", "measured/median"].map(|of| number(line, &format!("/sizes/0/faults/{of}")))
    };
    let ([_, before], [predicted, measured]) = (faults(&single), faults(&folios));
    assert!(before > 4096.0 && measured < before - 3700.0, "4096 pages are 256 folios: {single} {folios}");
    assert!((predicted / measured - 1.0).abs() < 0.1, "{folios}");
    assert_eq!(folios["conditions"]["shmem"], "64K");
    assert_eq!(folios["sizes"][0]["peak_rss_bytes"]["verdict"], "within", "{folios}");
}

/// A process has what it maps of shared memory itself, and not that of the others.
#[test]
fn the_peak_of_each_process_has_the_folios_that_it_maps() {
    let Some((_directory, program)) = program_with_shared_memory() else { return };
    // Each stores to one page of 64 KiB, 2 MiB in all.
    let script = format!("{program} little 32; {program} little 32; true");
    let line = verified(&["--sizes", "4K", "--shmem", "64K", "--", "sh", "-c", &script]);
    let row = &line["sizes"][0];
    let peak = |of: &Value| number(of, "/peak_rss_bytes/measured/median");
    assert!(peak(row) > f64::from(32 << 20), "{line}");
    assert_eq!(row["peak_rss_bytes"]["verdict"], "within", "{line}");
    let processes = row["processes"]["matched"].as_array().expect("a list");
    let both: Vec<&Value> = processes.iter().filter(|process| process["program"] == "maps").collect();
    assert_eq!(both.len(), 2, "{line}");
    assert!(both.iter().all(|process| process["peak_rss_bytes"]["verdict"] == "within"), "{line}");
}

/// The program that a process ends with has no folios of the one before.
#[test]
fn the_peak_of_a_program_has_no_folios_of_the_one_before() {
    let Some((_directory, program)) = program_with_shared_memory() else { return };
    let script = format!("{program} little 32 {program} anon 8; true");
    let line = verified(&["--sizes", "4K", "--shmem", "64K", "--", "sh", "-c", &script]);
    let processes = line["sizes"][0]["processes"]["matched"].as_array().expect("a list");
    let maps = processes.iter().find(|process| process["program"] == "maps").expect("the program");
    assert_eq!(maps["peak_rss_bytes"]["verdict"], "within", "{line}");
}
