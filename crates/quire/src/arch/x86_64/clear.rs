//! Kernels that fill memory with zeroes, by one machine instruction each.
//!
//! Some store through the caches, others past them. Later stores may overtake stores past the caches, so each
//! such kernel ends with a store fence: a CPU that sees a later store of this CPU sees the zeroes (Intel SDM
//! volume 1, section 10.4.6.2; AMD64 manual, volume 2, section 7.4.2; `clzero` and `movdir64b` under their
//! names). A fence waits until all stores have arrived, so consecutive runs should share [one](store_fence).
//!
//! The policy chooses a kernel: which is fastest depends on the processor, the extent and the later use.

use core::arch::asm;

use super::features::{CpuFeatures, Feature};
use crate::error::KernelError;

const LINE: usize = 64;

/// A way to fill memory with zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum ClearKernel {
    /// One `rep stosb` over the whole extent: the processor sees its length and may choose.
    String,
    /// `rep stosq` over all whole lines. A processor without [`Erms`](Feature::Erms) may store each byte of
    /// [`String`](Self::String) by itself, and stores 8 bytes at least here (Intel SDM volume 1, section
    /// 7.3.9.3; Intel's optimization manual, section 3.7.6).
    Quadwords,
    /// Stores of 64 bytes through the caches, or of 32 on a processor without 64-byte registers.
    Cached,
    /// Stores of 8 bytes past the caches, on every x86-64 processor.
    Movnti,
    /// Stores of 16 bytes past the caches.
    Nt16,
    /// Stores of 32 bytes past the caches.
    Nt32,
    /// Stores of 64 bytes past the caches.
    Nt64,
    /// `movdir64b`: whole lines of 64 bytes past the caches.
    Movdir64b,
    /// `clzero`: clears whole lines of 64 bytes past the caches.
    Clzero,
}

impl ClearKernel {
    /// All kernels.
    pub const ALL: [Self; 9] = [
        Self::String,
        Self::Quadwords,
        Self::Cached,
        Self::Movnti,
        Self::Nt16,
        Self::Nt32,
        Self::Nt64,
        Self::Movdir64b,
        Self::Clzero,
    ];

    /// The kernel for every processor: it needs no feature and no vector registers.
    pub const PLAIN: Self = Self::String;

    /// The kernel through the caches assumed fastest without a measurement: string stores of bytes where they
    /// are fast, else vectors, else string stores of quadwords.
    pub const fn cached(features: CpuFeatures) -> Self {
        if features.has(Feature::Erms) {
            Self::String
        } else if features.has(Feature::Avx) {
            Self::Cached
        } else {
            Self::Quadwords
        }
    }

    /// The kernel assumed fastest past the caches without a measurement: the widest one.
    pub fn streaming(features: CpuFeatures) -> Self {
        let mut widest_first =
            [Self::Nt64, Self::Nt32, Self::Nt16, Self::Movdir64b, Self::Clzero].into_iter();
        widest_first.find(|kernel| kernel.on(features).is_ok()).unwrap_or(Self::Movnti)
    }

    /// The kernel's name in tables and options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Quadwords => "quadwords",
            Self::Cached => "cached",
            Self::Movnti => "movnti",
            Self::Nt16 => "nt16",
            Self::Nt32 => "nt32",
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

    /// The feature that the processor must have for it, if any.
    pub const fn needs(self) -> Option<Feature> {
        match self {
            Self::String | Self::Quadwords | Self::Movnti => None,
            Self::Cached | Self::Nt32 => Some(Feature::Avx),
            Self::Nt16 => Some(Feature::Sse2),
            Self::Nt64 => Some(Feature::Avx512),
            Self::Movdir64b => Some(Feature::Movdir64b),
            Self::Clzero => Some(Feature::Clzero),
        }
    }

    /// Whether it stores past the caches, which keep their contents.
    pub const fn is_streaming(self) -> bool {
        !matches!(self, Self::String | Self::Quadwords | Self::Cached)
    }

    /// Whether it uses vector registers, which a kernel of an operating system must save first.
    pub const fn uses_vectors(self) -> bool {
        matches!(self, Self::Cached | Self::Nt16 | Self::Nt32 | Self::Nt64)
    }

    /// The kernel, ready to run on a processor with these features.
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

/// A kernel that the processor can run; only [`ClearKernel::on`] makes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyClear {
    kernel: ClearKernel,
    /// The processor has 64-byte registers.
    wide: bool,
    /// A kernel that stores past the caches ends with a fence.
    fenced: bool,
}

impl ReadyClear {
    /// The kernel for every processor.
    pub const PLAIN: Self = Self { kernel: ClearKernel::PLAIN, wide: false, fenced: true };

    /// Which kernel it is.
    #[inline]
    pub const fn kernel(self) -> ClearKernel {
        self.kernel
    }

    /// The same kernel without a fence at its end. After the last of several runs the caller makes a
    /// [`store_fence`] on the same CPU, before it hands the memory on or frees it.
    #[inline]
    #[must_use]
    pub const fn unfenced(self) -> Self {
        Self { fenced: false, ..self }
    }

