//! The two sources of faults and calls in the privileged tier: BPF programs, and perf.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use crate::recorder::{ORDINARY_USER, Recording, in_own_group, is_root, lives, tiers, wait_until};
use lab::trace::{Event, EventKind, Header};
use nix::libc;
use nix::sys::signal::Signal;

/// Whether this machine has both; says why not.
fn has_both() -> bool {
    if !tiers().contains(&"privileged") {
        println!("skipped: no tracepoints for this user");
        return false;
    }
    let mut run = Recording::of_script(&["--quiet", "--source", "bpf"], "true");
    let code = run.end().code();
    assert!(code == Some(0) || run.stderr().contains("takes no BPF programs"), "{}", run.stderr());
    if code != Some(0) {
        println!("skipped: {}", run.stderr());
    }
    code == Some(0)
}

/// Forks, programs, and faults of all kinds.
const SCRIPT: &str = "/bin/true; dd if=/dev/zero of=/dev/null bs=4M count=2 2>/dev/null
    x=$(for i in 1 2 3; do echo $i; done); (cd /; ls >/dev/null); exec /bin/true";

/// A shell becomes another program: without children, whose ends come as signals at any time.
const ALONE: &str = "exec dd if=/dev/zero of=/dev/null bs=4M count=2 status=none";

fn recorded(source: &str, script: &str) -> (Header, Vec<Event>) {
    // It starts the shell where addresses are not random, and so are those of all that this starts.
    let command = ["setarch", "-R", "sh", "-c", script];
    let options = ["--tier", "privileged", "--source", source];
    let mut run = Recording::start(&options, &command, None, in_own_group);
    assert_eq!(run.end().code(), Some(0), "{}", run.stderr());
    let told = if source == "bpf" { "source: BPF programs" } else { "source: perf" };
    assert!(run.stderr().contains(told) && !run.stderr().contains("LOST"), "{}", run.stderr());
    run.trace()
}

/// What each thread does once the shell has started, in its order, without times and numbers of processes.
/// Threads are named by their order.
fn by_threads(events: &[Event]) -> Vec<Vec<String>> {
    let execs = events.iter().enumerate().filter(|(_, event)| matches!(event.kind, EventKind::Exec { .. }));
    let shell = execs.map(|(at, _)| at).nth(1).expect("it started a shell");
    let mut names: HashMap<u32, usize> = HashMap::new();
    let mut found: Vec<Vec<String>> = Vec::new();
    for event in &events[shell..] {
        let next = names.len();
        let thread = *names.entry(event.tid).or_insert(next);
        found.resize(names.len(), Vec::new());
        let said = match event.kind {
            EventKind::Fork { flags, kind, .. } => format!("fork {flags:x} {kind:?}"),
            EventKind::Exec { .. } => "exec".to_owned(),
            EventKind::Map { cause, start, len, prot, flags, file, file_offset } => {
                let file = file.map(|file| (file.device, file.inode));
                format!("map {cause:?} {start:x} {len:x} {prot:x} {flags:x} {file:?} {file_offset:x}")
            }
            EventKind::Syscall(ref call) => {
                let result = if call.call.makes_task() { call.result.signum() } else { call.result };
                // Those of the first are the addresses of the program that started the shell.
                let args = if call.call.is_exec() { [0; 6] } else { call.args };
                let file = call.file.map(|file| (file.device, file.inode));
                format!("{:?} {args:x?} {result:x} {file:?} {}", call.call, call.unordered)
            }
            EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns } => {
                let resolved = duration_ns.is_some();
                format!("fault {addr:x} {access:?} {protection} {kernel_mode} {major} {resolved}")
            }
            ref other => format!("{other:?}"),
        };
        found[thread].push(said);
    }
    found
}

/// What differs first.
fn difference(first: &[Vec<String>], second: &[Vec<String>]) -> Option<String> {
    let of = |thread: usize| {
        let (left, right) = (first.get(thread)?, second.get(thread)?);
        let at = (0..left.len().max(right.len())).find(|&at| left.get(at) != right.get(at))?;
        Some(format!("thread {thread}, event {at}: {:?}, {:?}", left.get(at), right.get(at)))
    };
    (first.len() != second.len())
        .then(|| format!("{} and {} threads", first.len(), second.len()))
        .or_else(|| (0..first.len()).find_map(of))
}

/// How long programs ran decides a few of their faults, so not each pair of recordings is equal.
#[test]
fn both_sources_tell_the_same_of_a_program() {
    if !has_both() {
        return;
    }
    let mut told: BTreeMap<&str, Vec<Vec<Vec<String>>>> = BTreeMap::new();
    let mut last = String::new();
    for _ in 0..6 {
        for source in ["bpf", "perf"] {
            told.entry(source).or_default().push(by_threads(&recorded(source, ALONE).1));
        }
        for bpf in &told["bpf"] {
            for perf in &told["perf"] {
                match difference(bpf, perf) {
                    None => return,
                    Some(found) => last = found,
                }
            }
        }
    }
    panic!("programs and perf never tell the same: {last}");
}

