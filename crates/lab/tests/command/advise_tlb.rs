//! `quire advise --instrumented` on programs whose TLB misses are known.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::Value;

/// Walks through a circle of all pages in random order, or along them; the page numbers of the circle are drawn by a
/// generator with a full period. The second letter of the first argument says where: in a mapping, in the heap (`h`), or in a
/// heap that grows step by step while it is touched (`g`).
const PROGRAM: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
enum { PAGE = 4096, STEP = 32 };
static char *mapped(char where, long pages) {
    if (where != 'h' && where != 'g')
        return mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (where == 'h') return sbrk(pages * PAGE);
    char *memory = sbrk(0);
    for (; pages > 0; pages -= STEP) {
        char *part = sbrk(STEP * PAGE);
        for (long page = 0; page < STEP; page++) part[page * PAGE] = 1;
    }
    return memory;
}
int main(int count, char **arguments) {
    long pages = atol(arguments[2]), rounds = atol(arguments[3]), at = 0;
    char *memory = mapped(arguments[1][1], pages);
    if (memory == MAP_FAILED) return 1;
    if (arguments[1][0] == 's') {
        for (; rounds > 0; rounds--)
            for (at = 0; at < pages * PAGE; at += 256) memory[at]++;
        return 0;
    }
    for (long page = 0; page < pages; page++)
        *(long *)(memory + page * PAGE) = (page * 1664525 + 1013904223) % pages;
    for (long step = 0; step < rounds * pages; step++) at = *(volatile long *)(memory + at * PAGE);
    return at == 0 ? 0 : 1;
}
"#;

fn quire(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(arguments).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).env_remove("COLUMNS");
    command.output().expect("the command runs")
}

fn program(directory: &Path) -> Option<String> {
    compiled(directory, PROGRAM)
}

/// The program, or `None` with a word why it is not tested.
fn compiled(directory: &Path, text: &str) -> Option<String> {
    for tool in ["gcc", "valgrind"] {
        if Command::new(tool).arg("--version").output().is_err() {
            eprintln!("there is no {tool}: not tested");
            return None;
        }
    }
    let (source, program) = (directory.join("walker.c"), directory.join("walker"));
    std::fs::write(&source, text).expect("it is written");
    let built =
        Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status().expect("gcc runs");
    assert!(built.success());
    Some(program.to_str().expect("a name").to_owned())
}

/// The JSON line of a run against single frames.
fn line(command: &[&str]) -> Value {
    let prices = crate::advise::prices();
    let fixed =
        ["advise", "--format", "json", "--baseline", "4K", "--prices", prices.to_str().expect("a name")];
    let output = quire(&[&fixed[..], &["--instrumented", "--"], command].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The line of a chase through 8192 pages, three times, of which two tests look at parts.
fn chase(program: &str) -> &'static Value {
    static LINE: OnceLock<Value> = OnceLock::new();
    LINE.get_or_init(|| line(&[program, "cm", "8192", "3"]))
}

/// The walks of data accesses under a set.
fn walks(line: &Value, folio: &str) -> f64 {
    missed(line, folio, "walks")
}

fn missed(line: &Value, folio: &str, field: &str) -> f64 {
    let sets = line["sets"].as_array().expect("sets");
    let set = sets.iter().find(|set| set["folio"] == folio).unwrap_or_else(|| panic!("no {folio}"));
    set["tlb"][field].as_f64().unwrap_or_else(|| panic!("no {field} in {set}"))
}

#[test]
fn known_misses_are_predicted() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path()) else { return };
    // More pages than any TLB has entries, in the order in which each drops them: one walk a visit.
    let stream = line(&[&program, "sm", "8192", "2"]);
    for (line, visits) in [(chase(&program), 4.0 * 8192.0), (&stream, 2.0 * 8192.0)] {
        let found = walks(line, "4K");
        assert!((found / visits - 1.0).abs() < 0.1, "{found} walks, {visits} visits");
        assert_eq!(line["tlb"]["ended_early"], false);
        // Folios below 2 MiB change nothing where pages are not coalesced; 16 entries of 2 MiB are few.
        if line["tlb"]["processor"]["coalesces"] == 1 {
            assert_eq!(walks(line, "64K"), found);
        }
        assert!(walks(line, "2M") < 0.05 * found, "{} of {found}", walks(line, "2M"));
        assert_eq!(walks(line, "64K+2M"), walks(line, "2M"));
    }
    // As many as fit: each page once, and a few hundred of the loader.
    let few = walks(&line(&[&program, "cm", "512", "20"]), "4K");
    assert!((512.0..1500.0).contains(&few), "{few}");
}

