//! Recordings of what already runs.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::attach_script::{Manner, OTHERS, PAGE, PAGES, Script};
use crate::i386::{Program, Value};
use crate::recorder::{Killed, ORDINARY_USER, Recording, can_attach, lives, wait_until};
use crate::rules;
use lab::trace::{Access, Event, EventKind, Layouts, PopulateCause};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use procfs::process::{MMapPath, PageInfo, Process};

/// The present pages of a process, by page.
fn present(pid: i32) -> Vec<u64> {
    let process = Process::new(pid).expect("it lives");
    let mut pagemap = process.pagemap().expect("root may read it");
    let mut found = Vec::new();
    for map in process.maps().expect("root may read them") {
        if map.pathname == MMapPath::Vsyscall {
            continue;
        }
        let (first, end) = (map.address.0 / PAGE, map.address.1 / PAGE);
        let pages = pagemap.get_range_info(first as usize..end as usize).expect("a page map");
        let is_present = |info: &PageInfo| match info {
            PageInfo::MemoryPage(flags) => flags.contains(procfs::process::MemoryPageFlags::PRESENT),
            PageInfo::SwapPage(_) => false,
        };
        found.extend(pages.iter().zip(first..).filter(|(info, _)| is_present(info)).map(|(_, page)| page));
    }
    found
}

/// The pages that the trace says were present, and whether the process had written them.
fn recorded_present(events: &[Event], pid: i32) -> BTreeMap<u64, bool> {
    let mut found = BTreeMap::new();
    for event in events.iter().filter(|event| event.pid == pid as u32) {
        if let EventKind::Populate { start, len, cause } = event.kind
            && cause.is_before()
        {
            let pages = start / PAGE..(start + len) / PAGE;
            found.extend(pages.map(|page| (page, cause == PopulateCause::BeforeWritten)));
        }
    }
    found
}

fn replay(path: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quire"))
        .arg("replay")
        .args(options)
        .arg(path)
        .output()
        .expect("quire runs")
}

/// Replays it under every size: no divergence, no frame left.
fn assert_replays(path: &Path) {
    assert_replays_under(&["sweep"], path);
}

/// The same under the smallest size, the largest one, and one that most mappings have room for. It is for recordings of busy
/// programs, which have many events.
fn assert_some_replay(path: &Path) {
    assert_replays_under(&["4K", "64K", "2M"], path);
}

