//! A CPU that sees a flag which was set after a clear or a copy also sees its zeroes or its bytes.

use hosted::raw::RawClearer;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hosted::HostedConfig;
use quire::addr::{Frame, FrameRange};
use quire::arch::{ClearKernel, CopyKernel, ReadyClear, ReadyCopy, store_fence};
use quire::clear::{ClearPolicy, Clearer, Extent, Stretch};
use quire::cpu::CpuId;
use quire::error::Cancelled;
use quire::platform::{FramePlatform, TouchHint};

use crate::clear::support::{clears, copies};

/// How many lines are handed over. With a single line, a store that is not waited for is under way for
/// longest when the flag is raised; with many, the last ones are.
const LINES: [usize; 2] = if cfg!(miri) { [1, 2] } else { [1, 64] };
const ROUNDS: u64 = if cfg!(miri) { 5 } else { 1500 };
/// Rounds where a machine clears.
const EXTENTS: u64 = if cfg!(miri) { 2 } else { 1500 };

/// A line, written word by word.
#[repr(align(64))]
struct Line([AtomicU64; 8]);

/// The word of copied pages; no round dirties the page with it.
const COPIED: u64 = u64::MAX;

fn lines_of(count: usize, word: u64) -> Vec<Line> {
    std::iter::repeat_with(|| Line(std::array::from_fn(|_| AtomicU64::new(word)))).take(count).collect()
}

/// Binds the calling thread to one of the processors that it may run on, by its index among them, until it is
/// dropped. Threads that take turns on one processor see each other's stores in order anyway.
struct Bound(#[cfg(not(miri))] libc::cpu_set_t);

impl Bound {
    #[cfg(miri)]
    fn to(_place: usize) -> Self {
        Self()
    }

    #[cfg(not(miri))]
    fn to(place: usize) -> Self {
        // SAFETY: the sets have the size that is passed; all zeroes is an empty one.
        unsafe {
            let (mut before, mut one) = std::mem::zeroed::<(libc::cpu_set_t, libc::cpu_set_t)>();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&before), &raw mut before), 0);
            let usable = (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &before));
            let usable: Vec<usize> = usable.collect();
            libc::CPU_SET(usable[place % usable.len()], &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
            Self(before)
        }
    }
}

#[cfg(not(miri))]
impl Drop for Bound {
    fn drop(&mut self) {
        // SAFETY: the set has the size that is passed. If the call fails, the thread stays where it is.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
    }
}

/// Two threads take turns. One fills the page with words that are `wanted` and raises the flag. The other
/// only spins on the flag; then it reads everything, makes it dirty and gives the turn back.
fn hand_over(what: &dyn std::fmt::Debug, page: &[Line], wanted: u64, rounds: u64, fill: impl Fn()) {
    let (turn, seen) = (AtomicUsize::new(0), Mutex::new(None));
    let wait = |mine: usize| {
        let mut spins = 0_u32;
        while turn.load(Ordering::Acquire) != mine {
            spins += 1;
            // The other thread is done sooner, unless another test has its processor.
            if spins.is_multiple_of(512) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _bound = Bound::to(1);
            for round in 0..rounds {
                wait(1);
                // Backwards, so that the lines that were filled last are read first.
                for (at, line) in page.iter().enumerate().rev() {
                    if line.0.iter().rev().any(|word| word.load(Ordering::Relaxed) != wanted) {
                        *seen.lock().unwrap() = Some((round, at));
                    }
                }
                page.iter()
                    .flat_map(|line| &line.0)
                    .for_each(|word| word.store(round + 2, Ordering::Relaxed));
                turn.store(0, Ordering::Release);
            }
        });
        let _bound = Bound::to(0);
        for _ in 0..rounds {
            wait(0);
            fill();
            turn.store(1, Ordering::Release);
        }
    });
    assert_eq!(*seen.lock().unwrap(), None, "{what:?}: a word that was not {wanted} (round, line)");
}

/// Hands over pages that a kernel cleared.
fn by_kernel(kernel: ReadyClear, after: impl Fn()) {
    for count in LINES {
        let page = lines_of(count, 1);
        hand_over(&kernel, &page, 0, ROUNDS, || {
            // SAFETY: the turn says that the page is this thread's, and its words may be changed through a shared reference.
            unsafe { kernel.zero(page.as_ptr().cast_mut().cast(), size_of_val(page.as_slice())) };
            after();
        });
    }
}

#[test]
fn another_thread_sees_zeroes_after_the_flag() {
    clears().into_iter().for_each(|kernel| by_kernel(kernel, || ()));
}

#[test]
fn another_thread_sees_zeroes_after_the_fence_of_an_unfenced_kernel() {
    clears().into_iter().for_each(|kernel| by_kernel(kernel.unfenced(), store_fence));
}

/// Hands over pages that a kernel copied.
fn by_copy(kernel: ReadyCopy) {
    for count in LINES {
        let (source, page) = (lines_of(count, COPIED), lines_of(count, 1));
        let (from, to) = (source.as_ptr().cast(), page.as_ptr().cast_mut().cast());
        hand_over(&kernel, &page, COPIED, ROUNDS, || {
            // SAFETY: the turn says that the page is this thread's, and its words may be changed through a shared reference;
            // no thread writes to the source, which is another vector.
            unsafe { kernel.copy(from, to, size_of_val(page.as_slice())) };
        });
    }
}

#[test]
fn another_thread_sees_what_was_copied_after_the_flag() {
    copies().into_iter().for_each(by_copy);
}

/// Hands over the first frames of a machine whose clearer has one kernel and stretches of two frames.
fn by_clearer(kernel: ClearKernel, frames: u64, clear: impl Fn(&Clearer, &hosted::Hosted)) {
    let machine = HostedConfig::new(4 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let policy = ClearPolicy::only(kernel, CopyKernel::String).with_stretch(Stretch::of(8192).unwrap());
        let clearer = Clearer::new(&machine, Some(&policy)).unwrap();
        let start = machine.direct_map(Frame(0).addr()).cast::<Line>();
        // SAFETY: H1: the machine's memory, zero at first, aligned as a frame, which this test alone uses.
        let page = unsafe { std::slice::from_raw_parts(start, frames as usize * 64) };
        hand_over(&kernel, page, 0, EXTENTS, || clear(&clearer, &machine));
    });
}

#[test]
fn another_thread_sees_zeroes_of_an_extent_in_pieces() {
    for kernel in clears() {
        by_clearer(kernel.kernel(), 2, |clearer, machine| {
            let extent = Extent::new(FrameRange::new(Frame(0), 2), TouchHint::Unknown).near(Frame(0));
            clearer.clear_extent_raw(machine, &extent, || false).unwrap();
        });
        by_clearer(kernel.kernel(), 1, |clearer, machine| {
            clearer.clear_raw(machine, FrameRange::new(Frame(0), 1), TouchHint::Unknown);
        });
    }
}

#[test]
fn no_zeroes_arrive_after_a_clear_was_given_up() {
    for kernel in clears() {
        by_clearer(kernel.kernel(), 2, |clearer, machine| {
            let extent = Extent::new(FrameRange::new(Frame(0), 4), TouchHint::Unknown);
            assert_eq!(clearer.clear_extent_raw(machine, &extent, || true), Err(Cancelled));
        });
    }
}
