//! Builds the events of a trace, in order of time, from the kernel's records.

mod calls;
mod emit;
mod existing;
mod known;
mod tasks;
mod waiting;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::queue::{Draft, DraftKind, Key, Queue};
use super::raw::{Mapping, Raw, RawKind};
use super::summary::Summary;
use crate::trace::{Access, Call, EventKind, FileId, Layouts, MapCause, TraceError, TraceWriter};
use known::Known;
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

/// Assembles a recording and writes it.
pub(super) struct Assembler {
    writer: TraceWriter,
    /// Records that are not ordered yet.
    inbox: BinaryHeap<Reverse<Waiting>>,
    sequence: u64,
    queue: Queue,
    threads: HashMap<u32, Thread>,
    processes: HashMap<u32, Process>,
    /// Forks whose flags have not arrived, by the creating thread.
    unfinished_forks: HashMap<u32, UnfinishedFork>,
    /// Threads that are inside memory calls, by memory.
    inside: HashMap<u32, HashSet<u32>>,
    /// Faults that the kernel counted, by process: minor, major.
    counted: HashMap<u32, (u64, u64)>,
    layouts: Layouts,
    /// Files that were mapped, by device and inode.
    files: HashMap<(u64, u64), FileId>,
    known: Known,
    summary: Summary,
    last_ns: u64,
    /// The program has started.
    started: bool,
    /// The recording attaches to processes that run, and knows them by their state at that time.
    attaches: bool,
}

#[derive(Default)]
struct Thread {
    pid: u32,
    call: Option<PendingCall>,
    fault: Option<PendingFault>,
    /// Between the moment at which `execve` drops the old memory and its return.
    in_exec: bool,
}

struct PendingCall {
    key: Key,
    /// The kernel's number for it, which depends on the program's architecture.
    number: u64,
    call: Call,
    args: [u64; 6],
    file: Option<FileId>,
    /// The section in which it held the lock of its address space for writing.
    section: Option<Section>,
    /// Another moment under that lock: a record of a mapping that it made, or of the lock taken for reading
    /// to discard pages.
    shown: Option<Key>,
    /// Whether another thread was inside a call of the same memory meanwhile.
    beside_others: bool,
    /// The file from which it took the first page, by device and inode.
    cut: Option<(u64, u64)>,
    /// The start of the mapping that `shmat` made.
    attached: Option<u64>,
}

/// The part of a call in which it held its address space's lock for writing.
struct Section {
    /// The kernel's number of the address space.
    mm: u64,
    /// A moment at its end: the thread releases or has downgraded the lock.
    end: Key,
}

/// A fork whose flags have not arrived.
struct UnfinishedFork {
    key: Key,
    parent: u32,
    child: u32,
    child_tid: u32,
}

/// A fault that is not resolved yet.
struct PendingFault {
    key: Key,
    addr: u64,
    access: Access,
    protection: bool,
    kernel_mode: bool,
    /// Pages that fault-around mapped; their events follow it.
    around: Vec<DraftKind>,
}

