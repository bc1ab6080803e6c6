//! Clocks and sleeping.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::observe::usage;
use crate::task::wait::WaitQueue;
use crate::task::{Task, table};
use crate::time;

const SECOND: u64 = 1_000_000_000;

/// What a negative number of a clock says besides a task's number (`CPUCLOCK_CLOCK_MASK`, `CLOCKFD`,
/// `CPUCLOCK_PERTHREAD_MASK`).
const CLOCK_KIND: i32 = 3;
const CLOCK_OF_FILE: i32 = 3;
const CLOCK_OF_THREAD: i32 = 4;

impl Call<'_> {
    /// A time in nanoseconds from a `struct timespec`.
    pub(super) fn load_time(&self, at: u64) -> Result<u64, Errno> {
        let [seconds, nanoseconds] = self.load_words(at)?;
        if nanoseconds >= SECOND || seconds as i64 >= i64::MAX / 2 || (seconds as i64) < 0 {
            return if (seconds as i64) >= i64::MAX / 2 && nanoseconds < SECOND {
                Ok(u64::MAX)
            } else {
                Err(Errno::EINVAL)
            };
        }
        Ok(seconds.saturating_mul(SECOND).saturating_add(nanoseconds))
    }

    fn store_time(&self, at: u64, time: u64) -> Result<(), Errno> {
        self.store_words(at, &[time / SECOND, time % SECOND])
    }

    pub(super) fn nanosleep(&self) -> Answer {
        let [wanted, left, ..] = self.arguments;
        self.sleep_until(self.task.call_end(self.load_time(wanted)?), left)
    }

    pub(super) fn clock_nanosleep(&self) -> Answer {
        let [clock, flags, wanted, left, ..] = self.arguments;
        let now = self.clock_of_real_time(clock as u32)?;
        let wanted = self.load_time(wanted)?;
        if flags as u32 & abi::TIMER_ABSTIME != 0 {
            let wait = wanted.saturating_sub(now);
            return self.sleep_until(time::now_ns().saturating_add(wait), 0);
        }
        self.sleep_until(self.task.call_end(wanted), left)
    }

    fn sleep_until(&self, deadline: u64, left: u64) -> Answer {
        let never = WaitQueue::new();
        match never.wait_until_deadline(Some(deadline), || None::<()>) {
            Ok(_) => Ok(0),
            Err(errno) => {
                self.store_time(left, deadline.saturating_sub(time::now_ns()))?;
                Err(errno)
            }
        }
    }

    pub(super) fn clock(&self, clock: u32) -> Result<u64, Errno> {
        match clock {
            abi::CLOCK_REALTIME | abi::CLOCK_REALTIME_COARSE | abi::CLOCK_TAI => Ok(time::realtime_ns()),
            abi::CLOCK_MONOTONIC
            | abi::CLOCK_MONOTONIC_RAW
            | abi::CLOCK_MONOTONIC_COARSE
            | abi::CLOCK_BOOTTIME => Ok(time::now_ns()),
            abi::CLOCK_PROCESS_CPUTIME_ID => Ok(usage::process_time(self.process())),
            abi::CLOCK_THREAD_CPUTIME_ID => Ok(usage::task_time(self.task)),
            _ => Err(Errno::EINVAL),
        }
    }

    /// As [`Self::clock`], for timers and sleeps: there are none of processor time.
    pub(super) fn clock_of_real_time(&self, clock: u32) -> Result<u64, Errno> {
        match clock {
            abi::CLOCK_PROCESS_CPUTIME_ID | abi::CLOCK_THREAD_CPUTIME_ID => Err(Errno::EINVAL),
            clock => self.clock(clock),
        }
    }

    /// A clock that is read: also that of a task, by which no call waits.
    fn any_clock(&self) -> Result<u64, Errno> {
        let clock = self.arguments[0] as u32;
        if (clock as i32) < 0 { self.clock_of_task(clock as i32) } else { self.clock(clock) }
    }

    /// The processor time of a process, or of a thread of this one, whose number is in that of the clock
    /// (`clock_getcpuclockid(3)`, `pthread_getcpuclockid(3)`).
    fn clock_of_task(&self, clock: i32) -> Result<u64, Errno> {
        let id = !(clock >> 3) as u32;
        if clock & CLOCK_KIND == CLOCK_OF_FILE {
            return Err(Errno::EINVAL);
        }
        if clock & CLOCK_OF_THREAD == 0 {
            let process = if id == 0 { Some(self.process().clone()) } else { table::process(id) };
            return Ok(usage::process_time(&*process.ok_or(Errno::EINVAL)?));
        }
        if id == 0 {
            return Ok(usage::task_time(self.task));
        }
        let is_own = |task: &Arc<Task>| Arc::ptr_eq(&task.process, self.process());
        Ok(usage::task_time(&*table::task(id).filter(is_own).ok_or(Errno::EINVAL)?))
    }

    pub(super) fn clock_gettime(&self) -> Answer {
        let time = self.any_clock()?;
        self.store_result(self.arguments[1], &[time / SECOND, time % SECOND])?;
        Ok(0)
    }

    pub(super) fn clock_getres(&self) -> Answer {
        self.any_clock()?;
        self.store_time(self.arguments[1], 1)?;
        Ok(0)
    }

    pub(super) fn gettimeofday(&self) -> Answer {
        let time = time::realtime_ns();
        self.store_words(self.arguments[0], &[time / SECOND, time % SECOND / 1000])?;
        self.store_words(self.arguments[1], &[0])?;
        Ok(0)
    }

    pub(super) fn time(&self) -> Answer {
        let seconds = time::realtime_ns() / SECOND;
        if self.arguments[0] != 0 {
            self.memory.write(VirtAddr(self.arguments[0]), &seconds.to_le_bytes())?;
        }
        Ok(seconds)
    }
}
