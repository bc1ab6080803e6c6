//! The stack of numbers: numbers that several CPUs push are taken once by one CPU, which sees all that was
//! written before.

use loom::sync::Arc;
use loom::thread;

use crate::atomic::Orders::{Kept, Relaxed};
use crate::atomic::{AtomicU64, Ordering};
use crate::sync::Stack;
use crate::watched::Watched;
use crate::{fails, holds_but_not};

struct Shared {
    stack: Stack,
    /// By number.
    links: [AtomicU64; 3],
    payloads: [Watched; 3],
}

impl Shared {
    fn new() -> Arc<Self> {
        let shared = Self {
            stack: Stack::new(),
            links: [const { AtomicU64::new(0) }; 3],
            payloads: [(); 3].map(|()| Watched::new()),
        };
        // Every atomic is known to the model before threads start.
        shared.links.iter().for_each(|link| link.store(0, Ordering::SeqCst));
        assert_eq!(shared.take(), []);
        Arc::new(shared)
    }

    fn push(&self, number: u64) {
        self.payloads[number as usize].increment();
        self.stack.push(number, &self.links[number as usize]);
    }

    /// Takes all numbers on the stack; each belongs to its taker.
    fn take(&self) -> Vec<u64> {
        let mut taken = self.stack.take();
        let mut numbers = Vec::new();
        while let Some(number) = taken.next(|number| &self.links[number as usize]) {
            self.payloads[number as usize].increment();
            numbers.push(number);
        }
        numbers
    }
}

/// Two CPUs push, one of them twice, while a third takes.
fn model(take: fn(&Shared) -> Vec<u64>) {
    let shared = Shared::new();
    let pushing = [vec![0, 1], vec![2]].map(|numbers| {
        let shared = shared.clone();
        thread::spawn(move || numbers.into_iter().for_each(|number| shared.push(number)))
    });
    let mut numbers = take(&shared);
    pushing.into_iter().for_each(|thread| thread.join().unwrap());
    numbers.extend(shared.take());
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
    assert!(shared.stack.is_empty());
    assert!(shared.payloads.iter().all(|payload| payload.get() >= 2));
}

#[test]
fn what_is_pushed_is_taken_once() {
    holds_but_not(&[Relaxed], || model(Shared::take));
}

/// Taken numbers are pushed again at once, so that numbers recur while others push.
#[test]
fn numbers_that_come_again_are_not_lost() {
    holds_but_not(&[Relaxed], || {
        model(|shared| {
            shared.take().into_iter().for_each(|number| {
                shared.stack.push(number, &shared.links[number as usize]);
            });
            Vec::new()
        });
    });
}

/// Wrong: the data of a number is written after it was pushed.
#[test]
fn writing_behind_the_push_is_found() {
    fails(Kept, || {
        let shared = Shared::new();
        let late = {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.stack.push(0, &shared.links[0]);
                shared.payloads[0].increment();
            })
        };
        shared.take();
        late.join().unwrap();
    });
}
