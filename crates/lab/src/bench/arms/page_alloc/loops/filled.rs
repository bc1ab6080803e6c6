//! A memory of which all frames, or nine tenths, are in use.

use crate::bench::arms::page_alloc::case::{Frames, PageAlloc};

/// Decides which frames go back; any number would do, as long as it stays.
const HOLES_SEED: u64 = 0x401e5;

/// Takes every frame there is, one by one.
pub(super) fn take_all<F: Frames>(case: &PageAlloc, source: &mut F) -> Vec<F::Frame> {
    // Written to once here, so that no fault of this list falls into a timed loop.
    let mut frames = vec![F::Frame::default(); case.frames];
    frames.clear();
    while let Some(frame) = source.take::<0>() {
        frames.push(frame);
    }
    frames
}

/// Takes every frame there is and gives a tenth of them back, chosen and ordered at random; the others.
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
