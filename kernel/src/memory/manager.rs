//! The manager, of which there is one, and the checks at its end.

use quire::manager::{Config, MemoryManager};
use quire::vm::Mm;
use quire_interop::{Heap, MemoryMap};
use spin::Once;

use super::platform::{MACHINE, Machine};
use crate::device::serial::log;

/// An address space of this machine.
pub type Space = Mm<'static, Machine>;

static MANAGER: Once<MemoryManager<'static, Machine>> = Once::new();

/// `Box` and `Vec` of the kernel are slabs and folios of Quire.
#[global_allocator]
static HEAP: Heap<Machine> = Heap::new();

/// Hands the memory to Quire.
///
/// # Safety
/// Nothing else uses this memory, now or later (invariant 1).
pub unsafe fn start(memory: &MemoryMap) {
    // SAFETY: the caller hands the memory over.
    let manager = MANAGER.call_once(|| unsafe {
        MemoryManager::new(&MACHINE, memory.ranges(), &Config::default()).expect("memory that can be managed")
    });
    HEAP.init(manager.pages()).expect("a frame for the heap");
}

/// The manager, after [`start`].
pub fn manager() -> &'static MemoryManager<'static, Machine> {
    MANAGER.get().expect("started before the first program")
}

/// What is in use, in frames. Compared before and after a program: all that it had must be free again.
///
/// Free frames alone would not balance: frames on per-CPU lists keep the descriptors of their block, which count as
/// metadata. All memory is free, cached, used or metadata, so what is used must balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Balance {
    used: u64,
    slab: u64,
    anon: u64,
    mapped: u64,
    page_tables: u64,
    page_cache: u64,
}

impl Balance {
    /// The balance now.
    pub fn now() -> Self {
        let info = manager().meminfo();
        Self {
            // Frames that went bad stay in use for ever.
            used: info.frames.used - info.slab - info.bad,
            slab: info.slab,
            anon: info.anon,
            mapped: info.mapped,
            page_tables: info.page_tables,
            page_cache: info.cached,
        }
    }
}

/// How many frames of small objects more there may be at the end: the kernel's queues keep the memory that they grew
/// to.
const SLAB_GROWTH: u64 = 16;

/// Checks Quire's invariants and the balance. Returns whether both hold.
pub fn check(before: Balance) -> bool {
    let (valid, after) = (manager().validate(), Balance::now());
    if let Err(violation) = &valid {
        log!("the manager's invariants are broken: {violation:?}");
    }
    let allowed = Balance { slab: after.slab.min(before.slab + SLAB_GROWTH), ..before };
    if allowed != after {
        log!("memory was lost:\n before {before:?}\n after  {after:?}");
    }
    valid.is_ok() && allowed == after
}
