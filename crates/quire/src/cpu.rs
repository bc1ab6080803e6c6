//! CPU numbers and sets of CPUs.

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::limits::MAX_CPUS;

const WORDS: usize = MAX_CPUS / 64;

/// The number of a CPU, below [`FramePlatform::cpu_count`](crate::platform::FramePlatform::cpu_count).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CpuId(pub u32);

impl CpuId {
    /// The number as an index into per-CPU arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// CPUs 0 to `count - 1`.
    pub fn first(count: usize) -> Self {
        let mut set = Self::EMPTY;
        (0..count).for_each(|cpu| set.insert(CpuId(cpu as u32)));
        set
    }

    /// Adds a CPU.
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        self.0[cpu.index() / 64] |= 1 << (cpu.index() % 64);
    }

    /// Removes a CPU; returns whether it was in the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let (word, bit) = (&mut self.0[cpu.index() / 64], 1 << (cpu.index() % 64));
        let had = *word & bit != 0;
        *word &= !bit;
        had
    }

    /// Whether the CPU is in the set.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64] >> (cpu.index() % 64) & 1 == 1
    }

    /// Whether no CPU is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.0.iter().enumerate().flat_map(|(at, &word)| {
            let mut rest = word;
            core::iter::from_fn(move || {
                (rest != 0).then(|| {
                    let bit = rest.trailing_zeros();
                    rest &= rest - 1;
                    CpuId(at as u32 * 64 + bit)
                })
            })
        })
    }
}

/// A set that several CPUs change at once: which CPUs run an address space.
#[derive(Debug, Default)]
pub struct AtomicCpuSet([AtomicU64; WORDS]);

impl AtomicCpuSet {
    /// No CPU.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    /// Adds a CPU. Sequentially consistent with [`Self::snapshot`]: a CPU that joins after a page-table
    /// change either sees the change or is in the snapshot.
    #[inline]
    pub fn insert(&self, cpu: CpuId) {
        self.0[cpu.index() / 64].fetch_or(1 << (cpu.index() % 64), Ordering::SeqCst);
    }

    /// Removes a CPU.
    #[inline]
    pub fn remove(&self, cpu: CpuId) {
        self.0[cpu.index() / 64].fetch_and(!(1 << (cpu.index() % 64)), Ordering::SeqCst);
    }

    /// Removes a CPU; returns whether it was in the set.
    #[inline]
    pub(crate) fn take(&self, cpu: CpuId) -> bool {
        let bit = 1 << (cpu.index() % 64);
        self.0[cpu.index() / 64].fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Whether a CPU is in the set now.
    #[inline]
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        self.0[cpu.index() / 64].load(Ordering::SeqCst) >> (cpu.index() % 64) & 1 == 1
    }

    /// Removes the CPUs that are in the set at some time during the call. Others that join meanwhile may stay
    /// or not.
    #[inline]
    pub(crate) fn clear(&self) {
        for word in &self.0 {
            if word.load(Ordering::SeqCst) != 0 {
                word.store(0, Ordering::SeqCst);
            }
        }
    }

    /// Whether a CPU is in the set now, and whether any other of the first `count` CPUs is. Ordered as
    /// [`Self::snapshot`].
    #[inline]
    pub(crate) fn has_and_others(&self, cpu: CpuId, count: usize) -> (bool, bool) {
        fence(Ordering::SeqCst);
        let (own, bit) = (cpu.index() / 64, 1 << (cpu.index() % 64));
        let (mut has, mut others) = (false, 0);
        for (at, word) in self.0.iter().take(count.div_ceil(64)).enumerate() {
            let word = word.load(Ordering::SeqCst);
            has |= at == own && word & bit != 0;
            others |= if at == own { word & !bit } else { word };
        }
        (has, others != 0)
    }

    /// Whether several of the first `count` CPUs are in the set. Ordered after nothing: the answer may be
    /// old.
    #[inline]
    pub(crate) fn has_several(&self, count: usize) -> bool {
        let words = self.0.iter().take(count.div_ceil(64));
        words.map(|word| word.load(Ordering::Relaxed).count_ones()).sum::<u32>() > 1
    }

    /// The current set.
    #[inline]
    pub fn snapshot(&self) -> CpuSet {
        fence(Ordering::SeqCst);
        CpuSet(core::array::from_fn(|word| self.0[word].load(Ordering::SeqCst)))
    }
}
