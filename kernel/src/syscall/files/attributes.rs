//! Changing permissions, owners and times.

use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::{check_flags, current};
use crate::errno::Errno;
use crate::files::dentry::Dentry;
use crate::files::node::{Change, Kind};
use crate::syscall::{Answer, Call};
use crate::task::credentials::{self, Right, WRITE, check_file, check_owner};
use crate::time;

const PERMISSIONS: u64 = 0o7777;
const SET_GROUP: u64 = 0o2000;
/// An owner that stays as it is.
const KEEP: u32 = u32::MAX;
const UTIME_NOW: u64 = 0x3fff_ffff;
const UTIME_OMIT: u64 = 0x3fff_fffe;
const SECOND: u64 = 1_000_000_000;

impl Call<'_> {
    pub(in crate::syscall) fn chmod(&self) -> Answer {
        change_mode(&self.place(current(), &self.path(0)?, 0)?, self.arguments[1])
    }

    pub(in crate::syscall) fn fchmod(&self) -> Answer {
        change_mode(self.file(0)?.place(), self.arguments[1])
    }

    pub(in crate::syscall) fn fchmodat(&self) -> Answer {
        change_mode(&self.place(self.arguments[0], &self.path(1)?, 0)?, self.arguments[2])
    }

    pub(in crate::syscall) fn fchmodat2(&self) -> Answer {
        let [directory, _, mode, flags, ..] = self.arguments;
        check_flags(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
        change_mode(&self.place(directory, &self.path(1)?, flags)?, mode)
    }

    pub(in crate::syscall) fn chown(&self) -> Answer {
        let [_, uid, gid, ..] = self.arguments;
        change_owner(&self.place(current(), &self.path(0)?, 0)?, uid, gid)
    }

    pub(in crate::syscall) fn lchown(&self) -> Answer {
        let [_, uid, gid, ..] = self.arguments;
        change_owner(&self.place(current(), &self.path(0)?, abi::AT_SYMLINK_NOFOLLOW.into())?, uid, gid)
    }

    pub(in crate::syscall) fn fchown(&self) -> Answer {
        let [_, uid, gid, ..] = self.arguments;
        change_owner(self.file(0)?.place(), uid, gid)
    }

    pub(in crate::syscall) fn fchownat(&self) -> Answer {
        let [directory, _, uid, gid, flags, _] = self.arguments;
        check_flags(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
        change_owner(&self.place(directory, &self.path(1)?, flags)?, uid, gid)
    }

    /// `utimensat`; without a path it is about the descriptor itself.
    pub(in crate::syscall) fn utimensat(&self) -> Answer {
        let [directory, path, times, flags, ..] = self.arguments;
        check_flags(flags, abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH)?;
        let place = match path {
            0 => self.file(0)?.place().clone(),
            _ => self.place(directory, &self.path(1)?, flags)?,
        };
        let now = [0, UTIME_NOW, 0, UTIME_NOW];
        let times = if times == 0 { now } else { self.load_words(times)? };
        self.change_times(&place, times)
    }

    /// `utimes`: in microseconds.
    pub(in crate::syscall) fn utimes(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, 0)?;
        self.change_times_us(&place, self.arguments[1])
    }

    pub(in crate::syscall) fn futimesat(&self) -> Answer {
        let place = self.place(self.arguments[0], &self.path(1)?, 0)?;
        self.change_times_us(&place, self.arguments[2])
    }

    /// `utime`: in seconds.
    pub(in crate::syscall) fn utime(&self) -> Answer {
        let place = self.place(current(), &self.path(0)?, 0)?;
        let times = match self.arguments[1] {
            0 => [0, UTIME_NOW, 0, UTIME_NOW],
            at => {
                let [accessed, modified] = self.load_words(at)?;
                [accessed, 0, modified, 0]
            }
        };
        self.change_times(&place, times)
    }

    fn change_times_us(&self, place: &Arc<Dentry>, times: u64) -> Answer {
        if times == 0 {
            return self.change_times(place, [0, UTIME_NOW, 0, UTIME_NOW]);
        }
        let [accessed, accessed_us, modified, modified_us] = self.load_words(times)?;
        if accessed_us >= 1_000_000 || modified_us >= 1_000_000 {
            return Err(Errno::EINVAL);
        }
        self.change_times(place, [accessed, accessed_us * 1000, modified, modified_us * 1000])
    }

    fn change_times(
        &self,
        place: &Arc<Dentry>,
        [accessed, accessed_ns, modified, modified_ns]: [u64; 4],
    ) -> Answer {
        let (accessed, modified) = (instant(accessed, accessed_ns)?, instant(modified, modified_ns)?);
        if accessed.is_some() || modified.is_some() {
            let file = place.node().attributes();
            let touches = [accessed_ns, modified_ns] == [UTIME_NOW; 2];
            if check_owner(&file).is_err() {
                // To set both to now, the right to write is enough.
                check_file(if touches { WRITE } else { return Err(Errno::EPERM) }, || file)?;
            }
            place.node().change(&Change { accessed, modified, ..Change::default() })?;
        }
        Ok(0)
    }
}

/// A time of `struct timespec`; `None`: it stays.
fn instant(seconds: u64, ns: u64) -> Result<Option<u64>, Errno> {
    match ns {
        UTIME_NOW => Ok(Some(time::realtime_ns())),
        UTIME_OMIT => Ok(None),
        // Times before 1970 become 1970.
        0..SECOND => Ok(Some((seconds as i64).max(0) as u64)
            .map(|seconds| seconds.saturating_mul(SECOND).saturating_add(ns))),
        _ => Err(Errno::EINVAL),
    }
}

fn change_mode(place: &Arc<Dentry>, mode: u64) -> Answer {
    if place.node().kind() == Kind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    let file = place.node().attributes();
    check_owner(&file)?;
    // Only a member of the group lets programs run as the group.
    let kept =
        if credentials::own().may_set_group(file.gid) { PERMISSIONS } else { PERMISSIONS & !SET_GROUP };
    let mode = Some((mode & kept) as u32);
    place.node().change(&Change { mode, ..Change::default() })?;
    Ok(0)
}

/// A new owner takes the bits away with which a program runs as its file's owner.
fn change_owner(place: &Arc<Dentry>, uid: u64, gid: u64) -> Answer {
    let wanted = |id: u64| Some(id as u32).filter(|id| *id != KEEP);
    let file = place.node().attributes();
    if credentials::check(Right::ChangeOwner).is_err() {
        // A user may give its file to one of its groups.
        let own = credentials::own();
        let gives = wanted(uid).is_some_and(|uid| uid != file.uid);
        let may = own.user() == file.uid && wanted(gid).is_none_or(|gid| gid == file.gid || own.is_in(gid));
        if gives || !may {
            return Err(Errno::EPERM);
        }
    }
    let change = match file.kind {
        Kind::Directory => Change::default(),
        _ => Change::dropping_set_ids(file.gid),
    };
    place.node().change(&Change { uid: wanted(uid), gid: wanted(gid), ..change })?;
    Ok(0)
}
