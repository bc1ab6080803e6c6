//! Who sees a flag that was set after a clear sees zeroes, on another processor too.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hosted::HostedConfig;
use quire::addr::{Frame, FrameRange};
use quire::arch::{ClearKernel, CopyKernel, ReadyClear, store_fence};
use quire::clear::{ClearPolicy, Clearer, Extent, Stretch};
use quire::cpu::CpuId;
use quire::error::Cancelled;
use quire::platform::{Platform, TouchHint};

use crate::support::clears;

const LINES: usize = if cfg!(miri) { 2 } else { 64 };
const ROUNDS: u64 = if cfg!(miri) { 5 } else { 3000 };
/// Rounds where a machine clears.
const EXTENTS: u64 = if cfg!(miri) { 2 } else { 1500 };

/// A line, written word by word.
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// Two threads take turns: one clears and raises the flag; the other, which spins on the flag and does nothing else, reads
/// everything, makes it dirty and gives the turn back.
fn hand_over(what: &dyn std::fmt::Debug, page: &[Line], rounds: u64, clear: impl Fn()) {
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
            for round in 0..rounds {
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
        for _ in 0..rounds {
            wait(0);
            clear();
            turn.store(1, Ordering::Release);
        }
    });
    assert_eq!(*seen.lock().unwrap(), None, "{what:?}: a word that was not zero (round, line)");
}

/// Hands over a page that a kernel cleared.
fn by_kernel(kernel: ReadyClear, after: impl Fn()) {
    let page: Vec<Line> =
        std::iter::repeat_with(|| Line([const { AtomicU64::new(1) }; 8])).take(LINES).collect();
    hand_over(&kernel, &page, ROUNDS, || {
        // SAFETY: the turn says that the page is this thread's, and its words may be changed through a shared reference.
        unsafe { kernel.zero(page.as_ptr().cast_mut().cast(), size_of_val(page.as_slice())) };
        after();
    });
}

#[test]
fn another_thread_sees_zeroes_after_the_flag() {
    clears().into_iter().for_each(|kernel| by_kernel(kernel, || ()));
}

#[test]
fn another_thread_sees_zeroes_after_the_fence_of_an_unfenced_kernel() {
    clears().into_iter().for_each(|kernel| by_kernel(kernel.unfenced(), store_fence));
}

/// Hands over the first frames of a machine whose clearer has one kernel and stretches of two frames.
fn by_clearer(kernel: ClearKernel, frames: u64, clear: impl Fn(&Clearer, &hosted::Hosted)) {
    let machine = HostedConfig::new(4 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let policy = ClearPolicy::only(kernel, CopyKernel::String).with_stretch(Stretch::of(8192).unwrap());
        let clearer = Clearer::new(&machine, Some(&policy)).unwrap();
        let start = machine.direct_map(Frame(0).addr()).cast::<Line>();
        // SAFETY: the machine's memory, which is zero at first, as aligned as a frame, and nobody else's.
        let page = unsafe { std::slice::from_raw_parts(start, frames as usize * 64) };
        hand_over(&kernel, page, EXTENTS, || clear(&clearer, &machine));
    });
}

#[test]
fn another_thread_sees_zeroes_of_an_extent_in_pieces() {
    for kernel in clears() {
        by_clearer(kernel.kernel(), 2, |clearer, machine| {
            let extent = Extent::new(FrameRange::new(Frame(0), 2), TouchHint::Unknown).near(Frame(0));
            clearer.clear_extent(machine, &extent, || false).unwrap();
        });
        by_clearer(kernel.kernel(), 1, |clearer, machine| {
            clearer.clear(machine, FrameRange::new(Frame(0), 1), TouchHint::Unknown);
        });
    }
}

#[test]
fn who_gives_up_leaves_no_zeroes_behind_that_come_later() {
    for kernel in clears() {
        by_clearer(kernel.kernel(), 2, |clearer, machine| {
            let extent = Extent::new(FrameRange::new(Frame(0), 4), TouchHint::Unknown);
            assert_eq!(clearer.clear_extent(machine, &extent, || true), Err(Cancelled));
        });
    }
}