fn assert_replays_under(folios: &[&str], path: &Path) {
    let mut lines = String::new();
    for folio in folios {
        let checked = replay(path, &["--check", "--folio", folio, "--json", "-"]);
        assert!(checked.status.success(), "{checked:?}");
        lines += &String::from_utf8_lossy(&checked.stdout);
    }
    assert!(lines.lines().count() >= 3, "{lines}");
    for line in lines.lines() {
        assert!(line.contains(r#""frames_leaked":0"#) && line.contains(r#""differences":0"#), "{line}");
        assert!(!line.contains(r#""pages_present_before":0"#), "{line}");
    }
    let plain = replay(path, &["--rounds", "1"]);
    let text = String::from_utf8_lossy(&plain.stdout);
    assert!(text.contains("pages were present before the recording attached"), "{text}");
}

#[test]
fn advice_is_given_on_what_runs() {
    if !can_attach() {
        return;
    }
    // A child for each string of 32 KB.
    let script = "while :; do (x=aaaaaaaa; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do x=$x$x; done); done";
    let mut running = Command::new("sh").args(["-c", script]).spawn().expect("a shell");
    let pid = running.id().to_string();
    let directory = tempfile::tempdir().expect("a directory");
    let kept = directory.path().join("kept.qtrace");
    let advise = |duration: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
        command.args(["advise", "--baseline", "4K", "--pid", &pid, "--duration", duration]).args(more);
        command.output().expect("quire runs")
    };
    let output = advise("150ms", &["--format", "json", "-o", kept.to_str().expect("a name")]);
    let alive = running.try_wait().expect("it is a child").is_none();
    // A run of `verify` beside may have switched all folios off at that moment.
    let is_as_usual =
        |text: &Output| String::from_utf8_lossy(&text.stdout).contains("folios were not off while");
    let mut texts = (0..30).map(|_| advise("100ms", &["--khugepaged", "off"]));
    let text = texts.find(is_as_usual).expect("the advice says that folios were not off");
    running.kill().and_then(|()| running.wait()).expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((alive, &line["exit_code"]), (true, &serde_json::Value::Null), "{line}");
    assert!(line["wall_ns"].as_u64() >= Some(120_000_000), "{line}");
    assert!(line["sets"][0]["faults"].as_u64() > Some(500), "{}", line["sets"][0]);
    assert!(kept.exists(), "the trace is kept");
    let told = String::from_utf8_lossy(&text.stdout);
    assert!(text.status.success() && !told.contains("exit code"), "{told}");
}

fn pid_of(script: &Script) -> String {
    script.pid().to_string()
}

#[test]
fn what_was_there_is_in_the_trace_and_then_the_faults() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Calm);
    let (before, pid) = (present(script.pid()), script.pid());
    let mut run = Recording::attached(&["--pid", &pid_of(&script)]);
    let after = present(pid);
    std::fs::write(directory.path().join("touch"), "").expect("the directory is ours");
    script.line("TOUCHED");
    run.signal(Signal::SIGINT);
    assert!(run.end().success(), "{}", run.stderr());
    assert!(lives(pid), "the script lives on");
    let seen = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
    let seen = waitpid(Pid::from_raw(pid), Some(seen));
    assert_eq!(seen, Ok(WaitStatus::StillAlive), "its parent has seen nothing");
    script.end(directory.path(), true);

    let (kept, living) = rules::check_living(&run.path("t.qtrace"));
    assert!(kept.header.attached && living == [pid as u32], "{living:?}");
    let (_, events) = run.trace();
    let recorded = recorded_present(&events, pid);
    // It looks for a file now and then, and may meet another page by that.
    let missing: Vec<&u64> = before.iter().filter(|page| !recorded.contains_key(page)).collect();
    assert!(missing.is_empty(), "present and not recorded: {missing:x?}");
    let more: Vec<&u64> = recorded.keys().filter(|page| !after.contains(page)).collect();
    assert!(more.is_empty(), "recorded and not present: {more:x?}");
    let [memory, closed, read] = script.at.map(|at| at / PAGE);
    for page in 0..PAGES {
        let expected = (page % 2 == 0).then_some(true);
        assert_eq!(recorded.get(&(memory + page)).copied(), expected, "page {page}");
    }
    for page in 0..OTHERS {
        assert_eq!(recorded.get(&(closed + page)), Some(&true), "written before it was closed");
        assert_eq!(recorded.get(&(read + page)), Some(&false), "a page of zeroes");
    }
    let faulted = events.iter().filter(|event| match event.kind {
        EventKind::Fault { addr, access: Access::Write, duration_ns: Some(_), .. } => {
            (memory..memory + PAGES).contains(&(addr / PAGE)) && addr / PAGE % 2 != memory % 2
        }
        _ => false,
    });
    assert_eq!(faulted.count() as u64, PAGES / 2);
    assert_replays(&run.path("t.qtrace"));
}

#[test]
fn the_layout_of_the_trace_is_that_of_the_process() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Calm);
    let mut run = Recording::attached(&["--pid", &pid_of(&script), "--duration", "50ms"]);
    assert!(run.end().success(), "{}", run.stderr());
    let (_, events) = run.trace();
    let mut layouts = Layouts::default();
    events.iter().for_each(|event| layouts.apply(event));
    for map in Process::new(script.pid()).and_then(|process| process.maps()).expect("root may read them") {
        if map.pathname == MMapPath::Vsyscall {
            continue;
        }
        let found = layouts.find(script.pid() as u32, map.address.0).unwrap_or_else(|| panic!("no {map:x?}"));
        assert!(found.end >= map.address.1, "{found:x?} {map:x?}");
        assert_eq!(found.file.map(|file| file.inode).unwrap_or(0), map.inode, "{map:x?}");
        assert_eq!(found.prot, u32::from(map.perms.bits() & 7), "{map:x?}");
    }
    script.end(directory.path(), false);
    let mut verify = Command::new(env!("CARGO_BIN_EXE_quire"));
    let refused = verify.arg("verify").arg(run.path("t.qtrace")).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("when the program ran already"), "{said}");
}

