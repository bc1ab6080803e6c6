//! `quire advise` as a user runs it: its figures are those of replays, and its verdict is what the figures say.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::bundled::directory;
use crate::small_trace::{HEAP, SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call, EventKind, FileId, PathId, Syscall};
use serde_json::Value;

/// A user without kept measurements.
pub(crate) fn quire(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env_remove("COLUMNS");
    command.output().expect("the command runs")
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("what is printed is text")
}

/// The output of a run that succeeds.
pub(crate) fn said(arguments: &[&str]) -> String {
    let output = quire(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Prices that are the same on every machine: 500 ns for 4 KiB, and 100 ns for each further 4 KiB.
pub(crate) fn prices() -> tempfile::TempPath {
    let (mut file, path) = tempfile::NamedTempFile::new().expect("a file").into_parts();
    let price = |kib: u64| format!("\"{kib}\":{}", 400 + kib / 4 * 100);
    let sizes: Vec<String> = [4, 16, 32, 64, 128, 256, 512, 1024, 2048].map(price).into();
    let single = r#""4":{"median_ns":450.0,"p99_ns":900.0,"longest_ns":30000.0}"#;
    let saved = format!(
        r#"{{"version":1,"kernel":"6.18","cpu":"one","fault_ns":{{{}}},"fault_spread":{{{single}}}}}"#,
        sizes.join(",")
    );
    file.write_all(saved.as_bytes()).expect("it is written");
    path
}

/// The JSON line of a run against single frames.
pub(crate) fn line(trace: &Path, more: &[&str]) -> Value {
    let (prices, trace) = (prices(), trace.to_str().expect("a name"));
    let fixed = ["advise", "--format", "json", "--prices", prices.to_str().expect("a name")];
    let baseline: &[&str] = if more.contains(&"--baseline") { &[] } else { &["--baseline", "4K"] };
    let said = said(&[&fixed, baseline, more, &[trace]].concat());
    assert_eq!(said.lines().count(), 1, "{said}");
    serde_json::from_str(&said).expect("a JSON object")
}

/// The same for readers; no line is too long.
pub(crate) fn shown(trace: &Path, more: &[&str]) -> String {
    let (prices, trace) = (prices(), trace.to_str().expect("a name"));
    let fixed = ["advise", "--prices", prices.to_str().expect("a name")];
    let baseline: &[&str] = if more.contains(&"--baseline") { &[] } else { &["--baseline", "4K"] };
    let said = said(&[&fixed, baseline, more, &[trace]].concat());
    // A command is not broken.
    let is_long = |line: &&str| line.chars().count() > 80 && !line.starts_with("  echo ");
    let long: Vec<&str> = said.lines().filter(is_long).collect();
    assert!(long.is_empty(), "{long:?} in\n{said}");
    said
}

/// The page that `quire report html` makes of a line.
pub(crate) fn page(line: &Value) -> String {
    let folder = tempfile::tempdir().expect("a directory");
    let [advice, page] = ["advice.json", "report.html"].map(|name| folder.path().join(name));
    std::fs::write(&advice, line.to_string()).expect("it is written");
    said(&["report", "html", "-o", page.to_str().expect("a name"), advice.to_str().expect("a name")]);
    std::fs::read_to_string(page).expect("the page is there")
}

/// Words with one space between them.
pub(crate) fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) fn number(value: &Value, field: &str) -> u64 {
    value.pointer(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {field} in {value}"))
}

pub(crate) fn sets(line: &Value) -> &[Value] {
    line["sets"].as_array().expect("sets")
}

fn set<'a>(line: &'a Value, folio: &Value) -> &'a Value {
    sets(line).iter().find(|set| set["folio"] == *folio).unwrap_or_else(|| panic!("no {folio} in {line}"))
}

pub(crate) fn trace(name: &str) -> PathBuf {
    directory().join(name)
}

