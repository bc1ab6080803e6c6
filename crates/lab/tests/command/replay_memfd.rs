//! The peak memory of programs that map a memfd, beside what the kernel counts of the same run.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::advise::{prices, quire, text};
use crate::small_trace::{call, fault, program};
use lab::trace::{Access, Call, EventKind, FileId, ForkKind, PathId, Syscall};

/// Fills a memfd, gives half of it back in the way that the argument says, and fills other memory: the peak is the second.
/// Each process writes its peak as `getrusage` counts it.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
enum { MIB = 1 << 20, ALL = 32 * MIB };
static void fill(char *memory, long bytes) {
    for (long at = 0; at < bytes; at += 4096) memory[at] = 1;
}
static void *fresh(long bytes) {
    char *memory = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(memory, bytes);
    return memory;
}
static void tell(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    fprintf(stderr, "peak %d %ld\n", getpid(), usage.ru_maxrss);
}
int main(int count, char **arguments) {
    const char *how = arguments[1];
    int file = memfd_create("memory", 0);
    if (ftruncate(file, ALL) != 0) return 1;
    char *memory = mmap(0, ALL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) return 1;
    fill(memory, ALL);
    if (strcmp(how, "fork") == 0) {
        if (fork() == 0) {
            fill(memory, ALL);
            fresh(8 * MIB);
            tell();
            _exit(0);
        }
        wait(0);
    }
    if (strcmp(how, "truncate") == 0) {
        if (ftruncate(file, ALL / 2) != 0 || ftruncate(file, ALL) != 0) return 1;
    } else if (strcmp(how, "punch") == 0) {
        if (fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ALL / 4, ALL / 2) != 0) return 1;
    } else if (strcmp(how, "remove") == 0)
        madvise(memory, ALL / 2, MADV_REMOVE);
    else
        munmap(memory, ALL / 2);
    fresh(24 * MIB);
    tell();
    return 0;
}
"#;

#[test]
fn peaks_of_a_memfd_are_those_that_getrusage_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let [source, program, trace] = ["memory.c", "memory", "t.qtrace"]
        .map(|name| directory.path().join(name).to_string_lossy().into_owned());
    std::fs::write(&source, PROGRAM).expect("it is written");
    let Ok(built) = Command::new("gcc").args(["-O1", "-o", &program, &source]).status() else {
        return println!("skipped: there is no gcc");
    };
    assert!(built.success());
    let prices = prices();
    let ways = [("", "unmap"), ("", "remove"), ("", "truncate"), ("", "punch"), ("", "fork")];
    for (tier, how) in ways.into_iter().chain([("--tier=user", "truncate"), ("--tier=user", "punch")]) {
        let tier: Vec<&str> = [tier].into_iter().filter(|tier| !tier.is_empty()).collect();
        let recorded =
            quire(&[&["record", "--quiet"], &tier[..], &["-o", &trace, "--", &program, how]].concat());
        let said = text(&recorded.stderr);
        assert!(recorded.status.success(), "{how}: {said}");
        let counted: BTreeMap<u64, f64> = said.lines().filter_map(counted).collect();
        assert_eq!(counted.len(), if how == "fork" { 2 } else { 1 }, "{said}");
        let fixed = ["advise", "--format", "json", "--baseline", "4K", "--khugepaged", "off", "--prices"];
        let advised = quire(&[&fixed[..], &[prices.to_str().expect("a name"), &trace]].concat());
        let line: Value = serde_json::from_slice(&advised.stdout).expect("a JSON object");
        let processes = line["sets"][0]["processes"].as_array().expect("processes");
        assert_eq!(processes.len(), counted.len(), "{how}: {processes:?}");
        for process in processes {
            let kib = process["peak_rss_bytes"].as_f64().expect("a number") / 1024.0;
            let linux = counted[&process["pid"].as_u64().expect("a number")];
            assert!((kib / linux - 1.0).abs() < 0.03, "{how}: {kib} KiB, Linux counted {linux}");
        }
    }
}

/// The process and the KiB of a line.
fn counted(line: &str) -> Option<(u64, f64)> {
    let (pid, kib) = line.strip_prefix("peak ")?.split_once(' ')?;
    Some((pid.parse().ok()?, kib.parse().ok()?))
}

/// The first store to a page of a memfd makes and clears it, as that to a page of a shared anonymous mapping
/// does.
#[test]
fn a_memfd_is_shared_memory_that_the_program_fills() {
    let replayed = |flags: u64, path: u32| {
        let mut small = program();
        let mmap = call(Call::Mmap, [0, 1 << 20, 3, flags, 3, 0], 1 << 40);
        let EventKind::Syscall(mmap) = mmap else { unreachable!() };
        let file = Some(FileId { device: 1, inode: 7, path: PathId(path) });
        small.event(10, EventKind::Syscall(Syscall { file, ..mmap }));
        for page in 0..256 {
            small.event(10, fault((1 << 40) + page * 4096, Access::Write, false));
        }
        small.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 17, kind: ForkKind::Copy });
        small.event(11, fault(1 << 40, Access::Read, false));
        small.exit(11);
        small.exit(10);
        let trace = small.write();
        let trace = trace.to_str().expect("a name");
        let output = quire(&["replay", "--check", "--json", "-", trace]);
        assert!(output.status.success(), "{output:?}");
        let line: Value = serde_json::from_slice(&output.stdout).expect("a JSON object");
        (line["bytes_cleared"].clone(), line["peak"]["shared"].clone(), line["peak"]["file"].clone())
    };
    let memfd = replayed(1, 2);
    assert_eq!(memfd, replayed(0x21, 1));
    assert_eq!((&memfd.1, &memfd.2), (&Value::from(1 << 20), &Value::from(0)));
}
