//! The array in which a thread keeps its frames.

use std::ops::{Deref, DerefMut};

/// Places beyond those that are used: a page of them for eight-byte names. No two threads then write to one line.
const SPARE: usize = 512;

/// How far the places move with every repetition: nine lines.
const STEP: usize = 72;

/// Places for frames that a thread holds, somewhere else in every repetition. A processor takes two addresses for the same
/// at first when their low twelve bits agree, and then waits; where the names stand must not decide a figure.
pub(super) struct Places<T> {
    all: Vec<T>,
    from: usize,
}

impl<T: Copy + Default> Places<T> {
    /// `held` places.
    pub(super) fn new(held: usize) -> Self {
        Self { all: vec![T::default(); held + SPARE], from: 0 }
    }

    /// Moves them. What stood there is lost.
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
