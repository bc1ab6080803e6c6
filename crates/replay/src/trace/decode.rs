//! Decodes bytes to events. `encode.rs` is the inverse.

use super::encode::{CALL_HAS_FILE, CALL_UNORDERED, PAGE_SHIFT, fault_bit, tag};
use super::wire::{Cursor, Malformed};
use super::{
    Access, Accesses, Call, Event, EventKind, FileId, ForkKind, MapCause, PATH_BYTES_MAX, PATH_MAX, PathId,
    PopulateCause, REGIONS_MAX, Region, Syscall, THREADS_MAX,
};

/// The reader's state between two events.
#[derive(Default)]
pub(super) struct Decoder {
    threads: Vec<Thread>,
    current: Option<usize>,
    last_ns: u64,
    paths: Vec<String>,
    path_bytes: usize,
    /// Whether the version of the format has [`EventKind::Accesses`].
    has_accesses: bool,
}

struct Thread {
    pid: u32,
    tid: u32,
    last_page: u64,
}

impl Decoder {
    pub(super) fn of(version: u16) -> Decoder {
        Decoder { has_accesses: version >= 5, ..Decoder::default() }
    }

    pub(super) fn path(&self, id: PathId) -> Option<&str> {
        self.paths.get(id.0 as usize).map(String::as_str)
    }

    pub(super) fn paths(&self) -> &[String] {
        &self.paths
    }

