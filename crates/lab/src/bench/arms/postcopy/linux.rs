//! The running kernel: a memfd, mapped for the guest in pieces of 4 KiB by `userfaultfd` as they arrive.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use procfs::process::{MMPermissions, Process};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::case::{Migration, tag};
use super::guest;
use super::link::Link;
use super::outcome::{self, Part};
use super::receiver::{self, Answers};
use super::uffd::Uffd;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::linux::region::Region;
use crate::host::threads::together;

/// Attempts at a collapse that finds pages in use.
const COLLAPSES: usize = 8;

pub(super) struct Linux;

impl Arm<Migration> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "pieces of 4 KiB: minor faults of a memfd by userfaultfd, UFFDIO_CONTINUE for each piece, and at the \
         end MADV_COLLAPSE, which copies all into folios of 2 MiB. A thread of this process is the virtual \
         CPU: it traps and sleeps at once, without second-stage tables."
    }

    fn setup(&mut self, case: &Migration) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(Ready { case: case.clone() }))
    }
}

struct Ready {
    case: Migration,
}

/// A memfd, mapped twice.
struct Memory {
    /// The mapping through which the receiver writes.
    host: Region,
    /// The mapping that the virtual CPUs touch.
    guest: Region,
}

struct Scene<'a> {
    case: &'a Migration,
    memory: &'a Memory,
    uffd: &'a Uffd,
    fetched: Vec<AtomicBool>,
    over: AtomicBool,
}

impl Memory {
    /// Allocates the whole file, in single frames as far as the settings allow no more, and maps it at
    /// `host`.
    fn new(bytes: usize) -> io::Result<Self> {
        let file = memfd_create("quire-postcopy", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, bytes as u64)?;
        let [host, guest] = [Region::map(bytes)?, Region::map(bytes)?];
        for region in [&host, &guest] {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: C1: the range is the region's own, into which no reference exists.
            unsafe {
                mmap(
                    region.start() as *mut c_void,
                    bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                    &file,
                    0,
                )?
            };
        }
        let memory = Self { host, guest };
        // Allocated here, as the other arms allocate the pool's pages.
        (0..bytes as u64).step_by(PAGE).for_each(|at| memory.store(at, 0));
        Ok(memory)
    }

    /// Stores the word at an offset of the file.
    fn store(&self, at: u64, word: u64) {
        assert!(at < self.host.bytes() as u64, "a store beyond the memory");
        let place = (self.host.start() as u64 + at) as *mut u64;
        // SAFETY: C1: the word is the first of a page of the region (asserted), which is mapped writable; all
        // accesses are volatile, and a reader of the same word in the other mapping waits until it is mapped,
        // after this.
        unsafe { place.write_volatile(word) };
    }

    /// Reads the word at an offset as the guest sees it.
    fn load(&self, at: u64) -> u64 {
        assert!(at < self.guest.bytes() as u64, "a load beyond the memory");
        let place = (self.guest.start() as u64 + at) as *const u64;
        // SAFETY: C1: the word is the first of a page of the region (asserted), and all accesses are volatile.
        unsafe { place.read_volatile() }
    }

    /// Bytes of the guest's mapping that leaves of 2 MiB map.
    fn large(&self) -> u64 {
        let maps = Process::myself().and_then(|process| process.smaps());
        let own = |map: &procfs::process::MemoryMap| {
            map.address.0 == self.guest.start() as u64 && map.perms.contains(MMPermissions::SHARED)
        };
        let found = maps.ok().and_then(|maps| maps.into_iter().find(own));
        found.and_then(|map| map.extension.map.get("ShmemPmdMapped").copied()).unwrap_or(0)
    }
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = &self.case;
        let memory = Memory::new(case.bytes as usize).map_err(|error| Skip::because("memory", error))?;
        let uffd = Uffd::new().map_err(|error| {
            Skip::because("userfaultfd for shared memory (Linux 5.14 has it, and the sysctl vm.unprivileged_userfaultfd allows it)", error)
        })?;
        let (start, bytes) = (memory.guest.start(), memory.guest.bytes());
        uffd.register(start, bytes).map_err(|error| Skip::because("UFFDIO_REGISTER", error))?;
        let pieces = case.bytes as usize / PAGE;
        let fetched = (0..pieces).map(|_| AtomicBool::new(false)).collect();
        let scene = Scene { case, memory: &memory, uffd: &uffd, fetched, over: AtomicBool::new(false) };
        let parts = scene.play().into_iter().collect::<Result<Vec<_>, _>>()?;
        let sample = outcome::sample(parts, pieces, case.bytes, |at| Some(memory.load(at)))?;
        Ok(sample.count("large_bytes", memory.large()))
    }
}

impl Scene<'_> {
    /// Runs the virtual CPUs and the receiver on their threads, on the processors of the other arms.
    fn play(&self) -> Vec<Result<Part, Skip>> {
        let case = self.case;
        let mut threads: Vec<usize> = (0..=case.cpus).collect();
        together(&mut threads, &case.placed(), |&mut number, meeting| {
            meeting.wait();
            if number < case.cpus {
                let shape = (case.bytes / PAGE as u64, PAGE as u64);
                let load = |at| Some(self.memory.load(at));
                let seed = case.seed + number as u64;
                return Ok(Part::Felt(guest::run(load, shape, &self.fetched, seed, &self.over)));
            }
            let part = self.receive();
            self.over.store(true, Ordering::Relaxed);
            if part.is_err() {
                // Wakes threads that wait for pieces, none of which will arrive any more.
                let guest = &self.memory.guest;
                let _woken = self.uffd.unregister(guest.start(), guest.bytes());
            }
            part
        })
    }

    fn receive(&self) -> Result<Part, Skip> {
        let mut link = Link::new(self.case.wire, PAGE as u64, self.fetched.len());
        let start = Instant::now();
        let received = receiver::run(&mut Kernel(self), &mut link, &self.fetched)?;
        let guest = &self.memory.guest;
        let unregistered = self.uffd.unregister(guest.start(), guest.bytes());
        unregistered.map_err(|error| Skip::because("UFFDIO_UNREGISTER", error))?;
        let mut collapsed = guest.collapse();
        for _ in 1..COLLAPSES {
            if collapsed.is_ok() {
                break;
            }
            collapsed = guest.collapse();
        }
        collapsed.map_err(|error| Skip::because("MADV_COLLAPSE", error))?;
        let large = start.elapsed().as_nanos() as u64;
        Ok(Part::Received { received, busy: link.busy(), large })
    }
}

/// Answers by `userfaultfd`.
struct Kernel<'a>(&'a Scene<'a>);

impl Answers for Kernel<'_> {
    fn next_fault(&mut self) -> Result<Option<usize>, Skip> {
        let fault = self.0.uffd.next_fault().map_err(|error| Skip::because("reading a fault", error))?;
        Ok(fault.map(|addr| (addr - self.0.memory.guest.start()) / PAGE))
    }

    fn write(&mut self, piece: usize) {
        self.0.memory.store((piece * PAGE) as u64, tag(piece as u64));
    }

    fn map(&mut self, piece: usize) -> Result<(), Skip> {
        let addr = self.0.memory.guest.start() + piece * PAGE;
        self.0.uffd.resume(addr, PAGE).map_err(|error| Skip::because("UFFDIO_CONTINUE", error))
    }
}
