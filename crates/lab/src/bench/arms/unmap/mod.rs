//! Arms of the experiment `unmap`.

mod linux;
mod quire;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::bench::experiment::Arm;
use crate::bench::linux::verbs::Linux;
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{self, ZAPS};
use crate::host::threads::{Meeting, Pinned};

/// Which CPUs run the address space while memory is unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunBy {
    /// The CPU that unmaps.
    One,
    /// A second CPU too, whose thread is bound to this processor.
    Two(usize),
    /// No CPU.
    NoCpu,
}

impl RunBy {
    /// The number of CPUs.
    pub fn cpus(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two(_) => 2,
            Self::NoCpu => 0,
        }
    }
}

/// Unmap populated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// The memory.
    pub memory: Memory,
    /// Bytes that each call unmaps, a divisor of the memory's size.
    pub each: usize,
    /// Which CPUs run the address space.
    pub run_by: RunBy,
}

/// Runs `work` while another thread on `processor` spins in the function that it gives to `spin`.
fn beside<R>(processor: usize, spin: impl FnOnce(&dyn Fn()) + Send, work: impl FnOnce() -> R) -> R {
    let (meeting, over) = (Meeting::of(2), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _pinned = Pinned::to(processor);
            spin(&|| {
                meeting.wait();
                while !over.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            });
        });
        let _over = Over(&over);
        meeting.wait();
        work()
    })
}

/// Sets the flag when dropped, also on a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Every arm. The checksum of a repetition is the number of pages that were mapped, written, and then unmapped.
pub fn all() -> Vec<Box<dyn Arm<Unmap>>> {
    let mut arms = verbs::arms::<quire::Munmap>(ZAPS);
    arms.push(Linux::arm(&linux::UNMAP));
    arms
}
