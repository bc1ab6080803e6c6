//! Folio sizes of shared memory, as `quire advise` predicts them, on traces whose answer is known and beside the kernel.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;

use crate::advise::{grow_heap, line, number, prices, said, shown, touches, words};
use crate::small_trace::{HEAP, SmallTrace, call, fault, program};
use lab::host::thp::{root, selected, sizes};
use lab::settings::{Places, Settings};
use lab::trace::{Access, Call, EventKind, FileId, ForkKind, MapCause, PathId, Syscall};
use serde_json::Value;

const ZERO: PathId = PathId(1);
const NAMED: PathId = PathId(2);
/// One page beyond a multiple of 2 MiB.
const AT: u64 = 0x10_0000_1000;
const PAGE: u64 = 4096;

/// Maps shared memory, from its start on.
fn map(small: &mut SmallTrace, addr: u64, len: u64, path: PathId, inode: u64) {
    let flags = if path == ZERO { 0x21 } else { 1 };
    let EventKind::Syscall(mmap) = call(Call::Mmap, [0, len, 3, flags, 3, 0], addr as i64) else { return };
    let file = Some(FileId { device: 1, inode, path });
    small.event(10, EventKind::Syscall(Syscall { file, ..mmap }));
}

/// Faults, memory and untouched memory under a size, in pages.
fn set(line: &Value, folio: &str) -> (u64, u64, u64) {
    let sets = line["shmem"]["sets"].as_array().unwrap_or_else(|| panic!("{line}"));
    let set = sets.iter().find(|set| set["folio"] == folio).unwrap_or_else(|| panic!("no {folio} in {line}"));
    (number(set, "/faults"), number(set, "/memory_bytes") / PAGE, number(set, "/wasted_bytes") / PAGE)
}

#[test]
fn linux_aligns_shared_anonymous_memory_and_no_memfd() {
    let mut small = program();
    map(&mut small, AT, 4 << 20, ZERO, 5);
    touches(&mut small, AT, 1024, 1);
    // 16 pages from where its place in the file says.
    let named = 0x20_0000_0000 + (16 << 12);
    map(&mut small, named, 4 << 20, NAMED, 6);
    touches(&mut small, named, 1024, 1);
    small.exit(10);
    let trace = small.write();
    let line = line(&trace, &[]);
    assert_eq!(set(&line, "4K"), (2048, 2048, 0), "{line}");
    assert_eq!(set(&line, "64K"), (128, 2048, 0), "{line}");
    assert_eq!(set(&line, "128K"), (32 + 1024, 2048, 0), "of the memfd only single pages: {line}");
    assert_eq!(set(&line, "2M"), (2 + 1024, 2048, 0), "{line}");
    assert_eq!(line["shmem"]["names"], serde_json::json!(["/dev/zero (deleted)", "/memfd:named (deleted)"]));
    assert_eq!(line["shmem"]["chosen"], "64K", "{line}");
    let told = words(&shown(&trace, &[]));
    let expected = "64K: faults 2,048 → 128 (-94 %)";
    assert!(told.contains("2,048 faults and 8.0 MiB at the peak with folios of 4K"), "{told}");
    assert!(told.contains(expected) && told.contains("assumed: faults of shared memory are"), "{told}");
}

#[test]
fn shared_memory_is_no_file_that_can_be_dropped() {
    let mut small = program();
    map(&mut small, AT, 2 << 20, ZERO, 5);
    touches(&mut small, AT, 512, 1);
    map(&mut small, 2 * AT, 2 << 20, NAMED, 6);
    touches(&mut small, 2 * AT, 512, 1);
    small.exit(10);
    let told = words(&shown(&small.write(), &["--memory-high", "1M"]));
    assert!(told.contains("every set exceeds it 4K exceeds it by 3.0 MiB"), "{told}");
    assert!(told.contains("; 3.0 MiB of it are no file pages, and need a swap"), "{told}");
}

