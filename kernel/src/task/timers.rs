//! Timers that send signals (`setitimer(2)`, `timer_create(2)`, `alarm(2)`).
//!
//! The kernel's task ([`crate::service`]) sleeps until the first one is due and sends its signal.
//!
//! A timer has one signal on its way at most. It is due again once that was taken, which counts how often the timer was
//! due meanwhile. So a program with a short interval takes no more time from others than for the signals that it takes.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::ops::Bound::{Excluded, Included, Unbounded};
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;

use super::process::Process;
use super::signal::info::SigInfo;
use super::signal::send::{self, Sent};
use super::signal::{SignalSet, set_of};
use super::thread::Task;
use crate::errno::Errno;
use crate::observe::usage;
use crate::service::EVENTS;
use crate::sync::Mutex;
use crate::time::{self, timer};

/// Which timer: the process's number and the number in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId {
    /// The process.
    pub process: u32,
    /// `REAL`, `VIRTUAL`, `PROFILE`, or as `timer_create(2)` gave it.
    pub number: u32,
}

/// The timers of `setitimer(2)`, the first of which is that of `alarm(2)` too.
const REAL: u32 = u32::MAX;
const VIRTUAL: u32 = u32::MAX - 1;
const PROFILE: u32 = u32::MAX - 2;
/// The most timers of a process.
const MOST: u32 = 64;
/// The least time from when a signal is taken until the next one of its timer: a program also gets on beside its handler.
const LEAST_PAUSE: u64 = 100_000;

/// What a timer sends when it is due.
#[derive(Clone)]
pub enum Notice {
    /// Nothing.
    None,
    /// A signal to its process.
    Process(SigInfo),
    /// A signal to one task (`SIGEV_THREAD_ID`), while there is that task.
    Task(Weak<Task>, SigInfo),
}

impl Notice {
    fn signal(&self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Process(info) | Self::Task(_, info) => Some(info.signal),
        }
    }
}

/// The time by which a timer runs.
#[derive(Clone)]
pub enum Clock {
    /// Real time. This clock says what absolute times mean (`CLOCK_*`).
    Real(u32),
    /// The processor time of its process.
    Process,
    /// That of one task.
    Task(Weak<Task>),
}

impl Clock {
    /// What it shows for a timer of a process.
    fn now(&self, process: &Process) -> u64 {
        match self {
            Self::Real(_) => time::now_ns(),
            Self::Process => usage::process_time(process),
            Self::Task(task) => task.upgrade().map_or(0, |task| usage::task_time(&task)),
        }
    }

    fn is_real(&self) -> bool {
        matches!(self, Self::Real(_))
    }
}

/// A timer, in nanoseconds.
struct Timer {
    process: Weak<Process>,
    clock: Clock,
    notice: Notice,
    /// When it is due next; `None` while it is not set.
    due: Option<u64>,
    /// No signal is sent before.
    not_before: u64,
    /// It was due, repeats, and its signal was not taken yet.
    is_sent: bool,
    /// The time between repetitions; 0 for none.
    interval: u64,
    /// How often it was due beyond the last signal that was taken.
    overruns: u32,
}

impl Timer {
    fn new(process: &Arc<Process>, clock: Clock, notice: Notice) -> Self {
        let process = Arc::downgrade(process);
        Self { process, clock, notice, due: None, not_before: 0, is_sent: false, interval: 0, overruns: 0 }
    }

    /// Its time now. That of a process which has ended stands still.
    fn now(&self) -> u64 {
        self.process.upgrade().map_or(0, |process| self.clock.now(&process))
    }

    /// When the next signal is to be sent.
    fn sends_at(&self) -> Option<u64> {
        self.due.filter(|_| !self.is_sent).map(|due| due.max(self.not_before))
    }

    /// How often it was due since its signal was sent, and when it is due next.
    fn missed(&self, now: u64) -> Option<(u64, u64)> {
        let due = self.due.filter(|_| self.is_sent)?;
        let missed = now.saturating_sub(due).checked_div(self.interval)?;
        Some((missed, due.saturating_add((missed + 1).saturating_mul(self.interval))))
    }

    /// Its signal was taken, or does not wait any more. Returns whether it is due again.
    fn go_on(&mut self) -> bool {
        let now = self.now();
        let Some((missed, next)) = self.missed(now) else { return false };
        // `DELAYTIMER_MAX`.
        self.overruns = missed.min(i32::MAX as u64) as u32;
        (self.due, self.not_before, self.is_sent) = (Some(next), now.saturating_add(LEAST_PAUSE), false);
        true
    }

