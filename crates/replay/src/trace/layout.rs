//! The mappings of each process, as far as the trace has shown them.
//!
//! No page tables and no policy, only the mapped ranges and their files. The recorder uses it to place
//! fault-around and `mlockall`, the tests to check that a trace explains all its faults.

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::ops::Range;

use super::{Call, Event, EventKind, FileId, ForkKind, Syscall};

mod accessed;
mod fit;

pub(super) use fit::reach;

pub(super) const PAGE: u64 = 4096;

const ENOMEM: i64 = -12;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// The file; `None` for anonymous memory.
    pub file: Option<FileId>,
    /// Offset into the file of `start`, in bytes.
    pub offset: u64,
    /// `PROT_*` bits.
    pub prot: u32,
}

/// How later mappings of an address space are locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FutureLock {
    /// As their own calls say.
    #[default]
    None,
    /// They are populated.
    Now,
    /// `MCL_ONFAULT`: no call populates them.
    OnFault,
}

/// The mappings of one address space.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    /// The mappings by start; they do not overlap.
    mappings: BTreeMap<u64, Mapping>,
    /// The program break, once a call has shown it.
    brk: Option<u64>,
    /// `mlockall(MCL_FUTURE)`.
    lock_future: FutureLock,
    /// Processes that share it.
    users: usize,
}

/// The mappings of every process. Feed it each event in order.
#[derive(Default)]
pub struct Layouts {
    spaces: HashMap<u32, Space>,
    /// The space of each process; several share one after a `vfork`.
    by_pid: HashMap<u32, u32>,
    next: u32,
}

impl Layouts {
    /// Applies an event.
    pub fn apply(&mut self, event: &Event) {
        let pid = event.pid;
        match &event.kind {
            EventKind::Exec { .. } => self.start(pid, Space::default()),
            EventKind::Fork { child_pid, kind: ForkKind::Copy, .. } => {
                let copy = self.space(pid).clone();
                self.start(*child_pid, Space { lock_future: FutureLock::None, ..copy });
            }
            EventKind::Fork { child_pid, kind: ForkKind::SharedMemory, .. } => {
                let parent = self.number(pid);
                if self.by_pid.get(child_pid) != Some(&parent) {
                    self.drop_process(*child_pid);
                    self.by_pid.insert(*child_pid, parent);
                    self.spaces.entry(parent).or_default().users += 1;
                }
            }
            EventKind::ProcessExit { .. } => self.drop_process(pid),
            EventKind::Map { .. } | EventKind::Syscall(_) => self.space(pid).apply(&event.kind),
            _ => {}
        }
    }

    /// The mapping that contains an address.
    pub fn find(&self, pid: u32, address: u64) -> Option<Mapping> {
        self.existing(pid)?.find(address)
    }

    /// All mappings of a process, by address.
    pub fn mappings(&self, pid: u32) -> impl Iterator<Item = Mapping> + '_ {
        self.existing(pid).into_iter().flat_map(|space| space.mappings.values().copied())
    }

    /// What `shmdt` of this address removes.
    pub fn attached(&self, pid: u32, address: u64) -> Vec<Range<u64>> {
        self.existing(pid).map_or_else(Vec::new, |space| space.attached(address))
    }

    /// Where the mapping of anonymous memory around an address begins. Neighbours of the same protection are
    /// one.
    pub fn start_of(&self, pid: u32, address: u64) -> Option<u64> {
        self.existing(pid)?.start_of(address)
    }

    /// How later mappings of a process are locked (`mlockall(MCL_FUTURE)`).
    pub fn future_lock(&self, pid: u32) -> FutureLock {
        self.existing(pid).map_or(FutureLock::None, |space| space.lock_future)
    }

    /// The program break of a process, once a call has shown it.
    pub fn program_break(&self, pid: u32) -> Option<u64> {
        self.existing(pid)?.brk
    }

    /// Whether the process shares its memory with another (a `vfork` child before its exec).
    pub fn shares_memory(&self, pid: u32) -> bool {
        self.existing(pid).is_some_and(|space| space.users > 1)
    }

    /// The number of a process's address space; numbers are never reused.
    pub fn number_of(&self, pid: u32) -> Option<u32> {
        self.by_pid.get(&pid).copied()
    }

    /// Whether any process has the address space with this number.
    pub fn is_alive(&self, number: u32) -> bool {
        self.spaces.contains_key(&number)
    }

    /// The mappings between two addresses of a process, by address, each cut to that range.
    pub fn mapped_in(&self, pid: u32, start: u64, end: u64) -> Vec<Mapping> {
        let Some(space) = self.existing(pid).filter(|_| start < end) else { return Vec::new() };
        let first = space.find(start).map_or(start, |mapping| mapping.start);
        let within = space.mappings.range(first..end).map(|(_, mapping)| *mapping);
        within
            .map(|mapping| {
                let cut = mapping.from(mapping.start.max(start));
                Mapping { end: cut.end.min(end), ..cut }
            })
            .collect()
    }

    /// The lowest mapping of a process above an address.
    pub fn next_above(&self, pid: u32, address: u64) -> Option<Mapping> {
        self.existing(pid)?.mappings.range(address..).next().map(|(_, mapping)| *mapping)
    }

    /// The number of a process's address space; makes one for a new process.
    pub(super) fn number(&mut self, pid: u32) -> u32 {
        if let Some(number) = self.by_pid.get(&pid) {
            return *number;
        }
        self.start(pid, Space::default());
        self.by_pid[&pid]
    }

    /// Replaces the state of an address space.
    pub(super) fn replace(&mut self, number: u32, space: Space) {
        self.spaces.insert(number, space);
    }

    fn existing(&self, pid: u32) -> Option<&Space> {
        self.spaces.get(self.by_pid.get(&pid)?)
    }

    /// The address space of a process, which several may share.
    pub(super) fn space(&mut self, pid: u32) -> &mut Space {
        let number = self.number(pid);
        self.spaces.entry(number).or_default()
    }

    fn start(&mut self, pid: u32, space: Space) {
        self.drop_process(pid);
        self.spaces.insert(self.next, Space { users: 1, ..space });
        self.by_pid.insert(pid, self.next);
        self.next += 1;
    }

    fn drop_process(&mut self, pid: u32) {
        let Some(number) = self.by_pid.remove(&pid) else { return };
        let Some(space) = self.spaces.get_mut(&number) else { return };
        space.users -= 1;
        if space.users == 0 {
            self.spaces.remove(&number);
        }
    }
}

