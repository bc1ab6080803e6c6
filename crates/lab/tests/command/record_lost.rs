//! What a recording says of records that the kernel had to drop, and what it does against it.

use crate::recorder;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::recorder::{Recording, in_own_group, is_root, lives, tiers, wait_until};
use lab::trace::{Event, EventKind};
use nix::sys::signal::Signal;

/// A recording with a ring of a page, of faults that come while the recorder is stopped: they cannot but be lost. The
/// program has ended when the recorder goes on, so that no record comes behind the last gap.
fn lossy(tier: &str) -> Recording {
    let script = "echo ready; while [ ! -e go ]; do sleep 0.01; done
        dd if=/dev/zero of=/dev/null bs=64M count=1 2>/dev/null; /bin/true; /bin/true; echo $$ done";
    let mut run = Recording::of_script(&["--tier", tier, "--ring", "4K"], script);
    run.wait_for("ready");
    run.signal(Signal::SIGSTOP);
    std::fs::write(run.path("go"), "").expect("the directory is ours");
    run.wait_for("done");
    let said = run.text("stdout");
    let program = said.lines().find_map(|line| line.strip_suffix(" done")).expect("it said its number");
    let program = program.parse().expect("a number");
    wait_until(|| !lives(program), || "the program does not end".into());
    run.signal(Signal::SIGCONT);
    assert_eq!(run.end().code(), Some(0), "{}", run.stderr());
    run
}

fn gaps(events: &[Event]) -> impl Iterator<Item = (u64, u64)> {
    events.iter().filter_map(|event| match event.kind {
        EventKind::Lost { records } => Some((event.time_ns, records)),
        _ => None,
    })
}

/// Resolved faults, as the privileged tier sees them.
fn resolved(events: &[Event]) -> u64 {
    let resolved = |event: &&Event| matches!(event.kind, EventKind::Fault { duration_ns: Some(_), .. });
    events.iter().filter(resolved).count() as u64
}

/// C3: what the kernel fills is read as it says.
#[test]
fn the_count_of_lost_records_is_the_kernels() {
    for tier in tiers() {
        let run = lossy(tier);
        let (header, events) = run.trace();
        let lost: u64 = gaps(&events).map(|(_, records)| records).sum();
        assert_eq!((header.totals.lost, header.ring_bytes), (lost, 4096));
        // Each fault that is missing is at least one record that was lost, save those that raise none: a few of each
        // program, and in the user tier those that the kernel takes on its behalf, which are most of them.
        let missing = header.totals.kernel_faults.saturating_sub(resolved(&events));
        let least = if tier == "user" { 50 } else { 16384.max(missing - 1000) };
        assert!(lost > least, "{lost} lost in tier {tier}, {missing} faults are missing: {}", run.stderr());
        assert!(run.stderr().contains("LOST") && run.stderr().contains("--ring"), "{}", run.stderr());
        assert!(!run.stderr().contains("grew"), "a ring that was asked for stays: {}", run.stderr());
    }
}

