//! Kernels that copy memory, as in [`clear`](super::clear). Loads always go through the caches.

use core::arch::asm;

use super::clear::store_fence;
use super::features::{CpuFeatures, Feature};
use crate::error::KernelError;

const LINE: usize = 64;

/// A way to copy memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum CopyKernel {
    /// One `rep movsb` over the whole extent.
    String,
    /// `rep movsq` over all whole lines, for processors without [`Erms`](Feature::Erms), as
    /// [`ClearKernel::Quadwords`](super::clear::ClearKernel::Quadwords) clears.
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
}

impl CopyKernel {
    /// All kernels.
    pub const ALL: [Self; 7] =
        [Self::String, Self::Quadwords, Self::Cached, Self::Movnti, Self::Nt16, Self::Nt32, Self::Nt64];

    /// The kernel for every processor: it needs no feature and no vector registers.
    pub const PLAIN: Self = Self::String;
    /// The kernel past the caches for every processor.
    pub(crate) const PLAIN_STREAMING: Self = Self::Movnti;

    /// The kernel through the caches assumed fastest without a measurement: string moves of bytes where they
    /// are fast, else vectors, else string moves of quadwords.
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
        let mut widest_first = [Self::Nt64, Self::Nt32, Self::Nt16].into_iter();
        widest_first.find(|kernel| kernel.on(features).is_ok()).unwrap_or(Self::PLAIN_STREAMING)
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
        }
    }

    /// Whether it stores past the caches.
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
    pub const fn on(self, features: CpuFeatures) -> Result<ReadyCopy, KernelError> {
        match self.needs() {
            Some(feature) if !features.has(feature) => {
                Err(KernelError::Missing { kernel: self.name(), feature: feature.name() })
            }
            _ => Ok(ReadyCopy { kernel: self, wide: features.has(Feature::Avx512) }),
        }
    }
}

/// A kernel that the processor can run; only [`CopyKernel::on`] makes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyCopy {
    kernel: CopyKernel,
    /// The processor has 64-byte registers.
    wide: bool,
}

impl ReadyCopy {
    /// The kernel for every processor.
    pub const PLAIN: Self = Self { kernel: CopyKernel::PLAIN, wide: false };

    /// Which kernel it is.
    #[inline]
    pub const fn kernel(self) -> CopyKernel {
        self.kernel
    }

    /// Copies any number of bytes, at any address. A CPU that sees a later store of the caller sees them.
    ///
    /// # Safety
    /// `to` is the caller's to write, `from` to read. They are the same, or do not overlap. Where the kernel [uses
    /// vectors](CopyKernel::uses_vectors), vector registers hold no task's values, only the compiler's.
    pub unsafe fn copy(self, from: *const u8, to: *mut u8, bytes: usize) {
        if cfg!(miri) || self.kernel == CopyKernel::String {
            // SAFETY: K1: `to` is the caller's to write and `from` to read, by this function's contract.
            return unsafe { string(from, to, bytes) };
        }
        let head = (to.addr().wrapping_neg() % LINE).min(bytes);
        let (lines, tail) = ((bytes - head) / LINE, (bytes - head) % LINE);
        let done = head + lines * LINE;
        // SAFETY: K1: head, lines and tail follow one another and make up the caller's bytes. K2: the
        // processor has the instructions, since `on` made this value.
        unsafe {
            if head > 0 {
                string(from, to, head);
            }
            if lines > 0 {
                self.copy_lines(from.add(head), to.add(head), lines);
            }
            if tail > 0 {
                string(from.add(done), to.add(done), tail);
            }
        }
        if self.kernel.is_streaming() {
            store_fence();
        }
    }

    /// `to` is a multiple of a line; `lines` is not zero.
    unsafe fn copy_lines(self, from: *const u8, to: *mut u8, lines: usize) {
        // SAFETY: K1: the lines are the caller's, by this function's contract. K2: `on` made this value.
        unsafe {
            match self.kernel {
                CopyKernel::String => string(from, to, lines * LINE),
                CopyKernel::Quadwords => quadwords(from, to, lines),
                CopyKernel::Cached if self.wide => cached_64(from, to, lines),
                CopyKernel::Cached => cached_32(from, to, lines),
                CopyKernel::Movnti => movnti(from, to, lines),
                CopyKernel::Nt16 => nt16(from, to, lines),
                CopyKernel::Nt32 => nt32(from, to, lines),
                CopyKernel::Nt64 => nt64(from, to, lines),
            }
        }
    }
}