#[test]
fn every_process_faults_on_shared_memory_itself() {
    let mut small = program();
    map(&mut small, AT, 2 << 20, ZERO, 5);
    touches(&mut small, AT, 512, 32);
    small.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 0, kind: ForkKind::Copy });
    // A store to each page, of which every 32nd is there.
    (0..512).for_each(|page| small.event(11, fault(AT + page * PAGE, Access::Write, false)));
    small.exit(11);
    small.exit(10);
    let line = line(&small.write(), &["--max-waste", "100"]);
    assert_eq!(set(&line, "4K"), (16 + 512, 512, 0), "{line}");
    // Folios of 32 pages: 16 by each process, of which the second touches all.
    assert_eq!(set(&line, "128K"), (16 + 16, 512, 0), "{line}");
    assert_eq!(set(&line, "2M"), (1 + 1, 512, 0), "{line}");
    // Of 16 pages: half of them are there already.
    assert_eq!(set(&line, "64K"), (16 + 32, 512, 0), "{line}");
}

#[test]
fn reads_map_what_is_there() {
    let mut small = program();
    map(&mut small, AT, 1 << 20, ZERO, 5);
    touches(&mut small, AT, 256, 1);
    small.event(10, call(Call::Madvise, [AT, 1 << 20, 4, 0, 0, 0], 0));
    for page in (0..256).step_by(16) {
        small.event(10, fault(AT + page * PAGE, Access::Read, false));
        small.event(10, EventKind::FaultAround { start: AT + page * PAGE, len: 16 << 12 });
    }
    // Linux tells of 64 KiB even where nothing is there.
    map(&mut small, AT + (2 << 20), 1 << 20, ZERO, 6);
    for page in 0..32 {
        small.event(10, fault(AT + (2 << 20) + page * PAGE, Access::Read, false));
        small.event(10, EventKind::FaultAround { start: AT + (2 << 20), len: 16 << 12 });
    }
    small.exit(10);
    let line = line(&small.write(), &[]);
    // The pages stay in memory, and 16 of them are mapped by one fault.
    let pages = 256 + 32;
    assert_eq!(set(&line, "4K"), (256 + 16 + 32, pages, 0), "{line}");
    assert_eq!(set(&line, "16K"), (64 + 16 + 8, pages, 0), "{line}");
    // Whole folios are mapped, whatever of them is in the 64 KiB.
    assert_eq!(set(&line, "128K"), (8 + 8 + 1, pages, 0), "{line}");
}

#[test]
fn memory_goes_with_its_last_mapping() {
    let mut small = program();
    for inode in [5, 6] {
        map(&mut small, AT, 1 << 20, ZERO, inode);
        touches(&mut small, AT, 256, 16);
        small.event(10, call(Call::Munmap, [AT, 1 << 20, 0, 0, 0, 0], 0));
    }
    small.exit(10);
    let line = line(&small.write(), &[]);
    assert_eq!(set(&line, "4K"), (32, 16, 0), "{line}");
    assert_eq!((set(&line, "64K"), set(&line, "1M")), ((32, 256, 240), (2, 256, 240)), "{line}");
    assert_eq!(line["shmem"]["chosen"], Value::Null, "more is untouched than allowed: {line}");
    let mut private = program();
    grow_heap(&mut private, 1 << 20);
    touches(&mut private, HEAP, 256, 1);
    private.exit(10);
    assert_eq!(self::line(&private.write(), &[])["shmem"], Value::Null);
}

