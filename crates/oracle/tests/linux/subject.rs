//! Linux as a subject: a child process for each address space.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use oracle::machine::STACK_LIMIT;
use oracle::ops::WINDOW;
use oracle::space::{
    Advice, Kind, Map, PAGE, PROBE_OFFSETS, Placement, Prot, Remap, Rules, SpaceId, Vma, file_word,
};
use oracle::subject::{Actor, Resident, Subject};
use quire::error::{FaultError, MmError};

use crate::child::{Child, Order, SLOTS, memfd};
use crate::errno::{fault_error, verb_error};
use crate::smaps;

/// Addresses below belong to the tests, save for those that no program may map.
pub(crate) const TOP: u64 = WINDOW + (1 << 16) * PAGE;
/// Bytes that the heap has before something else is in its way.
pub(crate) const HEAP_ROOM: u64 = 16 << 20;

/// Children of this process, and the files that they map.
pub(crate) struct Linux {
    files: HashMap<u64, File>,
    inodes: HashMap<u64, u64>,
    children: Vec<Option<Child>>,
    /// Where the heap starts, at a multiple of 2 MiB: behind this program's own.
    heap: u64,
    /// Bytes that the heap has.
    heap_room: u64,
}

fn prot_bits(prot: Prot) -> u64 {
    let bit = |set: bool, bit: i32| if set { bit as u64 } else { 0 };
    let read = prot.names_read();
    bit(read, libc::PROT_READ) | bit(prot.writes(), libc::PROT_WRITE) | bit(prot.executes(), libc::PROT_EXEC)
}

fn map_flags(map: &Map) -> u64 {
    let sharing = if map.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let placement = match map.placement {
        Placement::Hint => 0,
        Placement::Fixed => libc::MAP_FIXED,
        Placement::FixedNoReplace => libc::MAP_FIXED_NOREPLACE,
    };
    let set = [
        (map.file.is_none(), libc::MAP_ANONYMOUS),
        (map.grows_down, libc::MAP_GROWSDOWN),
        (map.populate, libc::MAP_POPULATE),
        (map.locked, libc::MAP_LOCKED),
    ];
    let flags =
        set.into_iter().filter(|(set, _)| *set).fold(sharing | placement, |flags, (_, flag)| flags | flag);
    flags as u64
}

fn remap_flags(to: Remap) -> (u64, u64) {
    let moves = libc::MREMAP_MAYMOVE;
    let (flags, target) = match to {
        Remap::InPlace => (0, 0),
        Remap::MayMove => (moves, 0),
        Remap::Fixed(to) => (moves | libc::MREMAP_FIXED, to),
        Remap::DontUnmap(hint) => (moves | libc::MREMAP_DONTUNMAP, hint),
        Remap::FixedDontUnmap(to) => (moves | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP, to),
    };
    (flags as u64, target)
}

fn advice_number(advice: Advice) -> u64 {
    let number = match advice {
        Advice::DontNeed => libc::MADV_DONTNEED,
        Advice::Free => libc::MADV_FREE,
        Advice::WillNeed => libc::MADV_WILLNEED,
        Advice::HugePage => libc::MADV_HUGEPAGE,
        Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
        Advice::PopulateRead => libc::MADV_POPULATE_READ,
        Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
    };
    number as u64
}

impl Linux {
    /// A child with an empty window, these files (number, bytes), and so many bytes of room for a heap.
    pub(crate) fn new(files: &[(u64, u64)], heap_room: u64) -> Self {
        let mut linux =
            Self { files: HashMap::new(), inodes: HashMap::new(), children: Vec::new(), heap: 0, heap_room };
        for &(number, bytes) in files {
            let file = memfd();
            file.set_len(bytes).expect("memory for a file");
            for page in 0..bytes / PAGE {
                for offset in PROBE_OFFSETS {
                    let word = file_word(number, page, offset).to_le_bytes();
                    file.write_all_at(&word, page * PAGE + offset).expect("memory for a file");
                }
            }
            linux.inodes.insert(file.metadata().expect("open").ino(), number);
            linux.files.insert(number, file);
        }
        let child = Child::spawn();
        linux.heap = prepare(&child, heap_room).expect("the child takes orders");
        linux.children.push(Some(child));
        linux
    }

