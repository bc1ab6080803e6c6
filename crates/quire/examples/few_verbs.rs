//! A kernel that uses few verbs of address spaces: it shows how much of the library such a kernel links.
//!
//! Runs on the host (`cargo run -p quire-mm --features bare --example few_verbs`) and builds without an operating system:
//!
//! ```sh
//! cargo build --release -p quire-mm --features bare --example few_verbs --target x86_64-unknown-none
//! size -A target/x86_64-unknown-none/release/examples/few_verbs
//! ```
#![cfg_attr(target_os = "none", no_std, no_main)]

use core::cell::UnsafeCell;
use core::hint::black_box;
use core::sync::atomic::{Ordering, fence};

use quire::addr::{Frame, FrameRange, PhysAddr};
use quire::arch::{PagingMode, ProcessorState, Protection};
use quire::cpu::{CpuId, CpuSet};
use quire::limits::FRAME_SIZE;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::platform::{Context, FlushRequest, FramePlatform, NoFiles, Platform, TablePlatform};
use quire::vm::{Access, MapRequest};

const BYTES: usize = 16 << 20;

/// What a boot loader would leave to the kernel; here a static of its size. Physical address 0 is its first byte.
#[repr(align(0x20_0000))]
struct Memory(UnsafeCell<[u8; BYTES]>);

// SAFETY: nothing but the manager and the owners of its frames reaches the bytes, and they exclude one another
// (invariant 1).
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; BYTES]));

/// The machine. It runs no program, so it loads no page table and has nothing to flush.
struct Machine;

// SAFETY: one CPU runs one task to its end, so a pinned task stays where it is, and its own fence is every CPU's. The
// direct map is a static, which is there for ever, and which nothing but the manager uses (invariant 1).
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
        MEMORY.0.get().cast::<u8>().wrapping_add(addr.0 as usize)
    }
}

// SAFETY: no CPU loads a table that the library makes, so none caches a translation of it (invariant 2).
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

// SAFETY: the pager has no files, and no task waits, since there is one (invariant 1).
unsafe impl Platform for Machine {
    type Pager = NoFiles;

    fn pager(&self) -> &NoFiles {
        &NoFiles
    }
}

fn run() {
    let memory =
        MemoryRange { frames: FrameRange::new(Frame(0), BYTES as u64 / FRAME_SIZE), node: 0, zeroed: true };
    // SAFETY: invariant 1: nothing else uses these 16 MiB.
    let manager = unsafe { MemoryManager::new(&Machine, &[memory], &Config::default()) };
    let manager = manager.expect("16 MiB suffice");
    let mm = manager.new_mm().expect("memory is free");
    mm.switch_in();
    let prot = Protection::READ | Protection::WRITE;
    // The compiler must not know the length, or it would leave out more than a kernel can.
    let request = MapRequest { len: black_box(FRAME_SIZE), prot, ..MapRequest::default() };
    let at = mm.mmap(&request).expect("the address space is empty");
    mm.fault(at, black_box(Access::Write)).expect("the mapping may be stored to");
    let child = mm.fork().expect("memory is free");
    assert_eq!(mm.rss().anon + child.rss().anon, 2, "parent and child map the page");
    mm.munmap(at, black_box(FRAME_SIZE)).expect("it is mapped");
    child.exit();
    mm.exit();
}

#[cfg(not(target_os = "none"))]
fn main() {
    run();
}

/// What a boot loader jumps to. A kernel has set up a stack before.
#[cfg(target_os = "none")]
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    run();
    halt()
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    halt()
}

#[cfg(target_os = "none")]
fn halt() -> ! {
    loop {
        core::hint::spin_loop();
    }
}
