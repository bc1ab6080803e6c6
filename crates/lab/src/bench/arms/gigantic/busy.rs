//! Threads that compete for the processors of a measurement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::thread::sched_yield;

use crate::bench::ours::scheduled::TURN_NS;
use crate::host::cycles;
use crate::host::threads::Pinned;
use crate::output::say;

/// A thread on each of these processors, which always runs and yields after each turn. Dropping this ends
/// them.
pub(super) struct Busy {
    shared: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    over: AtomicBool,
    running: AtomicU64,
    /// The longest time that one of them did not run, in TSC counts.
    waited: AtomicU64,
}

impl Busy {
    pub(super) fn on(processors: &[usize]) -> Self {
        let shared = Arc::new(State::default());
        let start = |&processor: &usize| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                let _pinned = Pinned::to(processor);
                shared.work();
            })
        };
        let threads: Vec<_> = processors.iter().map(start).collect();
        while shared.running.load(Ordering::Acquire) < threads.len() as u64 {
            std::thread::yield_now();
        }
        Self { shared, threads }
    }

    /// The longest time that one of them waited for its processor so far, in nanoseconds.
    pub(super) fn waited(&self) -> f64 {
        cycles::to_nanoseconds(self.shared.waited.load(Ordering::Relaxed) as f64)
    }
}

impl State {
    fn work(&self) {
        let turn = (TURN_NS * cycles::hertz() / 1e9) as u64;
        let mut last = cycles::now();
        let mut begun = last;
        self.running.fetch_add(1, Ordering::Release);
        while !self.over.load(Ordering::Acquire) {
            let now = cycles::now();
            self.waited.fetch_max(now.saturating_sub(last), Ordering::Relaxed);
            last = now;
            if now.saturating_sub(begun) > turn {
                sched_yield();
                begun = cycles::now();
            }
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                say("quire: a busy thread panicked");
            }
        }
    }
}

/// Nanoseconds from the first start to the last end.
pub(super) fn length(spans: &[(Instant, Instant)]) -> f64 {
    let begun = spans.iter().map(|span| span.0).min();
    let ended = spans.iter().map(|span| span.1).max();
    begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).as_nanos() as f64)
}
