//! The limits of a process (`getrlimit(2)`).

use linux_raw_sys::general as abi;
use quire::vm::MappedLimits;

use crate::errno::Errno;
use crate::memory::manager::Space;
use crate::program::stack;
use crate::sync::Mutex;

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
pub struct Limits(Mutex<[Limit; RESOURCES]>);

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
        Self(Mutex::new(limits))
    }
}

impl Limits {
    /// What a child begins with.
    pub fn inherited(&self) -> Self {
        Self(Mutex::new(*self.0.lock()))
    }

    /// A limit, by its number `RLIMIT_*`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for an unknown number.
    pub fn get(&self, resource: u32) -> Result<Limit, Errno> {
        self.0.lock().get(resource as usize).copied().ok_or(Errno::EINVAL)
    }

    /// Changes a limit. `may_raise`: its bound too, upwards.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for an unknown number, and a limit above its bound; [`Errno::EPERM`].
    pub fn set(&self, resource: u32, new: Limit, may_raise: bool) -> Result<(), Errno> {
        let mut limits = self.0.lock();
        let limit = limits.get_mut(resource as usize).ok_or(Errno::EINVAL)?;
        if new.soft > new.hard {
            return Err(Errno::EINVAL);
        }
        let raises = new.hard > limit.hard && !may_raise;
        if raises || resource == abi::RLIMIT_NOFILE && new.hard > OPEN_FILES_MOST {
            return Err(Errno::EPERM);
        }
        *limit = new;
        Ok(())
    }

    /// Tells an address space the limits that it obeys.
    pub fn apply(&self, space: &Space) {
        let limits = *self.0.lock();
        let soft = |resource: u32| limits[resource as usize].soft;
        space.set_stack_limit(soft(abi::RLIMIT_STACK));
        space.set_mapped_limits(MappedLimits { all: soft(abi::RLIMIT_AS), data: soft(abi::RLIMIT_DATA) });
    }
}
