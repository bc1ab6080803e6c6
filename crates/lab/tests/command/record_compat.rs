//! Programs that call the kernel as i386: 32-bit ones, and 64-bit ones by `int 0x80`.

use crate::rules;
use std::process::Command;

use crate::i386::{OWN_PATH, Program, SCRATCH, Value};
use crate::recorder::{Recording, tiers};
use lab::trace::{Call, Event, EventKind, MapCause};

use Value::{Number, Result as Of};

const PAGE: u64 = 4096;

/// Where the program of this test is, and what is to be found in its trace.
struct Script {
    program: Program,
    calls: Vec<(usize, Call, Vec<Value>)>,
}

impl Script {
    /// A call whose arguments in the trace are those that it was given.
    fn call(&mut self, number: u32, call: Call, arguments: &[Value]) -> usize {
        let result = self.program.call(number, arguments);
        self.calls.push((result, call, arguments.to_vec()));
        result
    }
}

fn numbers(values: &[u32]) -> Vec<Value> {
    values.iter().map(|value| Number(*value)).collect()
}

/// Every call of i386 that passes its arguments otherwise, and some that do not.
fn script() -> Script {
    let mut script = Script { program: Program::default(), calls: Vec::new() };
    let map = script.call(192, Call::Mmap, &numbers(&[0, 0x3000, 3, 0x22, u32::MAX, 0]));
    script.program.store(map, 0x1000);
    script.call(125, Call::Mprotect, &[Of(map, 0x2000), Number(0x1000), Number(1)]);
    script.call(219, Call::Madvise, &[Of(map, 0x1000), Number(0x1000), Number(4)]);
    let moved = script.call(163, Call::Mremap, &[Of(map, 0), Number(0x1000), Number(0x5000), Number(1)]);
    script.program.store(moved, 0x4000);
    script.call(150, Call::Mlock, &[Of(moved, 0), Number(0x2000)]);
    script.call(91, Call::Munmap, &[Of(moved, 0x3000), Number(0x2000)]);
    script.call(45, Call::Brk, &[Number(0)]);
    // A file from its second page on.
    let name = script.program.call(5, &[Number(OWN_PATH), Number(0), Number(0)]);
    let file =
        script.program.call(192, &[Number(0), Number(0x1000), Number(1), Number(2), Of(name, 0), Number(1)]);
    let offset = [Number(0), Number(0x1000), Number(1), Number(2), Of(name, 0), Number(0x1000)];
    script.calls.push((file, Call::Mmap, offset.to_vec()));
    let block = [0, 0x4000, 3, 0x22, u32::MAX, 0];
    let old = script.program.old_mmap(block);
    script.calls.push((old, Call::Mmap, numbers(&block)));
    script.program.store(old, 0x3000);
    let child = script.program.fork();
    script.calls.push((child, Call::Fork, vec![]));
    script
}

/// Does this machine run 32-bit programs?
fn runs_here(path: &std::path::Path) -> bool {
    Command::new(path).current_dir("/").output().is_ok()
}

/// Records the program; `None` where the machine does not run it, which is then one clear line.
fn record(tier: &str, program: Program) -> Option<(Recording, Vec<u32>)> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("program");
    program.write(&path);
    let mut run = Recording::start(
        &["--quiet", "--tier", tier],
        &[path.to_str().expect("the path is text")],
        None,
        |_| {},
    );
    let status = run.end();
    if !runs_here(&path) {
        assert!(!status.success());
        assert_eq!(run.stderr().lines().count(), 1, "{}", run.stderr());
        assert!(run.stderr().contains("cannot start"), "{}", run.stderr());
        return None;
    }
    assert_eq!(status.code(), Some(0), "tier {tier}: {}", run.stderr());
    let said = std::fs::read(run.path("stdout")).expect("a file");
    let results = said.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    Some((run, results))
}

fn has_call(events: &[Event], call: Call, arguments: &[u64], result: i64) -> bool {
    events.iter().any(|event| match &event.kind {
        EventKind::Syscall(seen) => {
            seen.call == call && seen.result == result && seen.args[..arguments.len()] == *arguments
        }
        _ => false,
    })
}

/// A result as the trace has it: an address of 32 bits, or an error.
fn result_of(word: u32) -> i64 {
    if word > 0xffff_f000 { i64::from(word as i32) } else { i64::from(word) }
}

#[test]
fn a_32_bit_program_is_recorded_call_by_call() {
    for tier in tiers() {
        let Script { program, calls } = script();
        let Some((run, results)) = record(tier, program) else { return };
        let (_, events) = run.trace();
        for (result, call, arguments) in calls {
            let arguments: Vec<u64> = arguments
                .iter()
                .map(|value| match value {
                    Number(number) => u64::from(*number),
                    Of(call, offset) => u64::from(results[*call].wrapping_add(*offset)),
                    _ => unreachable!("not in this script"),
                })
                .collect();
            let wanted = result_of(results[result]);
            assert!(wanted >= 0, "{call:?} failed here: {wanted}");
            assert!(
                has_call(&events, call, &arguments, wanted),
                "{call:?} {arguments:x?} = {wanted:x} is not in the trace of tier {tier}: {events:#x?}"
            );
        }
        let kept = rules::check(&run.path("t.qtrace"));
        assert_eq!((kept.processes, kept.header.totals.lost), (2, 0));
        assert!(kept.faults > 0 && kept.resolved > 0 && kept.probes == 0);
        assert_checked(&run);
    }
}

