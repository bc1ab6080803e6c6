//! The kernel's half of every address space.
//!
//! Quire owns the lower half of a top-level table. The upper half is the kernel's, and must be there before the
//! table is loaded. It never changes after start-up, so copying it once is enough.

use core::sync::atomic::{AtomicU64, Ordering};

use quire::addr::Frame;
use x86_64::PhysAddr;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::PhysFrame;

use super::layout;

const ENTRIES: usize = 512;

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

/// Gives the top-level table of a new address space the kernel's half, after `new_mm` and `fork` and before
/// `switch_in`.
///
/// # Safety
/// It is the root of an address space of Quire that no CPU has loaded yet.
pub unsafe fn fill(new_root: Frame) {
    let (from, to) = (table_at(root()), table_at(new_root));
    for index in ENTRIES / 2..ENTRIES {
        // SAFETY: both are top-level tables of 512 entries. No CPU has loaded the new one, by the contract, and Quire
        // uses only its lower half.
        unsafe { to.add(index).write(from.add(index).read()) };
    }
}

/// Makes this CPU use a top-level table that has the kernel's half.
pub fn load(root: Frame) {
    let frame = PhysFrame::containing_address(PhysAddr::new(root.addr().0));
    // SAFETY: the code that runs stays mapped, since every root has the same upper half.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}

fn table_at(root: Frame) -> *mut u64 {
    layout::direct_map(root.addr()).cast()
}
