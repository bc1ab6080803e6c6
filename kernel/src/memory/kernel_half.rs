//! The kernel's half of every address space.
//!
//! Quire owns the lower half of a top-level table. The upper half is the kernel's, and must be there before the
//! table is loaded. It never changes after start-up, so copying it once is enough.

use core::sync::atomic::{AtomicU64, Ordering};

use quire::addr::Frame;

use super::layout;
use super::manager::Space;

const ENTRIES: usize = 512;

static KERNEL_ROOT: AtomicU64 = AtomicU64::new(0);

/// Loads the tables that [`crate::boot::tables`] built, and remembers them for all address spaces.
pub fn install(root: Frame) {
    KERNEL_ROOT.store(root.0, Ordering::Relaxed);
    super::platform::load_cr3(root);
}

/// The table whose lower half is empty.
pub fn root() -> Frame {
    Frame(KERNEL_ROOT.load(Ordering::Relaxed))
}

/// Gives a new address space the kernel's half. To be called after `new_mm` and `fork`, before `switch_in`.
pub fn fill(space: &Space) {
    let (from, to) = (table_at(root()), table_at(space.root()));
    for index in ENTRIES / 2..ENTRIES {
        // SAFETY: both are top-level tables of 512 entries. No CPU has loaded the new one, and Quire uses only its
        // lower half.
        unsafe { to.add(index).write(from.add(index).read()) };
    }
}

fn table_at(root: Frame) -> *mut u64 {
    layout::direct_map(root.addr()).cast()
}