#[test]
fn memory_that_is_cut_from_the_file_is_gone() {
    const PUNCH_HOLE: u64 = 3;
    let named = FileId { device: 1, inode: 6, path: NAMED };
    let cut = |small: &mut SmallTrace, which: Call, args: [u64; 4]| {
        let [first, second, third, fourth] = args;
        let EventKind::Syscall(cut) = call(which, [first, second, third, fourth, 0, 0], 0) else { return };
        small.event(10, EventKind::Syscall(Syscall { file: Some(named), ..cut }));
    };
    // Of a folio of 64 KiB at the end of what stays, the pages before it stay.
    let mut small = program();
    map(&mut small, AT - PAGE, 1 << 20, NAMED, 6);
    touches(&mut small, AT - PAGE, 256, 1);
    cut(&mut small, Call::Ftruncate, [3, 40 * PAGE, 0, 0]);
    map(&mut small, AT + (4 << 20), 1 << 20, ZERO, 5);
    touches(&mut small, AT + (4 << 20), 216, 1);
    small.exit(10);
    let line = self::line(&small.write(), &[]);
    assert_eq!(set(&line, "4K"), (256 + 216, 256, 0), "{line}");
    assert_eq!(set(&line, "64K").1, 40 + 224, "the last folio reaches beyond: {line}");
    // What is touched again is a fault again.
    let mut small = program();
    map(&mut small, AT - PAGE, 1 << 20, NAMED, 6);
    touches(&mut small, AT - PAGE, 256, 1);
    cut(&mut small, Call::Fallocate, [3, PUNCH_HOLE, 64 * PAGE, 64 * PAGE]);
    touches(&mut small, AT - PAGE, 256, 1);
    small.exit(10);
    let line = self::line(&small.write(), &[]);
    assert_eq!(set(&line, "4K"), (256 + 64, 256, 0), "{line}");
    assert_eq!(set(&line, "64K"), (16 + 4, 256, 0), "{line}");
}

/// A copy of the kernel's settings of shared memory.
struct Shared(tempfile::TempDir);

impl Shared {
    /// The setting of all sizes, and those of some.
    fn new(overall: &str, sizes: &[(&str, &str)]) -> Self {
        let copy = Self(tempfile::tempdir().expect("a directory"));
        copy.write("enabled", "never");
        copy.write("shmem_enabled", overall);
        for (size, value) in sizes {
            copy.write(&format!("hugepages-{size}/enabled"), "never");
            copy.write(&format!("hugepages-{size}/shmem_enabled"), value);
        }
        copy
    }

    fn write(&self, name: &str, value: &str) {
        let path = self.0.path().join("sys/kernel/mm/transparent_hugepage").join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        std::fs::write(path, format!("{value}\n")).expect("it is written");
    }

    fn advise(&self, trace: &Path) -> Value {
        self.advise_with(trace, &[])
    }

    fn advise_with(&self, trace: &Path, options: &[&str]) -> Value {
        // Without them clearing is measured anew each time.
        let prices = prices();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(["advise", "--format", "json", "--prices"]).arg(&*prices).args(options).arg(trace);
        let output = command.env("QUIRE_SETTINGS", self.0.path()).output().expect("the command runs");
        serde_json::from_slice::<Value>(&output.stdout).expect("a JSON object")["shmem"].clone()
    }
}

/// Runs commands as a user would.
fn run(commands: &Value) {
    for command in commands.as_array().expect("commands").iter().filter_map(Value::as_str) {
        assert!(Command::new("sh").args(["-c", command]).status().expect("a shell").success(), "{command}");
    }
}

#[test]
fn a_segment_where_another_was_detached_has_faults_of_its_own() {
    let mut small = program();
    for (inode, pages) in [(5, 1), (6, 2)] {
        let file = Some(FileId { device: 1, inode, path: NAMED });
        let (cause, len) = (MapCause::Other, pages * PAGE);
        small.event(10, EventKind::Map { cause, start: AT, len, prot: 3, flags: 1, file, file_offset: 0 });
        touches(&mut small, AT, pages, 1);
        small.event(10, call(Call::Shmdt, [AT, 0, 0, 0, 0, 0], 0));
    }
    small.exit(10);
    let line = line(&small.write(), &[]);
    assert_eq!(set(&line, "4K"), (3, 2, 0), "{line}");
}

