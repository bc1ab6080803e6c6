//! Timers that send signals (`setitimer(2)`, `timer_create(2)`, `alarm(2)`).
//!
//! A task of the kernel sleeps until the first one is due and sends its signal. So no signal is sent in an interrupt,
//! whose handler could have interrupted a task that holds the locks for it.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};

use linux_raw_sys::general as abi;

use super::process::Process;
use super::signal::info::SigInfo;
use super::signal::send;
use super::thread::Task;
use super::wait::WaitQueue;
use crate::errno::Errno;
use crate::sync::Mutex;
use crate::time;

/// Which timer: the process's number and the number in the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TimerId {
    /// The process.
    pub process: u32,
    /// [`REAL`], or as `timer_create(2)` gave it.
    pub number: u32,
}

/// The timer of `setitimer(2)` and `alarm(2)`.
pub const REAL: u32 = u32::MAX;
/// The most timers of a process.
const MOST: u32 = 64;

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

/// A timer, in nanoseconds.
#[derive(Clone)]
struct Timer {
    process: Weak<Process>,
    /// The clock of its absolute times (`CLOCK_*`).
    clock: u32,
    notice: Notice,
    /// When it is due next; `None` while it is not set.
    due: Option<u64>,
    /// The time between repetitions; 0 for none.
    interval: u64,
    /// How often it was due beyond the last signal.
    overruns: u64,
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
static CHANGED: WaitQueue = WaitQueue::new();

/// Makes a timer of the process. Returns its number.
///
/// # Errors
/// [`Errno::EAGAIN`] when the process has too many.
pub fn create(process: &Arc<Process>, clock: u32, notice: Notice) -> Result<u32, Errno> {
    let mut timers = TIMERS.lock();
    let id = |number| TimerId { process: process.id, number };
    let free = (0..MOST).find(|&number| !timers.contains_key(&id(number))).ok_or(Errno::EAGAIN)?;
    let timer =
        Timer { process: Arc::downgrade(process), clock, notice, due: None, interval: 0, overruns: 0 };
    timers.insert(id(free), timer);
    Ok(free)
}

/// Sets a timer and returns what it was set to.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn set(id: TimerId, setting: Setting) -> Result<Setting, Errno> {
    let mut timers = TIMERS.lock();
    let timer = timers.get_mut(&id).ok_or(Errno::EINVAL)?;
    let now = time::now_ns();
    let before = remaining(timer, now);
    timer.due = (setting.value != 0).then(|| now.saturating_add(setting.value));
    timer.interval = setting.interval;
    timer.overruns = 0;
    drop(timers);
    CHANGED.wake_all();
    Ok(before)
}

/// Sets the process's timer of real time, and returns what it was set to.
pub fn set_real(process: &Arc<Process>, setting: Setting) -> Setting {
    let id = TimerId { process: process.id, number: REAL };
    TIMERS.lock().entry(id).or_insert_with(|| Timer {
        process: Arc::downgrade(process),
        clock: abi::CLOCK_MONOTONIC,
        notice: Notice::Process(SigInfo::kernel(abi::SIGALRM)),
        due: None,
        interval: 0,
        overruns: 0,
    });
    set(id, setting).unwrap_or_default()
}

/// What a timer is set to. Nothing if there is no such timer.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn get(id: TimerId) -> Result<Setting, Errno> {
    TIMERS.lock().get(&id).map(|timer| remaining(timer, time::now_ns())).ok_or(Errno::EINVAL)
}

/// The clock that a timer was made with.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn clock(id: TimerId) -> Result<u32, Errno> {
    TIMERS.lock().get(&id).map(|timer| timer.clock).ok_or(Errno::EINVAL)
}

/// How often a timer was due beyond the last signal.
///
/// # Errors
/// [`Errno::EINVAL`] if there is no such timer.
pub fn overruns(id: TimerId) -> Result<u64, Errno> {
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
pub fn delete_all(process: u32, also_real: bool) {
    let last = if also_real { REAL } else { REAL - 1 };
    let mut timers = TIMERS.lock();
    while let Some(id) = timers
        .range(TimerId { process, number: 0 }..=TimerId { process, number: last })
        .next()
        .map(|(&id, _)| id)
    {
        timers.remove(&id);
    }
}

fn remaining(timer: &Timer, now: u64) -> Setting {
    let value = timer.due.map_or(0, |due| due.saturating_sub(now).max(1));
    Setting { value, interval: timer.interval }
}

/// The kernel's task that sends the signals. It never ends.
pub fn serve() -> ! {
    loop {
        let first = TIMERS.lock().values().filter_map(|timer| timer.due).min();
        let changed = || (TIMERS.lock().values().filter_map(|timer| timer.due).min() != first).then_some(());
        // Signals do not reach this task.
        let _ = CHANGED.wait_until_deadline(first, changed);
        send_due(time::now_ns());
    }
}

fn send_due(now: u64) {
    while let Some((process, notice)) = take_due(now) {
        match (process.upgrade(), notice) {
            (Some(process), Notice::Process(info)) => send::to_process(&process, info),
            (_, Notice::Task(task, info)) => {
                if let Some(task) = task.upgrade() {
                    send::to_task(&task, info);
                }
            }
            _ => {}
        }
    }
}

fn take_due(now: u64) -> Option<(Weak<Process>, Notice)> {
    let mut timers = TIMERS.lock();
    let timer = timers.values_mut().find(|timer| timer.due.is_some_and(|due| due <= now))?;
    let due = timer.due?;
    let missed = (now - due).checked_div(timer.interval);
    timer.overruns = missed.unwrap_or(0);
    timer.due = missed.map(|missed| due.saturating_add((missed + 1).saturating_mul(timer.interval)));
    Some((timer.process.clone(), timer.notice.clone()))
}