#[derive(Default)]
struct Process {
    threads: HashSet<u32>,
    resolved: u64,
    /// The process whose memory it shares, if not its own.
    shares_with: Option<u32>,
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
            inside: HashMap::new(),
            counted: HashMap::new(),
            layouts: Layouts::default(),
            files: HashMap::new(),
            known: Known::default(),
            summary: Summary::default(),
            last_ns: 0,
            started: false,
            attaches: false,
        }
    }

    /// Of processes that run before the recording; each is known from its [`RawKind::Existing`] on.
    pub(super) fn attached(writer: TraceWriter) -> Assembler {
        Assembler { started: true, attaches: true, ..Assembler::new(writer) }
    }

    /// Records that are not ordered yet.
    pub(super) fn waiting(&self) -> usize {
        self.inbox.len()
    }

    /// Takes a record of the kernel. The order does not matter until [`Assembler::advance`] reaches its time.
    pub(super) fn push(&mut self, raw: Raw) {
        self.sequence += 1;
        self.inbox.push(Reverse(Waiting { key: (raw.time_ns, self.sequence), raw }));
    }

    /// The kernel's own count of a process's faults.
    pub(super) fn counted(&mut self, pid: u32, minor: u64, major: u64) {
        self.counted.insert(pid, (minor, major));
    }

    /// Writes all that is complete up to the horizon; no earlier record will be pushed.
    pub(super) fn advance(&mut self, horizon_ns: u64) -> Result<(), TraceError> {
        while self.inbox.peek().is_some_and(|Reverse(waiting)| waiting.key.0 <= horizon_ns) {
            if let Some(Reverse(Waiting { key: (time, sequence), raw })) = self.inbox.pop() {
                self.take((time, sequence, 0), raw);
            }
        }
        while let Some((key, draft)) = self.queue.pop(horizon_ns) {
            self.emit(key.0, draft)?;
        }
        Ok(())
    }

    /// Writes the rest up to the end.
    ///
    /// Later records are left out, whenever they were read: the rings are read one after the other, so the
    /// child's first fault may have been read before the end was known, and the fork only after it.
    pub(super) fn finish(mut self, end_ns: u64) -> Result<(TraceWriter, Summary), TraceError> {
        self.advance(end_ns)?;
        self.queue.release_all();
        self.advance(end_ns)?;
        Ok((self.writer, self.summary))
    }

    fn take(&mut self, key: Key, raw: Raw) {
        let Raw { mut pid, tid, kind, .. } = raw;
        // Before the process runs the program, it is the recorder's, and for example searches PATH.
        self.started |= matches!(kind, RawKind::Comm { exec: true, .. });
        if !self.started {
            return;
        }
        let is_known = || self.processes.contains_key(&pid);
        if self.attaches && !matches!(kind, RawKind::Existing(_) | RawKind::Lost { .. }) && !is_known() {
            return;
        }
        if pid == 0 {
            // The user tier's calls carry only a thread.
            pid = self.threads.get(&tid).map_or(tid, |thread| thread.pid);
        }
        match kind {
            RawKind::Comm { exec: true, name } => self.exec(key, pid, tid, &name),
            RawKind::Comm { .. } => {}
            RawKind::Fork { child_pid, child_tid } => self.fork(key, (pid, tid), (child_pid, child_tid)),
            RawKind::NewTask { flags } => self.new_task(tid, flags),
            RawKind::Exit => self.exit(key, pid, tid),
            RawKind::Mapping(mapping) => self.mapping(key, pid, tid, &mapping),
            RawKind::Enter { number, call, args } => self.enter(key, pid, tid, (number, call), args),
            RawKind::Leave { number, result } => self.leave(key, pid, tid, number, result),
            RawKind::Fault { addr, error_code, kernel_mode } => {
                self.fault(key, (pid, tid), addr, error_code, kernel_mode);
            }
            RawKind::Resolved { addr, major } => self.resolved(key, pid, tid, addr, major),
            RawKind::MapPages { device, inode, first, last } => {
                // Without a fault it belongs to a populating call, which has its own event.
                if let Some(fault) = &mut self.thread(pid, tid).fault {
                    fault.around.push(DraftKind::Around { addr: fault.addr, device, inode, first, last });
                }
            }
            RawKind::Dropped { device, inode } => self.dropped(key, pid, tid, (device, inode)),
            RawKind::Locked { mm } => self.shares_lock(key, pid, tid, mm),
            RawKind::Unlocked { mm } => self.unlocked(key, pid, tid, mm),
            RawKind::Accesses(accesses) => {
                // Any thread that lives tells the process.
                let threads = self.processes.get(&pid).map(|process| &process.threads);
                let first = |threads: &HashSet<u32>| threads.get(&pid).or(threads.iter().min()).copied();
                let tid = threads.and_then(first).unwrap_or(tid);
                self.put(key, pid, tid, EventKind::Accesses(*accesses));
            }
            RawKind::Lost { records } => self.put(key, pid, tid, EventKind::Lost { records }),
            RawKind::Existing(existing) => self.existing(key, pid, *existing),
        }
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

    /// The thread did something else, so its fault was not resolved: it got a signal.
    fn give_up_fault(&mut self, pid: u32, tid: u32) {
        if let Some(fault) = self.thread(pid, tid).fault.take() {
            self.put_fault(fault.key, pid, tid, fault, None);
        }
    }

    fn forget_thread(&mut self, tid: u32) {
        if let Some(Thread { pid, call, fault, .. }) = self.threads.remove(&tid) {
            call.iter().for_each(|call| self.end_call(call, pid, tid));
            fault.into_iter().for_each(|fault| self.put_fault(fault.key, pid, tid, fault, None));
        }
    }

    /// The process whose memory this one uses.
    fn memory(&self, pid: u32) -> u32 {
        self.processes.get(&pid).and_then(|process| process.shares_with).unwrap_or(pid)
    }

    fn mapping(&mut self, key: Key, pid: u32, tid: u32, mapping: &Mapping) {
        let file = self.file_of(mapping);
        let thread = self.thread(pid, tid);
        let cause = if thread.in_exec {
            exec_cause(mapping)
        } else if thread.fault.is_some() || mapping.name == "[stack]" {
            MapCause::StackGrowth
        } else if let Some(call) = &mut thread.call {
            match call.call {
                // No event of their own shows the mapping of these calls.
                Call::Shmat | Call::RemapFilePages => {
                    call.attached = Some(mapping.start);
                    MapCause::Other
                }
                _ => {
                    if call.call == Call::Mmap {
                        call.file = file;
                    }
                    call.shown = Some(key);
                    return;
                }
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
        self.put(key, pid, tid, kind);
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
        self.queue.hold(key);
        let around = Vec::new();
        let fault = PendingFault { key, addr, access, protection, kernel_mode, around };
        self.thread(pid, tid).fault = Some(fault);
    }

    /// Places a fault where it was resolved: the kernel reports that under the lock of its mapping, so it is
    /// before or after every change of that mapping. An unresolved fault is placed where it was taken.
    fn put_fault(&mut self, at: Key, pid: u32, tid: u32, fault: PendingFault, resolved: Option<bool>) {
        let PendingFault { key, addr, access, protection, kernel_mode, around } = fault;
        self.queue.release(key);
        let (time, sequence, rank) = at;
        let duration_ns = resolved.map(|_| time.saturating_sub(key.0));
        let major = resolved.unwrap_or(false);
        let kind = EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns };
        self.put(at, pid, tid, kind);
        for (kind, behind) in around.into_iter().zip(1..) {
            self.queue.put((time, sequence, rank + behind), Draft { pid, tid, kind });
        }
    }

    fn resolved(&mut self, key: Key, pid: u32, tid: u32, addr: u64, is_major: bool) {
        self.processes.entry(pid).or_default().resolved += 1;
        let pending = self.thread(pid, tid).fault.take();
        if let Some(fault) = pending {
            if fault.addr / PAGE == addr / PAGE {
                return self.put_fault(key, pid, tid, fault, Some(is_major));
            }
            self.put_fault(fault.key, pid, tid, fault, None);
        }
        // The user tier sees a fault only here.
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

/// The purpose of a mapping that `execve` makes.
fn exec_cause(mapping: &Mapping) -> MapCause {
    match mapping.name.as_str() {
        "[stack]" => MapCause::Stack,
        "[vdso]" | "[vsyscall]" => MapCause::Vdso,
        name if name.starts_with("[vvar") => MapCause::Vdso,
        _ if mapping.is_file() => MapCause::ExecImage,
        _ => MapCause::ExecAnonymous,
    }
}

#[cfg(test)]
mod tests;
