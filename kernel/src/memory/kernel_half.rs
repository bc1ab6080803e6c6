//! The kernel's half of every address space.
//!
//! Quire owns the lower half of a top-level table and copies the upper half from the kernel's
//! (`TablePlatform::kernel_root`). It never changes after start-up, so copying it once is enough.

use core::sync::atomic::{AtomicU64, Ordering};

use quire::addr::Frame;
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;

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
    let frame = PhysFrame::containing_address(PhysAddr::new(root.addr().0));
    // SAFETY: the code that runs stays mapped, since every root has the same upper half.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}
