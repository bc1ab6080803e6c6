//! `quire advise --referenced` on a program whose working set is known.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::advise::{page, quire, text, words};
use crate::recorder::{is_root, tiers};

/// Touches all of a mapping, then follows a circle of all pages of a part in its middle for a time.
const CHASE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
enum { PAGE = 4096 };
static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}
int main(int count, char **arguments) {
    long mapped = atol(arguments[1]) << 20, part = atol(arguments[2]) << 20, pages = part / PAGE, at = 0;
    char *memory = mmap(0, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, mapped, MADV_NOHUGEPAGE);
    for (long place = 0; place < mapped; place += PAGE) memory[place] = 1;
    char *middle = memory + (mapped - part) / 2 / (2 << 20) * (2 << 20);
    /* A generator with a full period, as the number of pages is a power of two. */
    for (long page = 0; page < pages; page++)
        *(long *)(middle + page * PAGE) = (page * 1664525 + 1013904223) % pages;
    puts("chasing");
    fflush(stdout);
    /* Once each millisecond is often enough, and leaves the processor to other tests. */
    for (double end = now() + atof(arguments[3]); now() < end; usleep(1000))
        for (long step = 0; step < pages; step++) at = *(volatile long *)(middle + at * PAGE);
    return at < 0;
}
"#;

const MIB: f64 = (1 << 20) as f64;

/// The program, or `None` with a word why it is not tested.
fn chase(directory: &Path) -> Option<String> {
    let (source, program) = (directory.join("chase.c"), directory.join("chase"));
    std::fs::write(&source, CHASE).expect("it is written");
    let Ok(built) = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status() else {
        println!("skipped: there is no gcc");
        return None;
    };
    assert!(built.success());
    Some(program.to_str().expect("a name").to_owned())
}

