//! The memory that programs and recorder share: the one value of a map, which the recorder maps.
//!
//! ```text
//! HEAD       whether anything, or faults, are recorded; where to look for a free slot
//! NUMBERS    for each number of a call its class: first of 64-bit programs, then of i386
//! CPUS       for each CPU what it could not write into its ring
//! SLOTS      for each followed thread what it is doing
//! TIDS       for each thread of the machine its slot, or 0
//! ```

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

use crate::record::abi;
use crate::trace::Call;

/// Where each part starts.
pub(super) const ON: usize = 0;
pub(super) const FAULTS: usize = 8;
pub(super) const NEXT: usize = 16;
pub(super) const NUMBERS: usize = 4096;
pub(super) const CPUS: usize = NUMBERS + 2 * MOST_NUMBERS;

/// Numbers of calls are below this, in each ABI.
pub(super) const MOST_NUMBERS: usize = 1024;

/// Threads that are followed at once, with slot 0, which none has.
pub(super) const MOST_SLOTS: usize = 1 << 14;

/// log2 of the sizes of a slot and of what belongs to a CPU.
pub(super) const SLOT_SHIFT: i32 = 7;
pub(super) const CPU_SHIFT: i32 = 6;

/// Fields of a slot.
pub(super) mod slot {
    /// One more than the thread's number; 0 if the slot is free.
    pub(in super::super) const OWNER: i16 = 0;
    /// When the thread took a fault that is not resolved yet; else 0.
    pub(in super::super) const FAULT_NS: i16 = 8;
    pub(in super::super) const FAULT_ADDRESS: i16 = 16;
    pub(in super::super) const FAULT_CODE: i16 = 24;
    /// When it entered a call that has one record, at its return; else 0.
    pub(in super::super) const CALL_NS: i16 = 32;
    /// Number, class and ABI of the call that it is in; else 0.
    pub(in super::super) const CALL: i16 = 40;
    /// The address space that the call changed, the end of that, and whether it was a downgrade.
    pub(in super::super) const SECTION_MM: i16 = 48;
    pub(in super::super) const SECTION_NS: i16 = 56;
    pub(in super::super) const SECTION_SHARES: i16 = 64;
    /// When it last took a lock for reading to discard pages, and of which address space.
    pub(in super::super) const SHOWN_NS: i16 = 72;
    pub(in super::super) const SHOWN_MM: i16 = 80;
    /// Whether it was told that the call takes pages from a file.
    pub(in super::super) const CUT: i16 = 88;
    pub(in super::super) const END: i16 = 96;
}

/// Fields of a CPU.
pub(super) mod cpu {
    /// Records that found no room, and the time of the first of them.
    pub(in super::super) const LOST: i16 = 0;
    pub(in super::super) const SINCE: i16 = 8;
    /// Faults that were not recorded on purpose.
    pub(in super::super) const MISSED: i16 = 16;
}

/// Classes of calls: bits.
pub(super) mod class {
    /// It changes or looks at memory. A call without this bit is not recorded.
    pub(in super::super) const MEMORY: u8 = 1;
    /// It has a record of its entry: other records must be understood before it returns, or its arguments are
    /// gone then.
    pub(in super::super) const ENTRY: u8 = 2;
    /// It may downgrade its lock.
    pub(in super::super) const DOWNGRADES: u8 = 4;
    /// It may discard pages under a lock for reading.
    pub(in super::super) const DISCARDS: u8 = 8;
    /// It may take pages from a file.
    pub(in super::super) const CUTS: u8 = 16;
    /// Its arguments are in memory.
    pub(in super::super) const BLOCK: u8 = 32;
    /// It starts a program.
    pub(in super::super) const EXEC: u8 = 64;
    /// It has a record of its entry if its flags ask for pages: then it may last long after the mapping was
    /// told.
    pub(in super::super) const POPULATES: u8 = 128;
}

/// Where the parts lie whose sizes depend on the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) cpus: usize,
    pub(super) slots: usize,
    pub(super) tids: usize,
    /// Numbers of threads are below this.
    pub(super) most_tids: usize,
    pub(super) bytes: usize,
}

impl Layout {
    pub(super) fn of(cpus: usize, most_tids: usize) -> Layout {
        let slots = (CPUS + (cpus << CPU_SHIFT)).next_multiple_of(4096);
        let tids = slots + (MOST_SLOTS << SLOT_SHIFT);
        let bytes = (tids + 2 * most_tids).next_multiple_of(4096);
        Layout { cpus, slots, tids, most_tids, bytes }
    }
}

/// The recorder's side.
pub(super) struct Shared {
    map: MmapRaw,
    layout: Layout,
}