    fn setting(&self) -> Setting {
        let now = self.now();
        let next = self.missed(now).map(|(_, next)| next).or(self.due);
        Setting { value: next.map_or(0, |next| next.saturating_sub(now).max(1)), interval: self.interval }
    }
}

/// What a timer is set to: the time until it is due, 0 if it is not set, and the interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Setting {
    /// Nanoseconds from now; 0 for never.
    pub value: u64,
    /// Nanoseconds between repetitions; 0 for none.
    pub interval: u64,
}

static TIMERS: Mutex<BTreeMap<TimerId, Timer>> = Mutex::new(BTreeMap::new());

/// Makes a timer of the process, which sends what `notice` makes of its number. Returns the number.
///
/// # Errors
/// [`Errno::EAGAIN`] when the process has too many.
pub fn create(
    process: &Arc<Process>,
    clock: Clock,
    notice: impl FnOnce(u32) -> Notice,
) -> Result<u32, Errno> {
    let mut timers = TIMERS.lock();
    let id = |number| TimerId { process: process.id, number };
    let free = (0..MOST).find(|&number| !timers.contains_key(&id(number))).ok_or(Errno::EAGAIN)?;
    timers.insert(id(free), Timer::new(process, clock, notice(free)));
    Ok(free)
}

/// The timer of a process with this number, as `timer_create(2)` gives them.
///
/// # Errors
/// [`Errno::EINVAL`] for a number that it does not give.
pub fn id(process: &Process, number: u32) -> Result<TimerId, Errno> {
    if number < MOST { Ok(TimerId { process: process.id, number }) } else { Err(Errno::EINVAL) }
}

/// Sets a timer and returns what it was set to. It was due `late` nanoseconds ago, if that is not 0.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn set(id: TimerId, setting: Setting, late: u64) -> Result<Setting, Errno> {
    let mut timers = TIMERS.lock();
    let timer = timers.get_mut(&id).ok_or(Errno::EINVAL)?;
    let before = timer.setting();
    timer.due = (setting.value != 0).then(|| timer.now().saturating_add(setting.value).saturating_sub(late));
    timer.interval = setting.interval;
    (timer.not_before, timer.is_sent, timer.overruns) = (0, false, 0);
    let process = timer.process.upgrade().filter(|_| !timer.clock.is_real());
    drop(timers);
    match process {
        Some(process) => {
            process.has_timers.store(true, Ordering::Release);
            // Those that run look, and see to it that their turns end.
            process.threads.lock().iter().for_each(Task::signal_arrived);
        }
        None => EVENTS.wake_all(),
    }
    Ok(before)
}

/// Sets a timer of the process's that `setitimer(2)` knows, and returns what it was set to.
pub fn set_fixed(process: &Arc<Process>, which: Fixed, setting: Setting) -> Setting {
    let id = fixed(process, which);
    let (signal, clock) = match which {
        Fixed::Real => (abi::SIGALRM, Clock::Real(abi::CLOCK_MONOTONIC)),
        // What the kernel does for a program counts as the program's time.
        Fixed::Virtual => (abi::SIGVTALRM, Clock::Process),
        Fixed::Profile => (abi::SIGPROF, Clock::Process),
    };
    let notice = Notice::Process(SigInfo::kernel(signal));
    TIMERS.lock().entry(id).or_insert_with(|| Timer::new(process, clock, notice));
    set(id, setting, 0).unwrap_or_default()
}

/// A timer of `setitimer(2)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fixed {
    /// `ITIMER_REAL`
    Real,
    /// `ITIMER_VIRTUAL`
    Virtual,
    /// `ITIMER_PROF`
    Profile,
}

/// Such a timer of the process.
pub fn fixed(process: &Process, which: Fixed) -> TimerId {
    let number = match which {
        Fixed::Real => REAL,
        Fixed::Virtual => VIRTUAL,
        Fixed::Profile => PROFILE,
    };
    TimerId { process: process.id, number }
}

/// What a timer is set to. Nothing if there is no such timer.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn get(id: TimerId) -> Result<Setting, Errno> {
    TIMERS.lock().get(&id).map(Timer::setting).ok_or(Errno::EINVAL)
}

/// The clock that a timer was made with, and what it shows now if it is not of real time.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn clock(id: TimerId) -> Result<(Clock, u64), Errno> {
    TIMERS.lock().get(&id).map(|timer| (timer.clock.clone(), timer.now())).ok_or(Errno::EINVAL)
}

