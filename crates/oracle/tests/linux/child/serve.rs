//! What a child does. Nothing here may allocate, lock or panic: the process is a copy of one with threads.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::access::{catch_signals, oracle_access_load, oracle_access_store, oracle_access_touch};
use super::{ASKED, DONE, Order, Slot, wait, wake};

const IDLE_WAIT: Duration = Duration::from_secs(1);

/// Serves a slot until the process is killed.
pub(super) fn serve(slots: *mut Slot, mut number: usize) -> ! {
    catch_signals();
    end_with_parent();
    loop {
        // SAFETY: the mapping is part of this copy as of the original, and no call that is asked for reaches it.
        let slot = unsafe { &*slots.wrapping_add(number) };
        let state = slot.state.load(Ordering::SeqCst);
        if state != ASKED {
            wait(&slot.state, state, IDLE_WAIT);
            continue;
        }
        // Before the fork: afterwards the slot is the original's, which may have new orders by then.
        let next = slot.words[0].load(Ordering::Relaxed) as usize;
        let Some(answer) = obey(slot) else {
            number = next;
            end_with_parent();
            continue;
        };
        slot.answer.store(answer, Ordering::Relaxed);
        slot.state.store(DONE, Ordering::SeqCst);
        wake(&slot.state);
    }
}

/// The answer; none in a new process, whose orders come elsewhere.
fn obey(slot: &Slot) -> Option<u64> {
    let word = |at: usize| slot.words[at].load(Ordering::Relaxed);
    let order = slot.order.load(Ordering::Relaxed);
    // SAFETY: what is asked for concerns memory in which this program has nothing; accesses that fail come back.
    let accessed = unsafe {
        if order == Order::Call as u32 {
            return Some(call([word(0), word(1), word(2), word(3), word(4), word(5), word(6)]));
        } else if order == Order::Fork as u32 {
            // Of the same parent, which so can wait for all.
            let flags = (libc::CLONE_PARENT | libc::SIGCHLD) as u64;
            let pid = call([libc::SYS_clone as u64, flags, 0, 0, 0, 0, 0]);
            return if pid == 0 { None } else { Some(pid) };
        } else if order == Order::Load as u32 {
            oracle_access_load(word(0))
        } else if order == Order::Store as u32 {
            oracle_access_store(word(0), word(1))
        } else {
            oracle_access_touch(word(0))
        }
    };
    let signal = if accessed.raised == 0 { 0 } else { accessed.word };
    slot.signal.store(signal, Ordering::Relaxed);
    Some(accessed.word)
}

/// A system call; errors as the kernel returns them.
///
/// # Safety
/// It changes nothing that this program uses.
unsafe fn call(words: [u64; 7]) -> u64 {
    let [number, a, b, c, d, e, f] = words;
    // SAFETY: the caller promises that the call concerns memory in which this program has nothing.
    let result = unsafe { libc::syscall(number as libc::c_long, a, b, c, d, e, f) };
    if result == -1 {
        // SAFETY: `errno` is this thread's own variable.
        let errno = unsafe { *libc::__errno_location() };
        return i64::from(errno).wrapping_neg() as u64;
    }
    result as u64
}

fn end_with_parent() {
    // SAFETY: asks for a signal and nothing else.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
