//! Ways to fill memory with zeroes, one machine instruction each.
//!
//! They differ in where the zeroes go: through the caches, or past them. Stores past the caches are ordered
//! with no later store, so each such kernel ends with a store fence, and a CPU that sees a later store of
//! this one sees zeroes (Intel SDM volume 1, section 10.4.6.2; AMD64 manual, volume 2, section 7.4.2;
//! `clzero` and `movdir64b` under their names). A fence waits until everything has arrived, so that runs
//! which belong together had better share [one](store_fence).
//!
//! Which one is faster is a matter of the processor, the extent and what comes after: the policy chooses.

use core::arch::asm;

use super::features::{CpuFeatures, Feature};
use crate::error::KernelError;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A way to fill memory with zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum ClearKernel {
    /// One `rep stosb` over the whole extent: the processor sees how long it is and may choose.
    String,
    /// Stores of 64 bytes through the caches, or of 32 where the processor has no more.
    Cached,
    /// Stores of 8 bytes past the caches, which every x86-64 processor has.
    Movnti,
    /// Stores of 16 bytes past the caches.
    Nt16,
    /// Stores of 64 bytes past the caches.
    Nt64,
    /// `movdir64b`: lines of 64 bytes past the caches, each at once.
    Movdir64b,
    /// `clzero`: lines of 64 bytes that become zero past the caches.
    Clzero,
}

impl ClearKernel {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::String, Self::Cached, Self::Movnti, Self::Nt16, Self::Nt64, Self::Movdir64b, Self::Clzero];

    /// The kernel that every processor can run: it needs no feature and no vector registers.
    pub const PLAIN: Self = Self::String;

    /// Without measuring: what clears fastest through the caches. String stores where they are fast.
    pub const fn cached(features: CpuFeatures) -> Self {
        if features.has(Feature::Erms) || !features.has(Feature::Avx) { Self::String } else { Self::Cached }
    }

    /// Without measuring: the widest way past the caches that there is.
    pub fn streaming(features: CpuFeatures) -> Self {
        let mut widest_first = [Self::Nt64, Self::Nt16, Self::Movdir64b, Self::Clzero].into_iter();
        widest_first.find(|kernel| kernel.on(features).is_ok()).unwrap_or(Self::Movnti)
    }

    /// Its name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Cached => "cached",
            Self::Movnti => "movnti",
            Self::Nt16 => "nt16",
            Self::Nt64 => "nt64",
            Self::Movdir64b => "movdir64b",
            Self::Clzero => "clzero",
        }
    }

    /// The kernel with this name.
    ///
    /// # Errors
    /// [`KernelError::Unknown`].
    pub fn from_name(name: &str) -> Result<Self, KernelError> {
        Self::ALL.into_iter().find(|kernel| kernel.name() == name).ok_or(KernelError::Unknown)
    }

    /// What the processor must have for it, if anything beyond what all have.
    pub const fn needs(self) -> Option<Feature> {
        match self {
            Self::String | Self::Movnti => None,
            Self::Cached => Some(Feature::Avx),
            Self::Nt16 => Some(Feature::Sse2),
            Self::Nt64 => Some(Feature::Avx512),
            Self::Movdir64b => Some(Feature::Movdir64b),
            Self::Clzero => Some(Feature::Clzero),
        }
    }

    /// Whether the zeroes go past the caches, so that what is in them stays.
    pub const fn is_streaming(self) -> bool {
        !matches!(self, Self::String | Self::Cached)
    }

    /// Whether it uses vector registers, which a kernel must save first.
    pub const fn uses_vectors(self) -> bool {
        matches!(self, Self::Cached | Self::Nt16 | Self::Nt64)
    }

    /// The kernel as it can be run on a processor with these features.
    ///
    /// # Errors
    /// [`KernelError::Missing`] names the kernel and the feature that it lacks.
    pub const fn on(self, features: CpuFeatures) -> Result<ReadyClear, KernelError> {
        match self.needs() {
            Some(feature) if !features.has(feature) => {
                Err(KernelError::Missing { kernel: self.name(), feature: feature.name() })
            }
            _ => Ok(ReadyClear { kernel: self, wide: features.has(Feature::Avx512), fenced: true }),
        }
    }
}

/// A kernel whose instructions the processor has: made by [`ClearKernel::on`] alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyClear {
    kernel: ClearKernel,
    /// There are registers of 64 bytes.
    wide: bool,
    /// It ends with a fence, if it goes past the caches.
    fenced: bool,
}

impl ReadyClear {
    /// The kernel that every processor can run.
    pub const PLAIN: Self = Self { kernel: ClearKernel::PLAIN, wide: false, fenced: true };

    /// Which one it is.
    #[inline]
    pub const fn kernel(self) -> ClearKernel {
        self.kernel
    }

    /// The same without a fence at its end: the caller makes a [`store_fence`] after the last of several
    /// runs, on the same CPU, before the caller hands the memory on or frees it.
    #[inline]
    #[must_use]
    pub const fn unfenced(self) -> Self {
        Self { fenced: false, ..self }
    }

    /// Fills `bytes` bytes from `start` on with zeroes, at any address and of any number. A CPU that sees a
    /// store which the caller makes afterwards, and after the fence, if it is [unfenced](Self::unfenced),
    /// sees the zeroes.
    ///
    /// # Safety
    /// The bytes are the caller's to write. Where the kernel [uses vectors](ClearKernel::uses_vectors), no
    /// task's values stand in vector registers, only the compiler's.
    pub unsafe fn zero(self, start: *mut u8, bytes: usize) {
        if cfg!(miri) || self.kernel == ClearKernel::String {
            // SAFETY: K1: the bytes are the caller's to write, by this function's contract.
            return unsafe { string(start, bytes) };
        }
        let head = (start.addr().wrapping_neg() % LINE).min(bytes);
        let (lines, tail) = ((bytes - head) / LINE, (bytes - head) % LINE);
        // SAFETY: K1: head, lines and tail follow one another and make up the caller's bytes. K2: the
        // processor has the instructions, since `on` made this value.
        unsafe {
            if head > 0 {
                string(start, head);
            }
            if lines > 0 {
                self.zero_lines(start.add(head), lines);
            }
            if tail > 0 {
                string(start.add(head + lines * LINE), tail);
            }
        }
        if self.fenced && self.kernel.is_streaming() {
            store_fence();
        }
    }

