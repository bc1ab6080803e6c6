//! `mprotect` and protection keys

use linux_raw_sys::general as abi;
use quire::addr::{VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::limits::FRAME_SIZE;
use quire::vm::VmaInfo;
use quire::vm::vma::VmaFlags;
use quire_interop::proc::is_charged;

use super::page_range;
use crate::errno::Errno;
use crate::observe::commit_allows;
use crate::syscall::{Answer, Call};

const GROWS: u64 = (abi::PROT_GROWSDOWN | abi::PROT_GROWSUP) as u64;
const KNOWN: u64 = (abi::PROT_READ | abi::PROT_WRITE | abi::PROT_EXEC | abi::PROT_SEM) as u64;

impl Call<'_> {
    /// `mprotect`
    pub(in crate::syscall) fn mprotect(&self) -> Answer {
        self.protect(true)
    }

    /// `pkey_mprotect`: without keys, key -1 alone may be named.
    pub(in crate::syscall) fn pkey_mprotect(&self) -> Answer {
        self.protect(self.arguments[3] as i32 == -1)
    }

    /// `pkey_alloc`: the processor has no protection keys, or the kernel does not use them.
    pub(in crate::syscall) fn pkey_alloc(&self) -> Answer {
        let [flags, rights, ..] = self.arguments;
        if flags != 0 || rights & !u64::from(abi::PKEY_ACCESS_MASK) != 0 {
            return Err(Errno::EINVAL);
        }
        Err(Errno::ENOSPC)
    }

    /// `pkey_free`: no key was ever allocated.
    pub(in crate::syscall) fn pkey_free(&self) -> Answer {
        Err(Errno::EINVAL)
    }

    fn protect(&self, key_is_known: bool) -> Answer {
        let [start, len, prot, ..] = self.arguments;
        let (grows, prot) = (prot & GROWS, prot & !GROWS);
        if grows == GROWS || !start.is_multiple_of(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        if len == 0 {
            return Ok(0);
        }
        let range =
            page_range(VirtAddr(start), len).filter(|range| !range.is_empty()).ok_or(Errno::ENOMEM)?;
        if prot & !KNOWN != 0 || !key_is_known {
            return Err(Errno::EINVAL);
        }
        let start =
            if grows == 0 { range.start } else { self.start_of_stack(range.start, range.end, grows)? };
        let (range, prot) = (VirtRange { start, end: range.end }, Protection::from_bits(prot as u8));
        // Only where the whole range is too much, its mappings are looked at.
        let stores = prot.contains(Protection::WRITE);
        if stores && !commit_allows(range.len()) && !commit_allows(self.newly_charged(range)) {
            return Err(Errno::ENOMEM);
        }
        self.space.mprotect(start, range.len(), prot)?;
        Ok(0)
    }

    /// How many bytes of the range may need frames of their own only when the program can store there.
    fn newly_charged(&self, range: VirtRange) -> u64 {
        let mut bytes = 0;
        self.space.vmas_in(range, |vma| {
            let then = VmaInfo { protection: vma.protection | Protection::WRITE, ..*vma };
            if is_charged(&then) && !is_charged(vma) {
                bytes += vma.range.end.min(range.end).0 - vma.range.start.max(range.start).0;
            }
        });
        bytes
    }

    /// With `PROT_GROWSDOWN`, the start of the mapping that grows down at the address or above it.
    fn start_of_stack(&self, at: VirtAddr, end: VirtAddr, grows: u64) -> Result<VirtAddr, Errno> {
        let mut first = None;
        self.space.vmas_in(VirtRange { start: at, end }, |vma| {
            first.get_or_insert((vma.range, vma.flags.contains(VmaFlags::GROWS_DOWN)));
        });
        let (range, is_stack) = first.ok_or(Errno::ENOMEM)?;
        if grows == u64::from(abi::PROT_GROWSUP) {
            // No mapping grows up on this processor.
            return Err(if range.start > at { Errno::ENOMEM } else { Errno::EINVAL });
        }
        if is_stack { Ok(range.start) } else { Err(Errno::EINVAL) }
    }
}
