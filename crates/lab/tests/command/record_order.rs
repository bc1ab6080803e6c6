//! Threads that change the same addresses at once: the order in a recording is one in which it may have happened.

use crate::recorder::tiers;
use crate::remap_script;
use crate::rules;
use std::path::Path;
use std::process::{Command, Output};

use crate::small_trace::{HEAP, SmallTrace, anonymous, call, fault, program};
use lab::trace::{Access, Call, Event, EventKind, ForkKind, Syscall, Tier, TraceReader};

const QUIRE: &str = env!("CARGO_BIN_EXE_quire");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Records the script with what it is asked for. Gives what it printed.
fn record(tier: &str, asked: &str, trace: &Path) -> String {
    let me = std::env::current_exe().expect("this test has a path");
    let mut quire = Command::new(QUIRE);
    quire.args(["record", "--quiet", "--tier", tier, "-o"]).arg(trace).arg("--");
    quire.arg("env").arg(format!("{}={asked}", remap_script::VARIABLE)).arg(me);
    let recorded = quire.args(["--exact", remap_script::TEST, "--nocapture"]).output().expect("quire runs");
    assert!(recorded.status.success(), "{}{}", text(&recorded.stdout), text(&recorded.stderr));
    text(&recorded.stdout)
}

fn check(trace: &Path) -> Output {
    Command::new(QUIRE).args(["replay", "--check"]).arg(trace).output().expect("quire runs")
}

/// Twice as many threads as most machines here have processors, so that they are held up anywhere.
#[test]
fn threads_that_remap_overlapping_ranges_replay_as_they_ran() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for tier in tiers() {
        for threads in [2, 4, 8] {
            let trace = directory.path().join(format!("{tier}-{threads}.qtrace"));
            record(tier, &format!("{threads} 2000"), &trace);
            let header = TraceReader::open(&trace).expect("the trace opens").header().clone();
            assert_eq!(header.totals.lost, 0);
            assert_eq!(header.tier == Tier::User, tier == "user");
            let checked = check(&trace);
            let said = text(&checked.stdout) + &text(&checked.stderr);
            assert!(checked.status.success(), "{threads} threads, tier {tier}: {said}");
            assert!(said.contains("no divergence"), "{said}");
        }
    }
}

/// A thread whose calls another one waits for is held up for a moment only, and the recording says that it was not to tell
/// which came first.
#[test]
fn a_call_that_waits_for_another_thread_ends() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for tier in tiers() {
        let trace = directory.path().join(format!("{tier}.qtrace"));
        let said = record(tier, remap_script::WAITS, &trace);
        let checked = check(&trace);
        assert!(checked.status.success(), "tier {tier}: {}", text(&checked.stderr));
        if said.contains("waited: false") {
            eprintln!("not tested: this user may not handle the faults of calls");
            continue;
        }
        let populates = |event: &Event| match &event.kind {
            EventKind::Syscall(call) => call.call == Call::Madvise && call.args[2] == 23 && call.unordered,
            _ => false,
        };
        let events = TraceReader::open(&trace).expect("the trace opens").map(|event| event.expect("whole"));
        assert_eq!(events.filter(populates).count(), 3, "tier {tier}");
    }
}

/// A call of another thread whose place is not known, from here on for `duration_ns`.
fn unordered(kind: EventKind, duration_ns: u64) -> EventKind {
    match kind {
        EventKind::Syscall(call) => EventKind::Syscall(Syscall { duration_ns, unordered: true, ..call }),
        other => other,
    }
}

const AT: u64 = 0x10_0000_0000;
const PAGE: u64 = 4096;
const LONG: u64 = 1_000_000;

fn map_fixed(prot: u64) -> EventKind {
    call(Call::Mmap, [AT, PAGE, prot, 0x32, u64::MAX, 0], AT as i64)
}

/// A fault of thread 10, then the end.
fn ended_by_a_store(trace: &mut SmallTrace) -> String {
    trace.event(10, fault(AT, Access::Write, false));
    trace.exit(10);
    let checked = check(&trace.write());
    text(&checked.stdout) + &text(&checked.stderr)
}

#[test]
fn a_check_accepts_every_order_that_may_have_been() {
    // Two mappings at one place, of which the first in the file came last: the store tells, in both tiers.
    for as_user in [false, true] {
        let mut trace = program();
        if as_user {
            trace.as_user();
        }
        let said = two_mappings_at_one_place(trace);
        assert!(said.contains("no divergence") && !said.contains("not judged"), "{said}");
    }
}

