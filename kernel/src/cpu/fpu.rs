//! The vector registers of programs. The kernel compiles without them, so they change hands when tasks do, and while
//! Quire clears or copies large folios with them.

use core::arch::x86_64::{_fxrstor64, _fxsave64};

use super::area;

/// The registers of x87 and SSE, as FXSAVE stores them (SDM volume 1, table 10-2).
#[derive(Clone)]
#[repr(C, align(16))]
pub struct FpuState(pub [u8; 512]);

impl FpuState {
    /// The state of a new program: all exceptions masked, all registers empty.
    pub const fn new() -> Self {
        let mut image = [0; 512];
        // FCW 0x037f and MXCSR 0x1f80, as the System V ABI has them at process start.
        image[0] = 0x7f;
        image[1] = 0x03;
        image[24] = 0x80;
        image[25] = 0x1f;
        Self(image)
    }

    /// Stores the processor's registers here.
    pub fn save(&mut self) {
        // SAFETY: the image has the size and the alignment of FXSAVE, and the kernel compiles without SSE, so the
        // registers are the program's.
        unsafe { save(self.0.as_mut_ptr()) }
    }

    /// Loads the processor's registers from here.
    pub fn restore(&self) {
        // SAFETY: as in `save`; a reserved bit of MXCSR would fault, and `sanitise` cleared those that a program can
        // set.
        unsafe { restore(self.0.as_ptr()) }
    }

    /// Clears the bits of MXCSR that FXRSTOR refuses, in an image that a program has written.
    pub fn sanitise(&mut self) {
        self.0[26] = 0;
        self.0[27] = 0;
    }
}

/// Saves the registers of the running CPU, until [`give_back_registers`]. The caller does not switch tasks meanwhile.
/// Returns `false` in an interrupt: the code that it interrupted may have them.
pub fn borrow_registers() -> bool {
    let area = area::this();
    if area.in_interrupt() {
        return false;
    }
    // SAFETY: no handler uses the image, and calls do not nest.
    unsafe { (*area.vectors.get()).save() };
    true
}

/// Loads what [`borrow_registers`] saved.
pub fn give_back_registers() {
    // SAFETY: as in `borrow_registers`.
    unsafe { (*area::this().vectors.get()).restore() };
}

#[target_feature(enable = "fxsr")]
unsafe fn save(image: *mut u8) {
    // SAFETY: the caller's image is 512 bytes at a multiple of 16.
    unsafe { _fxsave64(image) }
}

#[target_feature(enable = "fxsr")]
unsafe fn restore(image: *const u8) {
    // SAFETY: the caller's image is 512 bytes at a multiple of 16.
    unsafe { _fxrstor64(image) }
}
