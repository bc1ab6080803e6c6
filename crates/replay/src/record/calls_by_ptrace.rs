//! The user tier's system calls: a filter stops the program at memory calls only, and its tracer records
//! them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;
use seccompiler::{BpfProgram, sock_filter};

use super::abi::{self, Abi};
use super::follow;
use super::hold::Turns;
use super::privilege;
use super::progress;
use super::raw::{Raw, RawKind, now_ns};
use super::report::{Report, Reporter};
use super::traced::{self, Change};
use crate::trace::{Call, clone_flags};

/// The audit subsystem's numbers of architectures, which filters and ptrace get.
const AUDIT_X86_64: u32 = 0xc000_003e;
const AUDIT_I386: u32 = 0x4000_0003;

/// Offsets of the fields that the filter reads: `struct seccomp_data`.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;

/// The filter: memory calls of every architecture are reported, everything else runs at full speed.
pub(super) fn filter() -> BpfProgram {
    let load = |offset| step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let ret = |action| step(libc::BPF_RET | libc::BPF_K, 0, 0, action);
    let mut program = BpfProgram::new();
    for (architecture, numbers) in [
        (AUDIT_X86_64, abi::native_numbers().chain(abi::X32_OWN.map(|(own, _)| own)).collect::<Vec<_>>()),
        (AUDIT_I386, abi::i386_numbers().collect()),
    ] {
        let mut section = vec![load(OFFSET_NUMBER)];
        if architecture == AUDIT_X86_64 {
            let mask = abi::without_x32(u64::from(u32::MAX)) as u32;
            section.push(step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, mask));
        }
        for number in numbers {
            section.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32));
            section.push(ret(libc::SECCOMP_RET_TRACE));
        }
        section.push(ret(libc::SECCOMP_RET_ALLOW));
        program.push(load(OFFSET_ARCHITECTURE));
        program.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, architecture));
        program.push(step(libc::BPF_JMP | libc::BPF_JA, 0, 0, section.len() as u32));
        program.extend(section);
    }
    program.push(ret(libc::SECCOMP_RET_ALLOW));
    program
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

/// Traces a process that waits at its gate, and all its descendants.
pub(super) fn attach(pid: Pid) -> nix::Result<()> {
    let options = Options::PTRACE_O_TRACESECCOMP
        | Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        // Without a tracer its memory calls would fail: killing it makes the failure visible.
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options)
}

/// The state of the threads that are inside a memory call.
struct Tracer<'a> {
    teller: &'a mut Reporter,
    /// Threads whose next stop is the exit of a call, and its number.
    in_call: HashMap<Pid, u64>,
    /// The flags of a call that makes a task, by the calling thread.
    flags: HashMap<Pid, u64>,
    turns: Turns,
    /// The calls that waiting threads are about to enter.
    held: HashMap<Pid, Entered>,
}

/// The number of a call, what it means, and its arguments.
type Entered = (u64, Call, [u64; 6]);

/// Runs until the program and all its descendants have ended.
pub(super) fn follow(program: Pid, teller: &mut Reporter) {
    let (in_call, flags, held) = Default::default();
    let mut tracer = Tracer { teller, in_call, flags, turns: Turns::default(), held };
    tracer.turns.own(program);
    loop {
        match tracer.wait() {
            Ok(change) => match change.exit_code() {
                Some(exit_code) => {
                    tracer.ended(change.tid());
                    if change.tid() == program {
                        tracer.teller.tell(&Report::Ended { exit_code, faults: waited_faults() });
                    }
                }
                None => match tracer.stop(change) {
                    // It was killed while it was stopped; its end is reported next.
                    Ok(()) | Err(Errno::ESRCH) => {}
                    // A thread must not stay stopped for ever because recording its stop failed.
                    Err(_) => drop(ptrace::cont(change.tid(), None)),
                },
            },
            // Nothing else may end the tracer: the kernel kills what it traces.
            Err(Errno::ECHILD) => {
                return tracer.teller.tell(&Report::AllEnded { faults: waited_faults() });
            }
            Err(_) => {}
        }
    }
}

/// Faults of all children that this process has waited for.
fn waited_faults() -> u64 {
    follow::fault_counts(Pid::this()).map_or(0, |counts| counts.children)
}

/// While threads wait for their turn: polls for a stop before sleeping, and the time to sleep.
const LOOKS: u32 = 200;
const NAP: Duration = Duration::from_micros(50);

