//! A busy thread on the other CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

use crate::host::threads::Pinned;
use crate::output::say;

/// A thread of this process that keeps a processor busy until dropped, so that interrupts of the process
/// reach this processor.
pub(super) struct Busy {
    state: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

const STARTING: u32 = 0;
const RUNNING: u32 = 1;
const OVER: u32 = 2;

impl Busy {
    pub(super) fn on(processor: usize) -> Self {
        let state = Arc::new(AtomicU32::new(STARTING));
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let _pinned = Pinned::to(processor);
            let _ = shared.compare_exchange(STARTING, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
            while shared.load(Ordering::Relaxed) != OVER {
                std::hint::spin_loop();
            }
        });
        while state.load(Ordering::Acquire) == STARTING {
            std::thread::yield_now();
        }
        Self { state, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.state.store(OVER, Ordering::Release);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            say("quire: a busy thread panicked");
        }
    }
}