/// Calls functions that have a page of text each, in turn.
const CALLER: &str = r#"
#include <stdlib.h>
enum { PAGES = 3000 };
extern char text[];
__asm__(".text\n.p2align 12\ntext:\n.rept 3000\nret\n.p2align 12\n.endr\n");
int main(int count, char **arguments) {
    for (long round = atol(arguments[1]); round > 0; round--)
        for (long page = 0; page < PAGES; page++) ((void (*)(void))(text + page * 4096))();
    return 0;
}
"#;

/// More pages of text than all levels have entries, in the order in which each drops them: one walk a call. Six entries of 2
/// MiB translate them.
#[test]
fn text_in_huge_pages_saves_known_walks() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = compiled(directory.path(), CALLER) else { return };
    let line = line(&[&program, "6"]);
    let (walks, calls) = (missed(&line, "4K", "fetch_walks"), 6.0 * 3000.0);
    assert!((walks / calls - 1.0).abs() < 0.1, "{walks} walks, {calls} calls");
    let with = &line["tlb"]["with_code_in_2m"]["fetch_walks"];
    assert!(with.as_f64() < Some(0.05 * walks), "{with} of {walks}");
    // Linux maps the rest with whole folios of the page cache, of which a recording shows 64 KiB.
    let (pages, code) = (line["code"]["pages"].as_u64().expect("pages"), &line["code"]);
    assert!((2000..3400).contains(&pages) && code["pays"] == true, "{code}");
    let shown = quire(&["advise", "--baseline", "4K", "--instrumented", "--", &program, "1"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("; with program text in 2M too, "), "{shown}");
}

/// A heap of 6 MiB has two ranges of 2 MiB at least, and the first level has no entries for a third of its small pages. Linux
/// puts no folio of 2 MiB into a heap that grows by less while it is touched.
#[test]
fn a_heap_has_large_leaves_unless_it_grows_in_steps() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path()) else { return };
    for (walk, share) in [("ch", 0.3..0.7), ("cg", 0.98..1.02)] {
        let line = line(&[&program, walk, "1536", "25"]);
        let all = |folio: &str| walks(&line, folio) + missed(&line, folio, "second_level");
        let (found, visits) = (all("4K"), 26.0 * 1536.0);
        assert!((found / visits - 1.0).abs() < 0.1, "{walk}: {found} misses, {visits} visits");
        assert!(share.contains(&(all("2M") / found)), "{walk}: {} of {found}", all("2M"));
    }
}

#[test]
fn misses_are_shown_and_described() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path()) else { return };
    let command = [program.as_str(), "cm", "8192", "2"];
    let shown = quire(&[&["advise", "--baseline", "4K", "--instrumented=1h", "--"], &command[..]].concat());
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("TLB: with ") && words.contains("million accesses"), "{shown}");
    assert!(!words.contains("no samples") && shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let line = chase(&program);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/advise-json-parts.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let tlb = &line["tlb"];
    for part in [tlb, &tlb["processor"], &tlb["processor"]["tlbs"][0], &line["sets"][0]["tlb"]] {
        for field in part.as_object().expect("an object").keys() {
            assert!(
                page.contains(&format!("`{field}`")),
                "docs/advise-json-parts.md does not say what `{field}` is"
            );
        }
    }
}

#[test]
fn a_command_that_becomes_another_program_has_no_figures() {
    let arguments = ["advise", "--format", "json", "--instrumented", "--", "sh", "-c", "exec sleep 0.5"];
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("there is no valgrind: not tested");
        return;
    }
    let output = quire(&arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("no TLB figures: the command becomes ") && error.contains("/sleep"), "{error}");
    let line: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&line["tlb"], &line["sets"][0]["tlb"]), (&Value::Null, &Value::Null));
}

/// The second run would take an hour.
#[test]
fn a_run_that_takes_long_is_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(program) = program(directory.path()) else { return };
    let output = quire(&[
        "advise",
        "--format",
        "json",
        "--baseline",
        "4K",
        "--instrumented=1s",
        "--",
        &program,
        "cm",
        "1024",
        "50000",
    ]);
    let line: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&line["tlb"]["ended_early"], &line["sets"][0]["tlb"]["time_ns"]),
        (&true.into(), &Value::Null)
    );
    assert!(line["tlb"]["accesses"].as_u64() > Some(1000), "{}", line["tlb"]);
}

#[test]
fn without_valgrind_one_line_names_the_package() {
    let nothing = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    let output =
        command.args(["advise", "--instrumented", "--", "/bin/true"]).env("PATH", nothing.path()).output();
    let output = output.expect("the command runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), error.lines().count(), output.stdout.len()),
        (Some(1), 1, 0),
        "{error}"
    );
    assert!(error.contains("install the package `valgrind`"), "{error}");
    for wrong in [&["--instrumented=0s", "--", "true"][..], &["--instrumented", "a.qtrace"]] {
        assert_eq!(quire(&[&["advise"], wrong].concat()).status.code(), Some(2), "{wrong:?}");
    }
}
