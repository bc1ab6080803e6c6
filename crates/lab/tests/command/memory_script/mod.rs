//! A program that does things with its memory and says where. It is this test binary itself, asked to by a variable.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MRemapFlags, MapFlags, MmapAdvise, ProtFlags};
use nix::sys::mman::{madvise, mlock, mmap, mmap_anonymous, mprotect, mremap, munmap};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

/// Name of the test below.
pub(crate) const TEST: &str = "memory_script::the_script_itself";

pub(crate) const PAGE: u64 = 4096;

/// How many steps the script says.
pub(crate) const STEPS: usize = 14;

/// How many threads it has when it is asked to have some; each forks once.
pub(crate) const THREADS: usize = 6;

/// Something the script did, with addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Map { at: u64, len: u64 },
    Write { at: u64 },
    CopyOnWrite { at: u64, pid: u32 },
    Protect { at: u64, len: u64 },
    Remap { from: u64, len: u64, to: u64, new_len: u64 },
    Discard { at: u64, len: u64 },
    Populate { at: u64, len: u64 },
    Lock { at: u64, len: u64 },
    Unmap { at: u64, len: u64 },
    FailedUnmap { at: u64 },
    MapFile { at: u64, len: u64 },
}

impl Step {
    /// Reads the lines `STEP name number…` of the script's output.
    pub(crate) fn parse_all(output: &str) -> Vec<Step> {
        // The test harness may have begun a line before.
        output.lines().filter_map(|line| Some(Step::parse(&line[line.find("STEP ")? + 5..]))).collect()
    }

    fn parse(line: &str) -> Step {
        let (name, numbers) = line.split_once(' ').expect("a name and numbers");
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().expect("a number")).collect();
        match (name, &numbers[..]) {
            ("map", &[at, len]) => Step::Map { at, len },
            ("write", &[at]) => Step::Write { at },
            ("copy-on-write", &[at, pid]) => Step::CopyOnWrite { at, pid: pid as u32 },
            ("protect", &[at, len]) => Step::Protect { at, len },
            ("remap", &[from, len, to, new_len]) => Step::Remap { from, len, to, new_len },
            ("discard", &[at, len]) => Step::Discard { at, len },
            ("populate", &[at, len]) => Step::Populate { at, len },
            ("lock", &[at, len]) => Step::Lock { at, len },
            ("unmap", &[at, len]) => Step::Unmap { at, len },
            ("failed-unmap", &[at]) => Step::FailedUnmap { at },
            ("map-file", &[at, len]) => Step::MapFile { at, len },
            other => panic!("an unknown step: {other:?}"),
        }
    }
}

fn say(name: &str, numbers: &[u64]) {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    println!("STEP {name} {}", numbers.join(" "));
}

fn address(memory: NonNull<c_void>) -> u64 {
    memory.as_ptr() as u64
}

fn offset(memory: NonNull<c_void>, pages: usize) -> NonNull<c_void> {
    // SAFETY: callers stay within the mapping that `memory` starts.
    unsafe { memory.byte_add(pages * PAGE as usize) }
}

fn write(memory: NonNull<c_void>) {
    // SAFETY: callers give the address of a byte in a writable private mapping that nothing else uses.
    unsafe { memory.cast::<u8>().as_ptr().write_volatile(1) };
}

fn bytes(pages: usize) -> NonZeroUsize {
    NonZeroUsize::new(pages * PAGE as usize).expect("at least a page")
}

#[test]
fn the_script_itself() {
    // Only a recording asks for it; what it does is checked by the test that records.
    let Ok(wanted) = std::env::var("QUIRE_MEMORY_SCRIPT") else { return };
    if wanted == "threads" {
        std::thread::scope(|scope| (0..THREADS).for_each(|number| drop(scope.spawn(move || churn(number)))));
    } else {
        anonymous();
        file();
    }
}

