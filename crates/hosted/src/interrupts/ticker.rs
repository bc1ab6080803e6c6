//! Timers of the host that interrupt a thread with a signal.

#![allow(unsafe_code)]

use std::cell::OnceCell;
use std::time::Duration;

use nix::sys::signal::{SigEvent, SigevNotify};
use nix::sys::time::TimeSpec;
use rustix::io::Errno;

use crate::error::HostedError;
use crate::task::TICK;

/// The host's refusal, as an error of this crate.
pub(super) fn refused(step: &'static str) -> impl Fn(nix::errno::Errno) -> HostedError {
    move |errno| HostedError::NoSignals { step, errno: Errno::from_raw_os_error(errno as i32) }
}

/// The shortest period: below it, the host's work for ticks would take all time.
const SHORTEST: Duration = Duration::from_micros(20);

/// A timer that interrupts the thread that started it, until dropped.
pub(super) struct Ticker {
    timer: OnceCell<libc::timer_t>,
    period: Duration,
}

impl Ticker {
    pub(super) fn new(period: Duration) -> Self {
        Self { timer: OnceCell::new(), period: period.max(SHORTEST) }
    }

    /// Starts the timer; a tick carries this value's address.
    pub(super) fn start(&self) -> Result<(), HostedError> {
        let notify = SigevNotify::SigevThreadId {
            signal: TICK,
            thread_id: rustix::thread::gettid().as_raw_nonzero().get(),
            si_value: std::ptr::from_ref(self).addr() as isize,
        };
        let mut event = SigEvent::new(notify).sigevent();
        let mut timer = std::ptr::null_mut();
        // SAFETY: H6: both places are this function's own, and the timer is deleted before `self`, its value, is gone.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        nix::errno::Errno::result(made).map_err(refused("the timer"))?;
        let _ = self.timer.set(timer);
        self.again();
        Ok(())
    }

    /// Arms the next tick, a period from now. The timer is not periodic: a tick that is due while another is
    /// handled would follow at once, and the interrupted work would get no time.
    pub(super) fn again(&self) {
        let Some(&timer) = self.timer.get() else { return };
        let next = *TimeSpec::from_duration(self.period).as_ref();
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let when = libc::itimerspec { it_interval: never, it_value: next };
        // SAFETY: H6: the timer exists until this value is dropped. The call cannot fail for a period that a timer
        // takes; if it does, there are no more ticks.
        unsafe { libc::timer_settime(timer, 0, &raw const when, std::ptr::null_mut()) };
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if let Some(&timer) = self.timer.get() {
            // SAFETY: H6: `start` made the timer, and its name goes with this value.
            unsafe { libc::timer_delete(timer) };
        }
    }
}
