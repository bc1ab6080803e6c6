//! The user tier's system calls: a filter stops the program at memory calls only, and this thread notes them.

use std::collections::HashSet;
use std::sync::mpsc::Sender;

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

use super::RecordError;
use super::collect::{Message, now_ns};
use super::follow::{self, Ended, FaultCounts};
use super::hold::Turns;
use super::raw::{Raw, RawKind};
use crate::trace::{Call, clone_flags};

/// The filter: memory calls are reported, everything else runs at full speed.
pub(super) fn filter() -> Result<BpfProgram, RecordError> {
    let invalid = |error: seccompiler::BackendError| RecordError::System {
        what: "building the filter of system calls",
        source: std::io::Error::other(error.to_string()),
    };
    let rules = Call::ALL.iter().map(|call| (call.x86_64() as i64, Vec::new())).collect();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Trace(0),
        seccompiler::TargetArch::x86_64,
    )
    .map_err(invalid)?;
    filter.try_into().map_err(invalid)
}

/// Follows a process that waits at its gate, and all that come from it.
pub(super) fn attach(pid: Pid) -> Result<(), RecordError> {
    let options = Options::PTRACE_O_TRACESECCOMP
        | Options::PTRACE_O_TRACESYSGOOD
        | Options::PTRACE_O_TRACEFORK
        | Options::PTRACE_O_TRACEVFORK
        | Options::PTRACE_O_TRACECLONE
        | Options::PTRACE_O_TRACEEXEC
        | Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).map_err(|errno| RecordError::NotPermitted {
        what: "system calls (ptrace is not allowed here)",
        source: errno.into(),
    })
}

/// What is known of the threads that are inside a memory call.
struct Tracer<'a> {
    messages: &'a Sender<Message>,
    /// Threads whose next stop is the exit of a call.
    in_call: HashSet<Pid>,
    /// What the call that makes a task was asked for, by the thread that makes it.
    flags: std::collections::HashMap<Pid, u64>,
    turns: Turns,
    /// What threads that wait for their turn are about to call.
    held: std::collections::HashMap<Pid, (u64, [u64; 6])>,
}

/// Runs until the program and all its descendants have ended.
pub(super) fn follow(
    program: Pid,
    before: FaultCounts,
    messages: &Sender<Message>,
) -> Result<Ended, RecordError> {
    let (flags, held, in_call) = Default::default();
    let mut tracer = Tracer { messages, in_call, flags, turns: Turns::default(), held };
    tracer.turns.own(program);
    let mut ended = Ended::default();
    loop {
        match tracer.wait() {
            Ok(status @ (WaitStatus::Exited(pid, _) | WaitStatus::Signaled(pid, _, _))) => {
                tracer.in_call.remove(&pid);
                tracer.held.remove(&pid);
                let next = tracer.turns.ended(pid);
                tracer.let_go(next);
                if pid == program {
                    ended.exit_code = follow::exit_code(status);
                }
            }
            Ok(status) => match tracer.stop(status) {
                // It was killed while it stood still; its end is reported next.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(RecordError::system("following the program's calls")(errno)),
            },
            Err(Errno::EINTR) => {}
            Err(Errno::ECHILD) => {
                ended.kernel_faults = waited_faults().saturating_sub(before.minor + before.major);
                return Ok(ended);
            }
            Err(errno) => return Err(RecordError::system("waiting for the program")(errno)),
        }
    }
}

/// Faults of all children that this process has waited for.
fn waited_faults() -> u64 {
    follow::fault_counts(Pid::this()).map_or(0, |counts| counts.children)
}

/// While threads wait for their turn: how often to look for a stop before sleeping, and how long to sleep then.
const LOOKS: u32 = 200;
const NAP: std::time::Duration = std::time::Duration::from_micros(50);

