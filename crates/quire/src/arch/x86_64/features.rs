//! The processor's features that clearing and copying can use, and its cache sizes, by CPUID and XGETBV
//! (Intel SDM volume 2A; AMD64 manual, volume 3, appendix E).

use core::arch::x86_64::{__cpuid_count, CpuidResult};
use core::fmt;

/// A feature that a clear or copy kernel may need.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Feature {
    /// `rep movsb` and `rep stosb` work in units larger than a byte.
    Erms,
    /// The same instructions are fast for a few bytes too.
    Fsrm,
    /// 16-byte registers, enabled by the system.
    Sse2,
    /// 32-byte registers, enabled by the system.
    Avx,
    /// 64-byte registers, enabled by the system.
    Avx512,
    /// `movdir64b`, which stores 64 bytes past the caches.
    Movdir64b,
    /// `clzero`, which clears lines of 64 bytes past the caches.
    Clzero,
}

impl Feature {
    /// All features.
    pub const ALL: [Self; 7] =
        [Self::Erms, Self::Fsrm, Self::Sse2, Self::Avx, Self::Avx512, Self::Movdir64b, Self::Clzero];

    /// The name of the feature in `/proc/cpuinfo` of Linux.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Erms => "erms",
            Self::Fsrm => "fsrm",
            Self::Sse2 => "sse2",
            Self::Avx => "avx",
            Self::Avx512 => "avx512f",
            Self::Movdir64b => "movdir64b",
            Self::Clzero => "clzero",
        }
    }
}

/// Usable features. Safe code gets only those that the processor reports, and so no unsupported instruction.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuFeatures(u8);

/// The extended registers of 16, 32 and 64 bytes whose state the system has enabled (XCR0).
const SSE_STATE: u64 = 1 << 1;
const AVX_STATE: u64 = SSE_STATE | 1 << 2;
const AVX512_STATE: u64 = AVX_STATE | 0b111 << 5;

/// The line size that `clzero` is used with, in bytes.
const LINE: u32 = 64;

/// One leaf; all zeroes where the processor does not know the leaf.
fn leaf(number: u32, part: u32) -> CpuidResult {
    let none = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };
    // Miri has no processor to ask.
    if cfg!(miri) || number > cpuid(number & 0x8000_0000, 0).eax {
        return none;
    }
    cpuid(number, part)
}

/// The instruction `cpuid`.
fn cpuid(number: u32, part: u32) -> CpuidResult {
    // SAFETY: K1: the instruction exists in 64-bit mode and changes registers only.
    #[allow(unused_unsafe, reason = "the oldest supported compiler declares the function unsafe")]
    unsafe {
        __cpuid_count(number, part)
    }
}

const fn bit(word: u32, at: u32) -> bool {
    word >> at & 1 == 1
}