fn state(pid: i32) -> char {
    Process::new(pid).and_then(|process| process.stat()).expect("it lives").state
}

/// The memory is that of the threads that are left; the first one has none.
#[test]
fn a_32_bit_process_whose_first_thread_has_ended_is_recorded() {
    const WRITTEN: u64 = 3;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("headless");
    let mut program = Program::default();
    let memory = program.call(192, &[0, 0x8000, 3, 0x22, u32::MAX, 0].map(Value::Number));
    (0..WRITTEN as u32).for_each(|page| program.store(memory, page * 0x1000));
    program.leave_to_a_thread();
    // pause
    program.call(29, &[]);
    program.write(&path);
    let Ok(child) = Command::new(&path).process_group(0).spawn() else {
        return println!("skipped: this machine runs no 32-bit programs");
    };
    let mut child = Killed(child);
    let pid = child.0.id() as i32;
    if !can_attach() {
        return;
    }
    wait_until(|| state(pid) == 'Z', || "the first thread does not end".into());
    let mut run = Recording::attached(&["--pid", &pid.to_string(), "--duration", "100ms"]);
    assert!(run.end().success(), "{}", run.stderr());
    assert!(child.0.try_wait().is_ok_and(|ended| ended.is_none()), "it lives on");
    rules::check_living(&run.path("t.qtrace"));
    let (_, events) = run.trace();
    let recorded = recorded_present(&events, pid);
    let mapped = events.iter().find_map(|event| match event.kind {
        EventKind::Map { start, len: 0x8000, file: None, .. } => Some(start / PAGE),
        _ => None,
    });
    let mapped = mapped.expect("its memory is there");
    let written = (0..8).filter(|page| recorded.get(&(mapped + page)) == Some(&true)).count() as u64;
    assert_eq!(written, WRITTEN);
    assert!(events.iter().any(|event| event.tid == pid as u32 && event.kind == EventKind::ThreadExit));
    assert_replays(&run.path("t.qtrace"));
}

#[test]
fn a_stopped_process_stays_stopped() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Calm);
    let pid = script.pid();
    kill(Pid::from_raw(pid), Signal::SIGSTOP).expect("it is ours");
    wait_until(|| state(pid) == 'T', || "it does not stop".into());
    let mut run = Recording::attached(&["--pid", &pid_of(&script), "--duration", "100ms"]);
    assert!(run.end().success(), "{}", run.stderr());
    assert_eq!(state(pid), 'T');
    kill(Pid::from_raw(pid), Signal::SIGCONT).expect("it is ours");
    script.end(directory.path(), false);
    let (_, events) = run.trace();
    assert_eq!(recorded_present(&events, pid).get(&(script.at[0] / PAGE)), Some(&true));
}

#[test]
fn threads_and_children_are_followed_for_the_duration() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Busy);
    let started = Instant::now();
    let mut run =
        Recording::attached(&["--pid", &pid_of(&script), "--duration", "300ms", "--max-overhead", "900"]);
    assert!(run.end().success(), "{}", run.stderr());
    assert!(started.elapsed() >= Duration::from_millis(300), "it ended early");
    let stderr = run.stderr();
    assert!(stderr.contains("stopped for") && stderr.contains("cost:"), "{stderr}");
    let (kept, _) = rules::check_living(&run.path("t.qtrace"));
    assert!((280_000_000..5_000_000_000).contains(&kept.header.totals.wall_ns), "{:?}", kept.header.totals);
    let (_, events) = run.trace();
    let threads = events.iter().filter(|event| matches!(event.kind, EventKind::ThreadStart { .. }));
    let execs = events.iter().filter(|event| matches!(event.kind, EventKind::Exec { .. })).count();
    assert!(threads.count() >= 3 && execs > 1, "{execs} programs");
    assert_some_replay(&run.path("t.qtrace"));
    script.end(directory.path(), false);
}

