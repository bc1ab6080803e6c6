//! Numbers: of processes, groups, sessions and users.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::memory::list;
use crate::task::credentials::{self, Credentials, Ids, Right};
use crate::task::process::Process;
use crate::task::{limits, table};

/// A number that stays as it is.
const KEEP: u32 = u32::MAX;
/// The most groups of a process (`NGROUPS_MAX`).
const GROUPS_MOST: u32 = 65536;
/// `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

impl Call<'_> {
    pub(super) fn getpid(&self) -> Answer {
        Ok(u64::from(self.process().id))
    }

    pub(super) fn gettid(&self) -> Answer {
        Ok(u64::from(self.task.id()))
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

    /// `getuid` and its like: one of the caller's numbers.
    pub(super) fn get_id(&self, which: Which, index: usize) -> Answer {
        Ok(u64::from(which.of(&self.process().credentials())[index]))
    }

    /// `getresuid` and `getresgid`
    pub(super) fn get_ids(&self, which: Which) -> Answer {
        let ids = which.of(&self.process().credentials());
        for (at, id) in self.arguments.iter().zip(ids) {
            self.memory.write(VirtAddr(*at), &id.to_le_bytes())?;
        }
        Ok(0)
    }

    /// `setuid` and `setgid`: with the right to do so, all three numbers change.
    pub(super) fn set_id(&self, which: Which) -> Answer {
        let new = self.arguments[0] as u32;
        if new == KEEP {
            return Err(Errno::EINVAL);
        }
        self.change_ids(which, [KEEP, new, KEEP], |old, has_right| match has_right {
            true => Some([new; 3]),
            false => Some([old[0], new, old[2]]),
        })
    }

    /// `setreuid` and `setregid`: the saved number follows the effective one, except that of an unchanged user.
    pub(super) fn set_two_ids(&self, which: Which) -> Answer {
        let [real, effective] = [self.arguments[0] as u32, self.arguments[1] as u32];
        self.change_ids(which, [real, effective, KEEP], |old, has_right| {
            // The real number does not become the saved one without the right.
            if !has_right && real != KEEP && !old[..2].contains(&real) {
                return None;
            }
            let new = kept(old, [real, effective, KEEP]);
            let follows = real != KEEP || effective != KEEP && effective != old[0];
            Some([new[0], new[1], if follows { new[1] } else { old[2] }])
        })
    }

    /// `setresuid` and `setresgid`
    pub(super) fn set_three_ids(&self, which: Which) -> Answer {
        let wanted = core::array::from_fn(|index| self.arguments[index] as u32);
        self.change_ids(which, wanted, |old, _| Some(kept(old, wanted)))
    }

    /// Changes numbers of the caller. Without the right to choose any, the wanted ones must be among the old ones.
    fn change_ids(&self, which: Which, wanted: Ids, new: impl FnOnce(Ids, bool) -> Option<Ids>) -> Answer {
        self.process().change_credentials(|own| {
            let (old, has_right) = (which.of(own), own.has(which.right()));
            if !has_right && wanted.iter().any(|id| *id != KEEP && !old.contains(id)) {
                return Err(Errno::EPERM);
            }
            let new = new(old, has_right).ok_or(Errno::EPERM)?;
            Ok(match which {
                Which::User => own.clone().with_users(new),
                Which::Group => Credentials { groups: new, ..own.clone() },
            })
        })?;
        if let Which::User = which {
            limits::note_user(self.process());
        }
        Ok(0)
    }

    pub(super) fn getgroups(&self) -> Answer {
        let [count, at, ..] = self.arguments;
        let groups = self.process().credentials().others;
        if count as i32 != 0 {
            if (count as i32) < groups.len() as i32 {
                return Err(Errno::EINVAL);
            }
            let bytes = list::collect(groups.iter().map(|group| group.to_le_bytes()))?;
            self.memory.write(VirtAddr(at), bytes.as_flattened())?;
        }
        Ok(groups.len() as u64)
    }

    pub(super) fn setgroups(&self) -> Answer {
        let [count, at, ..] = self.arguments;
        credentials::check(Right::SetGroup)?;
        if count as u32 > GROUPS_MOST {
            return Err(Errno::EINVAL);
        }
        let mut groups = Vec::new();
        list::reserve(&mut groups, count as u32 as usize)?;
        for index in 0..u64::from(count as u32) {
            groups.push(self.memory.read_u32(VirtAddr(at.checked_add(index * 4).ok_or(Errno::EFAULT)?))?);
        }
        let others = groups.into();
        self.process().change_credentials(|own| Ok(Credentials { others, ..own.clone() }))?;
        Ok(0)
    }

    /// `capget`: the rights of a process.
    pub(super) fn capget(&self) -> Answer {
        let [header, data, ..] = self.arguments;
        let id = self.check_capability_version(header)?;
        let process =
            if id == 0 { self.process().clone() } else { table::process(id).ok_or(Errno::ESRCH)? };
        let own = process.credentials();
        if data != 0 {
            let sets = [own.effective, own.permitted, own.inheritable];
            let [low, high] = [0, 32].map(|shift| sets.map(|set| (set >> shift) as u32));
            self.memory.write(
                VirtAddr(data),
                [low, high]
                    .as_flattened()
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect::<Vec<_>>()
                    .as_slice(),
            )?;
        }
        Ok(0)
    }

    /// `capset`: a process may give up rights, and use those that it may use.
    pub(super) fn capset(&self) -> Answer {
        let [header, data, ..] = self.arguments;
        let id = self.check_capability_version(header)?;
        if id != 0 && id != self.process().id && id != self.task.id() {
            return Err(Errno::EPERM);
        }
        let [low, middle, high]: [u64; 3] = self.load_words(data)?;
        let words = [low, middle, high].map(|word| [word & 0xffff_ffff, word >> 32]);
        let [effective, permitted, inheritable, effective_high, permitted_high, inheritable_high] =
            words.as_flattened()
        else {
            unreachable!("three words have six halves")
        };
        let set = |low: u64, high: u64| (low | high << 32) & credentials::ALL;
        self.process().change_credentials(|own| {
            let new = Credentials {
                effective: set(*effective, *effective_high),
                permitted: set(*permitted, *permitted_high),
                inheritable: set(*inheritable, *inheritable_high),
                ..own.clone()
            };
            let is_more = new.permitted & !own.permitted != 0 || new.effective & !new.permitted != 0;
            if is_more { Err(Errno::EPERM) } else { Ok(new) }
        })?;
        Ok(0)
    }

    /// Returns the process of a call about capabilities. An unknown version is answered by the one that the kernel
    /// prefers.
    fn check_capability_version(&self, header: u64) -> Result<u32, Errno> {
        if self.memory.read_u32(VirtAddr(header))? == CAPABILITY_VERSION {
            return self.memory.read_u32(VirtAddr(header.checked_add(4).ok_or(Errno::EFAULT)?));
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

/// Whose numbers a call is about.
#[derive(Clone, Copy)]
pub(super) enum Which {
    User,
    Group,
}

impl Which {
    fn of(self, credentials: &Credentials) -> Ids {
        match self {
            Self::User => credentials.users,
            Self::Group => credentials.groups,
        }
    }

    /// What lets a process choose any.
    fn right(self) -> Right {
        match self {
            Self::User => Right::SetUser,
            Self::Group => Right::SetGroup,
        }
    }
}

fn kept(old: Ids, wanted: Ids) -> Ids {
    core::array::from_fn(|index| if wanted[index] == KEEP { old[index] } else { wanted[index] })
}
