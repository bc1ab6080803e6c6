//! The calls about timers that send signals.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::signal::info::SigInfo;
use crate::task::timers::{self, Clock, Fixed, Notice, Setting, TimerId};
use crate::task::{sched, table};

const SECOND: u64 = 1_000_000_000;
const MICROSECOND: u64 = 1000;
/// In the number of a clock: it is a thread's.
const CLOCK_OF_THREAD: i32 = 4;
/// In the number of a clock: it is of no processor time. Without [`CLOCK_OF_THREAD`] it is that of a device, whose
/// descriptor it has, and no timer runs by it.
const NO_TIME: i32 = 3;

impl Call<'_> {
    pub(super) fn alarm(&self) -> Answer {
        let value = u64::from(self.arguments[0] as u32) * SECOND;
        let before = timers::set_fixed(self.process(), Fixed::Real, Setting { value, interval: 0 });
        Ok(before.value.div_ceil(SECOND))
    }

    /// `setitimer`
    pub(super) fn setitimer(&self) -> Answer {
        let [which, new, old, ..] = self.arguments;
        let which = fixed(which)?;
        let setting = if new == 0 { Setting::default() } else { self.load_microseconds(new)? };
        let before = timers::set_fixed(self.process(), which, setting);
        self.store_microseconds(old, before)?;
        Ok(0)
    }

    pub(super) fn getitimer(&self) -> Answer {
        let [which, at, ..] = self.arguments;
        let setting = timers::get(timers::fixed(self.process(), fixed(which)?)).unwrap_or_default();
        self.check_result(at)?;
        self.store_microseconds(at, setting)?;
        Ok(0)
    }

    pub(super) fn timer_create(&self) -> Answer {
        let [clock, event, number_at, ..] = self.arguments;
        let clock = self.timer_clock(clock as u32)?;
        // A `struct sigevent`. Its third word begins with the number of a thread of the caller's process.
        let number = if event == 0 {
            let info = |number| SigInfo::timer(abi::SIGALRM, number, number.into());
            timers::create(self.process(), clock, |number| Notice::Process(info(number)))?
        } else {
            let [value, kinds, thread] = self.load_words(event)?;
            let (signal, notify) = (kinds as u32, (kinds >> 32) as u32);
            let info = |number| SigInfo::timer(signal, number, value);
            match notify {
                abi::SIGEV_NONE => timers::create(self.process(), clock, |_| Notice::None)?,
                // Making a thread is libc's task: the kernel sends a signal for that too.
                abi::SIGEV_SIGNAL | abi::SIGEV_THREAD if (1..=64).contains(&signal) => {
                    timers::create(self.process(), clock, |number| Notice::Process(info(number)))?
                }
                abi::SIGEV_THREAD_ID if (1..=64).contains(&signal) => {
                    let task = table::task(thread as u32).ok_or(Errno::EINVAL)?;
                    if !Arc::ptr_eq(&task.process, self.process()) {
                        return Err(Errno::EINVAL);
                    }
                    let task = Arc::downgrade(&task);
                    timers::create(self.process(), clock, |number| Notice::Task(task, info(number)))?
                }
                _ => return Err(Errno::EINVAL),
            }
        };
        let stored = self.memory.write(VirtAddr(number_at), &number.to_le_bytes());
        // A timer whose number the program does not know is none.
        stored.inspect_err(|_| _ = timers::id(self.process(), number).and_then(timers::delete))?;
        Ok(0)
    }

    pub(super) fn timer_settime(&self) -> Answer {
        let [number, flags, new, old, ..] = self.arguments;
        if new == 0 {
            return Err(Errno::EINVAL);
        }
        let timer = self.timer(number)?;
        let interval = self.load_time(new)?;
        let mut late = 0;
        let mut value = self.load_time(new.checked_add(16).ok_or(Errno::EFAULT)?)?;
        if flags as u32 & abi::TIMER_ABSTIME != 0 && value != 0 {
            let now = match timers::clock(timer)? {
                (Clock::Real(clock), _) => self.clock(clock)?,
                (_, now) => now,
            };
            (value, late) = (value.saturating_sub(now).max(1), now.saturating_sub(value));
        }
        let before = timers::set(timer, Setting { value, interval }, late)?;
        self.store_setting(old, before)?;
        Ok(0)
    }

    pub(super) fn timer_gettime(&self) -> Answer {
        let setting = timers::get(self.timer(self.arguments[0])?)?;
        self.check_result(self.arguments[1])?;
        self.store_setting(self.arguments[1], setting)?;
        Ok(0)
    }

    pub(super) fn timer_getoverrun(&self) -> Answer {
        timers::overruns(self.timer(self.arguments[0])?).map(u64::from)
    }

    pub(super) fn timer_delete(&self) -> Answer {
        timers::delete(self.timer(self.arguments[0])?).map(|()| 0)
    }

    /// The clock of a new timer: of real time, or of the processor time of the caller or its process.
    fn timer_clock(&self, clock: u32) -> Result<Clock, Errno> {
        match clock {
            abi::CLOCK_PROCESS_CPUTIME_ID => Ok(Clock::Process),
            abi::CLOCK_THREAD_CPUTIME_ID => Ok(Clock::Task(Arc::downgrade(&sched::current()))),
            clock if (clock as i32) < 0 => self.own_clock(clock as i32),
            clock => self.clock_of_real_time(clock).map(|_| Clock::Real(clock)),
        }
    }

    /// The processor time of the caller, of another thread of its process, or of that, whose number is in that of the
    /// clock: libc has such a number for each. 0 is the caller.
    fn own_clock(&self, clock: i32) -> Result<Clock, Errno> {
        if clock & NO_TIME == NO_TIME {
            let is_thread = clock & CLOCK_OF_THREAD != 0;
            return Err(if is_thread { Errno::EINVAL } else { Errno::EOPNOTSUPP });
        }
        let id = !(clock >> 3) as u32;
        if clock & CLOCK_OF_THREAD == 0 {
            let is_own = id == 0 || id == self.process().id;
            return is_own.then_some(Clock::Process).ok_or(Errno::EINVAL);
        }
        let task = if id == 0 { Some(sched::current()) } else { table::task(id) };
        let own = task.filter(|task| Arc::ptr_eq(&task.process, self.process()));
        own.map(|task| Clock::Task(Arc::downgrade(&task))).ok_or(Errno::EINVAL)
    }

    fn timer(&self, number: u64) -> Result<TimerId, Errno> {
        timers::id(self.process(), number as u32)
    }

    /// These calls have a result, where others may leave the old setting out.
    fn check_result(&self, at: u64) -> Result<(), Errno> {
        if at == 0 { Err(Errno::EFAULT) } else { Ok(()) }
    }

    fn store_setting(&self, at: u64, setting: Setting) -> Result<(), Errno> {
        let Setting { value, interval } = setting;
        self.store_words(at, &[interval / SECOND, interval % SECOND, value / SECOND, value % SECOND])
    }

    fn store_microseconds(&self, at: u64, setting: Setting) -> Result<(), Errno> {
        let parts = |time: u64| [time / SECOND, time % SECOND / MICROSECOND];
        let ([interval, rest], [value, value_rest]) = (parts(setting.interval), parts(setting.value));
        self.store_words(at, &[interval, rest, value, value_rest])
    }

    fn load_microseconds(&self, at: u64) -> Result<Setting, Errno> {
        let [interval, rest, value, value_rest] = self.load_words(at)?;
        let time = |seconds: u64, microseconds: u64| {
            let valid = microseconds < SECOND / MICROSECOND && (seconds as i64) >= 0;
            valid
                .then(|| seconds.saturating_mul(SECOND).saturating_add(microseconds * MICROSECOND))
                .ok_or(Errno::EINVAL)
        };
        Ok(Setting { interval: time(interval, rest)?, value: time(value, value_rest)? })
    }
}

fn fixed(which: u64) -> Result<Fixed, Errno> {
    match which as u32 {
        abi::ITIMER_REAL => Ok(Fixed::Real),
        abi::ITIMER_VIRTUAL => Ok(Fixed::Virtual),
        abi::ITIMER_PROF => Ok(Fixed::Profile),
        _ => Err(Errno::EINVAL),
    }
}