    /// What a model must know of it.
    pub(crate) fn rules() -> Rules {
        Rules { stack_limit: STACK_LIMIT, ..Rules::default() }
    }

    /// Where the heap starts.
    pub(crate) fn heap(&self) -> u64 {
        self.heap
    }

    /// What belongs to the tests, ascending.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        let all = [0..TOP, self.heap..self.heap + self.heap_room];
        all.into_iter().filter(|range| !range.is_empty()).collect()
    }

    fn child(&self, space: SpaceId) -> &Child {
        self.children[space].as_ref().expect("address space has exited")
    }

    fn call(&self, actor: Actor, number: libc::c_long, args: &[u64]) -> Result<u64, MmError> {
        let unnamed = |error| panic!("call {number} of {args:x?}: {error} has no name in the library");
        let answer = self.child(actor.space).call(number, args);
        answer.map_err(|error| verb_error(&error).unwrap_or_else(|| unnamed(error)))
    }

    fn access(&self, actor: Actor, order: Order, addr: u64, word: u64) -> Result<u64, FaultError> {
        let unnamed = |raised| panic!("{order:?} at {addr:#x}: signal {raised:?} has no name in the library");
        let answer = self.child(actor.space).access(order, addr, word);
        answer.map_err(|raised| fault_error(raised).unwrap_or_else(|| unnamed(raised)))
    }
}

/// Sees to it that nothing is free above the window but room for the heap, so that what may go anywhere goes into the
/// window. Where the heap starts.
fn prepare(child: &Child, heap_room: u64) -> io::Result<u64> {
    child.limit(libc::RLIMIT_STACK, STACK_LIMIT)?;
    // Refused to an ordinary user, whose runs lock nothing then; see `locks_freely`.
    let _refused = child.limit(libc::RLIMIT_MEMLOCK, libc::RLIM_INFINITY);
    let now = child.call(libc::SYS_brk, &[0])?;
    let heap = now.next_multiple_of(2 << 20);
    assert_eq!(child.call(libc::SYS_brk, &[heap])?, heap, "the heap has no room to grow");
    let mut from = TOP;
    let foreign = std::fs::read_to_string(format!("/proc/{}/maps", child.pid()))?;
    for line in foreign.lines() {
        let (start, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let number = |text: &str| u64::from_str_radix(text, 16).expect("hexadecimal");
        let (start, end) = (number(start), number(end).min(USER_END));
        assert!(start >= TOP, "{line} is where the window should be");
        fill(child, from, start.min(USER_END))?;
        from = if end == heap { heap + heap_room } else { end };
    }
    fill(child, from, USER_END)?;
    Ok(heap)
}

/// The end of what a program can map.
pub(crate) const USER_END: u64 = (1 << 47) - PAGE;

fn fill(child: &Child, start: u64, end: u64) -> io::Result<()> {
    if start >= end {
        return Ok(());
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    child.call(libc::SYS_mmap, &[start, end - start, 0, flags as u64, u64::MAX, 0]).map(drop)
}

/// Whether children may lock whatever they like.
pub(crate) fn locks_freely() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: asks for numbers, and has room for them.
    unsafe {
        libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) == 0
            && (limit.rlim_max == libc::RLIM_INFINITY || libc::geteuid() == 0)
    }
}

impl Subject for Linux {
    fn mmap(&mut self, actor: Actor, map: &Map) -> Result<u64, MmError> {
        let fd = map.file.map_or(u64::MAX, |(number, _)| self.files[&number].as_raw_fd() as u64);
        let offset = map.file.map_or(0, |(_, page)| page * PAGE);
        let args = [map.addr, map.len, prot_bits(map.prot), map_flags(map), fd, offset];
        self.call(actor, libc::SYS_mmap, &args)
    }

