//! A virtual CPU: loads and stores through the copies, and the faults that make them.

use std::sync::atomic::Ordering;
use std::time::Instant;

use quire::addr::PhysAddr;
use quire::error::FaultError;
use quire::limits::FRAME_SIZE;
use quire::platform::Platform;
use quire::vm::{Access, Mm};

use super::guest::Nested;
use super::slot::Slot;
use crate::machine::Hosted;

/// A virtual CPU of a guest, until dropped. Its accesses take guest-physical addresses and lie within one page each. The thread is
/// a CPU of the machine and holds no lock of the library. `mm` is the address space that the tables were made for.
pub struct VirtualCpu<'n, 'm> {
    nested: &'n Nested<'m>,
    slot: &'n Slot,
}

impl<'m> Nested<'m> {
    /// Virtual CPU `number`, for one thread at a time.
    ///
    /// # Panics
    /// When there is no such CPU, or another thread has taken it.
    pub fn cpu(&self, number: usize) -> VirtualCpu<'_, 'm> {
        VirtualCpu::take(self, &self.tables.cpus[number])
    }
}

impl<'n, 'm> VirtualCpu<'n, 'm> {
    pub(super) fn take(nested: &'n Nested<'m>, slot: &'n Slot) -> Self {
        assert!(slot.take(), "the virtual CPU is taken: another thread runs as it");
        Self { nested, slot }
    }

    /// Reads guest memory at `at`.
    ///
    /// # Errors
    /// The error of [`Mm::fault`] where the address space has nothing to read; [`FaultError::NotMapped`]
    /// where there is no guest memory.
    pub fn read<P: Platform>(&self, mm: &Mm<'_, P>, at: u64, bytes: &mut [u8]) -> Result<(), FaultError> {
        self.access(mm, at, bytes.len(), Access::Read, |machine, phys| machine.arena.load(phys, bytes))
    }

    /// Writes guest memory at `at`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write<P: Platform>(&self, mm: &Mm<'_, P>, at: u64, bytes: &[u8]) -> Result<(), FaultError> {
        self.access(mm, at, bytes.len(), Access::Write, |machine, phys| machine.arena.store(phys, bytes))
    }

    /// Loads the word at `at`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn load<P: Platform>(&self, mm: &Mm<'_, P>, at: u64) -> Result<u64, FaultError> {
        let mut word = [0; 8];
        self.read(mm, at, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Stores to the word at `at`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn store<P: Platform>(&self, mm: &Mm<'_, P>, at: u64, word: u64) -> Result<(), FaultError> {
        self.write(mm, at, &word.to_le_bytes())
    }

    /// Adds to the aligned word at `at` in one atomic step; gives the word before.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn fetch_add<P: Platform>(&self, mm: &Mm<'_, P>, at: u64, amount: u64) -> Result<u64, FaultError> {
        self.access(mm, at, 8, Access::Write, |machine, phys| {
            machine.arena.word(phys).fetch_add(amount, Ordering::AcqRel)
        })
    }

    /// One access within one page, wholly inside the slot.
    fn access<P: Platform, R>(
        &self,
        mm: &Mm<'_, P>,
        at: u64,
        bytes: usize,
        access: Access,
        act: impl FnOnce(&Hosted, PhysAddr) -> R,
    ) -> Result<R, FaultError> {
        let (tables, machine) = (&self.nested.tables, self.nested.machine);
        assert!(at % FRAME_SIZE + bytes as u64 <= FRAME_SIZE, "an access lies within one page");
        debug_assert_eq!(mm.root(), tables.root(), "the tables are another address space's");
        if at >= tables.bytes() {
            return Err(FaultError::NotMapped);
        }
        let mut stalled = None;
        loop {
            let inside = self.slot.enter();
            if let Some(frame) = tables.frame_for(at, access == Access::Write) {
                let done = act(machine, PhysAddr((frame << 12) + at % FRAME_SIZE));
                drop(inside);
                if let Some(since) = stalled {
                    tables.counts.note_stall(since);
                }
                return Ok(done);
            }
            drop(inside);
            if stalled.is_none() {
                stalled = Some(Instant::now());
                tables.counts.faults.fetch_add(1, Ordering::Relaxed);
            }
            let found = self.nested.look_up(mm, at, access)?;
            self.nested.keep(found);
        }
    }
}

impl Drop for VirtualCpu<'_, '_> {
    fn drop(&mut self) {
        self.slot.give_back();
    }
}
