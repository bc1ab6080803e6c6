//! A stack of numbers. Any context pushes, interrupts included; a pop takes the whole stack.
//!
//! It allocates no memory: the caller provides each number's link (Treiber: "Systems Programming: Coping with
//! Parallelism", IBM RJ 5118, 1986). As no number is ever popped alone, one that is removed and pushed again
//! meanwhile does no harm (no ABA problem).

use crate::atomic::{AtomicU64, Ordering};

/// The stack.
#[derive(Default)]
pub struct Stack {
    /// The number that was pushed last, plus one; 0 when there is none.
    top: AtomicU64,
}

impl Stack {
    /// An empty stack.
    pub const fn new() -> Self {
        Self { top: AtomicU64::new(0) }
    }

    /// Whether the stack was empty a moment ago.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.top.load(Ordering::Relaxed) == 0
    }

    /// Pushes a number below `u64::MAX`. Its link and its other data are the caller's before, and the taker's
    /// afterwards. The taker sees what the caller wrote.
    pub fn push(&self, number: u64, link: &AtomicU64) {
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            link.store(top, Ordering::Relaxed);
            match self.top.compare_exchange_weak(top, number + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// Takes all numbers.
    pub fn take(&self) -> Taken {
        Taken { top: self.top.swap(0, Ordering::Acquire) }
    }
}

/// Numbers that were on a [`Stack`], the last one first.
#[must_use = "numbers that are dropped are lost"]
pub struct Taken {
    top: u64,
}

impl Taken {
    /// The next number. `link_of` returns its link, which is read here and not again.
    pub fn next<'l>(&mut self, link_of: impl FnOnce(u64) -> &'l AtomicU64) -> Option<u64> {
        let number = self.top.checked_sub(1)?;
        self.top = link_of(number).load(Ordering::Relaxed);
        Some(number)
    }
}