/// The kernel counts the faults of all processes. Those that it takes itself for a call have no event.
#[test]
fn each_resolved_fault_of_the_kernels_count_is_told() {
    if !has_both() {
        return;
    }
    let silent = |source| {
        let (header, events) = recorded(source, SCRIPT);
        let is_resolved =
            |event: &&Event| matches!(event.kind, EventKind::Fault { duration_ns: Some(_), .. });
        let resolved = events.iter().filter(is_resolved).count() as u64;
        assert!(resolved > 1000, "{resolved}");
        header.totals.kernel_faults.checked_sub(resolved).expect("no more than there were")
    };
    let least = |source| (0..3).map(|_| silent(source)).min().expect("three recordings");
    let (bpf, perf) = (least("bpf"), least("perf"));
    assert!(bpf.abs_diff(perf) <= 8, "{bpf} faults without an event, {perf} by perf");
}

/// Not that the kernel takes no programs, which is what its refusal looks like. The tier is not given.
#[test]
fn an_ordinary_user_is_told_that_programs_need_root() {
    let uid = is_root().then_some(ORDINARY_USER);
    let mut refused = Recording::start(&["--source", "bpf"], &["true"], uid, |_| {});
    let code = refused.end().code();
    let said = refused.stderr();
    assert!(code == Some(125) && said.contains("needs root"), "{said}");
}

#[test]
fn the_source_is_named_to_programs_too() {
    for tier in tiers() {
        let mut run = Recording::of_script(&["--tier", tier, "--source", "auto", "--format", "json"], "true");
        assert_eq!(run.end().code(), Some(0), "{}", run.stderr());
        let said: serde_json::Value = serde_json::from_str(run.text("stdout").trim()).expect("one object");
        let named = said["source"].as_str();
        assert!(
            if tier == "user" { named.is_none() } else { matches!(named, Some("bpf" | "perf")) },
            "{said}"
        );
    }
    let mut refused = Recording::of_script(&["--tier", "user", "--source", "bpf"], "true");
    assert!(
        refused.end().code() == Some(125) && refused.stderr().contains("needs root"),
        "{}",
        refused.stderr()
    );
}

/// The numbers of the programs and maps that a process holds.
fn held(pid: i32) -> Vec<(bool, u32)> {
    let directory = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("the recorder lives");
    let told = directory.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
    let number = |line: &str, name| line.strip_prefix(name)?.trim().parse().ok();
    let of_line = |line: &str| {
        number(line, "prog_id:").map(|id| (true, id)).or(number(line, "map_id:").map(|id| (false, id)))
    };
    told.flat_map(|text| text.lines().filter_map(of_line).collect::<Vec<_>>()).collect()
}

/// Whether the kernel has this program or map.
fn is_in_kernel((is_program, number): (bool, u32)) -> bool {
    const PROGRAM_BY_NUMBER: i32 = 13;
    const MAP_BY_NUMBER: i32 = 14;
    let command = if is_program { PROGRAM_BY_NUMBER } else { MAP_BY_NUMBER };
    let attributes = [number, 0, 0];
    // SAFETY: C3: the kernel reads three words from the array, and closes the descriptor that it has just
    // given.
    unsafe {
        let descriptor =
            libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) as i32;
        descriptor >= 0 && libc::close(descriptor) == 0
    }
}

#[test]
fn no_program_stays_in_the_kernel() {
    if !has_both() {
        return;
    }
    for how in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut run = Recording::of_script(&["--source", "bpf"], "echo ready $$; exec sleep 100");
        run.wait_for("ready");
        let found = held(run.pid().as_raw());
        assert!(found.iter().filter(|it| it.0).count() > 10 && found.iter().any(|it| !it.0), "{found:?}");
        assert!(found.iter().all(|it| is_in_kernel(*it)));
        run.signal(how);
        run.end();
        let since = Instant::now();
        while found.iter().any(|it| is_in_kernel(*it)) {
            assert!(since.elapsed() < Duration::from_secs(120), "programs stay after {how}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let program = run.text("stdout").trim().trim_start_matches("ready ").parse().expect("its number");
        if how == Signal::SIGKILL {
            assert!(lives(program), "the program goes on");
            let pid = nix::unistd::Pid::from_raw(program);
            nix::sys::signal::kill(pid, Signal::SIGKILL).expect("it lives");
        } else {
            wait_until(|| !lives(program), || "the signal was not passed on".into());
        }
    }
}
