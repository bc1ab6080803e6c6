//! The running kernel: a memfd, mapped for the guest in pieces of 4 KiB by `userfaultfd` as they arrive.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use procfs::process::{MMPermissions, Process};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::case::{HALT_POLL, Migration, WORDS, Wait, tag};
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

pub(super) struct Linux {
    pub(super) wait: Wait,
}

impl Arm<Migration> for Linux {
    fn name(&self) -> &'static str {
        match self.wait {
            Wait::Sleep => "linux",
            Wait::Poll => "linux-polling",
        }
    }

    fn about(&self) -> &'static str {
        match self.wait {
            Wait::Sleep => {
                "pieces of 4 KiB: minor faults of a memfd by userfaultfd, UFFDIO_CONTINUE for each piece, and \
                 at the end MADV_COLLAPSE, which copies all into folios of 2 MiB. A thread of this process is \
                 the virtual CPU: it traps and sleeps at once, without second-stage tables."
            }
            Wait::Poll => {
                "as `linux`, with a virtual CPU that polls: it asks for a missing page in memory and accesses \
                 it when UFFDIO_CONTINUE has mapped it. No trap and no event, so no kernel can poll in less."
            }
        }
    }

    fn setup(&mut self, case: &Migration) -> Result<Box<dyn Prepared + '_>, Skip> {
        Ok(Box::new(Ready { case: case.clone(), wait: self.wait }))
    }
}

struct Ready {
    case: Migration,
    wait: Wait,
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
    polled: Option<Polled>,
}

/// What virtual CPUs that poll share with the receiver.
struct Polled {
    there: Vec<AtomicBool>,
    asked: Mutex<VecDeque<usize>>,
}

impl Polled {
    fn asked(&self) -> MutexGuard<'_, VecDeque<usize>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a page, and waits until it is mapped or all is over.
    fn wait_for(&self, page: usize, over: &AtomicBool) {
        let there = || self.there[page].load(Ordering::Acquire);
        if there() {
            return;
        }
        self.asked().push_back(page);
        let start = Instant::now();
        while !there() && !over.load(Ordering::Relaxed) {
            if start.elapsed() < HALT_POLL {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
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

    /// Stores all words of a page, which starts at an offset of the file.
    fn store(&self, at: u64, word: u64) {
        assert!(at.is_multiple_of(PAGE as u64) && at < self.host.bytes() as u64, "no page of the memory");
        let place = (self.host.start() as u64 + at) as *mut u64;
        for nth in 0..WORDS as usize {
            // SAFETY: C1: the word is of a whole page of the region (asserted), which is mapped writable; all
            // accesses are volatile, and a reader of the same word in the other mapping waits until it is
            // mapped, after this.
            unsafe { place.add(nth).write_volatile(word) };
        }
    }

    /// Reads the word at an offset as the guest sees it.
    fn load(&self, at: u64) -> u64 {
        assert!(at.is_multiple_of(8) && at < self.guest.bytes() as u64, "a load beyond the memory");
        let place = (self.guest.start() as u64 + at) as *const u64;
        // SAFETY: C1: the word is aligned and inside the region (asserted), and all accesses are volatile.
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
        let polled = (self.wait == Wait::Poll).then(|| Polled {
            there: (0..pieces).map(|_| AtomicBool::new(false)).collect(),
            asked: Mutex::default(),
        });
        let over = AtomicBool::new(false);
        let scene = Scene { case, memory: &memory, uffd: &uffd, fetched, over, polled };
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
                let load = |at| {
                    let page = (at / PAGE as u64) as usize;
                    self.polled.iter().for_each(|polled| polled.wait_for(page, &self.over));
                    Some(self.memory.load(at))
                };
                let seed = case.seed + number as u64;
                return Ok(Part::GuestWaits(guest::run(load, shape, &self.fetched, seed, &self.over)));
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
        if let Some(polled) = &self.0.polled {
            return Ok(polled.asked().pop_front());
        }
        let fault = self.0.uffd.next_fault().map_err(|error| Skip::because("reading a fault", error))?;
        Ok(fault.map(|addr| (addr - self.0.memory.guest.start()) / PAGE))
    }

    fn write(&mut self, piece: usize) {
        self.0.memory.store((piece * PAGE) as u64, tag(piece as u64));
    }

    fn map(&mut self, piece: usize) -> Result<(), Skip> {
        let addr = self.0.memory.guest.start() + piece * PAGE;
        self.0.uffd.resume(addr, PAGE).map_err(|error| Skip::because("UFFDIO_CONTINUE", error))?;
        self.0.polled.iter().for_each(|polled| polled.there[piece].store(true, Ordering::Release));
        Ok(())
    }
}
