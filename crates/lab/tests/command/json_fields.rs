//! Each field that a command writes with `--format json` stands in a table of the documentation, and each field
//! of these tables is written.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use lab::trace::{Call, EventKind, FileId, PathId, Syscall};
use serde_json::Value;

use crate::advise::{grow_heap, line, quire, text, touches, words};
use crate::advise_accesses::watched;
use crate::bundled;
use crate::recorder::is_root;
use crate::small_trace::{HEAP, anonymous, call, program};
use crate::verify::may_choose;

const COMMON: &str = "json-output.md#How is a machine described?";
/// Where these traces map memory.
const AT: u64 = 0x10_0000_0000;
/// Objects whose keys are names of other things than fields: of sizes, kinds, calls, counters.
const MACHINE: [&str; 3] = ["machine.mitigations", "machine.settings", "machine.thp.sizes"];

/// The words in backquotes of tables.
#[derive(Default)]
struct Tables {
    /// All of them: of a field with fields of its own, the meaning names these.
    all: BTreeSet<String>,
    /// The fields: those of the first column.
    fields: BTreeSet<String>,
}

/// All tables of these pages, each with the heading above the tables if not all of them.
fn documented(pages: &[&str]) -> Tables {
    let mut words = Tables::default();
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    for page in pages {
        let (file, heading) = page.split_once('#').unwrap_or((page, ""));
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
        let text = std::fs::read_to_string(path).expect("the page is there");
        let (mut inside, mut tables) = (heading.is_empty(), 0);
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                inside = heading.is_empty() || title == heading;
            }
            if inside && line.starts_with('|') {
                tables += 1;
                words.all.extend(quoted(line));
                words.fields.extend(quoted(line.split('|').nth(1).unwrap_or("")));
            }
        }
        assert!(tables > 0, "no table in {page}");
    }
    words
}

/// The fields of a value: their names by their places.
type Fields = BTreeMap<String, String>;

/// Adds the fields of a value.
fn fields(value: &Value, by_name: &[&str], place: &str, found: &mut Fields) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| fields(value, by_name, place, found)),
        Value::Object(object) => {
            let names = by_name.contains(&place) || MACHINE.contains(&place);
            for (name, value) in object {
                let place = match place {
                    "" => name.clone(),
                    _ if names => place.to_owned() + ".*",
                    _ => format!("{place}.{name}"),
                };
                if !names {
                    found.insert(place.clone(), name.clone());
                }
                fields(value, by_name, &place, found);
            }
        }
        _ => {}
    }
}

/// Fails for fields of the values that no table of the pages has, and for fields of the first pages that no value
/// has. `more` are pages of further commands too; this machine does not write what is `left_out`.
fn hold(
    what: &str,
    (pages, more): (&[&str], &[&str]),
    by_name: &[&str],
    values: &[Value],
    left_out: &[&str],
) {
    assert!(!values.is_empty(), "{what} has written nothing");
    let mut found = Fields::new();
    values.iter().for_each(|value| fields(value, by_name, "", &mut found));
    let (own, others) = (documented(pages), documented(more));
    let has = |name: &str| own.all.contains(name) || others.all.contains(name);
    let unknown: Vec<&String> = found.iter().filter(|(_, name)| !has(name)).map(|(place, _)| place).collect();
    assert!(unknown.is_empty(), "{what}: no table in {pages:?} {more:?} has {unknown:?}");
    let written: BTreeSet<&str> = found.values().map(String::as_str).collect();
    let expected = own.fields.iter().map(String::as_str).filter(|name| !left_out.contains(name));
    let missing: Vec<&str> = expected.filter(|name| !written.contains(name)).collect();
    assert!(missing.is_empty(), "{what} writes no {missing:?}, which a table in {pages:?} has");
}

