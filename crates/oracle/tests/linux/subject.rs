//! Linux as a subject: system calls inside a window of this process.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use oracle::ops::{At, HEAP, Op, Step, To, WINDOW};
use oracle::space::{
    Advice, Kind, Map, PAGE, PROBE_OFFSETS, Placement, Prot, Remap, SpaceId, Vma, file_word,
};
use oracle::subject::{Resident, Subject, Who};
use quire::error::{FaultError, MmError};

use crate::smaps;

/// Pages on each side of the window's middle that belong to the tests.
const HALF: u64 = 1 << 16;

/// This process's window.
pub(crate) struct Linux {
    files: HashMap<u64, File>,
    inodes: HashMap<u64, u64>,
    /// A word that system calls copy to and from, so that they make the access and not this program.
    word: File,
    /// The last mapping went outside the window and was taken back.
    outside: bool,
}

fn memfd() -> File {
    // SAFETY: the name is a C string; the descriptor is new and owned by the file.
    unsafe {
        let fd = libc::memfd_create(c"oracle".as_ptr(), 0);
        assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        File::from_raw_fd(fd)
    }
}

fn error() -> MmError {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINVAL) => MmError::Invalid,
        Some(libc::ENOMEM) => MmError::NoMemory,
        Some(libc::EEXIST) => MmError::Exists,
        Some(libc::EFAULT) => MmError::Fault,
        Some(libc::EACCES) => MmError::Access,
        Some(libc::EPERM) => MmError::NotPermitted,
        Some(libc::EAGAIN) => MmError::Again,
        Some(libc::EOVERFLOW) => MmError::Overflow,
        other => panic!("errno {other:?} has no name in the library"),
    }
}

fn answer(result: i32) -> Result<(), MmError> {
    if result == 0 { Ok(()) } else { Err(error()) }
}