#[test]
fn a_recording_ends_with_the_process_that_it_attached_to() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Calm);
    let mut run = Recording::attached(&["--quiet", "--pid", &pid_of(&script)]);
    script.end(directory.path(), false);
    assert!(run.end().success(), "{}", run.stderr());
    rules::check(&run.path("t.qtrace"));
    assert_replays(&run.path("t.qtrace"));
}

/// A new control group of version 2, which is removed again.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let mounted = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = mounted.into_iter().find(|fields| fields.get(2) == Some(&"cgroup2"))?[1].to_owned();
        let path = Path::new(&root).join(format!("quire-test-{}", std::process::id()));
        std::fs::create_dir(&path).ok()?;
        Some(Group(path))
    }

    fn add(&self, pid: i32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("root may move processes");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until(|| std::fs::remove_dir(&self.0).is_ok(), || format!("{:?} stays", self.0));
    }
}

#[test]
fn a_control_group_is_followed_with_what_joins_it() {
    if !can_attach() {
        return;
    }
    let Some(group) = Group::new() else { return println!("skipped: no control group can be made here") };
    let directories = [0, 1].map(|_| tempfile::tempdir().expect("a temporary directory"));
    let [mut first, mut second] = [(0, Manner::Busy), (1, Manner::Calm)]
        .map(|(at, manner): (usize, _)| Script::start(directories[at].path(), manner));
    group.add(first.pid());
    let mut run = Recording::attached(&["--cgroup", &group.0.to_string_lossy(), "--max-overhead", "900"]);
    group.add(second.pid());
    std::thread::sleep(Duration::from_millis(250));
    std::fs::write(directories[1].path().join("touch"), "").expect("the directory is ours");
    second.line("TOUCHED");
    first.end(directories[0].path(), false);
    second.end(directories[1].path(), true);
    // It ends when the group is empty.
    assert!(run.end().success(), "{}", run.stderr());
    let (_, events) = run.trace();
    for (script, faults) in [(&first, 1), (&second, PAGES as usize / 2)] {
        let pid = script.pid();
        assert!(recorded_present(&events, pid).contains_key(&(script.at[0] / PAGE)), "{pid} was there");
        let faulted =
            |event: &&Event| event.pid == pid as u32 && matches!(event.kind, EventKind::Fault { .. });
        assert!(events.iter().filter(faulted).count() >= faults, "{pid} faults");
    }
    assert_some_replay(&run.path("t.qtrace"));
}

