//! Limits and usage.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire_interop::proc::Sizes;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::observe::usage;
use crate::program::stack::CLOCK_TICKS;
use crate::task::credentials::Right;
use crate::task::limits::Limit;
use crate::task::process::Process;
use crate::task::{sched, table};
use crate::time;

const RUSAGE_SELF: i32 = abi::RUSAGE_SELF as i32;
const RUSAGE_THREAD: i32 = abi::RUSAGE_THREAD as i32;

impl Call<'_> {
    /// `prlimit64`
    pub(super) fn prlimit(&self) -> Answer {
        let [pid, resource, new, old, ..] = self.arguments;
        let process = match pid as u32 {
            0 => self.process().clone(),
            pid => table::process_of(pid).ok_or(Errno::ESRCH)?,
        };
        if pid as u32 != 0 && !self.process().credentials().may_limit(&process.credentials()) {
            return Err(Errno::EPERM);
        }
        let new = if new == 0 { None } else { Some(self.load_limit(new)?) };
        let before = process.limits.get(resource as u32)?;
        if let Some(new) = new {
            set_limit(&process, resource as u32, new)?;
        }
        self.store_words(old, &[before.soft, before.hard])?;
        Ok(0)
    }

    pub(super) fn getrlimit(&self) -> Answer {
        let [resource, at, ..] = self.arguments;
        let Limit { soft, hard } = self.process().limits.get(resource as u32)?;
        self.memory.write(quire::addr::VirtAddr(at), [soft, hard].map(u64::to_le_bytes).as_flattened())?;
        Ok(0)
    }

    pub(super) fn setrlimit(&self) -> Answer {
        let [resource, at, ..] = self.arguments;
        set_limit(self.process(), resource as u32, self.load_limit(at)?)?;
        Ok(0)
    }

    fn load_limit(&self, at: u64) -> Result<Limit, Errno> {
        let [soft, hard] = self.load_words(at)?;
        Ok(Limit { soft, hard })
    }

    /// `getrusage`
    pub(super) fn getrusage(&self) -> Answer {
        let account = &self.process().account;
        let most = account.peak(&Sizes::of(self.space)).1;
        let words = match self.arguments[0] as i32 {
            RUSAGE_SELF => usage::rusage(&account.usage, usage::process_time(self.process()), most),
            abi::RUSAGE_CHILDREN => account.rusage_of_children(),
            RUSAGE_THREAD => usage::rusage(&self.task.usage, usage::task_time(self.task), most),
            _ => return Err(Errno::EINVAL),
        };
        self.store_result(self.arguments[1], &words)?;
        Ok(0)
    }

    pub(super) fn times(&self) -> Answer {
        let ticks = time::now_ns() / (1_000_000_000 / CLOCK_TICKS);
        let of = |ns: u64| ns / (1_000_000_000 / CLOCK_TICKS);
        let own = of(usage::process_time(self.process()));
        let children = of(self.process().account.children.ran());
        self.store_words(self.arguments[0], &[own, 0, children, 0])?;
        Ok(ticks)
    }
}

/// Changes a limit, which the process's address space obeys from now on.
fn set_limit(process: &Arc<Process>, resource: u32, new: Limit) -> Result<(), Errno> {
    process.limits.set(resource, new, sched::current_ref().process.has(Right::ExceedLimits))?;
    if resource == abi::RLIMIT_CPU {
        // Each looks, and begins a slice.
        for thread in process.threads.lock().iter() {
            thread.signal_arrived();
        }
    }
    let space = process.space_handle();
    if let Some(space) = space {
        process.limits.apply(&space);
    }
    Ok(())
}