#[inline]
unsafe fn string(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(miri)]
    // SAFETY: K1: the bytes are the caller's to read and to write, by this function's contract.
    unsafe {
        to.copy_from(from, bytes);
    }
    #[cfg(not(miri))]
    // SAFETY: K1: it accesses the caller's bytes upwards, since the ABI keeps the direction flag clear.
    unsafe {
        asm!(
            "rep movsb",
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rcx") bytes => _,
            options(nostack, preserves_flags),
        );
    }
}

#[inline]
unsafe fn quadwords(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: K1: it accesses the caller's lines upwards, since the ABI keeps the direction flag clear.
    unsafe {
        asm!(
            "rep movsq",
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rcx") lines * (LINE / 8) => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Stores of 8 bytes past the caches.
unsafe fn movnti(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: K1: each turn reads and writes one of the caller's lines, of which there is at least one.
    unsafe {
        asm!(
            "2:",
            "mov rax, [rsi]", "mov rdx, [rsi + 8]", "mov r8, [rsi + 16]", "mov r9, [rsi + 24]",
            "movnti [rdi], rax", "movnti [rdi + 8], rdx", "movnti [rdi + 16], r8", "movnti [rdi + 24], r9",
            "mov rax, [rsi + 32]", "mov rdx, [rsi + 40]", "mov r8, [rsi + 48]", "mov r9, [rsi + 56]",
            "movnti [rdi + 32], rax", "movnti [rdi + 40], rdx", "movnti [rdi + 48], r8", "movnti [rdi + 56], r9",
            "add rsi, 64",
            "add rdi, 64",
            "dec rcx",
            "jnz 2b",
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rcx") lines => _,
            out("rax") _,
            out("rdx") _,
            out("r8") _,
            out("r9") _,
            options(nostack),
        );
    }
}

/// Defines a function that moves each line through registers, `$at` bytes into the line each, eight lines a turn
/// and then line by line.
macro_rules! by_moves {
    ($name:ident, $load:literal, $store:literal, [$($at:literal: $register:literal),+], [$($last:literal),*]) => {
        unsafe fn $name(from: *const u8, to: *mut u8, lines: usize) {
            // SAFETY: K1: each turn reads and writes one or four of the caller's lines. K2: `on` asked for the
            // feature.
            unsafe {
                asm!(
                    "mov rax, rcx",
                    "shr rax, 3",
                    "jz 3f",
                    // Both pointers go behind these lines, and an index from below zero counts up.
                    "shl rax, 9",
                    "add rsi, rax",
                    "add rdi, rax",
                    "neg rax",
                    "2:",
                    $(concat!($load, " ", $register, ", [rsi + rax + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 64 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 64 + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 128 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 128 + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 192 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 192 + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 256 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 256 + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 320 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 320 + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 384 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 384 + ", $at, "], ", $register),)+
                    $(concat!($load, " ", $register, ", [rsi + rax + 448 + ", $at, "]"),)+
                    $(concat!($store, " [rdi + rax + 448 + ", $at, "], ", $register),)+
                    "add rax, 512",
                    "jnz 2b",
                    "3:",
                    "and ecx, 7",
                    "jz 5f",
                    "4:",
                    $(concat!($load, " ", $register, ", [rsi + ", $at, "]"),)+
                    $(concat!($store, " [rdi + ", $at, "], ", $register),)+
                    "add rsi, 64",
                    "add rdi, 64",
                    "dec ecx",
                    "jnz 4b",
                    "5:",
                    $($last,)*
                    inout("rdi") to => _,
                    inout("rsi") from => _,
                    inout("rcx") lines => _,
                    out("rax") _,
                    clobber_abi("sysv64"),
                    options(nostack),
                );
            }
        }
    };
}

by_moves!(cached_32, "vmovdqu", "vmovdqa", [0: "ymm0", 32: "ymm1"], ["vzeroupper"]);
by_moves!(cached_64, "vmovdqu64", "vmovdqa64", [0: "zmm0"], ["vzeroupper"]);
by_moves!(nt16, "movdqu", "movntdq", [0: "xmm0", 16: "xmm1", 32: "xmm2", 48: "xmm3"], []);
by_moves!(nt32, "vmovdqu", "vmovntdq", [0: "ymm0", 32: "ymm1"], ["vzeroupper"]);
by_moves!(nt64, "vmovdqu64", "vmovntdq", [0: "zmm0"], ["vzeroupper"]);
