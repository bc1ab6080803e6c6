//! `quire verify` under the other settings that `quire advise` recommends, on the running kernel.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::host::thp::root;
use serde_json::Value;
use tempfile::TempDir;

use crate::advise::{quire, text, words};
use crate::verify::{may_choose, settled};

/// Maps memory as its first argument says, and stores to each page of 4 KiB.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
enum { PAGE = 4096, MIB = 1 << 20 };
static void touch(char *memory, long bytes) {
    for (long at = 0; at < bytes; at += PAGE) memory[at] = 1;
}
/* What stands behind a word in a file. */
static long number(const char *file, const char *word) {
    char line[256];
    long found = -1;
    FILE *lines = fopen(file, "r");
    while (lines && found < 0 && fgets(line, sizeof line, lines))
        if (strstr(line, word)) found = atol(strstr(line, word) + strlen(word));
    if (lines) fclose(lines);
    return found;
}
/* A heap that grows by a page at a time has no folio of 2 MiB but those that khugepaged makes. On a busy machine it may have
   no processor for long, so the program waits for it where it can come. */
static int grow(long bytes) {
    for (long at = 0; at < bytes; at += PAGE) touch(sbrk(PAGE), PAGE);
    int comes = number("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled", "[always]") == 0 &&
                prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0;
    struct timespec rest = {0, 100000000};
    for (int turn = 0; turn < (comes ? 600 : 10); turn++) {
        nanosleep(&rest, 0);
        if (comes && number("/proc/self/smaps_rollup", "AnonHugePages:") * 1024 >= bytes - 4 * MIB) return 0;
    }
    return comes ? 5 : 0;
}
int main(int count, char **arguments) {
    long bytes = atol(arguments[2]) * MIB;
    int flags = MAP_SHARED | MAP_ANONYMOUS;
    if (arguments[1][0] == 'a') flags = MAP_PRIVATE | MAP_ANONYMOUS;
    if (arguments[1][0] == 'p') flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
    if (arguments[1][0] == 'g') return grow(bytes);
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) return 3;
    if (arguments[1][0] == 'a') madvise(memory, bytes / 2, MADV_HUGEPAGE);
    for (long at = 0; at < bytes; at += arguments[1][0] == 'l' ? 16 * PAGE : PAGE) memory[at] = 1;
    /* The use of a pool is looked at each millisecond, by a thread that may have to wait for a processor. */
    struct timespec rest = {0, 200000000};
    if (arguments[1][0] == 'p') nanosleep(&rest, 0);
    if (count > 3) execv(arguments[3], arguments + 3);
    return 0;
}
"#;

/// The program; `None` with a word why nothing is tested: this user may not choose these sizes in KiB, or no
/// memory's.
fn program(directory: &Path, sizes: &[usize]) -> Option<String> {
    if !may_choose(&[&[64], sizes].concat()) {
        eprintln!("this user may not choose folios of 64 and {sizes:?} KiB: not tested");
        return None;
    }
    let (source, program) = (directory.join("maps.c"), directory.join("maps"));
    fs::write(&source, PROGRAM).expect("it is written");
    let built = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        eprintln!("no gcc: not tested");
        return None;
    }
    Some(program.to_str().expect("a name").to_owned())
}

/// Few runs, none sampled, without a run-off.
fn verify(more: &[&str]) -> Output {
    let runs: &[&str] = if more.contains(&"--runs") { &[] } else { &["--runs", "3"] };
    quire(&[&["verify", "--sampled-runs", "0", "--run-off", "0"], runs, more].concat())
}

/// Linux 6.11 and later have sizes of their own for shared memory.
fn has_sizes_of_shared_memory() -> bool {
    let has = root().join("hugepages-64kB/shmem_enabled").exists();
    if !has {
        eprintln!("this kernel has no folio sizes of shared memory: not tested");
    }
    has
}

/// The program in a directory of its own, where it can be tested with folios of shared memory.
fn program_with_shared_memory() -> Option<(TempDir, String)> {
    let directory = tempfile::tempdir().expect("a directory");
    let program = program(directory.path(), &[])?;
    has_sizes_of_shared_memory().then_some((directory, program))
}

fn verified(more: &[&str]) -> Value {
    let before = settled();
    let output = verify(&[&["--format", "json"], more].concat());
    compared(more, &output, &before)
}

/// What a run has written that succeeded and has left all settings as they were.
fn compared(more: &[&str], output: &Output, before: &BTreeMap<PathBuf, Option<String>>) -> Value {
    assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
    assert_eq!(&settled(), before, "the settings are as before");
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

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

#[test]
fn a_program_finds_its_pages_in_the_pool() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path(), &[]) else { return };
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").exists() {
        eprintln!("no pool of huge pages: not tested");
        return;
    }
    let options = ["--format", "json", "--sizes", "4K", "--pool", "2M=6", "--", &program, "pool", "8"];
    let (before, output) = (settled(), verify(&options));
    let said = words(&text(&output.stderr));
    if said.contains("memory is in use, or in pieces") || said.contains("this machine has memory for") {
        eprintln!("this machine has no six pages of 2 MiB now: not tested");
        return;
    }
    let line = compared(&options, &output, &before);
    let row = &line["sizes"][0];
    assert_eq!(row["exit_codes"], Value::from(vec![0]), "{line}");
    assert_eq!(number(row, "/pool_bytes/predicted"), f64::from(8 << 20), "{line}");
    assert_eq!(number(row, "/pool_bytes/measured/most"), f64::from(8 << 20), "{line}");
    assert_eq!(line["conditions"]["pool"], "2M=6");
    // More than the machine has: it is not asked for, so that other programs keep their memory.
    let before = settled();
    let refused = verify(&["--sizes", "4K", "--pool", "2M=999999999", "--", &program, "pool", "8"]);
    let why = words(&text(&refused.stderr));
    assert!(!refused.status.success() && why.contains("this machine has memory for"), "{why}");
    assert_eq!(settled(), before, "the settings are as before");
}

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
