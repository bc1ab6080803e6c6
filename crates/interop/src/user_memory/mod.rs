//! Copies from and to a program's memory, which recover from faults.
//!
//! A program may pass any address to a system call: unmapped, read-only, or one of the kernel. A kernel copies
//! through [`UserMemory`], and its page-fault handler asks [`fixup`] where to continue when
//! [`Mm::fault`](quire::vm::Mm::fault) refuses the access. The copy then ends, and returns how many bytes are
//! missing, as Linux' `copy_from_user` does.
//!
//! ```
//! # struct Frame { rip: u64 }
//! # #[expect(dead_code)]
//! # fn refused(frame: &mut Frame, address: u64, user_end: u64) {
//! // In the page-fault handler, for a fault of the kernel that `Mm::fault` has refused:
//! match quire_interop::user_memory::fixup(frame.rip) {
//!     Some(rip) if address < user_end => frame.rip = rip,
//!     _ => panic!("the kernel itself accessed {address:#x}"),
//! }
//! # }
//! ```
//!
//! The processor keeps `RFLAGS.AC` when it enters a handler, so under SMAP each entry of the kernel executes
//! `clac`; `iretq` restores the flag for the copy (Intel SDM volume 3A, section 4.6).
//!
//! No walk of the page table precedes a copy: it faults where the program's own access would, as on Linux. A
//! leaf of memory that `mprotect` made inaccessible (`PROT_NONE`) is not present for the processor. `CR0.WP`,
//! which the library requires, makes a store to a read-only page fault in ring 0 too. Memory that may only be
//! executed can be read, by the program and by the kernel.
//!
//! The address check is a branch. A kernel that defends itself against speculation past such branches
//! (Spectre, variant 1) executes `lfence` before it makes a call with an address of the program.

use core::fmt;

use quire::addr::{VirtAddr, VirtRange};
use quire::arch::{CpuFeatures, Feature, PagingMode};

mod routines;

pub use routines::fixup;

/// Bytes that one string instruction of the widest kind moves.
const WORD: usize = 8;

/// The memory of the program whose address space the CPU has loaded.
///
/// The methods access the program's memory as the program's own instructions do, through its page tables, so
/// pages are filled by faults on the way. They must be called where a fault may be handled: by a task, with
/// interrupts on and no spin lock held.
#[derive(Clone, Copy, Debug)]
pub struct UserMemory {
    user: VirtRange,
    /// String instructions of bytes are as fast as those of words.
    bytes_are_fast: bool,
    smap: bool,
}

/// A string of a program could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UserFault;

impl fmt::Display for UserFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program's memory cannot be accessed")
    }
}

impl core::error::Error for UserFault {}

impl UserMemory {
    /// User memory of this many levels, accessed on a processor with these features. With `smap`, the
    /// methods execute `stac` before an access and `clac` after it.
    ///
    /// # Safety
    /// The address that a method gets, if it is in [`PagingMode::user_range`], leads to memory of a program
    /// alone: no value, table or stack of the caller stands there. `smap` is true only in ring 0, on a
    /// processor that has SMAP (CPUID leaf 7, EBX bit 20).
    pub const unsafe fn new(mode: PagingMode, features: CpuFeatures, smap: bool) -> Self {
        Self { user: mode.user_range(), bytes_are_fast: features.has(Feature::Erms), smap }
    }

    /// Copies `to.len()` bytes of the program to `to`. Returns the number of bytes not copied: 0, or those
    /// from the first inaccessible one on, which are zero in `to`. A range that is not wholly user memory is
    /// refused: nothing is copied.
    #[must_use = "bytes may be missing"]
    pub fn copy_from_user(&self, to: &mut [u8], from: VirtAddr) -> usize {
        let missing = match self.allows(from, to.len()) {
            true => self.copy(to.as_mut_ptr(), from.0 as *const u8, to.len()),
            false => to.len(),
        };
        let copied = to.len() - missing;
        to[copied..].fill(0);
        missing
    }

    /// Copies `from` to the program. Returns the number of bytes not copied: 0, or those from the first
    /// inaccessible one on. A range that is not wholly user memory is refused: nothing is copied.
    #[must_use = "bytes may be missing"]
    pub fn copy_to_user(&self, to: VirtAddr, from: &[u8]) -> usize {
        match self.allows(to, from.len()) {
            true => self.copy(to.0 as *mut u8, from.as_ptr(), from.len()),
            false => from.len(),
        }
    }

    /// Writes `bytes` zeroes to the program. Returns the number of bytes not written: 0, or those from the
    /// first inaccessible one on. A range that is not wholly user memory is refused: nothing is written.
    #[must_use = "bytes may be missing"]
    pub fn clear_user(&self, to: VirtAddr, bytes: usize) -> usize {
        if !self.allows(to, bytes) {
            return bytes;
        }
        let (words, rest) = self.split(bytes);
        routines::clear(to.0 as *mut u8, words, rest, self.smap)
    }

    /// Stores `new` to a word of the program if it is `expected`, in one atomic step, as a futex needs it.
    /// Returns what the word was. `at` is a multiple of 4.
    ///
    /// # Errors
    /// [`UserFault`] when the program cannot store there, even if the word is not `expected`: the processor
    /// writes it back then.
    pub fn compare_exchange_u32(&self, at: VirtAddr, expected: u32, new: u32) -> Result<u32, UserFault> {
        if !at.0.is_multiple_of(4) || !self.allows(at, size_of::<u32>()) {
            return Err(UserFault);
        }
        routines::compare_exchange(at.0 as *mut u32, expected, new, self.smap).ok_or(UserFault)
    }

    /// Copies a string that ends with a zero byte, the zero included, if it fits into `to`. Returns the
    /// length of the string without its end. A length of `to.len()` means that the end was not found: the
    /// string is longer, and `to` holds its first bytes.
    ///
    /// # Errors
    /// [`UserFault`] when the string reaches an inaccessible byte, or leaves user memory, before its end and
    /// within `to.len()` bytes. `to` then holds the bytes before it.
    pub fn strncpy_from_user(&self, to: &mut [u8], from: VirtAddr) -> Result<usize, UserFault> {
        let within = to.len().min(self.user.end.0.saturating_sub(from.0) as usize);
        if within == 0 {
            return if to.is_empty() { Ok(0) } else { Err(UserFault) };
        }
        let (length, end) = routines::string(to.as_mut_ptr(), from.0 as *const u8, within, self.smap);
        match end {
            routines::End::Zero => Ok(length),
            routines::End::Limit if within == to.len() => Ok(length),
            routines::End::Limit | routines::End::Fault => Err(UserFault),
        }
    }

    /// Whether all bytes are user memory.
    fn allows(&self, start: VirtAddr, bytes: usize) -> bool {
        start.0.checked_add(bytes as u64).is_some_and(|end| end <= self.user.end.0)
    }

    fn copy(&self, to: *mut u8, from: *const u8, bytes: usize) -> usize {
        let (words, rest) = self.split(bytes);
        routines::copy(to, from, words, rest, self.smap)
    }

    /// How many words, and then how many bytes, the instructions move.
    fn split(&self, bytes: usize) -> (usize, usize) {
        if self.bytes_are_fast { (0, bytes) } else { (bytes / WORD, bytes % WORD) }
    }
}