    /// The next entry; `None` for one that defines a path.
    pub(super) fn entry(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Event>, Malformed> {
        let first = cursor.byte()?;
        if first == tag::PATH {
            self.define_path(cursor)?;
            return Ok(None);
        }
        let thread = self.thread(first & tag::OTHER_THREAD != 0, cursor)?;
        let time_ns = self.last_ns.checked_add(cursor.varint()?).ok_or(Malformed)?;
        self.last_ns = time_ns;
        let kind = self.kind(first & !tag::OTHER_THREAD, time_ns, thread, cursor)?;
        let Thread { pid, tid, .. } = self.threads[thread];
        Ok(Some(Event { time_ns, pid, tid, kind }))
    }

    fn define_path(&mut self, cursor: &mut Cursor<'_>) -> Result<(), Malformed> {
        let path = cursor.string()?;
        self.path_bytes += path.len() + size_of::<String>();
        if path.len() > PATH_MAX || self.path_bytes > PATH_BYTES_MAX {
            return Err(Malformed);
        }
        self.paths.push(path);
        Ok(())
    }

    fn thread(&mut self, changes: bool, cursor: &mut Cursor<'_>) -> Result<usize, Malformed> {
        if !changes {
            return self.current.ok_or(Malformed);
        }
        let thread = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
        if thread == self.threads.len() && thread < THREADS_MAX {
            self.threads.push(Thread { pid: cursor.varint32()?, tid: cursor.varint32()?, last_page: 0 });
        } else if thread >= self.threads.len() {
            return Err(Malformed);
        }
        self.current = Some(thread);
        Ok(thread)
    }

    fn kind(
        &mut self,
        kind: u8,
        time_ns: u64,
        thread: usize,
        cursor: &mut Cursor<'_>,
    ) -> Result<EventKind, Malformed> {
        Ok(match kind {
            tag::EXEC => EventKind::Exec { name: self.path_id(cursor)? },
            tag::FORK => EventKind::Fork {
                child_pid: cursor.varint32()?,
                child_tid: cursor.varint32()?,
                flags: cursor.varint()?,
                kind: fork_kind(cursor.byte()?)?,
            },
            tag::THREAD_START => {
                EventKind::ThreadStart { creator_tid: cursor.varint32()?, flags: cursor.varint()? }
            }
            tag::THREAD_EXIT => EventKind::ThreadExit,
            tag::PROCESS_EXIT => EventKind::ProcessExit {
                minor_faults: optional(cursor)?,
                major_faults: optional(cursor)?,
                recorded_faults: cursor.varint()?,
            },
            tag::MAP => self.map(thread, cursor)?,
            tag::SYSCALL => EventKind::Syscall(self.syscall(time_ns, cursor)?),
            tag::FAULT => self.fault(thread, cursor)?,
            tag::FAULT_AROUND => {
                EventKind::FaultAround { start: self.address(thread, cursor)?, len: cursor.varint()? }
            }
            tag::POPULATE => EventKind::Populate {
                start: self.address(thread, cursor)?,
                len: cursor.varint()?,
                cause: populate_cause(cursor.byte()?)?,
            },
            tag::ACCESSES if self.has_accesses => EventKind::Accesses(self.accesses(thread, cursor)?),
            tag::LOST => EventKind::Lost { records: cursor.varint()? },
            _ => return Err(Malformed),
        })
    }

    fn map(&mut self, thread: usize, cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
        Ok(EventKind::Map {
            cause: map_cause(cursor.byte()?)?,
            start: self.address(thread, cursor)?,
            len: cursor.varint()?,
            prot: cursor.varint32()?,
            flags: cursor.varint32()?,
            file: if flag(cursor)? { Some(self.file_id(cursor)?) } else { None },
            file_offset: cursor.varint()?,
        })
    }

    /// Regions follow one another, and none goes beyond the last address.
    fn accesses(&mut self, thread: usize, cursor: &mut Cursor<'_>) -> Result<Accesses, Malformed> {
        let (sample_ns, samples) = (cursor.varint()?, cursor.varint32()?);
        let cost_ns = optional(cursor)?;
        let number = usize::try_from(cursor.varint()?).map_err(|_| Malformed)?;
        if number > REGIONS_MAX {
            return Err(Malformed);
        }
        let mut end = if number == 0 { 0 } else { self.address(thread, cursor)? };
        let mut region = || {
            let start = end.checked_add(cursor.varint()?).ok_or(Malformed)?;
            let len = cursor.varint()?;
            end = start.checked_add(len).ok_or(Malformed)?;
            Ok(Region { start, len, accessed: cursor.varint32()? })
        };
        let regions = (0..number).map(|_| region()).collect::<Result<_, _>>()?;
        Ok(Accesses { sample_ns, samples, cost_ns, regions })
    }

    fn fault(&mut self, thread: usize, cursor: &mut Cursor<'_>) -> Result<EventKind, Malformed> {
        let bits = cursor.byte()?;
        if bits & !fault_bit::ALL != 0 {
            return Err(Malformed);
        }
        let set = |bit: u8| bits & bit != 0;
        Ok(EventKind::Fault {
            addr: self.address(thread, cursor)?,
            access: access(bits & fault_bit::ACCESS),
            protection: set(fault_bit::PROTECTION),
            kernel_mode: set(fault_bit::KERNEL_MODE),
            major: set(fault_bit::MAJOR),
            duration_ns: if set(fault_bit::DURATION) { Some(cursor.varint()?) } else { None },
        })
    }

    fn syscall(&self, time_ns: u64, cursor: &mut Cursor<'_>) -> Result<Syscall, Malformed> {
        let call = Call::from_code(cursor.byte()?).ok_or(Malformed)?;
        let mask = cursor.byte()?;
        let mut args = [0; 6];
        for (index, argument) in args.iter_mut().enumerate() {
            if mask & (1 << index) != 0 {
                *argument = cursor.varint()?;
            }
        }
        Ok(Syscall {
            call,
            args,
            result: cursor.zigzag()?,
            enter_ns: time_ns.wrapping_sub(cursor.zigzag()? as u64),
            duration_ns: cursor.varint()?,
            file: if mask & CALL_HAS_FILE != 0 { Some(self.file_id(cursor)?) } else { None },
            unordered: mask & CALL_UNORDERED != 0,
        })
    }

    fn address(&mut self, thread: usize, cursor: &mut Cursor<'_>) -> Result<u64, Malformed> {
        let page = self.threads[thread].last_page.wrapping_add(cursor.zigzag()? as u64);
        let offset = cursor.varint()?;
        if page >> (64 - PAGE_SHIFT) != 0 || offset >> PAGE_SHIFT != 0 {
            return Err(Malformed);
        }
        self.threads[thread].last_page = page;
        Ok(page << PAGE_SHIFT | offset)
    }

    fn path_id(&self, cursor: &mut Cursor<'_>) -> Result<PathId, Malformed> {
        let id = PathId(cursor.varint32()?);
        if self.path(id).is_none() {
            return Err(Malformed);
        }
        Ok(id)
    }

    fn file_id(&self, cursor: &mut Cursor<'_>) -> Result<FileId, Malformed> {
        Ok(FileId { device: cursor.varint()?, inode: cursor.varint()?, path: self.path_id(cursor)? })
    }
}

fn flag(cursor: &mut Cursor<'_>) -> Result<bool, Malformed> {
    match cursor.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}

fn optional(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Malformed> {
    Ok(if flag(cursor)? { Some(cursor.varint()?) } else { None })
}

fn fork_kind(code: u8) -> Result<ForkKind, Malformed> {
    Ok(match code {
        0 => ForkKind::Copy,
        1 => ForkKind::SharedMemory,
        _ => return Err(Malformed),
    })
}

fn map_cause(code: u8) -> Result<MapCause, Malformed> {
    Ok(match code {
        0 => MapCause::ExecImage,
        1 => MapCause::ExecAnonymous,
        2 => MapCause::Stack,
        3 => MapCause::StackGrowth,
        4 => MapCause::Vdso,
        5 => MapCause::Other,
        6 => MapCause::Before,
        _ => return Err(Malformed),
    })
}

fn access(code: u8) -> Access {
    match code & 3 {
        0 => Access::Read,
        1 => Access::Write,
        2 => Access::Execute,
        _ => Access::Unknown,
    }
}

fn populate_cause(code: u8) -> Result<PopulateCause, Malformed> {
    Ok(match code {
        0 => PopulateCause::MapPopulate,
        1 => PopulateCause::MapLocked,
        2 => PopulateCause::Mlock,
        3 => PopulateCause::PopulateRead,
        4 => PopulateCause::PopulateWrite,
        5 => PopulateCause::BeforeRead,
        6 => PopulateCause::BeforeWritten,
        _ => return Err(Malformed),
    })
}
