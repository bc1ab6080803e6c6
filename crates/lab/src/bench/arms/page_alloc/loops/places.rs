//! The array in which a thread keeps its frames.

use std::ops::{Deref, DerefMut};

/// Spare places: a page of eight-byte names, so that no two threads write to one line.
const SPARE: usize = 512;

/// Places by which they move in every repetition: nine lines.
const STEP: usize = 72;

/// Places for the frames of a thread, at other addresses in every repetition. A processor stalls when a load
/// and a store agree in their low twelve address bits; the addresses of the names must not decide a figure.
pub(super) struct Places<T> {
    all: Vec<T>,
    from: usize,
}

impl<T: Copy + Default> Places<T> {
    /// Makes `held` places.
    pub(super) fn new(held: usize) -> Self {
        Self { all: vec![T::default(); held + SPARE], from: 0 }
    }

    /// Moves the places; drops their contents.
    pub(super) fn shift(&mut self) {
        self.from = (self.from + STEP) % SPARE;
    }
}

impl<T> Deref for Places<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.all[self.from..self.from + self.all.len() - SPARE]
    }
}

impl<T> DerefMut for Places<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let held = self.all.len() - SPARE;
        &mut self.all[self.from..self.from + held]
    }
}