    /// `start` is a multiple of a line, `lines` not zero.
    unsafe fn zero_lines(self, start: *mut u8, lines: usize) {
        // SAFETY: K1: the lines are the caller's, by this function's contract. K2: `on` made this value for
        // the kernel.
        unsafe {
            match self.kernel {
                ClearKernel::String => string(start, lines * LINE),
                ClearKernel::Cached if self.wide => cached_64(start, lines),
                ClearKernel::Cached => cached_32(start, lines),
                ClearKernel::Movnti => movnti(start, lines),
                ClearKernel::Nt16 => nt16(start, lines),
                ClearKernel::Nt64 => nt64(start, lines),
                ClearKernel::Movdir64b => movdir64b(start, lines),
                ClearKernel::Clzero => clzero(start, lines),
            }
        }
    }
}

/// Orders all stores before it, those past the caches too, before all stores after it.
#[inline]
pub fn store_fence() {
    #[cfg(not(miri))]
    // SAFETY: K1: the instruction writes no memory and no register; every x86-64 processor has it.
    unsafe {
        asm!("sfence", options(nostack, preserves_flags));
    }
}

/// `rep stosb`.
#[inline]
unsafe fn string(start: *mut u8, bytes: usize) {
    #[cfg(miri)]
    // SAFETY: K1: the bytes are the caller's to write, by this function's contract.
    unsafe {
        start.write_bytes(0, bytes);
    }
    #[cfg(not(miri))]
    // SAFETY: K1: the instruction writes the caller's bytes upwards, since the ABI keeps the direction flag
    // clear.
    unsafe {
        asm!("rep stosb", inout("rdi") start => _, inout("rcx") bytes => _, in("al") 0_u8, options(nostack, preserves_flags));
    }
}

/// A function that runs instructions for each line: `rdi` is its address, `rcx` counts. A target without
/// vector registers has no names for them, and its compiler has no values in them; all others are told that
/// they change.
macro_rules! by_lines {
    ($(#[$doc:meta])* $name:ident, [$($first:literal),*], [$($line:literal),+], [$($last:literal),*]) => {
        $(#[$doc])*
        unsafe fn $name(start: *mut u8, lines: usize) {
            // SAFETY: K1: each turn writes one of the caller's lines, of which there is at least one. K2:
            // `on` asked for the feature.
            unsafe {
                asm!(
                    $($first,)*
                    "2:",
                    $($line,)+
                    "add rdi, 64",
                    "dec rcx",
                    "jnz 2b",
                    $($last,)*
                    inout("rdi") start => _,
                    inout("rcx") lines => _,
                    out("rax") _,
                    clobber_abi("sysv64"),
                    options(nostack),
                );
            }
        }
    };
}

by_lines! {
    /// Stores of 32 bytes through the caches.
    cached_32, ["vpxor xmm0, xmm0, xmm0"], ["vmovdqa [rdi], ymm0", "vmovdqa [rdi + 32], ymm0"], ["vzeroupper"]
}
by_lines! {
    /// Stores of 64 bytes through the caches.
    cached_64, ["vpxor xmm0, xmm0, xmm0"], ["vmovdqa64 [rdi], zmm0"], ["vzeroupper"]
}
by_lines! {
    /// Stores of 8 bytes past the caches.
    movnti,
    ["xor eax, eax"],
    [
        "movnti [rdi], rax", "movnti [rdi + 8], rax", "movnti [rdi + 16], rax", "movnti [rdi + 24], rax",
        "movnti [rdi + 32], rax", "movnti [rdi + 40], rax", "movnti [rdi + 48], rax", "movnti [rdi + 56], rax"
    ],
    []
}
by_lines! {
    /// Stores of 16 bytes past the caches.
    nt16,
    ["pxor xmm0, xmm0"],
    [
        "movntdq [rdi], xmm0", "movntdq [rdi + 16], xmm0", "movntdq [rdi + 32], xmm0",
        "movntdq [rdi + 48], xmm0"
    ],
    []
}
by_lines! {
    /// Stores of 64 bytes past the caches.
    nt64, ["vpxor xmm0, xmm0, xmm0"], ["vmovntdq [rdi], zmm0"], ["vzeroupper"]
}
by_lines! {
    /// Lines that become zero.
    clzero, [], ["mov rax, rdi", "clzero"], []
}

/// A line of zeroes, as `movdir64b` copies one.
#[repr(align(64))]
struct ZeroLine([u8; LINE]);
static ZERO_LINE: ZeroLine = ZeroLine([0; LINE]);

/// Stores of whole lines past the caches.
unsafe fn movdir64b(start: *mut u8, lines: usize) {
    // SAFETY: K1: each turn writes one of the caller's lines, of which there is at least one, and reads a
    // line that nothing writes. K2: `on` asked for the feature.
    unsafe {
        asm!(
            "2:",
            "movdir64b rdi, [rsi]",
            "add rdi, 64",
            "dec rcx",
            "jnz 2b",
            inout("rdi") start => _,
            inout("rcx") lines => _,
            in("rsi") &raw const ZERO_LINE.0,
            options(nostack),
        );
    }
}
