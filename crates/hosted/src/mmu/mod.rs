//! The software MMU: user-mode accesses of the running CPU through its loaded page table and its modelled TLB.
//!
//! A stale TLB entry is used as hardware would use it, so a missing flush shows. Rules of the hardware:
//!
//! - A store through an entry whose dirty bit was clear when it was cached walks again, to set it.
//! - A fault drops the cached entries for its address: the translation and the paging-structure entries that
//!   lead to it (Intel SDM volume 3A, 4.10.4.1), so that a retry after a repair succeeds without a flush. A
//!   refusal by a cached entry is reported even if the tables would allow the access by now: handlers must
//!   bear spurious faults.
//!
//! An access that a stale entry serves once every verb has returned is a violation ([`Hosted::check_translations`]).

mod fault;
mod kernel;
mod layout;
mod physical;
mod stale;
mod walk;

use std::sync::atomic::Ordering;

use quire::addr::{Frame, FrameRange, PhysAddr, VirtAddr};
use quire::limits::FRAME_SIZE;

pub use fault::{FaultCause, PageFault};
pub(crate) use layout::{Rights, leaf_frames, shift};
pub use walk::Translation;

use crate::machine::Hosted;
use crate::tlb::{CpuTlb, Locked};
use fault::Access;

impl Hosted {
    /// Reads user memory from `addr` as the running CPU.
    ///
    /// # Errors
    /// The page fault of the first byte that cannot be read; the bytes before it have been read.
    pub fn read(&self, addr: VirtAddr, bytes: &mut [u8]) -> Result<(), PageFault> {
        let mut done = 0;
        while done < bytes.len() {
            let at = addr.0.wrapping_add(done as u64);
            let len = within_page(at, bytes.len() - done);
            let piece = &mut bytes[done..done + len];
            self.access(at, Access::Read, |machine, phys| machine.arena.load(phys, piece))?;
            done += len;
        }
        Ok(())
    }

    /// Writes user memory from `addr` on as the running CPU.
    ///
    /// # Errors
    /// The page fault of the first byte that cannot be written; the bytes before it have been written.
    pub fn write(&self, addr: VirtAddr, bytes: &[u8]) -> Result<(), PageFault> {
        let mut done = 0;
        while done < bytes.len() {
            let at = addr.0.wrapping_add(done as u64);
            let len = within_page(at, bytes.len() - done);
            let piece = &bytes[done..done + len];
            self.access(at, Access::Write, |machine, phys| machine.arena.store(phys, piece))?;
            done += len;
        }
        Ok(())
    }

    /// Fetches the instruction byte at `addr` as the running CPU.
    ///
    /// # Errors
    /// The page fault, if the byte cannot be fetched.
    pub fn fetch(&self, addr: VirtAddr) -> Result<u8, PageFault> {
        let mut byte = [0];
        self.access(addr.0, Access::Fetch, |machine, phys| machine.arena.load(phys, &mut byte))?;
        Ok(byte[0])
    }

    /// Adds to the aligned word at `addr` in one atomic step, as the running CPU; gives the word before.
    ///
    /// # Errors
    /// The page fault, if the word cannot be written.
    ///
    /// # Panics
    /// When `addr` is not a multiple of 8.
    pub fn fetch_add(&self, addr: VirtAddr, amount: u64) -> Result<u64, PageFault> {
        assert!(addr.is_aligned(8), "{addr:?} is no multiple of 8");
        self.access(addr.0, Access::Write, |machine, phys| {
            machine.arena.word(phys).fetch_add(amount, Ordering::AcqRel)
        })
    }

    /// The word at a physical address, as a debugger reads it: without a walk, without setting bits or
    /// caching.
    ///
    /// # Panics
    /// When `addr` is no multiple of 8, or no memory of this machine.
    pub fn peek(&self, addr: PhysAddr) -> u64 {
        self.arena.word(addr).load(Ordering::Acquire)
    }

    /// One access within one page, wholly under the lock of the CPU's TLB (H5).
    fn access<R>(
        &self,
        addr: u64,
        access: Access,
        act: impl FnOnce(&Self, PhysAddr) -> R,
    ) -> Result<R, PageFault> {
        let tlb = self.tlbs.cpu(self.this_cpu());
        self.access_through(tlb, addr, access, act)
    }

    fn access_through<R>(
        &self,
        mut tlb: Locked<'_>,
        addr: u64,
        access: Access,
        act: impl FnOnce(&Self, PhysAddr) -> R,
    ) -> Result<R, PageFault> {
        let counters = self.own_counters();
        match self.translate(&mut tlb, addr, access) {
            Ok(phys) => Ok(act(self, phys)),
            Err(fault) => {
                counters.mmu_faults.add(1);
                tlb.forget(&self.tlbs.reach, addr);
                Err(fault)
            }
        }
    }

    fn translate(&self, tlb: &mut CpuTlb, addr: u64, access: Access) -> Result<PhysAddr, PageFault> {
        let counters = self.own_counters();
        let leaf = match tlb.lookup(addr) {
            Some(leaf) if !walk::allows(leaf.rights, access) => {
                return Err(access.fault(addr, FaultCause::Protection));
            }
            Some(leaf) if leaf.dirty || !access.writes() => {
                counters.tlb_hits.add(1);
                leaf
            }
            _ => {
                counters.tlb_misses.add(1);
                self.walk(tlb, addr, access)?
            }
        };
        self.check_served(tlb, addr, access, leaf);
        if access.writes() {
            self.count_store(FrameRange::new(Frame(leaf.frame), leaf_frames(leaf.level)));
        }
        let offset = addr & ((1 << shift(leaf.level)) - 1);
        Ok(PhysAddr((leaf.frame << 12) + offset))
    }
}

/// How many of `len` bytes from `addr` lie in its 4 KiB page.
fn within_page(addr: u64, len: usize) -> usize {
    len.min((FRAME_SIZE - addr % FRAME_SIZE) as usize)
}
