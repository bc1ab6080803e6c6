//! How tasks wait inside Quire: for a word of its memory to change.

use core::sync::atomic::{AtomicU32, Ordering};

use super::sched;
use super::wait::WaitQueue;
use crate::cpu::area;

const BUCKETS: usize = 16;
static QUEUES: [WaitQueue; BUCKETS] = [const { WaitQueue::new() }; BUCKETS];

/// Sleeps until the word has another value than `seen`, or the task is to end. Returns at once where a task must not be
/// switched away from: a fault in a copy from a program's memory under a spin lock.
pub fn wait(word: &AtomicU32, seen: u32) {
    let changed = || (word.load(Ordering::Acquire) != seen || sched::current_ref().is_dying()).then_some(());
    if sched::is_started() && area::this().may_switch() {
        queue(word).wait_uninterruptible(changed);
    }
}

/// Wakes the tasks that wait for the word, and others, which look again.
pub fn wake(word: &AtomicU32) {
    if sched::is_started() {
        queue(word).wake_all();
    }
}

fn queue(word: &AtomicU32) -> &'static WaitQueue {
    &QUEUES[core::ptr::from_ref(word).addr() / 64 % BUCKETS]
}