/// Another process has brought in the pages of the second segment.
#[test]
fn a_segment_that_others_filled_is_faulted_in_where_another_was_detached() {
    let mut small = program();
    let attach = |small: &mut SmallTrace, pid, inode, start| {
        let file = Some(FileId { device: 1, inode, path: NAMED });
        let (cause, len) = (MapCause::Other, 16 * PAGE);
        small.event(pid, EventKind::Map { cause, start, len, prot: 3, flags: 1, file, file_offset: 0 });
        for page in 0..16 {
            small.event(pid, fault(start + page * PAGE, Access::Write, false));
        }
    };
    small.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 0, kind: ForkKind::Copy });
    attach(&mut small, 11, 6, AT);
    attach(&mut small, 10, 5, AT);
    small.event(10, call(Call::Shmdt, [AT, 0, 0, 0, 0, 0], 0));
    attach(&mut small, 10, 6, AT);
    small.exit(11);
    small.exit(10);
    let line = line(&small.write(), &[]);
    assert_eq!(set(&line, "4K"), (48, 32, 0), "{line}");
}

/// The program got a signal, or the kernel tries again: nothing is brought in.
#[test]
fn what_was_not_resolved_touches_nothing() {
    let mut small = program();
    map(&mut small, AT, 1 << 20, NAMED, 5);
    touches(&mut small, AT, 1, 1);
    for page in 1..101 {
        let (addr, access) = (AT + page * PAGE, Access::Write);
        let (protection, kernel_mode, major, duration_ns) = (false, false, false, None);
        small.event(10, EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns });
    }
    small.exit(10);
    let line = line(&small.write(), &[]);
    assert_eq!(set(&line, "4K"), (1, 1, 0), "{line}");
}

#[test]
fn the_commands_are_those_of_shared_memory() {
    let mut small = program();
    map(&mut small, AT, 4 << 20, ZERO, 5);
    touches(&mut small, AT, 1024, 1);
    small.exit(10);
    let trace = small.write();
    let copy = Shared::new("deny", &[("64kB", "advise")]);
    let advise = || copy.advise(&trace);
    let before = advise();
    assert_eq!((&before["chosen"], &before["sets"][0]["folio"]), (&"64K".into(), &"4K".into()), "{before}");
    run(&before["do"]);
    let after = advise();
    assert_eq!((&after["chosen"], &after["sets"][0]["folio"]), (&Value::Null, &"64K".into()), "{after}");
    run(&before["undo"]);
    assert_eq!(advise(), before);
}

/// Under `force` Linux looks at no size but those on `inherit`, and under `deny` at none.
#[test]
fn what_the_setting_of_all_sizes_hides_is_not_what_the_commands_leave() {
    let mut small = program();
    map(&mut small, AT, 4 << 20, ZERO, 5);
    touches(&mut small, AT, 1024, 1);
    small.exit(10);
    let trace = small.write();
    // Half of its folios of 2 MiB would be untouched.
    let mut sparse = program();
    map(&mut sparse, AT, 4 << 20, ZERO, 5);
    touches(&mut sparse, AT, 1024, 2);
    sparse.exit(10);
    let sparse = sparse.write();
    let forced = Shared::new("force", &[("64kB", "always"), ("2048kB", "inherit")]);
    let line = forced.advise(&trace);
    assert_eq!((&line["sets"][0]["folio"], &line["chosen"]), (&"2M".into(), &Value::Null), "{line}");
    let options = ["--max-waste", "5", "--goal", "memory"];
    let line = forced.advise_with(&sparse, &options);
    assert_eq!((&line["sets"][0]["folio"], &line["chosen"]), (&"2M".into(), &"4K".into()), "{line}");
    run(&line["do"]);
    let after = forced.advise_with(&sparse, &options);
    assert_eq!((&after["sets"][0]["folio"], &after["chosen"]), (&"4K".into(), &Value::Null), "{after}");
    run(&line["undo"]);
    assert_eq!(forced.advise_with(&sparse, &options), line);
    let denied = Shared::new("deny", &[("64kB", "always"), ("2048kB", "never")]);
    let line = denied.advise_with(&trace, &["--goal", "throughput"]);
    assert_eq!((&line["sets"][0]["folio"], &line["chosen"]), (&"4K".into(), &"2M".into()), "{line}");
    run(&line["do"]);
    let after = denied.advise(&trace);
    assert_eq!(after["sets"][0]["folio"], "2M", "{after}");
    run(&line["undo"]);
    assert_eq!(denied.advise(&trace)["sets"], line["sets"]);
}