/// Behind a gap the program's memory is unknown: that is no defect of the library.
#[test]
fn a_check_does_not_judge_behind_a_gap() {
    for tier in tiers() {
        let run = lossy(tier);
        let check = |check: &[&str]| {
            let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
            quire.arg("replay").args(check).arg(run.path("t.qtrace")).output().expect("quire runs")
        };
        let output = check(&["--check"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "tier {tier}: {said}");
        assert!(said.contains("lost") && said.contains("--ring"), "{said}");
        assert!(!said.contains("report") && said.lines().count() == 1, "{said}");
        assert!(check(&["--rounds", "1"]).status.success(), "its figures can still be had");
    }
}

/// A source of faults, the rounds of faults that fill a ring of 32 MiB by more than half and by more than all, and how a ring of
/// 128 MiB looks among the recorder's mappings.
const SOURCES: [(&str, [usize; 2], &str, u64); 2] =
    [("perf", [3, 7], "[perf_event]", (128 << 20) + 4096), ("bpf", [5, 11], "bpf-map", (256 << 20) + 4096)];

/// Without `--ring` the rings become larger when they fill up: what comes after is not lost.
/// C4: nothing is read that was overwritten.
#[test]
fn rings_grow_when_they_fill_up() {
    let faults = |times| "dd if=/dev/zero of=/dev/null bs=208M count=1 2>/dev/null; ".repeat(times);
    // Of the user tier the tracer goes on, and waits when the recorder does not listen: that is no loss.
    if !tiers().contains(&"privileged") {
        return println!("skipped: no tracepoints for this user");
    }
    for (source, [half, all], file, grown) in SOURCES {
        let script = format!(
            "echo ready; while [ ! -e one ]; do sleep 0.01; done; {} echo first
             while [ ! -e two ]; do sleep 0.01; done; {} echo second",
            faults(half),
            faults(all)
        );
        let options = ["--tier", "privileged", "--source", source];
        let mut run = Recording::start(&options, &["sh", "-c", &script], None, on_one_processor);
        wait_until(
            || run.text("stdout").contains("ready") || run.stderr().contains("no BPF programs"),
            || run.stderr(),
        );
        if run.stderr().contains("no BPF programs") {
            println!("skipped: {}", run.stderr());
            continue;
        }
        let before = rings(&run, file).expect("the recorder lives").len();
        for (go, done) in [("one", "first"), ("two", "second")] {
            run.signal(Signal::SIGSTOP);
            std::fs::write(run.path(go), "").expect("the directory is ours");
            run.wait_for(done);
            run.signal(Signal::SIGCONT);
            if go == "one" {
                // The new ring is there, and the one before it has been emptied and is gone.
                let has_grown =
                    || rings(&run, file).is_some_and(|rings| rings.contains(&grown) && rings.len() == before);
                wait_until(has_grown, || "the ring does not grow".into());
            }
        }
        assert_eq!(run.end().code(), Some(0), "{}", run.stderr());
        let (header, events) = run.trace();
        assert_eq!(header.ring_bytes, 32 << 20);
        assert_eq!(gaps(&events).collect::<Vec<_>>(), [], "{}", run.stderr());
        assert!(run.stderr().contains(&format!("rings grew to {} bytes", 128 << 20)), "{}", run.stderr());
    }
}

/// One processor for all, so that one ring gets all.
fn on_one_processor(quire: &mut Command) {
    in_own_group(quire);
    // SAFETY: between fork and exec only the processors are chosen.
    unsafe {
        quire.pre_exec(|| {
            let mut first: nix::libc::cpu_set_t = std::mem::zeroed();
            nix::libc::CPU_SET(0, &mut first);
            nix::libc::sched_setaffinity(0, size_of_val(&first), &first);
            Ok(())
        })
    };
}

/// Recorders that were stopped for longer than they wait for late records. When they go on, faults are in their rings,
/// and the calls that mapped the memory are still in the tracers' pipes. On one processor either may be read first.
#[test]
fn faults_do_not_overtake_the_calls_that_mapped_their_memory() {
    let script = "echo ready; while [ ! -e go ]; do /bin/true; sleep 0.01; done";
    let start = |_| Recording::start(&["--tier", "user"], &["sh", "-c", script], None, on_one_processor);
    let mut runs: Vec<Recording> = (0..4).map(start).collect();
    runs.iter().for_each(|run| run.wait_for("ready"));
    for _ in 0..10 {
        runs.iter().for_each(|run| run.signal(Signal::SIGSTOP));
        std::thread::sleep(Duration::from_millis(300));
        runs.iter().for_each(|run| run.signal(Signal::SIGCONT));
        std::thread::sleep(Duration::from_millis(30));
    }
    // A program whose recording failed must not run on.
    runs.iter().for_each(|run| std::fs::write(run.path("go"), "").expect("the directory is ours"));
    let codes: Vec<_> = runs.iter_mut().map(|run| run.end().code()).collect();
    for (run, code) in runs.iter().zip(codes) {
        assert_eq!(code, Some(0), "{}", run.stderr());
        let mut quire = Command::new(env!("CARGO_BIN_EXE_quire"));
        let checked =
            quire.args(["replay", "--check"]).arg(run.path("t.qtrace")).output().expect("quire runs");
        assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    }
}

/// The bytes of each mapping of such a file that the recorder has.
fn rings(run: &Recording, file: &str) -> Option<Vec<u64>> {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", run.pid())).ok()?;
    let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
    let bytes = |line: &str| {
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        Some(address(end) - address(start))
    };
    maps.lines().filter(|line| line.contains(file)).map(bytes).collect()
}

/// The user tier's ring is refused by the kernel sooner than it is filled: then it stays as it is.
#[test]
fn rings_of_an_ordinary_user_grow_as_far_as_the_kernel_lets_them() {
    let uid = is_root().then_some(recorder::ORDINARY_USER);
    let script = "for i in 1 2 3; do dd if=/dev/zero of=/dev/null bs=208M count=1 2>/dev/null; done; exit 3";
    let mut run = Recording::start(&["--quiet", "--tier", "user"], &["sh", "-c", script], uid, |_| {});
    let code = run.end().code();
    assert!(code == Some(3) || run.stderr().contains("run as root"), "{}", run.stderr());
}

/// Recordings that start and end at the same time once unmounted the tracepoints under each other.
#[test]
fn recordings_side_by_side_find_the_tracepoints() {
    let mounts = || std::fs::read_to_string("/proc/self/mounts").expect("Linux shows its mounts");
    let before = mounts();
    for tier in tiers() {
        for _ in 0..2 {
            let start = |_| Recording::of_script(&["--quiet", "--tier", tier], "true");
            let mut runs: Vec<Recording> = (0..8).map(start).collect();
            for run in &mut runs {
                assert_eq!(run.end().code(), Some(0), "in tier {tier}: {}", run.stderr());
            }
        }
    }
    let is_trace = |line: &&str| line.contains(" tracefs ");
    assert!(mounts().lines().filter(is_trace).eq(before.lines().filter(is_trace)), "a mount is left");
}
