//! Users, groups and rights of a process (`credentials(7)`, `capabilities(7)`).
//!
//! Linux keeps them for each thread, and its C library changes those of all threads. Here the threads of a process have
//! the same ones.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::process::Process;
use super::sched;
use crate::errno::Errno;
use crate::files::node::{Attributes, Kind};
use crate::memory::manager::Space;

/// A right of the root user, by its number in Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Right {
    /// `CAP_CHOWN`
    ChangeOwner = 0,
    /// `CAP_DAC_OVERRIDE`
    UseAnyFile = 1,
    /// `CAP_DAC_READ_SEARCH`
    ReadAnyFile = 2,
    /// `CAP_FOWNER`
    OwnAnyFile = 3,
    /// `CAP_FSETID`
    KeepSetId = 4,
    /// `CAP_KILL`
    Kill = 5,
    /// `CAP_SETGID`
    SetGroup = 6,
    /// `CAP_SETUID`
    SetUser = 7,
    /// `CAP_NET_BIND_SERVICE`
    BindPort = 10,
    /// `CAP_IPC_LOCK`
    LockMemory = 14,
    /// `CAP_IPC_OWNER`
    UseAnySegment = 15,
    /// `CAP_SYS_CHROOT`
    ChangeRoot = 18,
    /// `CAP_SYS_PTRACE`
    Trace = 19,
    /// `CAP_SYS_ADMIN`
    Administrate = 21,
    /// `CAP_SYS_NICE`
    Nice = 23,
    /// `CAP_SYS_RESOURCE`
    ExceedLimits = 24,
    /// `CAP_MKNOD`
    MakeDevice = 27,
}

/// Sets of rights have a bit for each.
pub type Rights = u64;
/// All of them. The last one is `CAP_CHECKPOINT_RESTORE`.
pub const ALL: Rights = (1 << 41) - 1;
/// The user that has them.
pub const ROOT: u32 = 0;

/// A real, an effective and a saved number.
pub type Ids = [u32; 3];
/// The places in [`Ids`].
pub const REAL: usize = 0;
/// See [`REAL`].
pub const EFFECTIVE: usize = 1;

/// What a file lets its owner, its group or all others do.
pub const READ: u32 = 4;
/// See [`READ`].
pub const WRITE: u32 = 2;
/// See [`READ`]; for a directory, to look up names in it.
pub const EXECUTE: u32 = 1;

/// The credentials of a process.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Its user.
    pub users: Ids,
    /// Its group.
    pub groups: Ids,
    /// More groups.
    pub others: Arc<Vec<u32>>,
    /// The rights that it uses.
    pub effective: Rights,
    /// The rights that it may use.
    pub permitted: Rights,
    /// The rights that a program may get that it executes.
    pub inheritable: Rights,
    /// It keeps its rights when it gets another user (`PR_SET_KEEPCAPS`).
    pub keeps: bool,
}

impl Default for Credentials {
    /// Those of the first process.
    fn default() -> Self {
        let (users, groups) = ([ROOT; 3], [0; 3]);
        Self {
            users,
            groups,
            others: Arc::default(),
            effective: ALL,
            permitted: ALL,
            inheritable: 0,
            keeps: false,
        }
    }
}

impl Credentials {
    /// The user that counts.
    pub fn user(&self) -> u32 {
        self.users[EFFECTIVE]
    }

    /// The group that counts.
    pub fn group(&self) -> u32 {
        self.groups[EFFECTIVE]
    }

    /// Whether it uses a right.
    pub fn has(&self, right: Right) -> bool {
        self.effective & 1 << right as u8 != 0
    }

    /// As another user. Root's rights come and go with it.
    pub fn with_users(mut self, users: Ids) -> Self {
        let was_root = self.users.contains(&ROOT);
        if was_root && !users.contains(&ROOT) && !self.keeps {
            (self.permitted, self.effective) = (0, 0);
        }
        match (self.user() == ROOT, users[EFFECTIVE] == ROOT) {
            (true, false) => self.effective = 0,
            (false, true) => self.effective = self.permitted,
            _ => {}
        }
        self.users = users;
        self
    }

    /// As they are when a program begins that may bring a user and a group of its own.
    pub fn for_program(mut self, user: Option<u32>, group: Option<u32>) -> Self {
        self.users[EFFECTIVE] = user.unwrap_or(self.user());
        self.groups[EFFECTIVE] = group.unwrap_or(self.group());
        (self.users[2], self.groups[2]) = (self.user(), self.group());
        self.permitted = if self.user() == ROOT || self.users[REAL] == ROOT { ALL } else { 0 };
        self.effective = if self.user() == ROOT { self.permitted } else { 0 };
        self.keeps = false;
        self
    }

    /// Whether a program gets a user or a group that its caller is not (`AT_SECURE`).
    pub fn is_secure(&self) -> bool {
        self.users[EFFECTIVE] != self.users[REAL] || self.groups[EFFECTIVE] != self.groups[REAL]
    }

    /// Whether it may let programs run as this group.
    pub fn may_set_group(&self, group: u32) -> bool {
        self.is_in(group) || self.has(Right::KeepSetId)
    }

    /// As `access(2)` asks: by the real user and group.
    pub fn real(mut self) -> Self {
        self.users[EFFECTIVE] = self.users[REAL];
        self.groups[EFFECTIVE] = self.groups[REAL];
        self.effective = if self.user() == ROOT { self.permitted } else { 0 };
        self
    }

    /// Whether a group is one of its groups.
    pub fn is_in(&self, group: u32) -> bool {
        self.group() == group || self.others.contains(&group)
    }