/// XCR0: what the system has enabled; nothing where it has not made XGETBV available.
fn enabled_state(basic: &CpuidResult) -> u64 {
    const OSXSAVE: u32 = 27;
    if !bit(basic.ecx, OSXSAVE) {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: K2: OSXSAVE says that the system has enabled the instruction, which only reads; so register 0
    // exists.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

impl CpuFeatures {
    /// No feature: what every x86-64 processor has still works.
    pub const NONE: Self = Self(0);

    /// The features that the running processor has and the system has enabled. Vector registers count only
    /// where XCR0 says that the system saves their state, or where the compiler uses them already. The
    /// platform says whether they may be used in the running code.
    pub fn detect() -> Self {
        let (basic, more, amd) = (leaf(1, 0), leaf(7, 0), leaf(0x8000_0008, 0));
        let state = enabled_state(&basic);
        let has = |wanted: u64| state & wanted == wanted;
        let compiled = cfg!(all(target_feature = "sse2", not(miri)));
        let line = leaf(0x8000_0005, 0).ecx & 0xff;
        let found = [
            (Feature::Erms, bit(more.ebx, 9)),
            (Feature::Fsrm, bit(more.edx, 4)),
            (Feature::Sse2, bit(basic.edx, 26) && (has(SSE_STATE) || compiled)),
            (Feature::Avx, bit(basic.ecx, 28) && has(AVX_STATE)),
            (Feature::Avx512, bit(more.ebx, 16) && has(AVX512_STATE)),
            (Feature::Movdir64b, bit(more.ecx, 28)),
            (Feature::Clzero, bit(amd.ebx, 0) && line == LINE),
        ];
        found
            .into_iter()
            .filter(|(_, present)| *present)
            .fold(Self::NONE, |all, (feature, _)| all.and(feature))
    }

    /// These features, whatever the processor reports.
    ///
    /// # Safety
    /// Each feature exists and is enabled, or its instructions are trapped and emulated.
    pub unsafe fn assume(features: &[Feature]) -> Self {
        features.iter().fold(Self::NONE, |all, &feature| all.and(feature))
    }

    /// These features and one more: a kernel that saves the state of SSE by FXSAVE adds
    /// [`Sse2`](Feature::Sse2), which [`Self::detect`] cannot see then.
    ///
    /// # Safety
    /// As for [`Self::assume`].
    #[must_use]
    pub const unsafe fn with(self, feature: Feature) -> Self {
        self.and(feature)
    }

    /// Whether the feature can be used.
    #[inline]
    pub const fn has(self, feature: Feature) -> bool {
        self.0 >> feature as u8 & 1 == 1
    }

    /// All features but this one.
    #[must_use]
    pub const fn without(self, feature: Feature) -> Self {
        Self(self.0 & !(1 << feature as u8))
    }

    /// All features but those that need vector registers.
    #[must_use]
    pub const fn without_vectors(self) -> Self {
        self.without(Feature::Sse2).without(Feature::Avx).without(Feature::Avx512)
    }

    const fn and(self, feature: Feature) -> Self {
        Self(self.0 | 1 << feature as u8)
    }
}

impl fmt::Debug for CpuFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = f.debug_set();
        for feature in Feature::ALL.into_iter().filter(|&feature| self.has(feature)) {
            names.entry(&format_args!("{}", feature.name()));
        }
        names.finish()
    }
}

/// The data caches of the running CPU, in bytes; zero where the processor does not report one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caches {
    /// The first level.
    pub first: u64,
    /// The second level.
    pub second: u64,
    /// The last level, which may be the second.
    pub last: u64,
}

impl Caches {
    /// The caches that the processor reports: leaf 4 (Intel), or leaf 8000_001D of the same form (AMD).
    pub fn detect() -> Self {
        const TOPOLOGY_EXTENSIONS: u32 = 22;
        let amd = bit(leaf(0x8000_0001, 0).ecx, TOPOLOGY_EXTENSIONS);
        let number = if amd { 0x8000_001d } else { 4 };
        Self::from_leaves((0..16).map(|part| leaf(number, part)))
    }

    /// The caches in the parts of a leaf, up to the first part that names no cache.
    fn from_leaves(parts: impl Iterator<Item = CpuidResult>) -> Self {
        const NONE: u32 = 0;
        const INSTRUCTIONS: u32 = 2;
        let mut caches = Self::default();
        for part in parts.take_while(|part| part.eax & 0x1f != NONE) {
            if part.eax & 0x1f == INSTRUCTIONS {
                continue;
            }
            let field = |shift: u32, bits: u32| u64::from(part.ebx >> shift & ((1 << bits) - 1)) + 1;
            let bytes = field(0, 12) * field(12, 10) * field(22, 10) * (u64::from(part.ecx) + 1);
            match part.eax >> 5 & 7 {
                1 => caches.first = bytes,
                2 => caches.second = bytes,
                _ => {}
            }
            caches.last = caches.last.max(bytes);
        }
        caches
    }
}

#[cfg(test)]
mod tests;
