//! A memory of which all frames, or nine tenths, are in use.

use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};

/// Seed of the frames that are freed; fixed, so that runs agree.
const HOLES_SEED: u64 = 0x401e5;

/// Allocates every free frame, one by one.
pub(super) fn take_all<F: Frames>(case: &PageAlloc, source: &mut F) -> Vec<F::Frame> {
    // Touches the list here, so that no timed loop faults on it.
    let mut frames = vec![F::Frame::default(); case.frames];
    frames.clear();
    while let Some(frame) = source.take::<0>() {
        frames.push(frame);
    }
    frames
}

/// Allocates every free frame and frees a tenth of them, chosen and ordered at random; returns the others.
pub(super) fn nine_tenths<F: Frames>(case: &PageAlloc, source: &mut F) -> Vec<F::Frame> {
    let mut frames = take_all(case, source);
    let holes = frames.len() / 10;
    let mut rng = fastrand::Rng::with_seed(HOLES_SEED);
    for at in 0..holes {
        let other = rng.usize(at..frames.len());
        frames.swap(at, other);
        source.give::<0>(frames[at]);
    }
    frames.drain(..holes);
    frames
}
