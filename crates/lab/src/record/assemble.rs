//! From what the kernel told, in the order of time, to the events of a trace.

mod calls;
mod emit;
mod tasks;
mod waiting;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::queue::{Draft, DraftKind, Key, Queue};
use super::raw::{Mapping, Raw, RawKind};
use super::summary::Summary;
use crate::trace::{Access, Call, EventKind, FileId, Layouts, MapCause, TraceError, TraceWriter};
use waiting::Waiting;

const PAGE: u64 = 4096;

/// Bits of the processor's error code.
mod error_code {
    pub(super) const PROTECTION: u64 = 1;
    pub(super) const WRITE: u64 = 2;
    pub(super) const FETCH: u64 = 16;
}

const MAP_ANONYMOUS: u32 = 0x20;
const MAP_GROWSDOWN: u32 = 0x100;

/// Puts a recording together and writes it.
pub(super) struct Assembler {
    writer: TraceWriter,
    /// Not in order yet.
    inbox: BinaryHeap<Reverse<Waiting>>,
    sequence: u64,
    queue: Queue,
    threads: HashMap<u32, Thread>,
    processes: HashMap<u32, Process>,
    /// Forks whose flags have not come yet, by the new thread.
    unfinished_forks: HashMap<u32, Key>,
    /// Faults that the kernel counted, by process: minor, major.
    counted: HashMap<u32, (u64, u64)>,
    layouts: Layouts,
    summary: Summary,
    last_ns: u64,
    /// The program has started.
    started: bool,
}

#[derive(Default)]
struct Thread {
    pid: u32,
    call: Option<PendingCall>,
    fault: Option<PendingFault>,
    /// Between the moment that `execve` has thrown away the old memory and its return.
    in_exec: bool,
}

struct PendingCall {
    key: Key,
    /// The kernel's number for it, which depends on the program's architecture.
    number: u64,
    call: Call,
    args: [u64; 6],
    file: Option<FileId>,
    /// Where the mapping starts that `shmat` made.
    mapped: Option<u64>,
}

struct PendingFault {
    key: Key,
    addr: u64,
}

#[derive(Default)]
struct Process {
    threads: HashSet<u32>,
    resolved: u64,
    /// The program break after the last call; 0 until one has told it.
    program_break: u64,
}

impl Assembler {
    pub(super) fn new(writer: TraceWriter) -> Assembler {
        Assembler {
            writer,
            inbox: BinaryHeap::new(),
            sequence: 0,
            queue: Queue::default(),
            threads: HashMap::new(),
            processes: HashMap::new(),
            unfinished_forks: HashMap::new(),
            counted: HashMap::new(),
            layouts: Layouts::default(),
            summary: Summary::default(),
            last_ns: 0,
            started: false,
        }
    }

    /// Takes something the kernel told; the order does not matter until [`Assembler::advance`] reaches its time.
    pub(super) fn push(&mut self, raw: Raw) {
        self.sequence += 1;
        self.inbox.push(Reverse(Waiting { key: (raw.time_ns, self.sequence), raw }));
    }

    /// The kernel's own count of a process's faults.
    pub(super) fn counted(&mut self, pid: u32, minor: u64, major: u64) {
        self.counted.insert(pid, (minor, major));
    }

    /// Nothing before the horizon will be pushed any more: writes all that is complete up to there.
    pub(super) fn advance(&mut self, horizon_ns: u64) -> Result<(), TraceError> {
        while self.inbox.peek().is_some_and(|Reverse(waiting)| waiting.key.0 <= horizon_ns) {
            if let Some(Reverse(Waiting { key: (time, sequence), raw })) = self.inbox.pop() {
                self.take((time, sequence, 0), raw)?;
            }
        }
        while let Some((key, draft)) = self.queue.pop(horizon_ns) {
            self.emit(key.0, draft)?;
        }
        Ok(())
    }

    /// Writes the rest.
    pub(super) fn finish(mut self) -> Result<(TraceWriter, Summary), TraceError> {
        self.advance(u64::MAX)?;
        self.queue.release_all();
        self.advance(u64::MAX)?;
        Ok((self.writer, self.summary))
    }

    fn take(&mut self, key: Key, raw: Raw) -> Result<(), TraceError> {
        let Raw { mut pid, tid, kind, .. } = raw;
        // Before it is the program, the process is the recorder's: looking for the program along PATH, say.
        self.started |= matches!(kind, RawKind::Comm { exec: true, .. });
        if !self.started {
            return Ok(());
        }
        if pid == 0 {
            // The user tier's calls come with a thread only.
            pid = self.threads.get(&tid).map_or(tid, |thread| thread.pid);
        }
        match kind {
            RawKind::Comm { exec: true, name } => self.exec(key, pid, tid, &name)?,
            RawKind::Comm { .. } => {}
            RawKind::Fork { child_pid, child_tid } => self.fork(key, (pid, tid), (child_pid, child_tid)),
            RawKind::NewTask { child_tid, flags } => self.new_task(child_tid, flags),
            RawKind::Exit => self.exit(key, pid, tid),
            RawKind::Mapping(mapping) => self.mapping(key, pid, tid, &mapping)?,
            RawKind::Enter { number, call, args } => self.enter(key, pid, tid, (number, call), args),
            RawKind::Leave { number, result } => self.leave(key, pid, tid, number, result),
            RawKind::Fault { addr, error_code, kernel_mode } => {
                self.fault(key, (pid, tid), addr, error_code, kernel_mode);
            }
            RawKind::Resolved { addr, major } => self.resolved(key, pid, tid, addr, major),
            RawKind::MapPages { device, inode, first, last } => {
                // Without a fault it is part of a populating call, which has an event of its own.
                if let Some(fault) = &self.thread(pid, tid).fault {
                    let kind = DraftKind::Around { addr: fault.addr, device, inode, first, last };
                    self.queue.put(key, Draft { pid, tid, kind });
                }
            }
            RawKind::Lost { records } => self.put(key, pid, tid, EventKind::Lost { records }),
        }
        Ok(())
    }

