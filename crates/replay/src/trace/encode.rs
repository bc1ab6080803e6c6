//! Encodes events as bytes. `decode.rs` is the inverse.

use std::collections::HashMap;

use super::wire::Sink;
use super::{Access, Accesses, Event, EventKind, FileId, ForkKind, MapCause, PathId, PopulateCause, Syscall};

/// The kind of an entry, in the low five bits of its first byte.
pub(super) mod tag {
    pub(crate) const EXEC: u8 = 0;
    pub(crate) const FORK: u8 = 1;
    pub(crate) const THREAD_START: u8 = 2;
    pub(crate) const THREAD_EXIT: u8 = 3;
    pub(crate) const PROCESS_EXIT: u8 = 4;
    pub(crate) const MAP: u8 = 5;
    pub(crate) const SYSCALL: u8 = 6;
    pub(crate) const FAULT: u8 = 7;
    pub(crate) const FAULT_AROUND: u8 = 8;
    pub(crate) const POPULATE: u8 = 9;
    pub(crate) const LOST: u8 = 10;
    pub(crate) const ACCESSES: u8 = 11;
    pub(crate) const PATH: u8 = 31;
    /// Set when the event's thread differs from that of the event before.
    pub(crate) const OTHER_THREAD: u8 = 0x80;
}

/// Bits of a fault's second byte.
pub(super) mod fault_bit {
    pub(crate) const ACCESS: u8 = 0b11;
    pub(crate) const PROTECTION: u8 = 1 << 2;
    pub(crate) const KERNEL_MODE: u8 = 1 << 3;
    pub(crate) const MAJOR: u8 = 1 << 4;
    pub(crate) const DURATION: u8 = 1 << 5;
    pub(crate) const ALL: u8 = 0x3f;
}

/// Bit of a call's argument mask: a file follows.
pub(super) const CALL_HAS_FILE: u8 = 1 << 6;

/// Bit of the same mask: the call's place is not known.
pub(super) const CALL_UNORDERED: u8 = 1 << 7;

/// Addresses are coded as a difference of pages and an offset into the page.
pub(super) const PAGE_SHIFT: u32 = 12;

/// The writer's state between two events.
#[derive(Default)]
pub(super) struct Encoder {
    threads: HashMap<(u32, u32), usize>,
    /// Page of the last address, per thread.
    last_page: Vec<u64>,
    current: Option<usize>,
    last_ns: u64,
}

impl Encoder {
    pub(super) fn last_ns(&self) -> u64 {
        self.last_ns
    }

    pub(super) fn threads(&self) -> usize {
        self.threads.len()
    }

    pub(super) fn path(&self, path: &str, sink: &mut Sink) {
        sink.byte(tag::PATH);
        sink.string(path);
    }

    pub(super) fn event(&mut self, event: &Event, sink: &mut Sink) {
        let thread = self.head(event, sink);
        match &event.kind {
            EventKind::Exec { name } => path(*name, sink),
            EventKind::Fork { child_pid, child_tid, flags, kind } => {
                sink.varint(u64::from(*child_pid));
                sink.varint(u64::from(*child_tid));
                sink.varint(*flags);
                sink.byte(fork_code(*kind));
            }
            EventKind::ThreadStart { creator_tid, flags } => {
                sink.varint(u64::from(*creator_tid));
                sink.varint(*flags);
            }
            EventKind::ThreadExit => {}
            EventKind::ProcessExit { minor_faults, major_faults, recorded_faults } => {
                optional(*minor_faults, sink);
                optional(*major_faults, sink);
                sink.varint(*recorded_faults);
            }
            EventKind::Map { cause, start, len, prot, flags, file, file_offset } => {
                sink.byte(map_code(*cause));
                self.address(thread, *start, sink);
                sink.varint(*len);
                sink.varint(u64::from(*prot));
                sink.varint(u64::from(*flags));
                sink.byte(u8::from(file.is_some()));
                if let Some(file) = file {
                    file_id(file, sink);
                }
                sink.varint(*file_offset);
            }
            EventKind::Syscall(call) => syscall(event.time_ns, call, sink),
            EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns } => {
                let mut bits = access_code(*access);
                let mut flag = |set: bool, bit: u8| bits |= if set { bit } else { 0 };
                flag(*protection, fault_bit::PROTECTION);
                flag(*kernel_mode, fault_bit::KERNEL_MODE);
                flag(*major, fault_bit::MAJOR);
                flag(duration_ns.is_some(), fault_bit::DURATION);
                sink.byte(bits);
                self.address(thread, *addr, sink);
                if let Some(duration) = duration_ns {
                    sink.varint(*duration);
                }
            }
            EventKind::FaultAround { start, len } => {
                self.address(thread, *start, sink);
                sink.varint(*len);
            }
            EventKind::Populate { start, len, cause } => {
                self.address(thread, *start, sink);
                sink.varint(*len);
                sink.byte(populate_code(*cause));
            }
            EventKind::Accesses(accesses) => self.accesses(thread, accesses, sink),
            EventKind::Lost { records } => sink.varint(*records),
        }
    }

    /// First byte, thread if it changed, time since the last event. Returns the thread's number.
    fn head(&mut self, event: &Event, sink: &mut Sink) -> usize {
        let key = (event.pid, event.tid);
        let next = self.threads.len();
        let thread = *self.threads.entry(key).or_insert(next);
        let kind = kind_tag(&event.kind);
        if self.current == Some(thread) {
            sink.byte(kind);
        } else {
            sink.byte(kind | tag::OTHER_THREAD);
            sink.varint(thread as u64);
            if thread == next {
                sink.varint(u64::from(event.pid));
                sink.varint(u64::from(event.tid));
                self.last_page.push(0);
            }
            self.current = Some(thread);
        }
        sink.varint(event.time_ns - self.last_ns);
        self.last_ns = event.time_ns;
        thread
    }

    /// Each region begins so many bytes behind the one before.
    fn accesses(&mut self, thread: usize, accesses: &Accesses, sink: &mut Sink) {
        sink.varint(accesses.sample_ns);
        sink.varint(u64::from(accesses.samples));
        optional(accesses.cost_ns, sink);
        sink.varint(accesses.regions.len() as u64);
        let Some(first) = accesses.regions.first() else { return };
        self.address(thread, first.start, sink);
        let mut end = first.start;
        for region in &accesses.regions {
            sink.varint(region.start.wrapping_sub(end));
            sink.varint(region.len);
            sink.varint(u64::from(region.accessed));
            end = region.end();
        }
    }

    fn address(&mut self, thread: usize, address: u64, sink: &mut Sink) {
        let page = address >> PAGE_SHIFT;
        sink.zigzag(page.wrapping_sub(self.last_page[thread]) as i64);
        sink.varint(address & ((1 << PAGE_SHIFT) - 1));
        self.last_page[thread] = page;
    }
}