/// Maps, moves, empties and unmaps in turn, and forks once.
fn churn(number: usize) {
    let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let mut held = VecDeque::new();
    // SAFETY: every range below is within mappings made here, which no other thread knows; the child only ends.
    unsafe {
        for round in 0..400 {
            let mut pages = 1 + (round * 7 + number * 3) % 24;
            let mut memory =
                mmap_anonymous(None, bytes(pages), read_write, MapFlags::MAP_PRIVATE).expect("mmap");
            write(memory);
            if round % 3 == 0 {
                let (old, new) = (pages * PAGE as usize, (pages + 40) * PAGE as usize);
                memory = mremap(memory, old, new, MRemapFlags::MREMAP_MAYMOVE, None).expect("mremap");
                pages += 40;
                write(offset(memory, pages - 1));
            }
            held.push_back((memory, pages));
            if round == 200
                && let ForkResult::Parent { child } = fork().expect("fork")
            {
                waitpid(child, None).expect("waitpid");
            } else if round == 200 {
                nix::libc::_exit(0);
            }
            if held.len() > 8
                && let Some((memory, pages)) = held.pop_front()
            {
                madvise(memory, PAGE as usize, MmapAdvise::MADV_DONTNEED).expect("madvise");
                write(memory);
                munmap(memory, pages * PAGE as usize).expect("munmap");
            }
        }
    }
}

fn anonymous() {
    let read_write = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: every range below is within mappings made here, which nothing else uses.
    unsafe {
        let memory = mmap_anonymous(None, bytes(64), read_write, MapFlags::MAP_PRIVATE).expect("mmap");
        let at = address(memory);
        say("map", &[at, 64 * PAGE]);
        for page in [3, 40] {
            write(offset(memory, page));
            say("write", &[at + page as u64 * PAGE]);
        }
        match fork().expect("fork") {
            ForkResult::Parent { child } => {
                waitpid(child, None).expect("waitpid");
                say("copy-on-write", &[at + 3 * PAGE, child.as_raw() as u64]);
            }
            ForkResult::Child => {
                write(offset(memory, 3));
                nix::libc::_exit(0);
            }
        }
        mprotect(offset(memory, 60), 4 * PAGE as usize, ProtFlags::PROT_READ).expect("mprotect");
        say("protect", &[at + 60 * PAGE, 4 * PAGE]);
        madvise(offset(memory, 40), PAGE as usize, MmapAdvise::MADV_DONTNEED).expect("madvise");
        say("discard", &[at + 40 * PAGE, PAGE]);
        madvise(offset(memory, 8), 8 * PAGE as usize, MmapAdvise::MADV_POPULATE_WRITE).expect("madvise");
        say("populate", &[at + 8 * PAGE, 8 * PAGE]);
        mlock(offset(memory, 20), 2 * PAGE as usize).expect("mlock");
        say("lock", &[at + 20 * PAGE, 2 * PAGE]);
        munmap(offset(memory, 50), 14 * PAGE as usize).expect("munmap");
        say("unmap", &[at + 50 * PAGE, 14 * PAGE]);
        assert!(munmap(offset(memory, 0).byte_add(1), PAGE as usize).is_err());
        say("failed-unmap", &[at + 1]);
        let other = mmap_anonymous(None, bytes(2), read_write, MapFlags::MAP_PRIVATE).expect("mmap");
        say("map", &[address(other), 2 * PAGE]);
        let moved = mremap(other, 2 * PAGE as usize, 512 * PAGE as usize, MRemapFlags::MREMAP_MAYMOVE, None);
        let moved = moved.expect("mremap");
        say("remap", &[address(other), 2 * PAGE, address(moved), 512 * PAGE]);
        write(offset(moved, 511));
        say("write", &[address(moved) + 511 * PAGE]);
    }
}

fn file() {
    let me = File::open(std::env::current_exe().expect("it has a path")).expect("it is readable");
    // SAFETY: a private read-only mapping of a file that does not change, never read here.
    let memory = unsafe { mmap(None, bytes(1), ProtFlags::PROT_READ, MapFlags::MAP_PRIVATE, &me, 0) };
    say("map-file", &[address(memory.expect("mmap")), PAGE]);
}
