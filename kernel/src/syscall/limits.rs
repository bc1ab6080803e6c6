//! Limits and usage.

use alloc::sync::Arc;

use super::wait::USAGE_WORDS;
use super::{Answer, Call};
use crate::errno::Errno;
use crate::program::stack::CLOCK_TICKS;
use crate::task::limits::Limit;
use crate::task::process::Process;
use crate::task::table;
use crate::time;

impl Call<'_> {
    /// `prlimit64`
    pub(super) fn prlimit(&self) -> Answer {
        let [pid, resource, new, old, ..] = self.arguments;
        let process = match pid as u32 {
            0 => self.process().clone(),
            pid => table::task(pid).ok_or(Errno::ESRCH)?.process.clone(),
        };
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

    /// `getrusage`: the time since the start of the machine, as that of the program.
    pub(super) fn getrusage(&self) -> Answer {
        let mut words = [0; USAGE_WORDS];
        let now = time::now_ns();
        [words[0], words[1]] = [now / 1_000_000_000, now % 1_000_000_000 / 1000];
        self.store_words(self.arguments[1], &words)?;
        Ok(0)
    }

    pub(super) fn times(&self) -> Answer {
        let ticks = time::now_ns() / (1_000_000_000 / CLOCK_TICKS);
        self.store_words(self.arguments[0], &[ticks, 0, 0, 0])?;
        Ok(ticks)
    }
}

/// Changes a limit, which the process's address space obeys from now on.
fn set_limit(process: &Arc<Process>, resource: u32, new: Limit) -> Result<(), Errno> {
    process.limits.set(resource, new)?;
    let space = process.space.lock().clone();
    if let Some(space) = space {
        process.limits.apply(&space);
    }
    Ok(())
}
