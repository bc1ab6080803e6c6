//! Huge pages of the running kernel: a pool of one size, and a mapping of it.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::rc::Rc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};

use crate::bench::experiment::Skip;
use crate::bench::linux::populate::FolioChooser;
use crate::host::thp::compact;
use crate::output::say;

/// Attempts to compact memory for a pool that came out too small.
const ATTEMPTS: usize = 3;

/// The settings of this machine, shared by all arms of the running kernel.
pub(in crate::bench::arms) type Chooser = Rc<RefCell<FolioChooser>>;

/// A pool of huge pages of one size; dropping it restores the pool's old size.
pub(in crate::bench::arms) struct Pool {
    page: usize,
    files: PathBuf,
    chooser: Chooser,
}

impl Pool {
    /// Makes the kernel keep `count` pages of `page` bytes.
    ///
    /// # Errors
    /// [`Skip`] if the kernel has no such size or too little contiguous memory, or if this user may not
    /// change the pool.
    pub(in crate::bench::arms) fn of(chooser: &Chooser, page: usize, count: usize) -> Result<Self, Skip> {
        let files = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10));
        let pool = Self { page, files, chooser: chooser.clone() };
        let ask = || {
            let got = chooser.borrow_mut().settings()?.set(&pool.wanted(), &count.to_string())?;
            Ok::<_, Skip>(got)
        };
        let mut got = ask()?;
        for _ in 0..ATTEMPTS {
            if got == count.to_string() {
                break;
            }
            compact();
            got = ask()?;
        }
        if got != count.to_string() {
            return Err(Skip(format!(
                "the kernel found {got} of {count} pages of {} MiB: free memory, or compact it \
                 (/proc/sys/vm/compact_memory)",
                page >> 20
            )));
        }
        Ok(pool)
    }

    fn wanted(&self) -> PathBuf {
        self.files.join("nr_hugepages")
    }

    /// Free pages of the pool.
    pub(in crate::bench::arms) fn free(&self) -> u64 {
        let text = fs::read_to_string(self.files.join("free_hugepages")).ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    /// Maps `bytes` bytes of private memory from the pool, unpopulated.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses.
    pub(in crate::bench::arms) fn map(&self, bytes: usize) -> Result<Mapping, Skip> {
        let size = if self.page == 1 << 30 { MapFlags::HUGE_1GB } else { MapFlags::HUGE_2MB };
        let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | size;
        // SAFETY: C1: the kernel chooses an address at which nothing is mapped.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) };
        let start = start.map_err(|error| Skip::because("the kernel maps no huge pages", error))?;
        Ok(Mapping { start: start as usize, bytes })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let path = self.wanted();
        let mut chooser = self.chooser.borrow_mut();
        let Ok(settings) = chooser.settings() else { return };
        // A failure here is reported when the settings are restored, which tries again.
        let _ = settings.before(&path).map(|before| settings.set(&path, &before));
    }
}

/// A mapping of huge pages.
pub(in crate::bench::arms) struct Mapping {
    start: usize,
    bytes: usize,
}

impl Mapping {
    /// Populates one of `parts` equal parts in one call.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses.
    pub(in crate::bench::arms) fn populate(&self, part: usize, parts: usize) -> Result<(), Skip> {
        let bytes = self.bytes / parts;
        let start = (self.start + part * bytes) as *mut std::ffi::c_void;
        // SAFETY: C1: the part lies in the mapping of this value, and populating changes no contents.
        unsafe { madvise(start, bytes, Advice::LinuxPopulateWrite) }
            .map_err(|error| Skip::because("MADV_POPULATE_WRITE (needs Linux 5.14 and free memory)", error))
    }
}

impl Mapping {
    /// Locks one of `parts` equal parts in one call.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses.
    pub(in crate::bench::arms) fn lock(&self, part: usize, parts: usize) -> Result<(), Skip> {
        let bytes = self.bytes / parts;
        let start = (self.start + part * bytes) as *mut std::ffi::c_void;
        // SAFETY: C1: the part lies in the mapping of this value, and bringing pages in changes no contents.
        unsafe { mlock(start, bytes) }.map_err(|error| Skip::because("mlock (see `ulimit -l`)", error))
    }

    /// Stores a byte.
    pub(in crate::bench::arms) fn store(&self, at: usize) {
        assert!(at < self.bytes, "a store beyond the mapping");
        // SAFETY: C1: the byte lies in the mapping (asserted), into which no reference exists.
        unsafe { ((self.start + at) as *mut u8).write_volatile(1) };
    }

    /// The word at a multiple of eight.
    pub(in crate::bench::arms) fn word(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.bytes, "a look beyond the mapping");
        // SAFETY: C1: the word lies in the mapping and is aligned (asserted), and no reference into it exists.
        unsafe { ((self.start + at) as *const u64).read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: C1: the mapping is this value's, and no reference into it exists.
        if let Err(error) = unsafe { munmap(self.start as *mut std::ffi::c_void, self.bytes) } {
            say(format_args!("quire: cannot unmap {} bytes: {error}", self.bytes));
        }
    }
}