fn two_mappings_at_one_place(mut trace: SmallTrace) -> String {
    trace.thread(10, 11);
    trace.event(10, unordered(map_fixed(3), LONG));
    trace.on_thread(10, 11, unordered(map_fixed(0), LONG - 10_000));
    trace.on_thread(10, 12, unordered(call(Call::Munmap, [AT + PAGE, PAGE, 0, 0, 0, 0], 0), LONG));
    (0..600).for_each(|_| trace.on_thread(10, 13, call(Call::Brk, [0; 6], HEAP as i64)));
    ended_by_a_store(&mut trace)
}

#[test]
fn a_check_does_not_judge_what_rests_on_an_order_that_nothing_tells() {
    // Two programs are copied from one whose mappings are in doubt; one of the copies stores.
    let mut trace = program();
    trace.thread(10, 11);
    trace.event(10, unordered(map_fixed(3), LONG));
    trace.on_thread(10, 11, unordered(map_fixed(0), LONG));
    (0..600).for_each(|_| trace.on_thread(10, 13, call(Call::Brk, [0; 6], HEAP as i64)));
    trace.event(10, EventKind::Fork { child_pid: 20, child_tid: 20, flags: 17, kind: ForkKind::Copy });
    trace.event(20, fault(AT, Access::Write, false));
    trace.exit(20);
    let said = ended_by_a_store(&mut trace);
    assert!(said.contains("no divergence"), "{said}");
    assert!(said.contains("2 answers differ and are not judged"), "{said}");
}

#[test]
fn a_check_still_finds_what_no_order_explains() {
    let mut trace = program();
    trace.thread(10, 11);
    trace.event(10, unordered(map_fixed(0), LONG));
    trace.on_thread(10, 11, unordered(map_fixed(1), LONG));
    (0..600).for_each(|_| trace.on_thread(10, 13, call(Call::Brk, [0; 6], HEAP as i64)));
    let said = ended_by_a_store(&mut trace);
    assert!(said.contains("first divergence"), "{said}");
}

/// Thread 11 maps where thread 10 unmaps. If its place is not known, its call may stand before the other.
fn mapped_where_another_thread_unmaps(trace: &mut SmallTrace, how: impl Fn(EventKind) -> EventKind) {
    trace.thread(10, 11);
    trace.event(10, map_fixed(3));
    let given = call(Call::Mmap, [0, PAGE, 3, 0x22, u64::MAX, 0], AT as i64);
    trace.on_thread(10, 11, how(given));
}

fn end(mut trace: SmallTrace) -> rules::Kept {
    trace.on_thread(10, 11, fault(AT, Access::Write, false));
    trace.on_thread(10, 11, EventKind::ThreadExit);
    trace.exit(10);
    rules::check(&trace.write())
}

#[test]
fn the_rules_judge_a_call_at_the_place_that_is_found_for_it() {
    let mut trace = program();
    mapped_where_another_thread_unmaps(&mut trace, |kind| unordered(kind, LONG));
    trace.event(10, call(Call::Munmap, [AT, PAGE, 0, 0, 0, 0], 0));
    let kept = end(trace);
    assert_eq!((kept.faults, kept.in_doubt), (1, 0));
}

#[test]
#[should_panic(expected = "maps what is mapped")]
fn the_rules_refuse_a_place_that_is_told_and_was_taken() {
    let mut trace = program();
    mapped_where_another_thread_unmaps(&mut trace, |kind| kind);
    trace.event(10, call(Call::Munmap, [AT, PAGE, 0, 0, 0, 0], 0));
    end(trace);
}

#[test]
#[should_panic(expected = "maps what is mapped")]
fn the_rules_refuse_a_call_for_which_no_place_is_free() {
    let mut trace = program();
    mapped_where_another_thread_unmaps(&mut trace, |kind| unordered(kind, LONG));
    end(trace);
}

/// Linux keeps neighbours apart whose pages came from different places, and resizes none that spans two.
#[test]
fn an_mremap_that_linux_refused_over_two_mappings_is_skipped() {
    let mut trace = program();
    for page in 0..2 {
        let at = AT + page * PAGE;
        trace.event(10, anonymous(at, PAGE));
        trace.event(10, fault(at, Access::Write, false));
    }
    trace.event(10, call(Call::Mremap, [AT, 2 * PAGE, 3 * PAGE, 0, 0, 0], -14));
    trace.exit(10);
    let checked = check(&trace.write());
    assert!(checked.status.success(), "{}", text(&checked.stderr));
}