    /// Clears `bytes` bytes from `start` on, of any number at any address. A CPU that sees a later store of
    /// the caller, after the fence of an [unfenced](Self::unfenced) kernel, sees the zeroes.
    ///
    /// # Safety
    /// The bytes are the caller's to write. Where the kernel [uses vectors](ClearKernel::uses_vectors),
    /// vector registers hold no task's values, only the compiler's.
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

    /// `start` is a multiple of a line; `lines` is not zero.
    unsafe fn zero_lines(self, start: *mut u8, lines: usize) {
        // SAFETY: K1: the lines are the caller's, by this function's contract. K2: `on` made this value.
        unsafe {
            match self.kernel {
                ClearKernel::String => string(start, lines * LINE),
                ClearKernel::Quadwords => quadwords(start, lines),
                ClearKernel::Cached if self.wide => cached_64(start, lines),
                ClearKernel::Cached => cached_32(start, lines),
                ClearKernel::Movnti => movnti(start, lines),
                ClearKernel::Nt16 => nt16(start, lines),
                ClearKernel::Nt32 => nt32(start, lines),
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

#[inline]
unsafe fn string(start: *mut u8, bytes: usize) {
    #[cfg(miri)]
    // SAFETY: K1: the bytes are the caller's to write, by this function's contract.
    unsafe {
        start.write_bytes(0, bytes);
    }
    #[cfg(not(miri))]
    // SAFETY: K1: it writes the caller's bytes upwards, since the ABI keeps the direction flag clear.
    unsafe {
        asm!("rep stosb", inout("rdi") start => _, inout("rcx") bytes => _, in("al") 0_u8, options(nostack, preserves_flags));
    }
}

#[inline]
unsafe fn quadwords(start: *mut u8, lines: usize) {
    // SAFETY: K1: it writes the caller's lines upwards, since the ABI keeps the direction flag clear.
    unsafe {
        asm!(
            "rep stosq",
            inout("rdi") start => _,
            inout("rcx") lines * (LINE / 8) => _,
            in("rax") 0_u64,
            options(nostack, preserves_flags),
        );
    }
}

/// Defines a function that runs instructions for each line; `rdi` is the line's address, `rcx` counts. On a
/// target without vector registers the assembler has no names for them and the compiler no values in them; on
/// all others the clobber tells the compiler that they change.
macro_rules! by_lines {
    ($name:ident, [$($first:literal),*], [$($line:literal),+], [$($last:literal),*]) => {
        unsafe fn $name(start: *mut u8, lines: usize) {
            // SAFETY: K1: each turn writes one of the caller's lines, at least one in all. K2: `on` checked
            // it.
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
    movnti, ["xor eax, eax"],
    [
        "movnti [rdi], rax", "movnti [rdi + 8], rax", "movnti [rdi + 16], rax", "movnti [rdi + 24], rax",
        "movnti [rdi + 32], rax", "movnti [rdi + 40], rax", "movnti [rdi + 48], rax", "movnti [rdi + 56], rax"
    ],
    []
}
by_lines!(clzero, [], ["mov rax, rdi", "clzero"], []);

/// Defines a function that stores a register of zeroes at `$at` bytes of each line, four lines a turn and then
/// line by line.
macro_rules! by_stores {
    ($name:ident, $zero:literal, $store:literal, $register:literal, [$($at:literal),+], [$($last:literal),*]) => {
        unsafe fn $name(start: *mut u8, lines: usize) {
            // SAFETY: K1: each turn writes one or four of the caller's lines. K2: `on` checked it.
            unsafe {
                asm!(
                    $zero,
                    "mov rax, rcx",
                    "shr rax, 2",
                    "jz 3f",
                    // The pointer goes behind these lines, and an index from below zero counts up.
                    "shl rax, 8",
                    "add rdi, rax",
                    "neg rax",
                    "2:",
                    $(concat!($store, " [rdi + rax + ", $at, "], ", $register),)+
                    $(concat!($store, " [rdi + rax + 64 + ", $at, "], ", $register),)+
                    $(concat!($store, " [rdi + rax + 128 + ", $at, "], ", $register),)+
                    $(concat!($store, " [rdi + rax + 192 + ", $at, "], ", $register),)+
                    "add rax, 256",
                    "jnz 2b",
                    "3:",
                    "and ecx, 3",
                    "jz 5f",
                    "4:",
                    $(concat!($store, " [rdi + ", $at, "], ", $register),)+
                    "add rdi, 64",
                    "dec ecx",
                    "jnz 4b",
                    "5:",
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

by_stores!(cached_32, "vpxor xmm0, xmm0, xmm0", "vmovdqa", "ymm0", [0, 32], ["vzeroupper"]);
by_stores!(cached_64, "vpxor xmm0, xmm0, xmm0", "vmovdqa64", "zmm0", [0], ["vzeroupper"]);
by_stores!(nt16, "pxor xmm0, xmm0", "movntdq", "xmm0", [0, 16, 32, 48], []);
by_stores!(nt32, "vpxor xmm0, xmm0, xmm0", "vmovntdq", "ymm0", [0, 32], ["vzeroupper"]);
by_stores!(nt64, "vpxor xmm0, xmm0, xmm0", "vmovntdq", "zmm0", [0], ["vzeroupper"]);

/// The line that `movdir64b` copies.
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
