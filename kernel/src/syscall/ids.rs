//! Numbers: of processes, groups, sessions and users.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::process::Process;
use crate::task::table;

/// All programs are the root user's.
pub(super) const ROOT_USER: u64 = 0;

/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// `CAP_CHECKPOINT_RESTORE`, the last capability.
const CAP_LAST: u32 = 40;

impl Call<'_> {
    pub(super) fn getpid(&self) -> Answer {
        Ok(u64::from(self.process().id))
    }

    pub(super) fn gettid(&self) -> Answer {
        Ok(u64::from(self.task.id))
    }

    pub(super) fn getppid(&self) -> Answer {
        Ok(self.process().parent().map_or(0, |parent| u64::from(parent.id)))
    }

    pub(super) fn getpgrp(&self) -> Answer {
        Ok(u64::from(self.process().group.load(Ordering::Relaxed)))
    }

    pub(super) fn getpgid(&self) -> Answer {
        Ok(u64::from(self.process_or_own(0)?.group.load(Ordering::Relaxed)))
    }

    pub(super) fn getsid(&self) -> Answer {
        Ok(u64::from(self.process_or_own(0)?.session.load(Ordering::Relaxed)))
    }

    /// `setpgid`: the caller or a child that has not executed a program moves to a group of the session.
    pub(super) fn setpgid(&self) -> Answer {
        let process = self.process_or_own(0)?;
        let own = self.process();
        let is_own = Arc::ptr_eq(&process, own);
        let is_child = process.parent().is_some_and(|parent| Arc::ptr_eq(&parent, own));
        if !is_own && !is_child {
            return Err(Errno::ESRCH);
        }
        if is_child && process.has_executed.load(Ordering::Relaxed) {
            return Err(Errno::EACCES);
        }
        let session = own.session.load(Ordering::Relaxed);
        if process.session.load(Ordering::Relaxed) != session || process.id == session {
            return Err(Errno::EPERM);
        }
        let group = match self.arguments[1] as i32 {
            0 => process.id,
            negative if negative < 0 => return Err(Errno::EINVAL),
            group => group as u32,
        };
        let exists = |other: Arc<Process>| {
            other.group.load(Ordering::Relaxed) == group && other.session.load(Ordering::Relaxed) == session
        };
        if group != process.id && !table::processes().any(exists) {
            return Err(Errno::EPERM);
        }
        process.group.store(group, Ordering::Relaxed);
        Ok(0)
    }

    pub(super) fn setsid(&self) -> Answer {
        let own = self.process();
        let leads = |process: Arc<Process>| process.group.load(Ordering::Relaxed) == own.id;
        if table::processes().any(leads) && own.id != table::INIT {
            return Err(Errno::EPERM);
        }
        own.group.store(own.id, Ordering::Relaxed);
        own.session.store(own.id, Ordering::Relaxed);
        Ok(u64::from(own.id))
    }

    /// `getresuid` and `getresgid`
    pub(super) fn getresuid(&self) -> Answer {
        for at in &self.arguments[..3] {
            self.memory.write(VirtAddr(*at), &(ROOT_USER as u32).to_le_bytes())?;
        }
        Ok(0)
    }

    /// Root may become what it is; there are no other users.
    pub(super) fn set_user(&self) -> Answer {
        let keeps = |id: &u64| *id as u32 as u64 == ROOT_USER || *id as i32 == -1;
        if self.arguments[..1].iter().all(keeps) { Ok(0) } else { Err(Errno::EPERM) }
    }

    /// `capget`: root has all capabilities.
    pub(super) fn capget(&self) -> Answer {
        let [header, data, ..] = self.arguments;
        self.check_capability_version(header)?;
        let all = (1_u64 << (CAP_LAST + 1)) - 1;
        let [low, high] = [all as u32, (all >> 32) as u32];
        if data != 0 {
            let words = [low, low, 0, high, high, 0];
            self.memory.write(VirtAddr(data), words.map(u32::to_le_bytes).as_flattened())?;
        }
        Ok(0)
    }

    /// `capset`, which changes nothing: nothing here asks for a capability.
    pub(super) fn capset(&self) -> Answer {
        self.check_capability_version(self.arguments[0])?;
        Ok(0)
    }

    /// An unknown version is answered by the one that the kernel prefers.
    fn check_capability_version(&self, header: u64) -> Result<(), Errno> {
        if self.memory.read_u32(VirtAddr(header))? == CAPABILITY_VERSION {
            return Ok(());
        }
        self.memory.write(VirtAddr(header), &CAPABILITY_VERSION.to_le_bytes())?;
        Err(Errno::EINVAL)
    }

    fn process_or_own(&self, index: usize) -> Result<Arc<Process>, Errno> {
        match self.arguments[index] as u32 {
            0 => Ok(self.process().clone()),
            id => table::process(id).ok_or(Errno::ESRCH),
        }
    }
}
