//! The registers of x87, SSE and AVX that programs use. The kernel compiles without them, so they change hands when
//! tasks do, and while Quire clears or copies with them.

use core::arch::asm;

use x86_64::registers::xcontrol::{XCr0, XCr0Flags};

use super::area;

/// What programs may use, as XCR0 names it, without AVX where the processor has none.
///
/// AVX-512 stays off: its state is three times as large, and each switch of tasks stores and loads it.
const PARTS: XCr0Flags = XCr0Flags::X87.union(XCr0Flags::SSE).union(XCr0Flags::AVX);

/// Bytes that FXSAVE stores, which are the first of an image (SDM volume 1, table 10-2).
pub const LEGACY_BYTES: usize = 512;
/// Which parts of the image are not in their first state, and its form (SDM volume 1, section 13.4.2).
const HEADER: usize = LEGACY_BYTES;
const HEADER_BYTES: usize = 64;
/// The upper halves of 16 registers, at their standard place behind the header.
const AVX_BYTES: usize = 256;

/// The registers as XSAVE stores them in its standard form (SDM volume 1, section 13.4).
#[derive(Clone)]
#[repr(C, align(64))]
pub struct FpuState(pub [u8; LEGACY_BYTES + HEADER_BYTES + AVX_BYTES]);

impl FpuState {
    /// The state of a new program: all exceptions masked, all registers empty.
    pub const fn new() -> Self {
        let mut image = [0; size_of::<Self>()];
        // A header of zeroes means that all registers are empty. MXCSR, 0x1f80, is loaded all the same.
        image[24] = 0x80;
        image[25] = 0x1f;
        Self(image)
    }

    /// Stores the processor's registers here.
    pub fn save(&mut self) {
        // SAFETY: X3, X7: the image has the alignment and, for the parts that are on, the size of XSAVE's.
        // The kernel compiles without these registers, so they hold the program's values.
        unsafe { save(self.0.as_mut_ptr()) }
    }

    /// Stores the processor's registers here, and returns which exceptions of x87 and of SSE were raised and are not
    /// masked, as bits of the status words.
    pub fn save_exceptions(&mut self) -> [u32; 2] {
        self.save();
        let word = |at: usize| u32::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]));
        let (control, status, sse) = (word(0), word(2), word(24));
        [status & !control, sse & !(sse >> 7)]
    }

    /// Loads the processor's registers from here.
    pub fn restore(&self) {
        // SAFETY: X3: the image is large and aligned enough, as in `save`. XRSTOR faults at an image that is
        // not of XSAVE, and `sanitise` cleared what a program can spoil.
        unsafe { restore(self.0.as_ptr()) }
    }

    /// Gives the processor's registers the state of a new program.
    pub fn reset(&mut self) {
        *self = Self::new();
        self.restore();
    }

    /// Clears what XRSTOR refuses, in an image that a program has written.
    pub fn sanitise(&mut self) {
        // The reserved bits of MXCSR.
        self.0[26..28].fill(0);
        let (parts, rest) = self.0[HEADER..HEADER + HEADER_BYTES].split_at_mut(8);
        parts[0] &= parts_in_use() as u8;
        parts[1..].fill(0);
        rest.fill(0);
    }

    /// Makes an image of which only the first [`LEGACY_BYTES`] were filled valid: the upper halves are zero.
    pub fn only_legacy(&mut self) {
        self.0[HEADER..].fill(0);
        self.0[HEADER] = (XCr0Flags::X87 | XCr0Flags::SSE).bits() as u8;
    }
}

/// Lets the running CPU use and save the registers. `CR4.OSXSAVE` is on.
pub fn enable(has_avx: bool) {
    let parts = if has_avx { PARTS } else { PARTS.difference(XCr0Flags::AVX) };
    // SAFETY: X7: the processor has these parts, and each task saves them.
    unsafe { XCr0::write(parts) }
}

/// The parts that programs use, as XCR0 names them.
pub fn parts_in_use() -> u64 {
    XCr0::read_raw()
}

/// Saves the registers of the running CPU, until [`give_back_registers`]. The caller does not switch tasks meanwhile.
/// Returns `false` in an interrupt: the code that it interrupted may have them.
pub fn borrow_registers() -> bool {
    let area = area::this();
    if area.in_interrupt() {
        return false;
    }
    // SAFETY: X2: the image is of the running CPU's area. No handler uses it, and calls do not nest.
    unsafe { (*area.vectors.get()).save() };
    true
}

/// Loads what [`borrow_registers`] saved.
pub fn give_back_registers() {
    // SAFETY: X2: the image is the one that `borrow_registers` filled, on the same CPU, since the caller
    // switches no tasks.
    unsafe { (*area::this().vectors.get()).restore() };
}

/// # Safety
/// The image is as large as all parts, at a multiple of 64, and the caller's.
#[inline]
unsafe fn save(image: *mut u8) {
    let parts = PARTS.bits() as u32;
    // SAFETY: X7: the image is the caller's; `enable` has turned the instruction on.
    unsafe {
        asm!("xsave64 [{}]", in(reg) image, in("eax") parts, in("edx") 0, options(nostack, preserves_flags))
    };
}

/// # Safety
/// As for [`save`].
#[inline]
unsafe fn restore(image: *const u8) {
    let parts = PARTS.bits() as u32;
    // SAFETY: X7: the image is the caller's; `enable` has turned the instruction on.
    unsafe {
        asm!("xrstor64 [{}]", in(reg) image, in("eax") parts, in("edx") 0, options(nostack, preserves_flags))
    };
}
