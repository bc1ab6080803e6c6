//! How much stack a call needs: the stack below the caller is painted before it, and looked at after it.

use std::hint::black_box;
use std::thread;

/// Bytes painted. The thread has twice as many.
const PAINTED: usize = 2 << 20;
/// Bytes below the caller that are not painted: the frames of the functions that paint stand there.
const SPARED: usize = 1024;
const PAINT: u64 = 0x5a5a_1234_dead_a5a5;

/// Runs `work` on a thread of its own that has a stack of 4 MiB.
pub(crate) fn on_large_stack(work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        thread::Builder::new()
            .stack_size(2 * PAINTED)
            .spawn_scoped(scope, work)
            .expect("a thread")
            .join()
            .expect("no panic");
    });
}

/// The result of `work`, and how many bytes of stack it used below this function's caller. For
/// [`on_large_stack`].
#[inline(never)]
pub(crate) fn stack_of<R>(work: impl FnOnce() -> R) -> (R, usize) {
    let anchor = 0_u64;
    let top = black_box(&raw const anchor).expose_provenance() & !7;
    paint(top);
    let result = black_box(work());
    (result, top - lowest_used(top))
}

#[inline(never)]
fn paint(top: usize) {
    for word in words(top) {
        // SAFETY: the word lies in this thread's stack, at least `SPARED` bytes below the frame of `stack_of`, where
        // no call is active.
        unsafe { word.write_volatile(PAINT) };
    }
}

#[inline(never)]
fn lowest_used(top: usize) -> usize {
    // SAFETY: the word lies in this thread's stack, where no call is active, and `paint` has written it.
    let used = words(top).find(|word| unsafe { word.read_volatile() } != PAINT);
    used.map_or(top - SPARED, |word| word.addr())
}

fn words(top: usize) -> impl Iterator<Item = *mut u64> {
    (top - PAINTED..top - SPARED).step_by(8).map(std::ptr::with_exposed_provenance_mut)
}
