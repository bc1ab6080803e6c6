use core::sync::atomic::AtomicU64;

use super::{PoolBits, Run};
use std::vec::Vec;

/// Bits of a pool as the test writes them: true for free.
fn with_bits<R>(free: &[bool], test: impl FnOnce(PoolBits<'_>) -> R) -> R {
    let words = free.len().div_ceil(64);
    let word = |at: usize| {
        (0..64)
            .filter(|bit| !free.get(at * 64 + bit).copied().unwrap_or(false))
            .fold(0, |word, bit| word | 1u64 << bit)
    };
    let taken: Vec<AtomicU64> = (0..words).map(|at| AtomicU64::new(word(at))).collect();
    let summary = |at: usize| {
        (0..64)
            .filter(|bit| at * 64 + bit >= words || word(at * 64 + bit) == u64::MAX)
            .fold(0, |sum, bit| sum | 1u64 << bit)
    };
    let full: Vec<AtomicU64> = (0..words.div_ceil(64)).map(|at| AtomicU64::new(summary(at))).collect();
    test(PoolBits { taken: &taken, full: &full, stale: &[] })
}

fn naive(free: &[bool], run: Run) -> Option<usize> {
    (0..free.len()).find(|&start| {
        (run.origin + start).is_multiple_of(run.align)
            && free.get(start..start + run.blocks).is_some_and(|bits| bits.iter().all(|&bit| bit))
    })
}

/// Every pattern of sixteen bits across the border of two words, in surroundings that are free or taken, against every
/// length and alignment that can make a difference there.
#[test]
fn finds_the_lowest_run_of_every_small_pool() {
    for around in [false, true] {
        for pattern in (0..1u32 << 16).step_by(if cfg!(miri) { 30011 } else { 1 }) {
            let mut free = [around; 128];
            for bit in 0..16 {
                free[56 + bit] = pattern >> bit & 1 == 1;
            }
            let lengths: &[usize] = if around { &[55, 57, 63, 64, 65, 70] } else { &[1, 2, 3, 5, 8, 9, 16] };
            with_bits(&free, |bits| {
                for &blocks in lengths {
                    for align in [1, 2, 4, 8, 64] {
                        let run = Run { blocks, align, origin: 0 };
                        assert_eq!(bits.find_run(0, run).0, naive(&free, run), "{pattern:016b} {run:?}");
                    }
                }
            });
        }
    }
}

#[test]
fn finds_the_lowest_run_of_random_pools() {
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..if cfg!(miri) { 20 } else { 20_000 } {
        let mut free = Vec::new();
        let (most, words) = (1 << rng.u32(0..9), rng.usize(1..12));
        while free.len() < words * 64 {
            let (count, is_free) = (rng.usize(1..=most), rng.bool());
            free.extend(core::iter::repeat_n(is_free, count));
        }
        free.truncate(words * 64 - rng.usize(..64));
        let blocks = if rng.bool() { rng.usize(1..70) } else { rng.usize(1..=free.len()) };
        let run = Run { blocks, align: 1 << rng.u32(0..12), origin: rng.usize(0..9) * 512 };
        let (found, looked) = with_bits(&free, |bits| bits.find_run(0, run));
        assert_eq!(found, naive(&free, run), "{run:?} in {free:?}");
        assert!(looked <= words, "{looked} of {words} words looked at");
    }
}

/// 1 TiB of blocks in patterns that would make a search that starts over quadratic.
#[test]
fn looks_at_each_word_once() {
    const BLOCKS: usize = if cfg!(miri) { 1 << 12 } else { 1 << 19 };
    let almost = |every: usize| (0..BLOCKS).map(|bit| bit % every != 0).collect::<Vec<bool>>();
    for (every, blocks, align) in [(2, 2, 1), (64, 64, 1), (512, 512, 512), (513, 513, 1), (4097, 4097, 1)] {
        let (found, looked) =
            with_bits(&almost(every), |bits| bits.find_run(0, Run { blocks, align, origin: 0 }));
        assert_eq!(found, None);
        assert!(looked <= BLOCKS / 64, "{looked} words for {blocks} blocks");
    }
    let mut last = std::vec![false; BLOCKS];
    last[BLOCKS - 512..].fill(true);
    let run = Run { blocks: 512, align: 512, origin: 0 };
    let (found, looked) = with_bits(&last, |bits| bits.find_run(0, run));
    assert_eq!((found, looked), (Some(BLOCKS - 512), 8), "full words are skipped");
}
