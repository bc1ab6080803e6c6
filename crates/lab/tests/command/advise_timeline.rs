//! The time lines of `quire advise`: resident and untouched memory and page tables, of each process and in all.

use crate::advise::{line, number, page, sets, shown, touches, words};
use crate::small_trace::{SmallTrace, anonymous, fault, program};
use lab::trace::{Access, EventKind, ForkKind};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const SPARSE: u64 = 0x1000_0000;
const DENSE: u64 = 0x2000_0000;

/// What the first process leaves untouched with folios of 2 MiB.
const SPARE: u64 = 8 * 511 * 4096;

/// One process touches a page of each 2 MiB of 16 MiB. Another one, started later, touches all of 8 MiB.
fn two() -> SmallTrace {
    let mut small = program();
    small.computes(1_000_000);
    small.event(10, anonymous(SPARSE, 16 * MIB));
    touches(&mut small, SPARSE, 4096, 512);
    small.computes(1_000_000);
    small.event(10, EventKind::Fork { child_pid: 11, child_tid: 11, flags: 0, kind: ForkKind::SharedMemory });
    small.exec(11);
    small.event(11, anonymous(DENSE, 8 * MIB));
    for page in 0..2048 {
        small.event(11, fault(DENSE + page * 4096, Access::Write, false));
    }
    small.computes(1_000_000);
    small.exit(11);
    small.exit(10);
    small
}

fn most(steps: &[Value]) -> u64 {
    steps.iter().filter_map(Value::as_u64).max().expect("a step")
}

#[test]
fn untouched_memory_and_page_tables_have_time_lines() {
    let file = two().write();
    let line = line(&file, &["--baseline", "2M"]);
    let set = |name: &str| sets(&line).iter().find(|set| set["folio"] == name).expect("it was tried");
    let wasted = |name: &str| -> Vec<u64> {
        let steps = set(name)["timeline"].as_array().expect("steps");
        steps.iter().map(|step| number(step, "/wasted")).collect()
    };
    assert!(wasted("4K").iter().all(|bytes| *bytes == 0), "{:?}", wasted("4K"));
    let large = wasted("2M");
    assert_eq!((large[0], large.len()), (0, 48), "nothing is there at the start");
    // While the second process fills its folios, their rest is untouched too.
    assert!(large.iter().any(|bytes| *bytes > SPARE), "{large:?}");
    assert_eq!(large[45], SPARE, "{large:?}");
    let processes = set("2M")["processes"].as_array().expect("it is the baseline");
    let of = |pid: u64, field: &str| -> Vec<Value> {
        let process = processes.iter().find(|process| process["pid"] == pid).expect("it ran");
        process[field].as_array().expect("steps").clone()
    };
    assert_eq!(most(&of(10, "wasted")), SPARE, "{processes:?}");
    assert_eq!(of(11, "wasted").last(), Some(&0.into()), "{processes:?}");
    for pid in [10, 11] {
        let steps = of(pid, "resident").len();
        assert_eq!((of(pid, "wasted").len(), of(pid, "page_tables").len()), (steps, steps), "{pid}");
        // One table on each of four levels at the least, since the program has touched something.
        assert!(most(&of(pid, "page_tables")) >= 3 * 4096, "{processes:?}");
    }
}

#[test]
fn the_time_lines_are_shown() {
    let file = two().write();
    let options = ["--max-waste", "100"];
    let (line, shown) = (line(&file, &options), shown(&file, &options));
    assert_eq!(line["chosen"], "64K", "{line}");
    let said = words(&shown);
    for part in ["unused ·", "540 KiB page tables 72 KiB", "untouched 0 KiB → 480 KiB at the most"] {
        assert!(said.contains(part), "no `{part}` in {shown}");
    }
    let page = page(&line);
    for part in [
        "Untouched memory and page tables, with folios of 64K",
        "most untouched",
        "0.5 MiB were never touched",
    ] {
        assert!(page.contains(part), "no `{part}` in the page");
    }
}
