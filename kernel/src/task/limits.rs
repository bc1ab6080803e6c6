//! The limits of a process (`getrlimit(2)`).

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, Ordering};

use linux_raw_sys::general as abi;
use quire::vm::MappedLimits;

use super::credentials::{REAL, ROOT, Right};
use super::process::{Exit, Process};
use super::signal::info::SigInfo;
use super::signal::send;
use super::table;
use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::observe::usage;
use crate::program::stack;
use crate::sync::Mutex;
use crate::time::{SECOND, timer};

const RESOURCES: usize = 16;
/// No limit.
pub const UNLIMITED: u64 = u64::MAX;
/// The most files that any process may open (`fs.nr_open`).
const OPEN_FILES_MOST: u64 = 1 << 20;
/// How many signals may wait for a process or a task.
const PENDING_SIGNALS: u64 = 1024;

/// A limit: what holds, and what a process without rights may raise it to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// The limit.
    pub soft: u64,
    /// Its bound.
    pub hard: u64,
}

/// All limits of a process.
pub struct Limits {
    all: Mutex<[Limit; RESOURCES]>,
    /// `RLIMIT_CPU` is not unlimited.
    bounds_processor_time: AtomicBool,
}

/// What `RLIMIT_CPU` asks for.
enum Passed {
    Nothing,
    /// `SIGXCPU`.
    Soft,
    /// `SIGKILL`.
    Hard,
}

impl Default for Limits {
    /// Those of Linux' first process, except that numbers without a use here have no limit.
    fn default() -> Self {
        let mut limits = [Limit { soft: UNLIMITED, hard: UNLIMITED }; RESOURCES];
        limits[abi::RLIMIT_STACK as usize].soft = stack::LIMIT_BYTES;
        limits[abi::RLIMIT_CORE as usize].soft = 0;
        limits[abi::RLIMIT_NOFILE as usize] = Limit { soft: 1024, hard: OPEN_FILES_MOST };
        limits[abi::RLIMIT_MEMLOCK as usize] =
            Limit { soft: abi::MLOCK_LIMIT.into(), hard: abi::MLOCK_LIMIT.into() };
        limits[abi::RLIMIT_SIGPENDING as usize] = Limit { soft: PENDING_SIGNALS, hard: PENDING_SIGNALS };
        Self::of(limits)
    }
}

impl Limits {
    /// What a child begins with.
    pub fn inherited(&self) -> Self {
        Self::of(*self.all.lock())
    }

    fn of(limits: [Limit; RESOURCES]) -> Self {
        let bounds_processor_time = AtomicBool::new(bounds_processor_time(&limits));
        Self { all: Mutex::new(limits), bounds_processor_time }
    }

    /// Whether the process may use a number of seconds on processors. Its tasks' turns end by a timer then.
    #[inline]
    pub fn bounds_processor_time(&self) -> bool {
        self.bounds_processor_time.load(Ordering::Relaxed)
    }

    /// Which limit of processor time has been reached with so many nanoseconds. The soft one moves on by a second.
    fn pass(&self, used: u64) -> Passed {
        let limit = &mut self.all.lock()[abi::RLIMIT_CPU as usize];
        if used >= limit.hard.saturating_mul(SECOND) {
            return Passed::Hard;
        }
        if used < limit.soft.saturating_mul(SECOND) {
            return Passed::Nothing;
        }
        limit.soft += 1;
        Passed::Soft
    }

    /// A limit, by its number `RLIMIT_*`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for an unknown number.
    pub fn get(&self, resource: u32) -> Result<Limit, Errno> {
        self.all.lock().get(resource as usize).copied().ok_or(Errno::EINVAL)
    }

    /// Changes a limit. `may_raise`: its bound too, upwards.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for an unknown number, and a limit above its bound; [`Errno::EPERM`].
    pub fn set(&self, resource: u32, new: Limit, may_raise: bool) -> Result<(), Errno> {
        let mut limits = self.all.lock();
        let limit = limits.get_mut(resource as usize).ok_or(Errno::EINVAL)?;
        if new.soft > new.hard {
            return Err(Errno::EINVAL);
        }
        let raises = new.hard > limit.hard && !may_raise;
        if raises || resource == abi::RLIMIT_NOFILE && new.hard > OPEN_FILES_MOST {
            return Err(Errno::EPERM);
        }
        *limit = new;
        self.bounds_processor_time.store(bounds_processor_time(&limits), Ordering::Relaxed);
        Ok(())
    }

    /// Tells an address space the limits that it obeys.
    pub fn apply(&self, space: &Space) {
        let limits = *self.all.lock();
        let soft = |resource: u32| limits[resource as usize].soft;
        space.set_stack_limit(soft(abi::RLIMIT_STACK));
        space.set_mapped_limits(MappedLimits { all: soft(abi::RLIMIT_AS), data: soft(abi::RLIMIT_DATA) });
    }
}

fn bounds_processor_time(limits: &[Limit; RESOURCES]) -> bool {
    let limit = limits[abi::RLIMIT_CPU as usize];
    limit.soft != UNLIMITED || limit.hard != UNLIMITED
}

/// Sends the running process what `RLIMIT_CPU` asks for. The timer ends the running task's turn before it looks again.
pub fn check_processor_time(process: &Arc<Process>) {
    if !process.limits.bounds_processor_time() {
        return;
    }
    match process.limits.pass(usage::process_time(process)) {
        Passed::Nothing => {}
        Passed::Soft => _ = send::to_process(process, SigInfo::kernel(abi::SIGXCPU)),
        Passed::Hard => process.begin_exit(Exit::Killed(abi::SIGKILL)),
    }
    timer::begin_missing_slice();
}

/// How many tasks the user of a process may have, for a new one of it (`RLIMIT_NPROC`).
pub fn most_tasks(process: &Process) -> u64 {
    let is_free = process.has(Right::ExceedLimits) || process.has(Right::Administrate);
    if is_free || process.credentials().users[REAL] == ROOT {
        return UNLIMITED;
    }
    soft_most_tasks(process)
}

fn soft_most_tasks(process: &Process) -> u64 {
    process.limits.get(abi::RLIMIT_NPROC).map_or(UNLIMITED, |limit| limit.soft)
}

/// A process has changed its user, which cannot fail for the number of the user's tasks. It remembers that there were too
/// many beside its own, and executes no program while there are.
pub fn note_user(process: &Process) {
    table::note_user(process);
    let user = process.credentials().users[REAL];
    let others = table::count_of(user).saturating_sub(process.threads.lock().len() as u64);
    process.exceeds_tasks.store(user != ROOT && others > soft_most_tasks(process), Ordering::Relaxed);
}

/// # Errors
/// [`Errno::EAGAIN`]: the process may execute no program, since its user has too many tasks.
pub fn check_execution(process: &Process) -> Result<(), Errno> {
    if !process.exceeds_tasks.load(Ordering::Relaxed) {
        return Ok(());
    }
    if table::count_of(process.credentials().users[REAL]) > soft_most_tasks(process) {
        return Err(Errno::EAGAIN);
    }
    process.exceeds_tasks.store(false, Ordering::Relaxed);
    Ok(())
}