fn line(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // What the recorded program prints comes before.
    let text = text(&output.stdout);
    serde_json::from_str(text.lines().last().expect("a line"))
        .unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Intervals of which a median is judged: the first sees the whole mapping touched, and on a busy machine so
/// does the next.
const ENOUGH: u64 = 5;

/// The line of a run of so many seconds, or of a longer one: on a busy machine a round of reading bits takes
/// long, the next waits for its share of the time, and few intervals fit into a run.
fn of_enough_intervals(seconds: u32, run: impl Fn(&str) -> Output) -> Value {
    let mut seen = Vec::new();
    for times in [1, 2, 4, 8] {
        let line = line(&run(&(times * seconds).to_string()));
        let intervals = line.pointer("/reach/process/intervals").and_then(Value::as_u64);
        if intervals >= Some(ENOUGH) {
            return line;
        }
        seen.push(intervals);
    }
    panic!("too few intervals in runs of {seconds} s and longer: {seen:?}");
}

/// The working set is a part of a mapping, in MiB, and that is told of the mapping.
fn assert_known(line: &Value, (mapped, part): (f64, f64)) {
    let reach = &line["reach"];
    let process = &reach["process"];
    assert_eq!(process["program"], "chase", "{reach}");
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{reach}"));
    // Pages of the loader and the C library are 1 to 2 MiB. A TLB that holds all pages hides a few.
    let median = number(&process["median_bytes"]) / MIB;
    assert!((0.98 * part..part + 3.0).contains(&median), "{median} MiB: {reach}");
    let mappings = process["mappings"].as_array().expect("mappings");
    let large = mappings.iter().find(|mapping| number(&mapping["bytes"]) >= mapped * MIB);
    let large = large.unwrap_or_else(|| panic!("{reach}"));
    let referenced = number(&large["referenced_bytes"]) / MIB;
    assert!((referenced / part - 1.0).abs() < 0.02, "{referenced} MiB: {reach}");
    // Side by side they take an entry for each 2 MiB, and at most all of the mapping.
    let with = &process["with_2m"];
    let (pages, blocks) = (part * 256.0, part / 2.0);
    assert!((0.98 * pages..pages + 768.0).contains(&number(&process["entries_4k"])), "{reach}");
    assert!((blocks..blocks + 4.0).contains(&number(&with["least_2m"])), "{reach}");
    assert!((mapped / 2.0 - 1.0..mapped / 2.0 + 4.0).contains(&number(&with["most_2m"])), "{reach}");
    assert!(number(&reach["tlb_last_4k"]) > 0.0 && number(&reach["interval_ns"]) >= 1e8, "{reach}");
    assert!(number(&reach["overhead_percent"]) > 0.0 && reach["refused"].is_null(), "{reach}");
    // A round that takes longer than all before it is a large share of few.
    assert!(number(&reach["overhead_percent"]) <= 2.0 * number(&reach["max_overhead_percent"]), "{reach}");
}

#[test]
fn a_known_working_set_is_found_and_described() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(chase) = chase(directory.path()) else { return };
    let fixed = ["advise", "--baseline", "4K", "--khugepaged", "off"];
    let line = of_enough_intervals(8, |seconds| {
        let command = ["--referenced", "--format", "json", "--", &chase, "64", "16", seconds];
        quire(&[&fixed[..], &command].concat())
    });
    assert_known(&line, (64.0, 16.0));
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/advise-json-parts.md");
    let docs = std::fs::read_to_string(docs).expect("the page is there");
    let reach = &line["reach"];
    for part in [reach, &reach["process"], &reach["process"]["with_2m"], &reach["process"]["mappings"][0]] {
        for field in part.as_object().expect("an object").keys() {
            assert!(
                docs.contains(&format!("`{field}`")),
                "docs/advise-json-parts.md does not say what `{field}` is"
            );
        }
    }
    let page = page(&line);
    assert!(page.contains("TLB reach: </b>A model from referenced bits, interval "), "{page}");
    // Few pages, and an interval of its own: it needs some time to come on a busy machine.
    let told_of = |seconds: &str| {
        let command = ["--referenced=50ms", "--", &chase, "4", "1", seconds];
        text(&quire(&[&fixed[..], &command].concat()).stdout)
    };
    let no_interval = "no interval came to its end";
    let mut runs = ["3", "12", "48"].into_iter().map(told_of);
    let shown = runs.find(|shown| !words(shown).contains(no_interval)).expect("an interval ends in 48 s");
    let told = words(&shown);
    let number_after = |words: &str| -> f64 {
        let rest = told.split_once(words).unwrap_or_else(|| panic!("no `{words}` in {shown}")).1;
        rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
    };
    let [interval, cost] = ["bits, interval ", "clearing and reading the bits took "].map(number_after);
    // It is as long as was asked for, unless the bits then took more of the time than they may.
    assert!(interval < 1.0 || cost > 1.0, "{shown}");
    for part in [
        "reach: reach model from referenced bits, interval ",
        " entries of 4 KiB, which fit into the ",
        "clearing and reading the bits took ",
        " of the time (the aim is 5.0 % at most)",
        "unknown is which pages of a mapping they are: this kernel",
    ] {
        assert!(told.contains(part), "no `{part}` in {shown}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 80 || line.starts_with("  echo ")), "{shown}");
}

#[test]
fn what_runs_already_is_sampled_too() {
    if !is_root() || !tiers().contains(&"privileged") {
        return println!("skipped: attaching needs root and the kernel's tracepoints");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let Some(chase) = chase(directory.path()) else { return };
    let mut command = Command::new(&chase);
    let mut running =
        command.args(["64", "16", "600"]).stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    let mut told = [0; 7];
    std::io::Read::read_exact(running.stdout.as_mut().expect("a pipe"), &mut told).expect("it tells");
    let pid = running.id().to_string();
    let line = of_enough_intervals(12, |seconds| {
        let duration = format!("{seconds}s");
        let options = ["--referenced", "--pid", &pid, "--duration", &duration];
        quire(&[&["advise", "--format", "json", "--khugepaged", "off"][..], &options].concat())
    });
    running.kill().and_then(|()| running.wait()).expect("it ends");
    assert_known(&line, (64.0, 16.0));
}

#[test]
fn a_program_that_ends_at_once_has_no_interval() {
    let shown = text(&quire(&["advise", "--referenced=1h", "--", "true"]).stdout);
    assert!(words(&shown).contains("reach: unknown: no interval came to its end; "), "{shown}");
    for wrong in [&["--referenced=0s", "--", "true"][..], &["--referenced", "a.qtrace"]] {
        assert_eq!(quire(&[&["advise"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}
