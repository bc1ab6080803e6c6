//! A machine of one CPU whose platform needs next to no stack: memory of the process, no TLB, no files.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{Ordering, fence};

use quire::addr::{Frame, PhysAddr};
use quire::arch::{PagingMode, ProcessorState};
use quire::cpu::{CpuId, CpuSet};
use quire::limits::BLOCK_SIZE;
use quire::platform::{Context, FlushRequest, FramePlatform, NoFiles, Platform, TablePlatform};

/// 64 MiB of memory at physical address 0.
pub(crate) struct Machine {
    memory: *mut u8,
}

pub(crate) const BYTES: u64 = 64 << 20;

const fn layout() -> Layout {
    match Layout::from_size_align(BYTES as usize, BLOCK_SIZE as usize) {
        Ok(layout) => layout,
        Err(_) => panic!("a size that fits"),
    }
}

impl Machine {
    pub(crate) fn new() -> Self {
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout()) };
        assert!(!memory.is_null(), "the process has 64 MiB");
        Self { memory }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: `memory` came from `alloc_zeroed` with this layout, and managers borrow the machine.
        unsafe { dealloc(self.memory, layout()) };
    }
}

// SAFETY: the pointer is only read, and what it points to belongs to the machine's manager (invariant 1).
unsafe impl Sync for Machine {}

// SAFETY: one CPU runs one task to its end, so a pinned task stays where it is, and its own fence is every CPU's.
// The direct map stays until the machine is dropped, and only the manager uses it (invariant 1).
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
        self.memory.wrapping_add(addr.0 as usize)
    }
}

// SAFETY: nothing translates addresses by these tables, so there is nothing to flush.
unsafe impl TablePlatform for Machine {
    fn processor_state(&self) -> ProcessorState {
        ProcessorState::modelled(PagingMode::FourLevel)
    }

    fn kernel_root(&self) -> Option<Frame> {
        None
    }

    fn load_root(&self, _root: Option<Frame>) {}

    fn flush_local(&self, _request: &FlushRequest) {}

    fn flush_remote_start(&self, _targets: &CpuSet, _request: &FlushRequest) {}

    fn flush_remote_wait(&self, _targets: &CpuSet, _request: &FlushRequest) {}
}

// SAFETY: one task never waits for another.
unsafe impl Platform for Machine {
    type Pager = NoFiles;

    fn pager(&self) -> &NoFiles {
        &NoFiles
    }
}