/// How often a timer was due beyond the last signal that was taken.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn overruns(id: TimerId) -> Result<u32, Errno> {
    TIMERS.lock().get(&id).map(|timer| timer.overruns).ok_or(Errno::EINVAL)
}

/// Deletes a timer.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn delete(id: TimerId) -> Result<(), Errno> {
    TIMERS.lock().remove(&id).map(drop).ok_or(Errno::EINVAL)
}

/// Deletes a process's timers: all at its end, those of `timer_create(2)` when it executes a program.
pub fn delete_all(process: u32, also_fixed: bool) {
    let last = if also_fixed { REAL } else { PROFILE - 1 };
    let mut timers = TIMERS.lock();
    while let Some(id) = timers
        .range(TimerId { process, number: 0 }..=TimerId { process, number: last })
        .next()
        .map(|(&id, _)| id)
    {
        timers.remove(&id);
    }
}

/// A signal of the process was taken. If it is a timer's, that goes on, and the signal tells its overruns.
pub fn taken(process: &Process, info: &mut SigInfo) {
    let fixed = match info.signal {
        abi::SIGALRM => Some(REAL),
        abi::SIGVTALRM => Some(VIRTUAL),
        abi::SIGPROF => Some(PROFILE),
        _ => None,
    };
    let Some(number) = info.timer_number().or(fixed) else { return };
    let mut timers = TIMERS.lock();
    let Some(timer) = timers.get_mut(&TimerId { process: process.id, number }) else { return };
    let goes_on = timer.go_on();
    info.set_overruns(timer.overruns);
    drop(timers);
    if goes_on {
        EVENTS.wake_all();
    }
}

/// Signals that waited for the process or its tasks were discarded: their timers go on.
pub fn discarded(process: &Process, signals: SignalSet) {
    let (first, last) = (TimerId { process: process.id, number: 0 }, fixed(process, Fixed::Real));
    let mut goes_on = false;
    for (_, timer) in TIMERS.lock().range_mut(first..=last) {
        if timer.notice.signal().is_some_and(|signal| set_of(signal) & signals != 0) {
            goes_on |= timer.go_on();
        }
    }
    if goes_on {
        EVENTS.wake_all();
    }
}

/// When the first signal of real time is to be sent.
pub fn first_due() -> Option<u64> {
    TIMERS.lock().values().filter(|timer| timer.clock.is_real()).filter_map(Timer::sends_at).min()
}

/// Sends the signals of real time that are due. Returns whether one was.
pub fn send_due() -> bool {
    send_due_of(None)
}

/// On the way of a task to its program: sends what the processor time of its process has made due. The task's turn ends
/// some time, and then it looks again.
pub fn check_processor_time(process: &Process) {
    if !process.has_timers.load(Ordering::Acquire) {
        return;
    }
    send_due_of(Some(process.id));
    timer::begin_missing_slice();
}

/// Sends the signals that are due: those of real time, or those of the processor time of one process. Returns
/// whether one was. Each timer has one turn: a timer whose signal is ignored may be due again before the last of
/// many has had its turn.
fn send_due_of(of: Option<u32>) -> bool {
    let mut last = None;
    while let Some((id, process, notice)) = take_due(of, last) {
        last = Some(id);
        let sent = match (process.upgrade(), notice) {
            (Some(process), Notice::Process(info)) => send::to_process(&process, info),
            (Some(_), Notice::Task(task, info)) => match task.upgrade() {
                Some(task) => send::to_task(&task, info),
                None => continue,
            },
            _ => continue,
        };
        // What is not queued is not taken.
        if sent != Sent::Queued
            && let Some(timer) = TIMERS.lock().get_mut(&id)
        {
            timer.go_on();
        }
    }
    last.is_some()
}

/// The first timer that is due, of those behind the last one.
fn take_due(of: Option<u32>, last: Option<TimerId>) -> Option<(TimerId, Weak<Process>, Notice)> {
    let mut timers = TIMERS.lock();
    let is_due = |timer: &Timer| timer.sends_at().is_some_and(|at| at <= timer.now());
    let first = of.map_or(Unbounded, |process| Included(TimerId { process, number: 0 }));
    let end = TimerId { process: of.unwrap_or(u32::MAX), number: REAL };
    let range = (last.map_or(first, Excluded), Included(end));
    let mut wanted = timers.range_mut(range).filter(|(_, timer)| timer.clock.is_real() == of.is_none());
    let (&id, timer) = wanted.find(|(_, timer)| is_due(timer))?;
    timer.is_sent = timer.interval != 0;
    if !timer.is_sent {
        timer.due = None;
    }
    Some((id, timer.process.clone(), timer.notice.clone()))
}