#[test]
fn figures_are_those_of_replays() {
    for name in ["gcc.qtrace", "sqlite.qtrace"] {
        let path = trace(name);
        let line = line(&path, &[]);
        let names: Vec<&str> = sets(&line).iter().filter_map(|set| set["folio"].as_str()).collect();
        let tried: Vec<&str> =
            "4K 16K 32K 64K 128K 256K 512K 1M 2M 16K+64K 64K+2M 16K+64K+2M all".split(' ').collect();
        assert_eq!(names, tried);
        for folio in ["sweep", "64K,2M", "all"] {
            let file = path.to_str().expect("a name");
            let replayed = said(&["replay", "--rounds", "1", "--json", "-", "--folio", folio, file]);
            for replay in replayed.lines() {
                let replay: Value = serde_json::from_str(replay).expect("a JSON object");
                let set = set(&line, &replay["folio"]);
                for (own, other) in [
                    ("/faults", "/faults_taken"),
                    ("/wasted_bytes", "/peak/wasted"),
                    ("/page_tables_bytes", "/peak/page_tables"),
                ] {
                    assert_eq!(number(set, own), number(&replay, other), "{name} {}", replay["folio"]);
                }
                let absorbed = replay.pointer("/faults/absorbed/count").and_then(Value::as_u64).unwrap_or(0);
                assert_eq!(number(set, "/absorbed"), absorbed, "{name} {}", replay["folio"]);
            }
        }
        sets(&line).iter().for_each(check_sums);
    }
}

/// Mappings are all there is, and the prices are those that were given.
fn check_sums(set: &Value) {
    let mappings = set["mappings"].as_array().expect("mappings");
    let sum = |field: &str| mappings.iter().map(|mapping| number(mapping, field)).sum::<u64>();
    assert_eq!(sum("/faults") + number(set, "/signals"), number(set, "/faults"), "{set}");
    assert_eq!(sum("/wasted_bytes"), number(set, "/wasted_bytes"), "{set}");
    let kinds = set["kinds"].as_object().expect("kinds");
    let counted: u64 = kinds.values().filter_map(Value::as_u64).sum();
    assert_eq!(counted + number(set, "/signals"), number(set, "/faults"), "{set}");
    let folios = set["folios"].as_object().expect("folios");
    let brought_in: u64 = folios.values().filter_map(Value::as_u64).sum();
    assert_eq!(brought_in, number(set, "/kinds/anon"), "{set}");
    let times = mappings.iter().filter_map(|mapping| mapping["time_ns"].as_f64()).sum::<f64>();
    let time = set["time_ns"].as_f64().expect("a time");
    assert!((times - time).abs() < 1.0, "{times} of {time}");
    let steps = set["timeline"].as_array().expect("steps");
    assert_eq!(steps.len(), 48, "{set}");
    let most = steps.iter().map(|step| number(step, "/resident")).max();
    assert!(most >= Some(number(set, "/memory_bytes")), "the peak is in one of the steps: {set}");
}

#[test]
fn what_is_chosen_keeps_to_the_waste_and_is_shown() {
    let path = trace("gcc.qtrace");
    for (most, goal) in [("0.5", "throughput"), ("100", "throughput"), ("5", "memory")] {
        let options = ["--max-waste", most, "--goal", goal];
        let line = line(&path, &options);
        let best = set(&line, &line["best"]);
        let waste = 100.0 * number(best, "/wasted_bytes") as f64 / number(best, "/memory_bytes") as f64;
        assert!(waste <= most.parse().expect("a number"), "{waste} of {most}: {best}");
        assert_eq!(best["within_waste"], true);
        let shown = shown(&path, &options);
        match line["chosen"].as_str() {
            Some(chosen) => {
                assert_eq!(line["chosen"], line["best"]);
                assert!(
                    shown.contains(&format!("\n{chosen}:")) && shown.contains(&format!("{chosen} *")),
                    "{shown}"
                );
            }
            None => assert!(shown.contains("\nverdict: "), "{shown}"),
        }
        assert!(words(&shown).contains("gcc 12.2.0-14+deb12u1: ran 172 ms"), "{shown}");
    }
}

/// Touches each page of a range that is a multiple of `every`.
pub(crate) fn touches(trace: &mut SmallTrace, start: u64, pages: u64, every: usize) {
    for page in (0..pages).step_by(every) {
        trace.event(10, fault(start + page * 4096, Access::Write, false));
    }
}