impl Tracer<'_> {
    /// Waits for the next stop or end. Meanwhile the turns of threads that have waited long enough come.
    fn wait(&mut self) -> nix::Result<WaitStatus> {
        let mut looks = 0;
        while self.turns.holds_any() {
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) if looks < LOOKS => std::thread::yield_now(),
                Ok(WaitStatus::StillAlive) => std::thread::sleep(NAP),
                other => return other,
            }
            looks += 1;
            let overdue = self.turns.overdue();
            self.let_go(overdue);
        }
        waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL))
    }

    /// Lets threads into the calls that they waited for.
    fn let_go(&mut self, threads: impl IntoIterator<Item = Pid>) {
        for tid in threads {
            let Some((number, args)) = self.held.remove(&tid) else { continue };
            // One that was killed meanwhile is reported next.
            let _ = self.start_call(tid, number, args);
        }
    }

    fn start_call(&mut self, tid: Pid, number: u64, args: [u64; 6]) -> Result<(), Errno> {
        self.in_call.insert(tid);
        self.tell(tid, RawKind::Enter { number, args });
        ptrace::syscall(tid, None)
    }

    fn stop(&mut self, status: WaitStatus) -> Result<(), Errno> {
        match status {
            WaitStatus::PtraceEvent(tid, _, libc::PTRACE_EVENT_SECCOMP) => self.entry(tid),
            WaitStatus::PtraceSyscall(tid) => self.exit(tid),
            WaitStatus::PtraceEvent(
                tid,
                _,
                libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE,
            ) => self.new_task(tid),
            WaitStatus::PtraceEvent(tid, signal, libc::PTRACE_EVENT_STOP) => match signal {
                Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU => listen(tid),
                _ => self.resume(tid, None),
            },
            WaitStatus::PtraceEvent(tid, _, libc::PTRACE_EVENT_EXEC) => {
                // The thread that execs takes over the number of the first one.
                let former = Pid::from_raw(ptrace::getevent(tid)? as i32);
                if self.in_call.remove(&former) {
                    self.in_call.insert(tid);
                }
                for gone in [former, tid] {
                    let next = self.turns.ended(gone);
                    self.let_go(next);
                }
                self.turns.own(tid);
                self.resume(tid, None)
            }
            WaitStatus::PtraceEvent(tid, _, _) => self.resume(tid, None),
            WaitStatus::Stopped(tid, signal) => self.resume(tid, Some(signal)),
            _ => Ok(()),
        }
    }

    /// On to the exit of the call that it is in, or on at full speed.
    fn resume(&self, tid: Pid, signal: Option<Signal>) -> Result<(), Errno> {
        if self.in_call.contains(&tid) { ptrace::syscall(tid, signal) } else { ptrace::cont(tid, signal) }
    }

    fn entry(&mut self, tid: Pid) -> Result<(), Errno> {
        let info = ptrace::syscall_info(tid)?;
        // SAFETY: at a seccomp stop the kernel has filled in this member of the union.
        let (number, args) = unsafe { (info.u.seccomp.nr, info.u.seccomp.args) };
        let flags = match Call::from_x86_64(number) {
            Some(Call::Clone) => args[0],
            Some(Call::Clone3) => ptrace::read(tid, args[0] as ptrace::AddressType)? as u64,
            Some(Call::Vfork) => clone_flags::VM | clone_flags::VFORK,
            _ => 0,
        };
        self.flags.insert(tid, flags);
        if takes_turns(number, flags) && !self.turns.enters(tid) {
            self.held.insert(tid, (number, args));
            return Ok(());
        }
        self.start_call(tid, number, args)
    }

    fn exit(&mut self, tid: Pid) -> Result<(), Errno> {
        let info = ptrace::syscall_info(tid)?;
        self.in_call.remove(&tid);
        if info.op == libc::PTRACE_SYSCALL_INFO_EXIT {
            // SAFETY: at an exit stop the kernel has filled in this member of the union.
            let result = unsafe { info.u.exit.sval };
            let number = ptrace::getregs(tid)?.orig_rax;
            self.tell(tid, RawKind::Leave { number, result });
        }
        let next = self.turns.left(tid);
        self.let_go(next);
        ptrace::cont(tid, None)
    }

    fn new_task(&mut self, tid: Pid) -> Result<(), Errno> {
        let child_tid = ptrace::getevent(tid)? as u32;
        let flags = self.flags.get(&tid).copied().unwrap_or(0);
        self.tell(tid, RawKind::NewTask { child_tid, flags });
        let child = Pid::from_raw(child_tid as i32);
        if self.turns.made(tid, child, flags & clone_flags::VM != 0) && self.turns.enters(child) {
            self.let_go([child]);
        }
        self.resume(tid, None)
    }

    fn tell(&self, tid: Pid, kind: RawKind) {
        // The process is looked up by the assembler, which knows it from the thread's start.
        let raw = Raw { time_ns: now_ns(), pid: 0, tid: tid.as_raw() as u32, kind };
        // The collector may have failed already; its error is reported when it is joined.
        let _ = self.messages.send(Message::Raw(raw));
    }
}

/// Is it a call whose order among those of the same memory matters? Threads and programs that start change no mapping
/// of this memory, and may take long.
fn takes_turns(number: u64, flags: u64) -> bool {
    match Call::from_x86_64(number) {
        Some(
            Call::Madvise | Call::Mlock | Call::Mlock2 | Call::Munlock | Call::Mlockall | Call::Munlockall,
        ) => true,
        Some(call) if call.makes_task() => flags & clone_flags::VM == 0,
        Some(call) => call.changes_mappings(),
        None => false,
    }
}

/// Leaves a process that was stopped on purpose (by Ctrl-Z, say) in that state until it is continued.
fn listen(tid: Pid) -> Result<(), Errno> {
    // SAFETY: a request without data on a stopped thread that this one traces; no memory is passed.
    let outcome = unsafe { libc::ptrace(libc::PTRACE_LISTEN, tid.as_raw(), 0, 0) };
    Errno::result(outcome).map(drop)
}