    fn munmap(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.call(actor, libc::SYS_munmap, &[addr, len]).map(drop)
    }

    fn mprotect(&mut self, actor: Actor, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        self.call(actor, libc::SYS_mprotect, &[addr, len, prot_bits(prot)]).map(drop)
    }

    fn mremap(&mut self, actor: Actor, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError> {
        let (flags, target) = remap_flags(to);
        self.call(actor, libc::SYS_mremap, &[addr, old, new, flags, target])
    }

    fn madvise(&mut self, actor: Actor, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        self.call(actor, libc::SYS_madvise, &[addr, len, advice_number(advice)]).map(drop)
    }

    fn brk(&mut self, actor: Actor, addr: u64) -> u64 {
        // Below its start there is more of this program's heap, where the model and the library have none.
        let addr = if addr < self.heap { 0 } else { addr };
        self.call(actor, libc::SYS_brk, &[addr]).expect("never fails")
    }

    fn mlock(&mut self, actor: Actor, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        if on_fault {
            return self.call(actor, libc::SYS_mlock2, &[addr, len, libc::MLOCK_ONFAULT as u64]).map(drop);
        }
        self.call(actor, libc::SYS_mlock, &[addr, len]).map(drop)
    }

    fn munlock(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.call(actor, libc::SYS_munlock, &[addr, len]).map(drop)
    }

    fn mlockall(&mut self, actor: Actor, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        let bit = |set: bool, bit: i32| if set { bit as u64 } else { 0 };
        let flags = bit(current, libc::MCL_CURRENT)
            | bit(future, libc::MCL_FUTURE)
            | bit(on_fault, libc::MCL_ONFAULT);
        self.call(actor, libc::SYS_mlockall, &[flags]).map(drop)
    }

    fn munlockall(&mut self, actor: Actor) -> Result<(), MmError> {
        self.call(actor, libc::SYS_munlockall, &[]).map(drop)
    }

    fn truncate(&mut self, _actor: Actor, file: u64, bytes: u64) -> Result<(), MmError> {
        self.files[&file].set_len(bytes).expect("memory for a file");
        Ok(())
    }

    fn fork(&mut self, actor: Actor) -> Result<(), MmError> {
        let taken = |slot: &usize| self.children.iter().flatten().any(|child| child.slot() == *slot);
        let slot = (0..SLOTS).find(|slot| !taken(slot)).expect("fewer address spaces than slots");
        let child = self.child(actor.space).fork(slot).unwrap_or_else(|error| panic!("fork: {error}"));
        self.children.push(Some(child));
        Ok(())
    }

    fn exit(&mut self, actor: Actor) {
        self.children[actor.space] = None;
    }

    fn store(&mut self, actor: Actor, addr: u64, word: u64) -> Result<(), FaultError> {
        self.access(actor, Order::Store, addr, word).map(drop)
    }

    fn load(&mut self, actor: Actor, addr: u64) -> Result<u64, FaultError> {
        self.access(actor, Order::Load, addr, 0)
    }

    fn fault(&mut self, actor: Actor, addr: u64, kind: Kind) -> Result<(), FaultError> {
        let order = if kind == Kind::Write { Order::Touch } else { Order::Load };
        self.access(actor, order, addr & !7, 0).map(drop)
    }

    fn vmas(&mut self, space: SpaceId) -> Vec<Vma> {
        let path = format!("/proc/{}/smaps", self.child(space).pid());
        smaps::mappings(&path, &self.ranges(), |inode| self.inodes.get(&inode).copied())
    }

    fn resident(&mut self, _space: SpaceId) -> Option<Resident> {
        None
    }

    fn keeps_edges(&self) -> bool {
        true
    }

    fn check(&mut self, _deep: bool) -> Result<(), String> {
        Ok(())
    }
}
