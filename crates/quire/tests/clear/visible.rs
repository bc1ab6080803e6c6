//! Who sees a flag that was set after a clear sees zeroes, on another processor too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quire::arch::ReadyClear;

use crate::support::clears;

const LINES: usize = if cfg!(miri) { 2 } else { 64 };
const ROUNDS: u64 = if cfg!(miri) { 5 } else { 3000 };

/// A line, written word by word.
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// Two threads take turns: one clears and raises the flag; the other, which spins on the flag and does nothing else, reads
/// everything, makes it dirty and gives the turn back.
fn hand_over(kernel: ReadyClear) {
    let page: Vec<Line> =
        std::iter::repeat_with(|| Line([const { AtomicU64::new(1) }; 8])).take(LINES).collect();
    let (turn, seen) = (AtomicUsize::new(0), Mutex::new(None));
    let wait = |mine: usize| {
        let mut spins = 0_u32;
        while turn.load(Ordering::Acquire) != mine {
            spins += 1;
            if spins.is_multiple_of(4096) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                wait(1);
                // Backwards: the lines that were cleared last come first.
                for (at, line) in page.iter().enumerate().rev() {
                    if line.0.iter().rev().any(|word| word.load(Ordering::Relaxed) != 0) {
                        *seen.lock().unwrap() = Some((round, at));
                    }
                }
                page.iter()
                    .flat_map(|line| &line.0)
                    .for_each(|word| word.store(round + 2, Ordering::Relaxed));
                turn.store(0, Ordering::Release);
            }
        });
        for _ in 0..ROUNDS {
            wait(0);
            // SAFETY: the turn says that the page is this thread's, and its words may be changed through a shared
            // reference.
            unsafe { kernel.zero(page.as_ptr().cast_mut().cast(), size_of_val(page.as_slice())) };
            turn.store(1, Ordering::Release);
        }
    });
    assert_eq!(*seen.lock().unwrap(), None, "{kernel:?}: a word that was not zero (round, line)");
}

#[test]
fn another_thread_sees_zeroes_after_the_flag() {
    clears().into_iter().for_each(hand_over);
}