impl Tracer<'_> {
    /// Waits for the next stop or end. Meanwhile threads that have waited long enough get their turn.
    fn wait(&mut self) -> nix::Result<Change> {
        let mut looks = 0;
        while self.turns.holds_any() {
            match traced::poll()? {
                Some(change) => return Ok(change),
                None if looks < LOOKS => std::thread::yield_now(),
                None => std::thread::sleep(NAP),
            }
            looks += 1;
            let overdue = self.turns.overdue(Instant::now(), progress::look);
            self.let_go(overdue);
        }
        traced::wait()
    }

    /// Forgets a thread that has ended.
    fn ended(&mut self, tid: Pid) {
        self.in_call.remove(&tid);
        self.flags.remove(&tid);
        self.held.remove(&tid);
        let next = self.turns.ended(tid);
        self.let_go(next);
    }

    /// Lets threads enter the calls that they waited for.
    fn let_go(&mut self, threads: impl IntoIterator<Item = Pid>) {
        for tid in threads {
            let Some(entered) = self.held.remove(&tid) else { continue };
            // A thread that was killed meanwhile is reported next.
            let _ = self.start_call(tid, entered);
        }
    }

    fn start_call(&mut self, tid: Pid, (number, call, args): Entered) -> Result<(), Errno> {
        self.in_call.insert(tid, number);
        self.tell(tid, RawKind::Enter { number, call, args });
        if call.cuts_file()
            && let Ok(file) = rustix::fs::stat(format!("/proc/{tid}/fd/{}", args[0] as i32))
        {
            let [major, minor] = [rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev)];
            // Whether it takes pages is not known.
            let device = u64::from(major) << 32 | u64::from(minor);
            self.tell(tid, RawKind::Dropped { device, inode: file.st_ino });
        }
        ptrace::syscall(tid, None)
    }

    fn stop(&mut self, change: Change) -> Result<(), Errno> {
        match change {
            Change::AtCall(tid) => self.exit(tid),
            Change::Signalled(tid, signal) => self.resume(tid, signal),
            Change::Event { tid, .. } if change.is_group_stop() => traced::listen(tid),
            Change::Event { tid, event, .. } => match event {
                libc::PTRACE_EVENT_SECCOMP => self.entry(tid),
                libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                    self.new_task(tid)
                }
                libc::PTRACE_EVENT_EXEC => self.exec(tid),
                _ => self.resume(tid, 0),
            },
            Change::Exited(..) | Change::Killed(..) => Ok(()),
        }
    }

    /// Continues a thread, with a signal or 0: to the exit of its call, or at full speed.
    fn resume(&self, tid: Pid, signal: i32) -> Result<(), Errno> {
        if self.in_call.contains_key(&tid) {
            traced::run_to_call(tid, signal)
        } else {
            traced::cont(tid, signal)
        }
    }

    fn entry(&mut self, tid: Pid) -> Result<(), Errno> {
        if !self.teller.is_heard() {
            return ptrace::cont(tid, None);
        }
        let info = ptrace::syscall_info(tid)?;
        // SAFETY: C3: at a seccomp stop the kernel has filled in this member of the union.
        let (number, args) = unsafe { (info.u.seccomp.nr, info.u.seccomp.args) };
        let abi = if info.arch == AUDIT_I386 { Abi::I386 } else { Abi::Native };
        let Some((call, args)) = abi.decode(number, args, |address| words_at(tid, address)) else {
            return ptrace::cont(tid, None);
        };
        let flags = match call {
            Call::Clone => args[0],
            Call::Clone3 => ptrace::read(tid, args[0] as ptrace::AddressType).unwrap_or(0) as u64,
            Call::Vfork => clone_flags::VM | clone_flags::VFORK,
            _ => 0,
        };
        self.flags.insert(tid, flags);
        if takes_turns(call, flags) && !self.turns.enters(tid) {
            self.held.insert(tid, (number, call, args));
            return Ok(());
        }
        self.start_call(tid, (number, call, args))
    }

    fn exit(&mut self, tid: Pid) -> Result<(), Errno> {
        let info = ptrace::syscall_info(tid)?;
        let number = self.in_call.remove(&tid);
        if let Some(number) = number
            && info.op == libc::PTRACE_SYSCALL_INFO_EXIT
        {
            // SAFETY: C3: at an exit stop the kernel has filled in this member of the union.
            let result = unsafe { info.u.exit.sval };
            self.tell(tid, RawKind::Leave { number, result });
        }
        let next = self.turns.left(tid);
        self.let_go(next);
        ptrace::cont(tid, None)
    }

    fn exec(&mut self, tid: Pid) -> Result<(), Errno> {
        // The thread that calls exec gets the number of the first one.
        let former = Pid::from_raw(ptrace::getevent(tid)? as i32);
        if let Some(number) = self.in_call.remove(&former) {
            self.in_call.insert(tid, number);
        }
        for gone in [former, tid] {
            let next = self.turns.ended(gone);
            self.let_go(next);
        }
        self.turns.own(tid);
        if self.teller.is_heard()
            && let Some(name) = privilege::withheld(tid)
        {
            self.teller.tell(&Report::Unprivileged { name });
        }
        self.resume(tid, 0)
    }

    fn new_task(&mut self, tid: Pid) -> Result<(), Errno> {
        let child = Pid::from_raw(ptrace::getevent(tid)? as i32);
        let flags = self.flags.get(&tid).copied().unwrap_or(0);
        self.tell(tid, RawKind::NewTask { flags });
        if self.turns.made(tid, child, flags & clone_flags::VM != 0) && self.turns.enters(child) {
            self.let_go([child]);
        }
        self.resume(tid, 0)
    }

    fn tell(&mut self, tid: Pid, kind: RawKind) {
        // The process is looked up by the assembler, which knows it from the thread's start.
        let raw = Raw { time_ns: now_ns(), pid: 0, tid: tid.as_raw() as u32, kind };
        self.teller.tell(&Report::Raw(raw));
    }
}

/// Whether the order of the call among those of the same memory matters. Calls that start threads and
/// programs change no mapping of this memory, and may take long.
fn takes_turns(call: Call, flags: u64) -> bool {
    match call {
        Call::Madvise | Call::Mlock | Call::Mlock2 | Call::Munlock | Call::Mlockall | Call::Munlockall => {
            true
        }
        call if call.makes_task() => flags & clone_flags::VM == 0,
        call => call.changes_mappings(),
    }
}

/// Six words of 32 bits of a stopped thread's memory.
fn words_at(tid: Pid, address: u64) -> Option<[u32; 6]> {
    let mut words = [0; 6];
    for (index, pair) in words.chunks_exact_mut(2).enumerate() {
        let at = address.checked_add(index as u64 * 8)? as ptrace::AddressType;
        let both = ptrace::read(tid, at).ok()? as u64;
        pair.copy_from_slice(&[both as u32, (both >> 32) as u32]);
    }
    Some(words)
}