impl Space {
    /// Applies an event of this address space.
    pub(super) fn apply(&mut self, event: &EventKind) {
        match event {
            EventKind::Map { start, len, prot, file, file_offset, .. } => {
                self.insert(*start, *len, *file, *file_offset, *prot);
            }
            EventKind::Syscall(call) if call.ok() => self.call(call),
            // It has changed the pages before the first hole.
            EventKind::Syscall(call) if call.call == Call::Mprotect && call.result == ENOMEM => {
                self.mprotect(call);
            }
            _ => {}
        }
    }

    /// The number of its mappings.
    pub(super) fn len(&self) -> usize {
        self.mappings.len()
    }

    fn find(&self, address: u64) -> Option<Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then_some(*mapping)
    }

    fn insert(&mut self, start: u64, len: u64, file: Option<FileId>, offset: u64, prot: u32) {
        let end = start.saturating_add(round_up(len));
        if start >= end {
            return;
        }
        self.remove(start, end);
        let offset = if file.is_some() { offset } else { 0 };
        let mut mapping = Mapping { start, end, file, offset, prot };
        // Merges neighbours; otherwise growing heaps and stacks would be thousands of mappings.
        if file.is_none()
            && let Some((_, before)) = self.mappings.range(..start).next_back()
            && before.end == start
            && (before.file, before.prot) == (None, prot)
        {
            mapping.start = before.start;
        }
        self.mappings.insert(mapping.start, mapping);
    }

    /// Removes the range; returns its mappings.
    fn remove(&mut self, start: u64, end: u64) -> Vec<Mapping> {
        let mut touched: Vec<Mapping> = Vec::new();
        if let Some((_, before)) = self.mappings.range(..start).next_back()
            && before.end > start
        {
            touched.push(*before);
        }
        if start < end {
            touched.extend(self.mappings.range(start..end).map(|(_, mapping)| *mapping));
        }
        for mapping in &mut touched {
            self.mappings.remove(&mapping.start);
            if mapping.start < start {
                self.mappings.insert(mapping.start, Mapping { end: start, ..*mapping });
                *mapping = mapping.from(start);
            }
            if mapping.end > end {
                self.mappings.insert(end, mapping.from(end));
                mapping.end = end;
            }
        }
        touched
    }

    fn call(&mut self, call: &Syscall) {
        let result = call.result as u64;
        let [first, second, third, ..] = call.args;
        match call.call {
            Call::Mmap => {
                const ANONYMOUS: u64 = 0x20;
                let offset = if call.args[3] & ANONYMOUS == 0 { call.args[5] } else { 0 };
                self.insert(result, mmap_length(call), call.file, offset, third as u32);
            }
            Call::Mprotect | Call::PkeyMprotect => self.mprotect(call),
            Call::Munmap => drop(self.remove(first, first.saturating_add(round_up(second)))),
            Call::Mremap => self.mremap(first, round_up(second), round_up(third), call.args[3], result),
            Call::Brk => self.set_break(result),
            Call::Shmdt => {
                for piece in self.attached(first) {
                    self.remove(piece.start, piece.end);
                }
            }
            Call::Mlockall => self.lock_future = FutureLock::of(first),
            Call::Munlockall => self.lock_future = FutureLock::None,
            _ => {}
        }
    }

    /// What `shmdt` removes: every piece of the segment that was attached at an address, as far from there as in
    /// the file. The first segment of a system has inode 0 and so no file here: its address alone finds it.
    pub(super) fn attached(&self, address: u64) -> Vec<Range<u64>> {
        let in_place = |piece: &&Mapping| piece.file.is_some() && piece.offset == piece.start - address;
        let mut pieces = self.mappings.range(address..).map(|(_, piece)| piece).filter(in_place);
        let Some(first) = pieces.next() else {
            return self.find(address).map(|mapping| mapping.start..mapping.end).into_iter().collect();
        };
        let of_segment = pieces.filter(|piece| piece.file == first.file);
        iter::once(first).chain(of_segment).map(|piece| piece.start..piece.end).collect()
    }

    fn mremap(&mut self, old: u64, old_len: u64, new_len: u64, flags: u64, new: u64) {
        const DONTUNMAP: u64 = 4;
        let mut moved = self.remove(old, old.saturating_add(old_len));
        if flags & DONTUNMAP != 0 {
            for mapping in &moved {
                self.mappings.insert(mapping.start, *mapping);
            }
        }
        if old_len == 0 {
            // A second mapping of the same shared pages.
            moved.extend(self.find(old).map(|mapping| mapping.from(old)));
        }
        // A range that keeps its length keeps its holes, one at its end too.
        if let Some(last) = moved.last_mut().filter(|_| new_len > old_len) {
            last.end = old.saturating_add(new_len.max(last.start - old));
        }
        for mapping in moved {
            let start = mapping.start - old;
            if start < new_len {
                let len = (mapping.end - mapping.start).min(new_len - start);
                self.insert(new.wrapping_add(start), len, mapping.file, mapping.offset, mapping.prot);
            }
        }
    }

    fn start_of(&self, address: u64) -> Option<u64> {
        let mapping = self.find(address)?;
        let below = self.mappings.range(..mapping.start).rev().map(|(_, below)| below);
        let joined = |start: u64, below: &Mapping| {
            let joins = below.end == start && (below.file, below.prot) == (mapping.file, mapping.prot);
            joins.then_some(below.start)
        };
        match mapping.file {
            Some(_) => Some(mapping.start),
            None => Some(
                below
                    .scan(mapping.start, |start, below| {
                        *start = joined(*start, below)?;
                        Some(*start)
                    })
                    .last()
                    .unwrap_or(mapping.start),
            ),
        }
    }

    fn mprotect(&mut self, call: &Syscall) {
        let [first, second, third, ..] = call.args;
        let start = self.start_of(first).filter(|_| protects_downwards(call)).unwrap_or(first);
        self.protect(start, (first - start).saturating_add(round_up(second)), third as u32 & !GROWS);
    }

    /// Changes the protection up to the first hole.
    fn protect(&mut self, start: u64, len: u64, prot: u32) {
        let end = start.saturating_add(len).min(self.mapped_until(start));
        for mapping in self.remove(start, end.max(start)) {
            self.mappings.insert(mapping.start, Mapping { prot, ..mapping });
        }
    }

    fn set_break(&mut self, to: u64) {
        if let Some(from) = self.brk {
            let (old, new) = (round_up(from), round_up(to));
            if new > old {
                self.insert(old, new - old, None, 0, READ_WRITE);
            } else {
                self.remove(new, old);
            }
        }
        self.brk = Some(to);
    }
}

