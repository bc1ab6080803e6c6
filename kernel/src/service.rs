//! What the kernel does for programs in a task of its own: it sends the signals of timers, and takes the terminal's input.
//! In an interrupt it could have interrupted a task that holds the locks for a signal.

use core::sync::atomic::{AtomicBool, Ordering};

use crate::files::tty;
use crate::task::wait::WaitQueue;
use crate::task::{sched, timers};

/// The supervisor waits here, for all that it does.
pub static EVENTS: WaitQueue = WaitQueue::new();

/// Serves timers and the terminal until `ended` is set, whose setter wakes [`EVENTS`].
pub fn serve_until(ended: &AtomicBool) {
    while !ended.load(Ordering::Acquire) {
        let due = timers::first_due();
        let deadline = due.into_iter().chain(tty::next_look()).min();
        let news = || {
            let byte = tty::next_byte();
            let is_awaited = byte.is_some() || ended.load(Ordering::Acquire) || timers::first_due() != due;
            is_awaited.then_some(byte)
        };
        // Signals do not reach this task.
        if let Ok(Some(Some(byte))) = EVENTS.wait_until_deadline(deadline, news) {
            tty::receive(byte);
        }
        // Where a timer is always due, programs run between the turns.
        if timers::send_due() {
            sched::schedule();
        }
    }
}