fn kind_tag(kind: &EventKind) -> u8 {
    match kind {
        EventKind::Exec { .. } => tag::EXEC,
        EventKind::Fork { .. } => tag::FORK,
        EventKind::ThreadStart { .. } => tag::THREAD_START,
        EventKind::ThreadExit => tag::THREAD_EXIT,
        EventKind::ProcessExit { .. } => tag::PROCESS_EXIT,
        EventKind::Map { .. } => tag::MAP,
        EventKind::Syscall(_) => tag::SYSCALL,
        EventKind::Fault { .. } => tag::FAULT,
        EventKind::FaultAround { .. } => tag::FAULT_AROUND,
        EventKind::Populate { .. } => tag::POPULATE,
        EventKind::Accesses(_) => tag::ACCESSES,
        EventKind::Lost { .. } => tag::LOST,
    }
}

fn syscall(time_ns: u64, call: &Syscall, sink: &mut Sink) {
    sink.byte(call.call.code());
    let mut mask = if call.file.is_some() { CALL_HAS_FILE } else { 0 };
    if call.unordered {
        mask |= CALL_UNORDERED;
    }
    for (index, argument) in call.args.iter().enumerate() {
        mask |= u8::from(*argument != 0) << index;
    }
    sink.byte(mask);
    for argument in call.args.iter().filter(|argument| **argument != 0) {
        sink.varint(*argument);
    }
    sink.zigzag(call.result);
    sink.zigzag(time_ns.wrapping_sub(call.enter_ns) as i64);
    sink.varint(call.duration_ns);
    if let Some(file) = &call.file {
        file_id(file, sink);
    }
}

fn path(id: PathId, sink: &mut Sink) {
    sink.varint(u64::from(id.0));
}

fn file_id(file: &FileId, sink: &mut Sink) {
    sink.varint(file.device);
    sink.varint(file.inode);
    path(file.path, sink);
}

fn optional(value: Option<u64>, sink: &mut Sink) {
    sink.byte(u8::from(value.is_some()));
    if let Some(value) = value {
        sink.varint(value);
    }
}

fn fork_code(kind: ForkKind) -> u8 {
    match kind {
        ForkKind::Copy => 0,
        ForkKind::SharedMemory => 1,
    }
}

fn map_code(cause: MapCause) -> u8 {
    match cause {
        MapCause::ExecImage => 0,
        MapCause::ExecAnonymous => 1,
        MapCause::Stack => 2,
        MapCause::StackGrowth => 3,
        MapCause::Vdso => 4,
        MapCause::Other => 5,
        MapCause::Before => 6,
    }
}

fn access_code(access: Access) -> u8 {
    match access {
        Access::Read => 0,
        Access::Write => 1,
        Access::Execute => 2,
        Access::Unknown => 3,
    }
}

fn populate_code(cause: PopulateCause) -> u8 {
    match cause {
        PopulateCause::MapPopulate => 0,
        PopulateCause::MapLocked => 1,
        PopulateCause::Mlock => 2,
        PopulateCause::PopulateRead => 3,
        PopulateCause::PopulateWrite => 4,
        PopulateCause::BeforeRead => 5,
        PopulateCause::BeforeWritten => 6,
    }
}