impl FutureLock {
    /// After an `mlockall` with these flags.
    const fn of(flags: u64) -> FutureLock {
        const FUTURE: u64 = 2;
        const ONFAULT: u64 = 4;
        match (flags & FUTURE != 0, flags & ONFAULT != 0) {
            (false, _) => FutureLock::None,
            (true, false) => FutureLock::Now,
            (true, true) => FutureLock::OnFault,
        }
    }
}

impl Mapping {
    /// The part from an address on.
    fn from(self, start: u64) -> Mapping {
        let offset = if self.file.is_some() { self.offset.saturating_add(start - self.start) } else { 0 };
        Mapping { start, offset, ..self }
    }
}

/// Whether the call changes its mapping from the start on: `mprotect` of a stack with `PROT_GROWSDOWN`.
pub const fn protects_downwards(call: &Syscall) -> bool {
    matches!(call.call, Call::Mprotect | Call::PkeyMprotect) && call.args[2] & GROWS_DOWN != 0
}

/// The bytes that an `mmap` really maps: whole pages, of the huge size if it asks for those.
pub fn mmap_length(call: &Syscall) -> u64 {
    let [_, length, _, flags, ..] = call.args;
    match huge_bits(flags) {
        Some(bits) => length.checked_next_multiple_of(1 << bits).unwrap_or(length),
        None => round_up(length),
    }
}

/// Of a mapping with these flags that asks for huge pages (`MAP_HUGETLB`): their size as a power of two.
pub const fn huge_bits(flags: u64) -> Option<u64> {
    const HUGETLB: u64 = 0x4_0000;
    match flags >> 26 & 0x3f {
        _ if flags & HUGETLB == 0 => None,
        // The usual size.
        0 => Some(21),
        bits => Some(bits),
    }
}

fn round_up(length: u64) -> u64 {
    length.checked_next_multiple_of(PAGE).unwrap_or(!(PAGE - 1))
}

/// Bits of `mprotect` that say which addresses it changes, and their sum.
const GROWS_DOWN: u64 = 0x0100_0000;
const GROWS: u32 = 0x0300_0000;

/// The protection of the heap.
const READ_WRITE: u32 = 3;

#[cfg(test)]
mod tests;
