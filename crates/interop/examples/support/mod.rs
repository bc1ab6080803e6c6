//! What the examples share: the smallest machine that Quire runs on. One CPU, no interrupts, and a direct map at a fixed
//! offset, which the boot loader sets up.

use core::sync::atomic::{AtomicUsize, Ordering, fence};

use quire::addr::PhysAddr;
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FramePlatform};

/// The machine. It is one word, so that the boot loader can say where its direct map is; where that is known when the kernel
/// is compiled, the type is better empty.
pub(crate) struct Machine {
    offset: AtomicUsize,
}

/// The one that runs.
pub(crate) static MACHINE: Machine = Machine { offset: AtomicUsize::new(0) };

impl Machine {
    /// Says where physical address 0 stands in the direct map.
    pub(crate) fn set_offset(&self, offset: u64) {
        self.offset.store(offset as usize, Ordering::Relaxed);
    }
}

// SAFETY: one task runs, on one CPU, and no interrupt arrives, so what is pinned stays, and a fence on this CPU is one on all.
// The boot loader maps all of memory at the offset, and nothing but Quire uses what it is given (invariant 1).
unsafe impl FramePlatform for Machine {
    fn pin(&self) -> CpuId {
        CpuId(0)
    }

    fn unpin(&self) {}

    fn context(&self) -> Context {
        Context::Task
    }

    fn cpu_count(&self) -> usize {
        1
    }

    fn fence_cpus(&self, _targets: &CpuSet) {
        fence(Ordering::SeqCst);
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.offset.load(Ordering::Relaxed) + addr.0 as usize)
    }
}

/// Waits for ever.
#[cfg(target_os = "none")]
pub(crate) fn halt() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// A kernel would print the message.
#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    halt()
}
