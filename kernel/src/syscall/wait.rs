//! Waiting for children.

use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::process::{JobEvent, Process};
use crate::task::signal::info::SigInfo;
use crate::task::table;
use crate::task::wait4::{Children, Event, Wanted, wait};

const WAIT4_OPTIONS: u32 =
    abi::WNOHANG | abi::WUNTRACED | abi::WCONTINUED | abi::__WNOTHREAD | abi::__WALL | abi::__WCLONE;
const WAITID_OPTIONS: u32 =
    abi::WNOHANG | abi::WSTOPPED | abi::WEXITED | abi::WCONTINUED | abi::WNOWAIT | abi::__WALL;

impl Call<'_> {
    pub(super) fn wait4(&self) -> Answer {
        let [pid, status, options, usage, ..] = self.arguments;
        let options = options as u32;
        if options & !WAIT4_OPTIONS != 0 {
            return Err(Errno::EINVAL);
        }
        let children = match pid as i32 {
            i32::MIN => return Err(Errno::ESRCH),
            -1 => Children::Any,
            0 => Children::Group(self.process().group.load(Ordering::Relaxed)),
            group if group < 0 => Children::Group(group.unsigned_abs()),
            pid => Children::One(pid as u32),
        };
        let wanted = Wanted {
            children,
            ended: true,
            stopped: options & abi::WUNTRACED != 0,
            continued: options & abi::WCONTINUED != 0,
            keep: false,
            no_hang: options & abi::WNOHANG != 0,
        };
        let Some((child, event)) = wait(self.process(), wanted)? else { return Ok(0) };
        if status != 0 {
            self.memory.write(VirtAddr(status), &event.wait_status().to_le_bytes())?;
        }
        self.store_words(usage, &child.account.rusage_of_ended())?;
        Ok(u64::from(child.id))
    }

    pub(super) fn waitid(&self) -> Answer {
        let [kind, id, info, options, usage, _] = self.arguments;
        let options = options as u32;
        if options & !WAITID_OPTIONS != 0 || options & (abi::WEXITED | abi::WSTOPPED | abi::WCONTINUED) == 0 {
            return Err(Errno::EINVAL);
        }
        let mut is_nonblocking = false;
        let children = match (kind as u32, id as u32) {
            (abi::P_ALL, _) => Children::Any,
            (abi::P_PID, id) if id != 0 => Children::One(id),
            (abi::P_PGID, 0) => Children::Group(self.process().group.load(Ordering::Relaxed)),
            (abi::P_PGID, group) => Children::Group(group),
            (abi::P_PIDFD, _) => {
                let (process, nonblocking) = self.process_of(id)?;
                is_nonblocking = nonblocking;
                // Waited for before: its number may be another child's.
                if !table::is_known(&process) {
                    return Err(Errno::ECHILD);
                }
                Children::One(process.id)
            }
            _ => return Err(Errno::EINVAL),
        };
        let wanted = Wanted {
            children,
            ended: options & abi::WEXITED != 0,
            stopped: options & abi::WSTOPPED != 0,
            continued: options & abi::WCONTINUED != 0,
            keep: options & abi::WNOWAIT != 0,
            no_hang: options & abi::WNOHANG != 0 || is_nonblocking,
        };
        let found = wait(self.process(), wanted)?;
        if found.is_none() && is_nonblocking && options & abi::WNOHANG == 0 {
            return Err(Errno::EAGAIN);
        }
        if info != 0 {
            let bytes = found.as_ref().map_or([0; 128], |(child, event)| info_of(child, *event).bytes());
            self.memory.write(VirtAddr(info), &bytes)?;
        }
        if let Some((child, _)) = found {
            self.store_words(usage, &child.account.rusage_of_ended())?;
        }
        Ok(0)
    }
}

fn info_of(child: &Process, event: Event) -> SigInfo {
    match event {
        Event::Ended(exit) => SigInfo::child(abi::SIGCHLD, child, exit),
        Event::Job(JobEvent::Stopped(signal)) => SigInfo::job(child, abi::CLD_STOPPED, signal),
        Event::Job(JobEvent::Continued) => SigInfo::job(child, abi::CLD_CONTINUED, abi::SIGCONT),
    }
}
