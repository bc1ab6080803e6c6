//! A table that CPUs read while another CPU replaces it. Each cell is valid by itself: a reader that sees old
//! and new cells sees a kernel that the machine can run in each.
#![forbid(unsafe_code)]

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, Ordering};

use super::policy::{Table, class_of, table, threads_class};
use crate::arch::{ClearKernel, CopyKernel};
use crate::platform::TouchHint;

pub(super) trait Number: Copy {
    fn number(self) -> u8;
    fn of(number: u8) -> Self;
}

impl Number for ClearKernel {
    fn number(self) -> u8 {
        self as u8
    }

    #[inline]
    fn of(number: u8) -> Self {
        Self::ALL[usize::from(number)]
    }
}

impl Number for CopyKernel {
    fn number(self) -> u8 {
        self as u8
    }

    #[inline]
    fn of(number: u8) -> Self {
        Self::ALL[usize::from(number)]
    }
}

pub(super) struct Cells<K> {
    cells: Table<AtomicU8>,
    kernels: PhantomData<K>,
}

impl<K: Number> Cells<K> {
    pub(super) fn new(kernels: &Table<K>) -> Self {
        let cells = kernels.map(|rows| rows.map(|row| row.map(|kernel| AtomicU8::new(kernel.number()))));
        Self { cells, kernels: PhantomData }
    }

    #[inline]
    pub(super) fn get(&self, hint: TouchHint, cpus: u32, bytes: u64) -> K {
        let cell = &self.cells[hint as usize][threads_class(cpus)][class_of(bytes)];
        K::of(cell.load(Ordering::Relaxed))
    }

    pub(super) fn load(&self) -> Table<K> {
        table(|hint, threads, class| K::of(self.cells[hint as usize][threads][class].load(Ordering::Relaxed)))
    }

    pub(super) fn store(&self, kernels: &Table<K>) {
        let new = kernels.as_flattened().as_flattened();
        for (cell, kernel) in self.cells.as_flattened().as_flattened().iter().zip(new) {
            cell.store(kernel.number(), Ordering::Relaxed);
        }
    }
}

impl<K: Number + fmt::Debug> fmt::Debug for Cells<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}
