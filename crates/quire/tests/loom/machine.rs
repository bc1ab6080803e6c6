//! A platform with only a CPU number and a thread that can yield and sleep, which is all that locks and leases need.

use quire::addr::{Frame, FrameRange, PhysAddr};
use quire::arch::{ProcessorState, ReadyClear, ReadyCopy};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FlushRequest, FramePlatform, NoFiles, TablePlatform};

use crate::atomic::{self, AtomicU32};
use crate::platform::Platform;

/// One thread's view of the machine: it is this CPU.
pub(crate) struct Cpu(pub(crate) u32);

fn no_lock_asks() -> ! {
    unreachable!("a lock asked for more than a CPU number and a turn")
}

// SAFETY: it gives out no memory, and each thread of a model is a CPU of its own.
unsafe impl FramePlatform for Cpu {
    fn pin(&self) -> CpuId {
        CpuId(self.0)
    }

    fn unpin(&self) {}

    fn relax(&self) {
        crate::atomic::turn();
    }

    fn context(&self) -> Context {
        Context::Task
    }

    fn cpu_count(&self) -> usize {
        3
    }

    fn online_cpus(&self) -> CpuSet {
        CpuSet::first(3)
    }

    /// The caller's half: `loom` has no barrier that one thread makes another execute, so the other executes
    /// its own at the place where the first may make it do so.
    fn fence_cpus(&self, _targets: &CpuSet) {
        crate::atomic::fence(crate::atomic::Ordering::SeqCst);
    }

    fn direct_map(&self, _addr: PhysAddr) -> *mut u8 {
        no_lock_asks()
    }

    unsafe fn clear(&self, _frames: FrameRange, _kernel: ReadyClear) {
        no_lock_asks()
    }

    unsafe fn copy(&self, _from: FrameRange, _to: Frame, _kernel: ReadyCopy) {
        no_lock_asks()
    }

    fn now_ns(&self) -> u64 {
        0
    }
}

// SAFETY: there are no translations, and nothing flushes any.
unsafe impl TablePlatform for Cpu {
    fn processor_state(&self) -> ProcessorState {
        no_lock_asks()
    }

    fn kernel_root(&self) -> Option<Frame> {
        no_lock_asks()
    }

    fn load_root(&self, _root: Option<Frame>) {
        no_lock_asks()
    }

    fn flush_local(&self, _request: &FlushRequest) {
        no_lock_asks()
    }

    fn flush_remote_start(&self, _targets: &CpuSet, _request: &FlushRequest) {
        no_lock_asks()
    }

    fn flush_remote_wait(&self, _targets: &CpuSet, _request: &FlushRequest) {
        no_lock_asks()
    }
}

impl Platform for Cpu {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        atomic::sleep(word, seen);
    }

    fn wake(&self, _word: &AtomicU32) {
        atomic::wake_sleepers();
    }
}

// SAFETY: this platform names no files.
unsafe impl quire::platform::Platform for Cpu {
    type Pager = NoFiles;

    fn pager(&self) -> &NoFiles {
        &NoFiles
    }
}