/// What a run that succeeds writes to standard output.
fn written(arguments: &[&str]) -> Vec<Value> {
    let output = quire(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    let values: Result<Vec<Value>, _> =
        serde_json::Deserializer::from_slice(&output.stdout).into_iter().collect();
    values.unwrap_or_else(|wrong| panic!("{arguments:?}: {wrong}"))
}

#[test]
fn of_advise() {
    const PAGES: [&str; 2] = ["advise-json.md", "advise-json-parts.md"];
    const BY_NAME: [&str; 7] = [
        "sets.kinds",
        "sets.folios",
        "shmem.sets.folios",
        "prices.ns",
        "prices.faults",
        "fragmentation.percent_by_size",
        "khugepaged.settings",
    ];
    const OF_TLB: [&str; 12] = [
        "second_level",
        "walks",
        "fetch_second_level",
        "fetch_walks",
        "window_walks_per_thousand",
        "processor",
        "accesses",
        "fetches",
        "ended_early",
        "with_code_in_2m",
        "sampled",
        "walk_ns",
    ];
    let more = ["--memory-high", "64M", "--khugepaged", "scan_sleep_millisecs=1"];
    let mut lines = vec![line(&bundled::directory().join("gcc.qtrace"), &more)];
    // The heap gains, the other mapping would waste.
    let mut parts = program();
    grow_heap(&mut parts, 2 << 20);
    touches(&mut parts, HEAP, 512, 1);
    parts.event(10, anonymous(AT, 4 << 20));
    touches(&mut parts, AT, 1024, 16);
    parts.computes(10_000_000);
    parts.exit(10);
    lines.push(line(&parts.write(), &[]));
    // Private memory that huge pages of a pool would carry, and shared memory.
    let mut large = program();
    large.event(10, anonymous(AT, 32 << 20));
    touches(&mut large, AT, 32 << 8, 1);
    let EventKind::Syscall(shared) = call(Call::Mmap, [0, 4 << 20, 3, 0x21, 3, 0], (2 * AT) as i64) else {
        unreachable!("it is a call");
    };
    let file = Some(FileId { device: 1, inode: 5, path: PathId(1) });
    large.event(10, EventKind::Syscall(Syscall { file, ..shared }));
    touches(&mut large, 2 * AT, 64, 1);
    large.exit(10);
    lines.push(line(&large.write(), &["--fragmentation", "100"]));
    for (line, fields) in
        lines.iter().zip([&["code", "khugepaged", "heat"][..], &["plan"], &["defrag", "hugetlb", "shmem"]])
    {
        fields.iter().for_each(|field| assert!(line[field].is_object(), "{field}: {line}"));
    }
    let mut left_out = Vec::new();
    match Command::new("valgrind").arg("--version").output() {
        Ok(_) => lines.extend(written(&["advise", "--format", "json", "--instrumented", "--", "true"])),
        Err(_) => {
            eprintln!("there is no valgrind: the fields of `tlb` are not tested");
            left_out.extend(OF_TLB);
        }
    }
    if is_root() {
        let referenced = written(&["advise", "--format", "json", "--referenced", "--", "sleep", "0.5"]);
        assert!(referenced[0]["reach"].is_object());
        lines.extend(referenced);
    }
    let accesses = line(&watched().write(), &[]);
    assert!(accesses["reach"]["damon"].is_object(), "{accesses}");
    lines.push(accesses);
    hold("advise", (&PAGES, &[]), &BY_NAME, &lines, &left_out);
}

#[test]
fn of_replay() {
    let gcc = bundled::directory().join("gcc.qtrace");
    let values = written(&["replay", "--rounds", "1", "--format", "json", gcc.to_str().expect("a name")]);
    let by_name = ["faults", "folios", "verbs", "calls_skipped"];
    const PAGE: &str = "replay-figures.md#What is in the JSON line?";
    hold("replay", (&[PAGE], &[COMMON]), &by_name, &values, &[]);
}

#[test]
fn of_verify() {
    if !may_choose(&[64]) {
        eprintln!("no folios of 64 KiB that this user may choose: not tested");
        return;
    }
    let options = ["verify", "--sizes", "4K,64K", "--runs", "1", "--sampled-runs", "1", "--run-off", "10"];
    let mut values =
        written(&[&options[..], &["--format", "json", "--", "sh", "-c", "(true); true"]].concat());
    let peak = "/sizes/0/processes/matched/0/peak_rss_bytes/measured/least";
    assert!(values[0].pointer(peak).is_some(), "{values:?}");
    let conditions =
        ["--sizes", "2M", "--khugepaged", "max_ptes_none=511", "--pool", "2M=1", "--format", "json"];
    let further = ["verify", "--runs", "1", "--sampled-runs", "0", "--run-off", "0"];
    let output = quire(&[&further[..], &conditions, &["--", "true"]].concat());
    let mut left_out = Vec::new();
    let said = words(&text(&output.stderr));
    let refusals = [
        "memory is in use, or in pieces",
        "this machine has memory for",
        "no anonymous folios of 2048 KiB",
        "no pool of huge pages",
    ];
    if refusals.iter().any(|refusal| said.contains(refusal)) {
        eprintln!("no page for a pool, or no folios of 2 MiB ({said}): not tested");
        left_out.extend(["huge_bytes", "pool_bytes"]);
    } else {
        values.push(
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no line of JSON: {said}")),
        );
    }
    let by_name = ["sizes.parts"];
    hold("verify", (&["json-output.md#What does verify write?"], &[COMMON]), &by_name, &values, &left_out);
}

#[test]
fn of_restore() {
    const PAGE: &str = "json-output.md#What does restore write?";
    hold("restore", (&[PAGE], &[]), &[], &written(&["restore", "--format", "json"]), &[]);
}

#[test]
fn of_record() {
    let directory = tempfile::tempdir().expect("a directory");
    let trace = directory.path().join("t.qtrace");
    let trace = trace.to_str().expect("a name");
    let mut values = written(&["record", "--format", "json", "-o", trace, "--", "sh", "-c", "(true); true"]);
    if is_root() {
        // Not this process: the children of its other tests would be followed.
        let mut sleeper = Command::new("sleep").arg("600").spawn().expect("it runs");
        let pid = sleeper.id().to_string();
        let attached = ["record", "--format", "json", "--pid", &pid, "--duration", "100ms", "-o", trace];
        values.extend(written(&attached));
        sleeper.kill().and_then(|()| sleeper.wait()).expect("it is ours");
        assert!(values[1]["attached"].is_object() && values[1]["overhead"].is_object(), "{values:?}");
    }
    hold("record", (&["json-output.md#What does record write?"], &[]), &["calls"], &values, &[]);
}

#[test]
fn of_bench_and_compare() {
    const PAGES: (&[&str], &[&str]) = (&["json-output.md#What do bench and compare write?", COMMON], &[]);
    let by_name = ["counters", "params"];
    // Few experiments measure what it costs to enter the kernel.
    let left_out = ["crossings"];
    let measured = written(&["bench", "boot", "--smoke", "--format", "json"]);
    hold("bench", PAGES, &by_name, &measured, &left_out);
    let compared = written(&["compare", "--smoke", "--only", "lists", "--format", "json"]);
    hold("compare", PAGES, &by_name, &compared, &left_out);
    let listed = written(&["bench", "--list", "--format", "json"]);
    hold("bench --list", (&[], &["json-output.md"]), &[], &listed, &[]);
}

#[test]
fn of_calibrate() {
    const PAGE: &str = "json-output.md#What does calibrate write?";
    // The same page has what `calibrate --kernel` writes.
    const OF_KERNEL: [&str; 6] =
        ["kernel", "fault_ns", "fault_spread", "recycled_ns", "walk_ns", "recorder_ns"];
    // A short calibration does not wait until the host of a virtual machine has taken memory.
    const OF_HOST: &str = "blocks_in_use_ns";
    let mut values = written(&["calibrate", "--smoke", "--format", "json"]);
    if may_choose(&[64]) {
        let by_name = ["fault_ns", "fault_spread", "recycled_ns", "recorder_ns"];
        values.extend(written(&["calibrate", "--kernel", "--smoke", "--format", "json"]));
        hold("calibrate", (&[PAGE], &[]), &by_name, &values, &[OF_HOST]);
        return;
    }
    hold("calibrate", (&[PAGE], &[]), &[], &values, &[&OF_KERNEL[..], &[OF_HOST]].concat());
}