#[test]
fn shared_memory_through_ipc_has_its_address() {
    for tier in tiers() {
        let mut program = Program::default();
        let id = program.call(117, &numbers(&[23, 0, 0x2000, 0o1600]));
        let attached = program.call(117, &[Number(21), Of(id, 0), Number(0), Number(SCRATCH), Number(0)]);
        program.call(117, &[Number(24), Of(id, 0), Number(0x100), Number(0), Number(0)]);
        let detached = program.call(117, &[Number(22), Number(0), Number(0), Number(0), Value::Scratch]);
        let Some((run, results)) = record(tier, program) else { return };
        if results[id] as i32 == -38 {
            // A kernel without System V IPC.
            return;
        }
        assert_eq!((results[attached], results[detached]), (0, 0));
        let (_, events) = run.trace();
        let calls = |wanted| {
            events.iter().find_map(|event| match &event.kind {
                EventKind::Syscall(seen) if seen.call == wanted => Some((seen.args, seen.result)),
                _ => None,
            })
        };
        let (arguments, address) = calls(Call::Shmat).expect("shmat is there");
        assert_eq!(arguments[0], u64::from(results[id]));
        assert!((address as u64).is_multiple_of(PAGE) && address > 0, "{address:x}");
        assert_eq!(calls(Call::Shmdt), Some(([address as u64, 0, 0, 0, 0, 0], 0)));
        assert_checked(&run);
    }
}

/// Arguments that lie in memory that no sample shows: the mapping is there all the same.
#[test]
fn an_old_mmap_with_its_arguments_elsewhere_is_a_mapping() {
    for tier in tiers() {
        let mut program = Program::default();
        let map = program.old_mmap_by_block([0, 0x7000, 3, 0x22, u32::MAX, 0]);
        program.store(map, 0x6000);
        let Some((run, results)) = record(tier, program) else { return };
        let at = u64::from(results[map]);
        let (_, events) = run.trace();
        let mapped = events.iter().any(|event| match event.kind {
            EventKind::Map { cause: MapCause::Other, start, len, .. } => (start, len) == (at, 0x7000),
            _ => false,
        });
        assert!(mapped || has_call(&events, Call::Mmap, &[0, 0x7000, 3, 0x22], at as i64), "tier {tier}");
        rules::check(&run.path("t.qtrace"));
        assert_checked(&run);
    }
}

/// The same numbers mean other calls to 64-bit programs.
#[test]
fn a_64_bit_program_may_call_as_i386() {
    let me = std::env::current_exe().expect("this test has a path");
    let me = me.to_str().expect("the path is text");
    for tier in tiers() {
        let command =
            ["env", "QUIRE_INT_80=1", me, "--exact", "record_compat::the_int_80_itself", "--nocapture"];
        let mut run = Recording::start(&["--quiet", "--tier", tier], &command, None, |_| {});
        let status = run.end();
        let said = run.text("stdout");
        let Some(line) = said.lines().find_map(|line| line.split("MAPPED ").nth(1)) else {
            // Without 32-bit calls in this kernel the instruction is a fault.
            assert!(!status.success());
            return;
        };
        let at: i64 = line.trim().parse().expect("a number");
        let (_, events) = run.trace();
        assert!(has_call(&events, Call::Mmap, &[0, 0x6000, 3, 0x22, 0xffff_ffff, 0], at), "tier {tier}");
        assert!(has_call(&events, Call::Munmap, &[at as u64, 0x6000], 0), "tier {tier}");
        rules::check(&run.path("t.qtrace"));
    }
}

#[test]
fn the_int_80_itself() {
    if std::env::var_os("QUIRE_INT_80").is_none() {
        return;
    }
    let map = int_80(192, [0, 0x6000, 3, 0x22, u32::MAX, 0]);
    println!("MAPPED {map}");
    assert_eq!(int_80(91, [map as u32, 0x6000, 0, 0, 0, 0]), 0);
    // Numbers of memory calls that are others here.
    assert!(std::fs::metadata("/").is_ok());
}

/// An i386 call of this 64-bit program.
fn int_80(number: u32, [ebx, ecx, edx, esi, edi, ebp]: [u32; 6]) -> i64 {
    let result: i64;
    // SAFETY: maps memory that nothing uses, or unmaps that; rbx and rbp are put back before anything uses them, and
    // the kernel clears r8 to r11.
    unsafe {
        std::arch::asm!(
            "push rbx", "push rbp", "mov ebx, r12d", "mov ebp, r13d", "int 0x80", "pop rbp", "pop rbx",
            inlateout("rax") i64::from(number) => result,
            in("r12") u64::from(ebx), in("r13") u64::from(ebp),
            in("rcx") u64::from(ecx), in("rdx") u64::from(edx), in("rsi") u64::from(esi), in("rdi") u64::from(edi),
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    result
}

fn assert_checked(run: &Recording) {
    let output = Command::new(env!("CARGO_BIN_EXE_quire"))
        .args(["replay", "--check"])
        .arg(run.path("t.qtrace"))
        .output()
        .expect("quire runs");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("no divergence"), "{said}");
}