    /// Whether it may do this with a file.
    pub fn may(&self, wanted: u32, file: &Attributes) -> bool {
        let directory = file.kind == Kind::Directory;
        let shift = match () {
            () if self.user() == file.uid => 6,
            () if self.is_in(file.gid) => 3,
            () => 0,
        };
        // Any user of a file may execute it, or not even root.
        let executable = directory || wanted & EXECUTE == 0 || file.mode & 0o111 != 0;
        let reads = wanted & WRITE == 0 && (directory || wanted & EXECUTE == 0);
        wanted & !(file.mode >> shift) == 0
            || executable && self.has(Right::UseAnyFile)
            || reads && self.has(Right::ReadAnyFile)
    }

    /// Whether it may send signals to a process with these credentials.
    pub fn may_signal(&self, other: &Self) -> bool {
        let [other_real, _, other_saved] = other.users;
        let is_own = |user: u32| user == other_real || user == other_saved;
        self.has(Right::Kill) || is_own(self.user()) || is_own(self.users[REAL])
    }

    /// Whether it may change the limits of a process with these credentials.
    pub fn may_limit(&self, other: &Self) -> bool {
        self.has(Right::ExceedLimits) || self.is_real_of(other)
    }

    /// Whether all users and groups of other credentials are its real ones.
    fn is_real_of(&self, other: &Self) -> bool {
        let same = |own: u32, ids: &Ids| ids.iter().all(|id| *id == own);
        same(self.users[REAL], &other.users) && same(self.groups[REAL], &other.groups)
    }

    /// Whether its user is that of a process with these credentials, and has all of its rights.
    fn covers(&self, other: &Self) -> bool {
        self.is_real_of(other) && other.permitted & !self.permitted == 0
    }
}

impl Process {
    /// Its credentials now.
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().clone()
    }

    /// Gives it other credentials.
    pub fn set_credentials(&self, new: Credentials) {
        // It has no errors.
        let _ = self.change_credentials(|_| Ok(new));
    }

    /// Changes its credentials, with no other change in between.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn change_credentials(
        &self,
        change: impl FnOnce(&Credentials) -> Result<Credentials, Errno>,
    ) -> Result<(), Errno> {
        let mut own = self.credentials.lock();
        let new = change(&own)?;
        self.rights.store(new.effective, Ordering::Relaxed);
        let is_same_user = (own.user(), own.group()) == (new.user(), new.group());
        if !is_same_user || new.permitted & !own.permitted != 0 {
            // Its memory may have what the new user should not see, or the old one.
            self.account.is_dumpable.store(false, Ordering::Relaxed);
            self.account.death_signal.store(0, Ordering::Relaxed);
        }
        let old = core::mem::replace(&mut *own, new);
        // Freeing it needs no lock.
        drop(own);
        drop(old);
        Ok(())
    }

    /// Whether it may look at the memory of a process, and change it.
    pub fn may_trace(&self, other: &Self) -> bool {
        // The credentials first: a process that takes new ones says before that its memory is not shown any more.
        core::ptr::eq(self, other)
            || self.has(Right::Trace)
            || self.credentials().covers(&other.credentials())
                && other.account.is_dumpable.load(Ordering::Relaxed)
    }

    /// The address space of a process whose memory it may look at.
    ///
    /// # Errors
    /// [`Errno::ESRCH`] if the process has ended, or runs another program meanwhile: that one may be looked at, and the
    /// one before not. `refused` if its memory may not be looked at.
    pub fn traced_space(&self, other: &Self, refused: Errno) -> Result<Arc<Space>, Errno> {
        let space = other.space_handle().ok_or(Errno::ESRCH)?;
        if !self.may_trace(other) {
            return Err(refused);
        }
        let is_the_same = other.space_handle().is_some_and(|now| Arc::ptr_eq(&now, &space));
        is_the_same.then_some(space).ok_or(Errno::ESRCH)
    }

    /// Whether it uses a right.
    #[inline]
    pub fn has(&self, right: Right) -> bool {
        self.rights.load(Ordering::Relaxed) & 1 << right as u8 != 0
    }
}

/// Fails unless the running process has a right.
///
/// # Errors
/// [`Errno::EPERM`].
pub fn check(right: Right) -> Result<(), Errno> {
    if sched::current_ref().process.has(right) { Ok(()) } else { Err(Errno::EPERM) }
}

/// Fails unless the running process may do this with a file.
///
/// # Errors
/// [`Errno::EACCES`].
pub fn check_file(wanted: u32, file: impl FnOnce() -> Attributes) -> Result<(), Errno> {
    let process = &sched::current_ref().process;
    if process.has(Right::UseAnyFile) && wanted & EXECUTE == 0 {
        return Ok(());
    }
    // Before the lock: a file of `/proc` has its owner from the credentials of a process.
    let file = file();
    if process.credentials.lock().may(wanted, &file) { Ok(()) } else { Err(Errno::EACCES) }
}

/// Fails unless the running process may look up names in a directory.
///
/// # Errors
/// [`Errno::EACCES`].
pub fn check_search(directory: impl FnOnce() -> Attributes) -> Result<(), Errno> {
    if sched::current_ref().process.has(Right::UseAnyFile) { Ok(()) } else { check_file(EXECUTE, directory) }
}

/// Fails unless the running process owns a file, or may do as if.
///
/// # Errors
/// [`Errno::EPERM`].
pub fn check_owner(file: &Attributes) -> Result<(), Errno> {
    let process = &sched::current_ref().process;
    let owns = process.has(Right::OwnAnyFile) || process.credentials.lock().user() == file.uid;
    if owns { Ok(()) } else { Err(Errno::EPERM) }
}

/// The credentials of the running process.
pub fn own() -> Credentials {
    sched::current_ref().process.credentials()
}

/// The user and the group of what the running process makes.
pub fn owner() -> (u32, u32) {
    let own = sched::current_ref().process.credentials.lock();
    (own.user(), own.group())
}