impl Shared {
    /// Maps the value of a map.
    pub(super) fn map(map: &impl AsRawFd, layout: Layout) -> std::io::Result<Shared> {
        let map = MmapOptions::new().len(layout.bytes).map_raw(map.as_raw_fd())?;
        let shared = Shared { map, layout };
        // No thread gets this one.
        shared.double(layout.slots + slot::OWNER as usize).store(u64::MAX, Ordering::Relaxed);
        shared.double(NEXT).store(1, Ordering::Relaxed);
        for (compat, numbers) in classes().into_iter().enumerate() {
            for (number, class) in numbers {
                shared.set_byte(NUMBERS + compat * MOST_NUMBERS + number, class);
            }
        }
        shared.set_faults(true);
        Ok(shared)
    }

    fn pointer<T>(&self, at: usize) -> *mut T {
        assert!(at.is_multiple_of(size_of::<T>()) && at + size_of::<T>() <= self.layout.bytes);
        self.map.as_mut_ptr().wrapping_add(at).cast()
    }

    fn double(&self, at: usize) -> &AtomicU64 {
        // SAFETY: C4: `pointer` checks that the word lies in the mapping and is aligned; the mapping lives as
        // long as `self`, and both sides access it by whole words.
        unsafe { AtomicU64::from_ptr(self.pointer(at)) }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: C4: `pointer` checks that the word lies in the mapping and is aligned; both sides access it
        // as a whole.
        unsafe { AtomicU32::from_ptr(self.pointer(at)) }
    }

    fn half(&self, at: usize) -> &AtomicU16 {
        // SAFETY: C4: `pointer` checks that the half word lies in the mapping and is aligned; both sides
        // access it as a whole.
        unsafe { AtomicU16::from_ptr(self.pointer(at)) }
    }

    fn set_byte(&self, at: usize, value: u8) {
        // SAFETY: C4: `pointer` checks that the byte lies in the mapping, and no program writes it.
        unsafe { std::sync::atomic::AtomicU8::from_ptr(self.pointer(at)) }.store(value, Ordering::Relaxed);
    }

    /// Whether programs write records at all.
    pub(super) fn set_on(&self, on: bool) {
        self.word(ON).store(on.into(), Ordering::SeqCst);
    }

    /// Whether they write those of faults.
    pub(super) fn set_faults(&self, on: bool) {
        self.word(FAULTS).store(on.into(), Ordering::SeqCst);
    }

    /// Follows a thread, if that is not followed; false if no slot is free, or its number is too large.
    pub(super) fn follow(&self, tid: u32) -> bool {
        let Layout { slots, tids, most_tids, .. } = self.layout;
        if tid as usize >= most_tids {
            return false;
        }
        // One that was made by a followed thread is followed already. Nothing would give a second slot back.
        if self.half(tids + 2 * tid as usize).load(Ordering::SeqCst) != 0 {
            return true;
        }
        for slot in 1..MOST_SLOTS {
            let at = slots + (slot << SLOT_SHIFT);
            let owner = self.double(at + slot::OWNER as usize);
            if owner.compare_exchange(0, u64::from(tid) + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                (slot::FAULT_NS..slot::END)
                    .step_by(8)
                    .for_each(|field| self.double(at + field as usize).store(0, Ordering::Relaxed));
                // Slots are used up to here.
                self.double(NEXT).fetch_max(slot as u64 + 1, Ordering::SeqCst);
                self.half(tids + 2 * tid as usize).store(slot as u16, Ordering::SeqCst);
                return true;
            }
        }
        false
    }

    /// Follows a thread no more.
    pub(super) fn forget(&self, tid: u32) {
        let Layout { slots, tids, most_tids, .. } = self.layout;
        if (tid as usize) < most_tids {
            let slot = self.half(tids + 2 * tid as usize).swap(0, Ordering::SeqCst);
            if slot != 0 {
                self.double(slots + (usize::from(slot) << SLOT_SHIFT)).store(0, Ordering::SeqCst);
            }
        }
    }

    /// The slot of this number is tried next.
    #[cfg(test)]
    pub(super) fn set_next(&self, slot: u64) {
        self.double(NEXT).store(slot, Ordering::SeqCst);
    }

    /// Counts a lost record, as a program does that has not kept the time yet.
    #[cfg(test)]
    pub(super) fn lose(&self, cpu: usize) {
        self.double(CPUS + (cpu << CPU_SHIFT) + cpu::LOST as usize).fetch_add(1, Ordering::SeqCst);
    }

    /// Whether programs follow a thread.
    #[cfg(test)]
    pub(super) fn follows(&self, tid: u32) -> bool {
        self.half(self.layout.tids + 2 * tid as usize).load(Ordering::SeqCst) != 0
    }

