//! The kernel's half of every address space.
//!
//! Quire owns the lower half of a top-level table and copies the upper half from the kernel's
//! (`TablePlatform::kernel_root`). It never changes after start-up, so copying it once is enough.

use core::sync::atomic::{AtomicU64, Ordering};

use quire::addr::Frame;
use quire_interop::shootdown::Ring0;

/// The running CPU.
// SAFETY: the kernel runs in ring 0, user leaves are not global, and `CR4.PCIDE` is clear (P2).
pub const CPU: Ring0 = unsafe { Ring0::new() };

static KERNEL_ROOT: AtomicU64 = AtomicU64::new(0);

/// Loads the tables that [`crate::boot::tables`] built, and remembers them for all address spaces.
pub fn install(root: Frame) {
    KERNEL_ROOT.store(root.0, Ordering::Relaxed);
    load(root);
}

/// The table whose lower half is empty.
pub fn root() -> Frame {
    Frame(KERNEL_ROOT.load(Ordering::Relaxed))
}

/// Makes this CPU use a top-level table that has the kernel's half.
pub fn load(root: Frame) {
    // SAFETY: the code that runs stays mapped, since every root has the same upper half (P2).
    unsafe { CPU.load_root(root) };
}
