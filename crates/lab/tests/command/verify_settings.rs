//! `quire verify` under the other settings that `quire advise` recommends, on the running kernel: what the tests of each
//! setting share.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use lab::host::thp::root;
use serde_json::Value;
use tempfile::TempDir;

use crate::advise::{quire, text};
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
pub(crate) fn program(directory: &Path, sizes: &[usize]) -> Option<String> {
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
pub(crate) fn verify(more: &[&str]) -> Output {
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
pub(crate) fn program_with_shared_memory() -> Option<(TempDir, String)> {
    let directory = tempfile::tempdir().expect("a directory");
    let program = program(directory.path(), &[])?;
    has_sizes_of_shared_memory().then_some((directory, program))
}

pub(crate) fn verified(more: &[&str]) -> Value {
    let before = settled();
    let output = verify(&[&["--format", "json"], more].concat());
    compared(more, &output, &before)
}

/// What a run has written that succeeded and has left all settings as they were.
pub(crate) fn compared(more: &[&str], output: &Output, before: &BTreeMap<PathBuf, Option<String>>) -> Value {
    assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
    assert_eq!(&settled(), before, "the settings are as before");
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

pub(crate) fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}