pub(crate) fn grow_heap(trace: &mut SmallTrace, bytes: u64) {
    trace.event(10, call(Call::Brk, [0; 6], HEAP as i64));
    trace.event(10, call(Call::Brk, [HEAP + bytes, 0, 0, 0, 0, 0], (HEAP + bytes) as i64));
}

const SPARSE: u64 = 0x1000_0000;

/// A copy of the kernel's settings: its directory, and all settings by name.
pub(crate) struct Copy(tempfile::TempDir);

impl Copy {
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().expect("a directory");
        for (name, value) in settings {
            let path = root.path().join("sys/kernel/mm/transparent_hugepage").join(name);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
            std::fs::write(path, format!("{value}\n")).expect("it is written");
        }
        Self(root)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    fn advise(&self, trace: &Path) -> Value {
        self.advise_for("throughput", trace)
    }

    pub(crate) fn advise_for(&self, goal: &str, trace: &Path) -> Value {
        let prices = prices();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(["advise", "--format", "json", "--goal", goal, "--prices"]).arg(&*prices).arg(trace);
        let output = command.env("QUIRE_SETTINGS", self.0.path()).output().expect("the command runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("a JSON object")
    }

    /// Runs the commands of a field as a user would.
    fn run(commands: &Value) {
        for command in commands.as_array().expect("commands") {
            let command = command.as_str().expect("a command");
            assert!(
                Command::new("sh").args(["-c", command]).status().expect("a shell").success(),
                "{command}"
            );
        }
    }
}

#[test]
fn the_commands_do_what_was_advised_and_undo_it() {
    let mut small = program();
    grow_heap(&mut small, 4 << 20);
    touches(&mut small, HEAP, 1024, 1);
    small.exit(10);
    let file = small.write();
    let copy = Copy::new(&[
        ("enabled", "madvise"),
        ("hugepages-16kB/enabled", "always"),
        ("hugepages-64kB/enabled", "never"),
        ("hugepages-2048kB/enabled", "inherit"),
    ]);
    let before = copy.advise(&file);
    assert_eq!(before["baseline"], "16K", "nothing asks: {before}");
    let chosen = before["chosen"].as_str().unwrap_or_else(|| panic!("{before}"));
    assert!(["64K", "2M"].contains(&chosen), "other sizes are unknown to this kernel: {before}");
    Copy::run(&before["do"]);
    let after = copy.advise(&file);
    assert_eq!((&after["baseline"], &after["chosen"]), (&before["chosen"], &Value::Null), "{after}");
    Copy::run(&before["undo"]);
    let undone = copy.advise(&file);
    for field in ["baseline", "chosen", "do", "undo", "sets"] {
        assert_eq!(undone[field], before[field], "{field}");
    }
}

#[test]
fn memory_that_asks_gets_what_is_on_madvise() {
    let mut small = program();
    grow_heap(&mut small, 2 << 20);
    small.event(10, call(Call::Madvise, [HEAP, 2 << 20, 14, 0, 0, 0], 0));
    touches(&mut small, HEAP, 512, 1);
    small.exit(10);
    let file = small.write();
    let copy = Copy::new(&[("enabled", "madvise"), ("hugepages-2048kB/enabled", "inherit")]);
    let line = copy.advise(&file);
    assert_eq!(
        (&line["baseline"], &line["chosen"]),
        (&Value::from("4K, 2M by madvise"), &Value::Null),
        "{line}"
    );
    assert_eq!(number(&sets(&line)[0], "/faults"), 1, "{line}");
}

#[test]
fn a_heap_that_gains_beside_a_mapping_that_wastes_gets_folios_alone() {
    let mut small = program();
    grow_heap(&mut small, 2 << 20);
    touches(&mut small, HEAP, 512, 1);
    small.event(10, anonymous(SPARSE, 4 << 20));
    touches(&mut small, SPARSE, 1024, 16);
    small.computes(10_000_000);
    small.exit(10);
    let file = small.write();
    let line = line(&file, &[]);
    assert_eq!((&line["chosen"], &line["best"]), (&Value::Null, &Value::from("4K")), "{line}");
    for set in sets(&line).iter().filter(|set| set["folio"] != "4K") {
        assert_eq!(set["within_waste"], false, "{set}");
    }
    let plan = &line["plan"];
    // Larger ones save hardly more.
    assert_eq!(plan["folio"], "64K", "{plan}");
    let mappings = plan["mappings"].as_array().expect("mappings");
    assert_eq!((mappings.len(), &mappings[0]["kind"]), (1, &Value::from("heap")), "{plan}");
    // 32 for the heap, 64 for the other mapping.
    assert_eq!((number(plan, "/faults"), number(plan, "/wasted_bytes")), (96, 0), "{plan}");
    let shown = words(&shown(&file, &[]));
    let better =
        "better: 64K only where it pays, by madvise(MADV_HUGEPAGE) on the heap at 0x555500000000, 2.0 MiB";
    assert!(shown.contains(better), "{shown}");
    assert!(shown.contains("faults 576 → 96 (-83 %)"), "{shown}");
    assert!(shown.contains("no set of sizes for all memory is worth a change within the waste"), "{shown}");
    let page = page(&line);
    let told = [
        "64K for some mappings: −83 % faults",
        "576 → 96 faults; ",
        "No set of sizes for all memory is worth a change within the waste.",
        "Folios of 64K for these mappings alone",
        "<td>small: heap 0x555500000000</td><td data-name=\"size\">2.0 MiB</td><td data-name=\"faults\">512 → 32</td>",
        "<td data-name=\"never touched\">0.0 MiB</td>",
        "<td class=\"word\" data-name=\"how to set it\"><code>madvise(MADV_HUGEPAGE)</code></td>",
    ];
    told.into_iter().for_each(|told| assert!(page.contains(told), "no `{told}` in {page}"));
    assert!(!page.contains("Change nothing") && page.matches("MADV_HUGEPAGE").count() == 1, "{page}");
    // Where waste does not matter, clearing the other mapping still takes its time.
    let all = self::line(&file, &["--max-waste", "100"]);
    assert_eq!((&all["chosen"], &all["plan"]["folio"]), (&Value::from("16K"), &Value::from("64K")), "{all}");
}

/// A wait for a disk cost 100 us, however long the recorded ones were.
#[test]
fn a_recorded_wait_for_a_disk_has_its_price() {
    let file = Some(FileId { device: 1, inode: 7, path: PathId(0) });
    let mut small = program();
    let EventKind::Syscall(mmap) = call(Call::Mmap, [0, 64 << 12, 1, 2, 3, 0], SPARSE as i64) else { return };
    small.event(10, EventKind::Syscall(Syscall { file, ..mmap }));
    for page in 0..64 {
        let EventKind::Fault { addr, access, protection, kernel_mode, .. } =
            fault(SPARSE + page * 4096, Access::Read, false)
        else {
            return;
        };
        let duration_ns = Some(5_000_000);
        small.event(10, EventKind::Fault { addr, access, protection, kernel_mode, major: true, duration_ns });
    }
    small.exit(10);
    let line = line(&small.write(), &[]);
    assert_eq!(number(&sets(&line)[0], "/kinds/file-major"), 64, "{line}");
    let ns = line["prices"]["ns"]["file-major"].as_f64().expect("a price");
    assert!((ns / 5e6 - 1.0).abs() < 1e-3, "{line}");
}

/// All memory has folios of 2 MiB, and memory that asks has them too, whatever else it may have. A plan of 4K for the other
/// mapping was advised, of which few pages are touched: asking cannot take folios away.
#[test]
fn a_plan_has_the_sizes_that_all_memory_has() {
    let mut small = program();
    grow_heap(&mut small, 2 << 20);
    touches(&mut small, HEAP, 512, 1);
    small.event(10, anonymous(SPARSE, 4 << 20));
    touches(&mut small, SPARSE, 1024, 64);
    small.computes(1_000_000);
    small.exit(10);
    let line = line(&small.write(), &["--baseline", "2M", "--max-waste", "100"]);
    let plan = line["plan"]["folio"].as_str();
    assert!(plan.is_none_or(|folio| folio.contains("2M") || folio == "all"), "{line}");
}

/// Half of the other mapping's pages are touched: folios save its faults too, and waste as much as it uses.
#[test]
fn a_plan_keeps_to_the_waste() {
    let mut small = program();
    grow_heap(&mut small, 2 << 20);
    touches(&mut small, HEAP, 512, 1);
    small.event(10, anonymous(SPARSE, 4 << 20));
    touches(&mut small, SPARSE, 1024, 2);
    small.computes(10_000_000);
    small.exit(10);
    let file = small.write();
    let plan = &line(&file, &[])["plan"];
    let mappings = plan["mappings"].as_array().unwrap_or_else(|| panic!("{plan}"));
    assert_eq!((mappings.len(), &mappings[0]["kind"]), (1, &Value::from("heap")), "{plan}");
    assert_eq!((number(plan, "/faults"), number(plan, "/wasted_bytes")), (64 + 512, 0), "{plan}");
}

#[test]
fn a_heap_alone_gets_folios_for_all_and_says_why() {
    let mut small = program();
    grow_heap(&mut small, 4 << 20);
    touches(&mut small, HEAP, 1024, 1);
    small.exit(10);
    let file = small.write();
    let line = line(&file, &[]);
    assert_eq!((&line["chosen"], &line["plan"]), (&Value::from("2M"), &Value::Null), "{line}");
    let shown = words(&shown(&file, &[]));
    assert!(shown.contains("2M: faults 1,024 → 2 (-100 %)"), "{shown}");
    let why = "why: 100 % of the saved time comes from one mapping: the heap at 0x555500000000, 4.0 MiB";
    assert!(shown.contains(why), "{shown}");
    assert!(shown.contains("measured: what Linux takes for a fault by folio size"), "{shown}");
    assert!(shown.contains("one fault, median, 99 % and longest: 4K 450 ns, 900 ns, 30.0 us"), "{shown}");
    let latency = self::line(&file, &["--goal", "latency"]);
    assert_eq!((&latency["best"], &latency["chosen"]), (&Value::from("4K"), &Value::Null), "{latency}");
}

#[test]
fn where_nothing_is_worth_doing_one_line_says_so() {
    let mut small = program();
    small.event(10, anonymous(SPARSE, 4 << 20));
    touches(&mut small, SPARSE, 1024, 256);
    small.exit(10);
    let file = small.write();
    let line = line(&file, &[]);
    assert_eq!((&line["chosen"], &line["plan"]), (&Value::Null, &Value::Null), "{line}");
    let shown = shown(&file, &[]);
    assert!(words(&shown).contains("verdict: nothing to do: no other set of sizes is better"), "{shown}");
    assert!(!shown.contains("do:\n") && !shown.contains('│'), "{shown}");
}

#[test]
fn a_command_is_recorded_and_its_exit_code_told() {
    let directory = tempfile::tempdir().expect("a directory");
    let kept = directory.path().join("kept.qtrace");
    let kept = kept.to_str().expect("a name");
    let shown = said(&["advise", "-o", kept, "--", "sh", "-c", "exit 3"]);
    assert!(words(&shown).contains("exit code 3"), "{shown}");
    assert!(words(&said(&["advise", kept])).starts_with("sh: ran "), "the trace is kept");
    let output = quire(&["advise", "--format", "json", "--", "sh", "-c", "echo hello"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else");
    assert_eq!((&line["exit_code"], &line["program"]), (&Value::from(0), &Value::from("sh")));
    assert!(text(&output.stderr).contains("hello"));
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let gcc = trace("gcc.qtrace");
    let gcc = gcc.to_str().expect("a name");
    for (arguments, code) in [
        (&["advise"][..], 2),
        (&["advise", gcc, "--", "true"], 2),
        (&["advise", "-o", "x.qtrace", gcc], 2),
        (&["advise", "--pid", "1", gcc], 2),
        (&["advise", "--duration", "1s", gcc], 2),
        (&["advise", "--instrumented", "--pid", "1"], 2),
        (&["advise", "--max-waste", "101", gcc], 2),
        (&["advise", "--baseline", "8K", gcc], 2),
        (&["advise", "/no/such/file"], 1),
        (&["advise", "--prices", gcc, gcc], 1),
        (&["advise", "--memory-limit", "16M", gcc], 1),
        (&["advise", "--", "/no/such/program"], 127),
    ] {
        let output = quire(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