    /// The begin of the oldest call or fault whose record is still to come.
    pub(super) fn oldest(&self) -> Option<u64> {
        let of_slot = |slot: usize| {
            let at = self.layout.slots + (slot << SLOT_SHIFT);
            let field = |field: i16| self.double(at + field as usize).load(Ordering::SeqCst);
            (field(slot::OWNER) != 0).then(|| [field(slot::FAULT_NS), field(slot::CALL_NS)])
        };
        // They are taken in turn; a program that draws one counts all of them as used.
        let used = self.double(NEXT).load(Ordering::SeqCst).min(MOST_SLOTS as u64) as usize;
        (1..used).filter_map(of_slot).flatten().filter(|ns| *ns != 0).min()
    }

    /// The records that a CPU could not write since the last call, if there are any, and the time of the
    /// first. That is 0 if a program is between the two.
    pub(super) fn take_lost(&self, cpu: usize) -> Option<(u64, u64)> {
        let at = CPUS + (cpu << CPU_SHIFT);
        // Programs count first, and keep the time then. In the other order, the time of a record that is lost
        // in between would be gone, and its count would come without a time.
        let since_ns = self.double(at + cpu::SINCE as usize).swap(0, Ordering::SeqCst);
        let lost = self.double(at + cpu::LOST as usize).swap(0, Ordering::SeqCst);
        (lost > 0).then_some((lost, since_ns))
    }

    /// Faults that were not recorded on purpose, of all CPUs.
    pub(super) fn missed(&self) -> u64 {
        let of_cpu = |cpu: usize| self.double(CPUS + (cpu << CPU_SHIFT) + cpu::MISSED as usize);
        (0..self.layout.cpus).map(|cpu| of_cpu(cpu).load(Ordering::SeqCst)).sum()
    }
}

/// The classes of all numbers of recorded calls: of 64-bit programs with x32, and of i386.
fn classes() -> [Vec<(usize, u8)>; 2] {
    let of = |call: Call| {
        let mut class = class::MEMORY;
        if call.makes_task() || call.is_exec() {
            class |= class::ENTRY;
        }
        if call.is_exec() {
            class |= class::EXEC;
        }
        if matches!(call, Call::Munmap | Call::Brk | Call::Mremap) {
            class |= class::DOWNGRADES;
        }
        if call == Call::Madvise {
            class |= class::DISCARDS;
        }
        if call.cuts_file() {
            class |= class::CUTS;
        }
        if call == Call::Mmap {
            class |= class::POPULATES;
        }
        class
    };
    let native = Call::ALL.iter().map(|&call| (call.x86_64(), call)).chain(abi::X32_OWN);
    let native = native.map(|(number, call)| (number as usize, of(call))).collect();
    let i386 = abi::i386_calls().map(|(number, call)| {
        let block = if number == abi::OLD_MMAP { class::ENTRY | class::BLOCK } else { 0 };
        (number as usize, of(call) | block)
    });
    [native, i386.collect()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recorded_number_has_a_class() {
        let [native, i386] = classes();
        assert!(
            native
                .iter()
                .chain(&i386)
                .all(|(number, class)| *number < MOST_NUMBERS && class & class::MEMORY != 0)
        );
        assert_eq!(native.len(), Call::ALL.len() + abi::X32_OWN.len());
        assert_eq!(i386.len(), abi::i386_numbers().count());
        let of = |numbers: &[(usize, u8)], number| {
            numbers.iter().find(|it| it.0 == number).expect("it is there").1
        };
        assert_eq!(of(&native, 10), class::MEMORY, "mprotect has one record");
        assert_eq!(of(&native, 11), class::MEMORY | class::DOWNGRADES, "munmap");
        assert_eq!(of(&native, 59), class::MEMORY | class::ENTRY | class::EXEC, "execve");
        let block = class::ENTRY | class::BLOCK;
        assert_eq!(of(&i386, 90), class::MEMORY | class::POPULATES | block, "mmap of before Linux 2.4");
    }

    #[test]
    fn a_thread_has_one_slot() {
        let layout = Layout::of(1, 32768);
        let memory = rustix::fs::memfd_create(c"quire", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
        rustix::fs::ftruncate(&memory, layout.bytes as u64).expect("its size");
        let shared = Shared::map(&memory, layout).expect("it is mapped");
        assert!(shared.follow(7) && shared.follow(7));
        shared.forget(7);
        let is_taken =
            |slot: &usize| shared.double(layout.slots + (slot << SLOT_SHIFT)).load(Ordering::SeqCst) != 0;
        assert_eq!((1..MOST_SLOTS).filter(is_taken).count(), 0);
    }

    #[test]
    fn parts_do_not_overlap() {
        let layout = Layout::of(3, 32768);
        assert!(CPUS + 3 * 64 <= layout.slots && layout.slots + MOST_SLOTS * 128 <= layout.tids);
        assert!(layout.tids + 2 * 32768 <= layout.bytes);
    }
}