    fn put(&mut self, key: Key, pid: u32, tid: u32, kind: EventKind) {
        self.queue.put(key, Draft { pid, tid, kind: DraftKind::Event(kind) });
    }

    fn thread(&mut self, pid: u32, tid: u32) -> &mut Thread {
        self.threads.entry(tid).or_insert_with(|| {
            self.processes.entry(pid).or_default().threads.insert(tid);
            Thread { pid, ..Thread::default() }
        })
    }

    /// The thread did something else: a fault it had was not resolved, it got a signal.
    fn give_up_fault(&mut self, pid: u32, tid: u32) {
        if let Some(fault) = self.thread(pid, tid).fault.take() {
            self.queue.release(fault.key);
        }
    }

    fn forget_thread(&mut self, tid: u32) {
        if let Some(thread) = self.threads.remove(&tid) {
            thread.call.iter().for_each(|call| self.queue.release(call.key));
            thread.fault.iter().for_each(|fault| self.queue.release(fault.key));
        }
    }

    fn mapping(&mut self, key: Key, pid: u32, tid: u32, mapping: &Mapping) -> Result<(), TraceError> {
        let file = match mapping.is_file() {
            true => {
                let path = self.writer.path(&mapping.name)?;
                Some(FileId { device: mapping.device, inode: mapping.inode, path })
            }
            false => None,
        };
        let thread = self.thread(pid, tid);
        let growing = thread.fault.as_ref().map(|fault| fault.key);
        let cause = if thread.in_exec {
            exec_cause(mapping)
        } else if growing.is_some() || mapping.name == "[stack]" {
            MapCause::StackGrowth
        } else if let Some(call) = &mut thread.call {
            match call.call {
                // These have no event of their own that says what they map.
                Call::Shmat | Call::RemapFilePages => {
                    call.mapped = Some(mapping.start);
                    MapCause::Other
                }
                Call::Mmap => {
                    call.file = file;
                    return Ok(());
                }
                _ => return Ok(()),
            }
        } else {
            MapCause::Other
        };
        let mut flags = mapping.flags;
        if file.is_none() {
            flags |= MAP_ANONYMOUS;
        }
        if matches!(cause, MapCause::Stack | MapCause::StackGrowth) {
            flags |= MAP_GROWSDOWN;
        }
        let Mapping { start, len, prot, offset: file_offset, .. } = *mapping;
        let kind = EventKind::Map { cause, start, len, prot, flags, file, file_offset };
        let draft = Draft { pid, tid, kind: DraftKind::Event(kind) };
        match growing {
            Some(fault) => self.queue.put_before(fault, draft),
            None => self.queue.put(key, draft),
        }
        Ok(())
    }

    fn fault(&mut self, key: Key, (pid, tid): (u32, u32), addr: u64, error_code: u64, kernel_mode: bool) {
        self.give_up_fault(pid, tid);
        let access = if error_code & error_code::FETCH != 0 {
            Access::Execute
        } else if error_code & error_code::WRITE != 0 {
            Access::Write
        } else {
            Access::Read
        };
        let protection = error_code & error_code::PROTECTION != 0;
        let kind =
            EventKind::Fault { addr, access, protection, kernel_mode, major: false, duration_ns: None };
        self.put(key, pid, tid, kind);
        self.queue.hold(key);
        self.thread(pid, tid).fault = Some(PendingFault { key, addr });
    }

    fn resolved(&mut self, key: Key, pid: u32, tid: u32, addr: u64, is_major: bool) {
        self.processes.entry(pid).or_default().resolved += 1;
        let pending = self.thread(pid, tid).fault.take();
        if let Some(fault) = pending {
            self.queue.release(fault.key);
            if fault.addr / PAGE == addr / PAGE {
                if let Some(EventKind::Fault { major, duration_ns, .. }) = self.queue.kind_mut(fault.key) {
                    *major = is_major;
                    *duration_ns = Some(key.0.saturating_sub(fault.key.0));
                }
                return;
            }
        }
        // The user tier sees faults only now.
        let kind = EventKind::Fault {
            addr,
            access: Access::Unknown,
            protection: false,
            kernel_mode: false,
            major: is_major,
            duration_ns: None,
        };
        self.put(key, pid, tid, kind);
    }
}

/// What a mapping that `execve` makes is for.
fn exec_cause(mapping: &Mapping) -> MapCause {
    match mapping.name.as_str() {
        "[stack]" => MapCause::Stack,
        "[vdso]" | "[vsyscall]" => MapCause::Vdso,
        name if name.starts_with("[vvar") => MapCause::Vdso,
        _ if mapping.is_file() => MapCause::ExecImage,
        _ => MapCause::ExecAnonymous,
    }
}