/// A shell in the group starts a child for each string of 32 KB.
#[test]
fn advice_is_given_on_a_control_group() {
    if !can_attach() {
        return;
    }
    let Some(group) = Group::new() else { return println!("skipped: no control group can be made here") };
    // Only processes that it starts from here on fault so often: it waits for the file.
    let directory = tempfile::tempdir().expect("a directory");
    let go = directory.path().join("go");
    let script = "while [ ! -e $0 ]; do sleep 0.01; done; while :; do \
                  (x=aaaaaaaa; for i in 1 2 3 4 5 6 7 8 9 10 11 12; do x=$x$x; done); done";
    let shell = Command::new("sh").args(["-c", script]).arg(&go).spawn().expect("a shell");
    let mut shell = Killed(shell);
    let pid = shell.0.id() as i32;
    group.add(pid);
    std::fs::write(&go, "").expect("the directory is ours");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quire"));
    command.args(["advise", "--format", "json", "--baseline", "4K", "--khugepaged", "off"]);
    let output =
        command.args(["--duration", "300ms", "--cgroup"]).arg(&group.0).output().expect("quire runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(shell.0.try_wait().expect("it is a child").is_none(), "it runs on");
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let name = group.0.file_name().expect("a name").to_string_lossy();
    assert_eq!((&line["exit_code"], &line["program"]), (&serde_json::Value::Null, &name.as_ref().into()));
    let processes = line["sets"][0]["processes"].as_array().expect("processes");
    let pids: Vec<i64> = processes.iter().filter_map(|process| process["pid"].as_i64()).collect();
    assert!(pids.contains(&pid.into()) && pids.len() > 2, "{pids:?} are not {pid} with its children");
    let children: u64 = processes
        .iter()
        .filter(|process| process["pid"] != pid)
        .map(|process| process["peak_rss_bytes"].as_u64().expect("a number"))
        .sum();
    assert!(children > 0 && line["sets"][0]["faults"].as_u64() > Some(500), "{line}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("attached to") && !error.contains("not recorded"), "{error}");
    drop(shell);
}

#[test]
fn faults_are_dropped_rather_than_time() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Busy);
    let pid = pid_of(&script);
    let mut run = Recording::attached(&["--pid", &pid, "--duration", "400ms", "--max-overhead", "0.001"]);
    assert!(run.end().success(), "{}", run.stderr());
    assert!(run.stderr().contains("NOT RECORDED"), "{}", run.stderr());
    let (header, events) = run.trace();
    let told = events.iter().map(|event| match event.kind {
        EventKind::Lost { records } => records,
        _ => 0,
    });
    assert!(header.totals.lost > 100 && told.sum::<u64>() == header.totals.lost, "{:?}", header.totals);
    let faults = events.iter().filter(|event| matches!(event.kind, EventKind::Fault { .. })).count() as u64;
    assert!(faults < header.totals.lost, "{faults} are recorded");
    assert_eq!(replay(&run.path("t.qtrace"), &["--check"]).status.code(), Some(3), "the gap is found");
    script.end(directory.path(), false);
}

#[test]
fn errors_name_the_cure() {
    if !can_attach() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut script = Script::start(directory.path(), Manner::Busy);
    let task = std::fs::read_dir(format!("/proc/{}/task", script.pid())).expect("it lives");
    let names = task.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let thread = names.filter(|name| *name != pid_of(&script)).max().expect("it has threads");
    let nowhere = directory.path().to_string_lossy().into_owned();
    let cases: [(&[&str], &str); 6] = [
        (&["--pid", "4194304"], "ps -e"),
        (&["--pid", "2"], "thread of the kernel"),
        (&["--pid", &thread], &format!("give `--pid {}`", script.pid())),
        (&["--cgroup", &nowhere], "cgroup2"),
        (&["--pid", "1", "--wait", "main"], "cannot be used"),
        (&["--duration", "1s"], "--pid"),
    ];
    for (options, cure) in cases {
        let mut run = Recording::start(options, &[], None, |_| ());
        let code = run.end().code();
        assert!(
            matches!(code, Some(125 | 2)) && run.stderr().contains(cure),
            "{options:?}: {}",
            run.stderr()
        );
        assert!(!run.path("t.qtrace").exists() && run.partial().is_none());
    }
    let mut run = Recording::start(&["--pid", &pid_of(&script)], &[], Some(ORDINARY_USER), |_| ());
    assert!(run.end().code() == Some(125) && run.stderr().contains("needs root"), "{}", run.stderr());
    script.end(directory.path(), false);
}

#[test]
fn a_traced_process_is_left_to_its_tracer() {
    if !can_attach() {
        return;
    }
    let mut sleeper = Command::new("sleep");
    let mut sleeper = sleeper.arg("60").process_group(0).spawn().expect("sleep runs");
    let pid = Pid::from_raw(sleeper.id() as i32);
    ptrace::seize(pid, ptrace::Options::empty()).expect("it is ours");
    let mut run = Recording::start(&["--pid", &pid.to_string()], &[], None, |_| ());
    assert!(
        run.end().code() == Some(125) && run.stderr().contains("is traced by process"),
        "{}",
        run.stderr()
    );
    sleeper.kill().expect("it lives");
    sleeper.wait().expect("it is ours");
}