fn at(addr: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

fn prot_bits(prot: Prot) -> i32 {
    let bit = |set: bool, bit: i32| if set { bit } else { 0 };
    let read = prot.names_read();
    bit(read, libc::PROT_READ) | bit(prot.writes(), libc::PROT_WRITE) | bit(prot.executes(), libc::PROT_EXEC)
}

/// The operations of a list that can be done here: those whose addresses lie in the window. MREMAP_DONTUNMAP of a part
/// of a locked mapping unlocks all of it on Linux, however little moved; the model unlocks the part, so that lists
/// have either the one or the other.
pub(crate) fn possible(steps: Vec<Step>) -> Vec<Step> {
    let locks = |step: &Step| match step.op {
        Op::Mmap(map) => map.locked,
        Op::Mlock(..) => true,
        _ => false,
    };
    let any_lock = steps.iter().any(locks);
    let here = |at: &At| matches!(at, At::Window(..));
    let near = |len: u64| len < HALF * PAGE / 2;
    let fits = |step: &Step| match &step.op {
        Op::Mremap(_, _, _, To::FixedDontUnmap(_)) if any_lock => false,
        Op::Mmap(map) => here(&map.at) && (near(map.len) || map.len == u64::MAX),
        Op::Mremap(at, old, new, To::FixedTo(to) | To::FixedDontUnmap(to)) => {
            here(at) && here(to) && near(*old) && near(*new)
        }
        Op::Mremap(at, old, new, To::InPlace) => here(at) && near(*old) && near(*new),
        Op::Munmap(at, len) | Op::Madvise(at, len, _) => here(at) && near(*len),
        // These stop at the first hole, which the window's end is.
        Op::Mprotect(at, ..) | Op::Mlock(at, ..) | Op::Munlock(at, ..) => here(at),
        Op::Store(at, _) | Op::Load(at, _) | Op::Touch(at, _) | Op::Access(at, Kind::Read | Kind::Write) => {
            here(at)
        }
        Op::Truncate(..) => true,
        _ => false,
    };
    steps.into_iter().filter(fits).collect()
}

impl Linux {
    /// An empty window and these files (number, bytes).
    pub(crate) fn new(files: &[(u64, u64)]) -> Self {
        let mut linux = Self { files: HashMap::new(), inodes: HashMap::new(), word: memfd(), outside: false };
        linux.word.set_len(PAGE).expect("a page of memory");
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
        linux.clear();
        linux
    }

    fn window() -> std::ops::Range<u64> {
        WINDOW - HALF * PAGE..WINDOW + HALF * PAGE
    }

    fn clear(&self) {
        let window = Self::window();
        // SAFETY: nothing but these tests maps anything in the window.
        let result = unsafe { libc::munmap(at(window.start), (window.end - window.start) as usize) };
        assert_eq!(result, 0);
        assert!(!window.contains(&HEAP));
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        self.clear();
    }
}

// SAFETY of all system calls below: addresses and lengths lie in the window (see `possible`) or are refused by the
// kernel; nothing in this process but system calls reads or writes memory there.
impl Subject for Linux {
    fn mmap(&mut self, _who: Who, map: &Map) -> Result<u64, MmError> {
        let mut flags = if map.shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        flags |= match map.placement {
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
        flags |= set.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag);
        let fd = map.file.map_or(-1, |(number, _)| self.files[&number].as_raw_fd());
        let offset = map.file.map_or(0, |(_, page)| page * PAGE) as i64;
        // SAFETY: see above.
        let addr =
            unsafe { libc::mmap(at(map.addr), map.len as usize, prot_bits(map.prot), flags, fd, offset) };
        self.outside = false;
        if addr == libc::MAP_FAILED {
            return Err(error());
        }
        if Self::window().contains(&(addr as u64)) {
            return Ok(addr as u64);
        }
        // The hint was not taken; the model cannot follow a mapping among this program's own.
        self.outside = true;
        // SAFETY: the mapping is new and nobody knows it.
        answer(unsafe { libc::munmap(addr, map.len as usize) })?;
        Err(MmError::NoMemory)
    }

    fn munmap(&mut self, _who: Who, addr: u64, len: u64) -> Result<(), MmError> {
        // SAFETY: see above.
        answer(unsafe { libc::munmap(at(addr), len as usize) })
    }

    fn mprotect(&mut self, _who: Who, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        // SAFETY: see above.
        answer(unsafe { libc::mprotect(at(addr), len as usize, prot_bits(prot)) })
    }

    fn mremap(&mut self, _who: Who, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError> {
        let (flags, target) = match to {
            Remap::InPlace => (0, 0),
            Remap::MayMove => (libc::MREMAP_MAYMOVE, 0),
            Remap::Fixed(to) => (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, to),
            Remap::DontUnmap => (libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP, 0),
            Remap::FixedDontUnmap(to) => {
                (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP, to)
            }
        };
        // SAFETY: see above.
        let addr = unsafe { libc::mremap(at(addr), old as usize, new as usize, flags, at(target)) };
        if addr == libc::MAP_FAILED { Err(error()) } else { Ok(addr as u64) }
    }

    fn madvise(&mut self, _who: Who, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        let advice = match advice {
            Advice::DontNeed => libc::MADV_DONTNEED,
            Advice::Free => libc::MADV_FREE,
            Advice::WillNeed => libc::MADV_WILLNEED,
            Advice::HugePage => libc::MADV_HUGEPAGE,
            Advice::NoHugePage => libc::MADV_NOHUGEPAGE,
            Advice::PopulateRead => libc::MADV_POPULATE_READ,
            Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
        };
        // SAFETY: see above.
        answer(unsafe { libc::madvise(at(addr), len as usize, advice) })
    }

    fn brk(&mut self, _who: Who, _addr: u64) -> u64 {
        unreachable!("the heap is this program's own; see `possible`")
    }

    fn mlock(&mut self, _who: Who, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        let flags = if on_fault { libc::MLOCK_ONFAULT } else { 0 };
        // SAFETY: see above.
        answer(unsafe { libc::mlock2(at(addr), len as usize, flags) })
    }

    fn munlock(&mut self, _who: Who, addr: u64, len: u64) -> Result<(), MmError> {
        // SAFETY: see above.
        answer(unsafe { libc::munlock(at(addr), len as usize) })
    }

    fn mlockall(&mut self, _: Who, _: bool, _: bool, _: bool) -> Result<(), MmError> {
        unreachable!("would lock this program; see `possible`")
    }

    fn munlockall(&mut self, _who: Who) -> Result<(), MmError> {
        unreachable!("see `possible`")
    }

    fn truncate(&mut self, _who: Who, file: u64, bytes: u64) -> Result<(), MmError> {
        self.files[&file].set_len(bytes).expect("memory for a file");
        Ok(())
    }

    fn fork(&mut self, _who: Who) -> Result<(), MmError> {
        unreachable!("see `possible`")
    }

    fn exit(&mut self, _who: Who) {}

    fn store(&mut self, _who: Who, addr: u64, word: u64) -> Result<(), FaultError> {
        self.word.write_all_at(&word.to_ne_bytes(), 0).expect("the word's page is there");
        // SAFETY: see above; the kernel makes the access and reports a bad one.
        let done = unsafe { libc::pread(self.word.as_raw_fd(), at(addr), 8, 0) };
        if done == 8 { Ok(()) } else { Err(FaultError::NotMapped) }
    }

    fn load(&mut self, _who: Who, addr: u64) -> Result<u64, FaultError> {
        // SAFETY: see above; the kernel makes the access and reports a bad one.
        if unsafe { libc::pwrite(self.word.as_raw_fd(), at(addr), 8, 0) } != 8 {
            return Err(FaultError::NotMapped);
        }
        let mut bytes = [0; 8];
        self.word.read_exact_at(&mut bytes, 0).expect("the word's page is there");
        Ok(u64::from_ne_bytes(bytes))
    }

    fn fault(&mut self, who: Who, addr: u64, kind: Kind) -> Result<(), FaultError> {
        let word = self.load(who, addr & !7);
        if kind == Kind::Write { self.store(who, addr & !7, word.unwrap_or(0)) } else { word.map(drop) }
    }

    fn vmas(&mut self, _space: SpaceId) -> Vec<Vma> {
        smaps::mappings(Self::window(), |inode| self.inodes.get(&inode).copied())
    }

    fn resident(&mut self, _space: SpaceId) -> Option<Resident> {
        None
    }

    fn names_faults(&self) -> bool {
        false
    }

    fn shows_lock_on_fault(&self) -> bool {
        false
    }

    fn may_lack_memory(&mut self) -> bool {
        std::mem::take(&mut self.outside)
    }

    fn check(&mut self, _deep: bool) -> Result<(), String> {
        Ok(())
    }
}