/// Prints how many faults it took on a shared anonymous mapping and on a memfd, in two processes.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGE = 4096 };
static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}
static long writes(volatile char *memory, long pages, long step) {
    long before = faults();
    for (long page = 0; page < pages; page += step) memory[page * PAGE]++;
    return faults() - before;
}
static long reads(volatile char *memory, long pages, long step) {
    long before = faults(), sum = 0;
    for (long page = 0; page < pages; page += step) sum += memory[page * PAGE];
    return faults() - before + (sum < 0);
}
int main(void) {
    long pages = 4096, odd = 2051, *seen = mmap(0, PAGE, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char *memory = mmap(0, pages * PAGE, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int file = memfd_create("named", 0);
    if (memory == MAP_FAILED || file < 0 || ftruncate(file, odd * PAGE)) return 1;
    /* Linux puts it anywhere: never where a folio could be. */
    char *other = mmap((void *)0x200000001000, odd * PAGE, 3, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
    seen[0] = 0;
    seen[0] += writes(memory, pages / 2, 1);
    seen[0] += writes(memory + pages / 2 * PAGE, pages / 2, 3);
    seen[0] += writes(other, odd, 40);
    if (fork() == 0) {
        long own = reads(memory, pages / 2, 1);
        own += writes(memory, pages, 1);
        own += reads(other, odd, 1);
        seen[1] = own;
        _exit(0);
    }
    wait(0);
    printf("%ld\n", seen[0] + seen[1]);
    return 0;
}
"#;

/// The settings of shared memory that this user may change, by size; none otherwise.
fn shmem_sizes() -> BTreeMap<usize, std::path::PathBuf> {
    let all = sizes(&root()).into_iter().map(|(kib, path)| (kib, path.with_file_name("shmem_enabled")));
    all.filter(|(_, path)| OpenOptions::new().write(true).open(path).is_ok()).collect()
}

fn faults_of(program: &Path) -> u64 {
    let output = Command::new(program).output().expect("the program runs");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

#[test]
fn shared_memory_faults_as_on_the_kernel() {
    let sizes = shmem_sizes();
    if sizes.is_empty() || Command::new("gcc").arg("--version").output().is_err() {
        eprintln!("no sizes of shared memory that this user may choose, or no gcc: not tested");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (source, program) = (directory.path().join("shared.c"), directory.path().join("shared"));
    std::fs::write(&source, PROGRAM).expect("it is written");
    let built = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
    assert!(built.expect("gcc runs").success());
    let trace = directory.path().join("shared.qtrace");
    let trace = trace.to_str().expect("a name");
    said(&["record", "-q", "-o", trace, "--", program.to_str().expect("a name")]);
    let line = line(Path::new(trace), &[]);
    let settings = Settings::acquire(&Places::of_this_machine()).expect("the settings can be changed");
    let choose = |kib: usize| {
        for (size, path) in &sizes {
            let value = if *size == kib { "always" } else { "never" };
            if selected(path).as_deref() != Some(value) {
                settings.set(path, value).expect("it is set");
            }
        }
    };
    for kib in [4, 16, 64, 256, 1024, 2048].into_iter().filter(|kib| *kib == 4 || sizes.contains_key(kib)) {
        choose(kib);
        let measured = faults_of(&program);
        let name = if kib < 1024 { format!("{kib}K") } else { format!("{}M", kib / 1024) };
        let (predicted, ..) = set(&line, &name);
        println!("{name}: {predicted} predicted, {measured} measured");
        // A page of the loader or the stack may fault too.
        assert!(
            predicted.abs_diff(measured) <= 8 + measured / 100,
            "{name}: {predicted} predicted, {measured} measured"
        );
    }
}
