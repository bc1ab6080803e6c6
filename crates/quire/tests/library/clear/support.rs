//! Kernels of the running processor, and calls of them on slices.

use quire::arch::{ClearKernel, CopyKernel, CpuFeatures, ReadyClear, ReadyCopy};

/// The kernels that this processor can run.
pub(crate) fn clears() -> Vec<ReadyClear> {
    let features = CpuFeatures::detect();
    ClearKernel::ALL.into_iter().filter_map(|kernel| kernel.on(features).ok()).collect()
}

/// The copy kernels that this processor can run.
pub(crate) fn copies() -> Vec<ReadyCopy> {
    let features = CpuFeatures::detect();
    CopyKernel::ALL.into_iter().filter_map(|kernel| kernel.on(features).ok()).collect()
}

/// Leaves something in the vector register that kernels use first.
fn dirty_vectors() {
    #[cfg(not(miri))]
    // SAFETY: the instruction changes the register that is named.
    unsafe {
        std::arch::asm!("pcmpeqd xmm0, xmm0", out("xmm0") _, options(nomem, nostack, preserves_flags));
    }
}

/// Clears a slice.
pub(crate) fn zero(kernel: ReadyClear, bytes: &mut [u8]) {
    dirty_vectors();
    // SAFETY: the slice is the caller's alone, and a process's vector registers hold the compiler's values only.
    unsafe { kernel.zero(bytes.as_mut_ptr(), bytes.len()) };
}

/// Copies a slice onto one of the same length.
pub(crate) fn copy(kernel: ReadyCopy, from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len());
    // SAFETY: two slices, one of them exclusive, do not overlap, and a process's vector registers hold the compiler's
    // values only.
    unsafe { kernel.copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
}
