//! Which sizes stay below a limit of a control group, beside what the kernel charges to one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::advise::{grow_heap, line, number, said, sets, touches};
use crate::small_trace::{HEAP, SmallTrace, anonymous, call, fault, program};
use lab::settings::{Places, Settings};
use lab::trace::{Access, Call};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 48 * MIB;

/// Touches the first half of each 2 MiB of 64 MiB.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <sys/mman.h>
enum { MIB = 1 << 20 };
int main(void) {
    char *memory = mmap(0, 66 * MIB, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    char *first = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(uintptr_t)(2 * MIB));
    for (long at = 0; at < 64 * MIB; at += 4096)
        if (at % (2 * MIB) < MIB) first[at] = 1;
    return 0;
}
"#;

/// A control group that counts its memory, removed with the value; and the file with the most that it had.
struct Group {
    path: PathBuf,
    peak: &'static str,
}

impl Group {
    /// `None` where there is none that this user may make.
    fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let mut groups = fields.filter_map(|fields| {
            let peak = match (*fields.get(2)?, *fields.get(3)?) {
                ("cgroup2", _) => "memory.peak",
                ("cgroup", options) if options.split(',').any(|option| option == "memory") => {
                    "memory.max_usage_in_bytes"
                }
                _ => return None,
            };
            let path = Path::new(fields[1]).join(format!("quire-test-{}-{name}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = Self { path, peak };
            group.most().is_some().then_some(group)
        });
        groups.next()
    }

    fn most(&self) -> Option<u64> {
        std::fs::read_to_string(self.path.join(self.peak)).ok()?.trim().parse().ok()
    }

    /// The most memory that it had while it ran the program.
    fn peak_of(&self, program: &Path) -> u64 {
        let join = "echo $$ >\"$1\" && exec \"$2\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", join, "sh"]).arg(self.path.join("cgroup.procs")).arg(program);
        assert!(shell.status().expect("a shell").success());
        self.most().expect("it is counted")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[test]
fn a_group_has_what_is_predicted_of_each_size() {
    let places = Places::of_this_machine();
    let has_all = [64, 2048].iter().all(|kib| Settings::folio_sizes(&places).contains(kib));
    let directory = tempfile::tempdir().expect("a directory");
    let [source, program, trace] = ["half.c", "half", "half.qtrace"].map(|name| directory.path().join(name));
    std::fs::write(&source, PROGRAM).expect("it is written");
    let built = Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source).status();
    let (Ok(built), Some(_), true) = (built, Group::new("none"), has_all) else {
        return println!("skipped: no gcc, no control group that counts memory, or not these sizes");
    };
    assert!(built.success());
    let path = |path: &Path| path.to_str().expect("a name").to_owned();
    said(&["record", "-q", "-o", &path(&trace), "--", &path(&program)]);
    let line = line(&trace, &["--memory-high", "48M"]);
    let Ok(settings) = Settings::acquire(&places) else { return println!("skipped: not root") };
    for (kib, name, below) in [(4, "4K", true), (64, "64K", true), (2048, "2M", false)] {
        let set: &Value = sets(&line).iter().find(|set| set["folio"] == name).expect("a set");
        let (predicted, above) = (number(set, "/memory_bytes"), number(set, "/above_high_bytes"));
        let sizes: &[usize] = if kib == 4 { &[] } else { &[kib] };
        settings.always(sizes).expect("it is set");
        let group = Group::new(name).expect("as before");
        let measured = group.peak_of(&program);
        println!("{name}: {predicted} predicted, {measured} measured");
        assert_eq!(
            (above == 0, measured < LIMIT),
            (below, below),
            "{name}: {predicted}, measured {measured}"
        );
        // The kernel's own memory is charged too, and files that others have read are not.
        assert!(predicted.abs_diff(measured) < 4 * MIB, "{name}: {predicted}, measured {measured}");
    }
}

/// The program does nothing for a second, but for one fault at the end.
fn rests(mut small: SmallTrace) -> Value {
    small.computes(1_000_000_000);
    small.event(10, fault(0x7ffd_0000_0000, Access::Write, false));
    small.exit(10);
    line(&small.write(), &["--memory-high", "8M"])
}

fn resident(set: &Value) -> Vec<u64> {
    let steps = set["timeline"].as_array().expect("steps");
    steps.iter().map(|step| number(step, "/resident")).collect()
}

#[test]
fn memory_that_stays_while_nothing_happens_is_there_all_that_time() {
    let mut grown = program();
    grow_heap(&mut grown, 16 * MIB);
    touches(&mut grown, HEAP, 4096, 1);
    let line = rests(grown);
    let set = &sets(&line)[0];
    assert!(set["above_high_percent"].as_f64().expect("a share") > 95.0, "{set}");
    assert!(resident(set).iter().all(|bytes| *bytes > 16 * MIB), "{set}");
    let process = &set["processes"][0]["resident"];
    let of_process: Vec<u64> = process.as_array().expect("steps").iter().filter_map(Value::as_u64).collect();
    assert!(of_process.len() == 48 && of_process[1..].iter().all(|bytes| *bytes >= 16 * MIB), "{set}");
}

#[test]
fn memory_that_was_given_back_is_not_there_while_nothing_happens() {
    let mut given = program();
    given.event(10, anonymous(0x1000_0000, 16 * MIB));
    touches(&mut given, 0x1000_0000, 4096, 1);
    given.event(10, call(Call::Munmap, [0x1000_0000, 16 * MIB, 0, 0, 0, 0], 0));
    let line = rests(given);
    let steps = resident(&sets(&line)[0]);
    assert!(steps[0] > 16 * MIB && steps[1..].iter().all(|bytes| *bytes < MIB), "{steps:?}");
}
