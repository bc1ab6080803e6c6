//! Waiting for children.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use super::process::{Exit, JobEvent, Process};
use super::table;
use crate::errno::Errno;

/// Which children are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Children {
    /// All.
    Any,
    /// That with this number.
    One(u32),
    /// Those in this process group.
    Group(u32),
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Of which children.
    pub children: Children,
    /// The end of a child (`WEXITED`).
    pub ended: bool,
    /// Its stop (`WUNTRACED`, `WSTOPPED`).
    pub stopped: bool,
    /// Its continuation (`WCONTINUED`).
    pub continued: bool,
    /// The child stays as it is, to be waited for again (`WNOWAIT`).
    pub keep: bool,
    /// Return at once if there is nothing (`WNOHANG`).
    pub no_hang: bool,
}

/// What happened to a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It ended.
    Ended(Exit),
    /// It stopped or continued.
    Job(JobEvent),
}

impl Event {
    /// The status word of `wait4(2)`.
    pub fn wait_status(self) -> u32 {
        match self {
            Self::Ended(exit) => exit.wait_status(),
            Self::Job(JobEvent::Stopped(signal)) => signal << 8 | 0x7f,
            Self::Job(JobEvent::Continued) => 0xffff,
        }
    }
}

/// Waits for a child of the process. `None` if there is nothing and the caller does not want to wait.
///
/// # Errors
/// [`Errno::ECHILD`] without such children, [`Errno::EINTR`].
pub fn wait(process: &Arc<Process>, wanted: Wanted) -> Result<Option<(Arc<Process>, Event)>, Errno> {
    process.child_events.wait_until(|| match look(process, wanted) {
        Ok(None) if !wanted.no_hang => None,
        found => Some(found),
    })?
}

fn look(process: &Arc<Process>, wanted: Wanted) -> Result<Option<(Arc<Process>, Event)>, Errno> {
    let mut any = false;
    // Until the child is removed: another thread that waits must not find it too.
    let mut children = process.children.lock();
    let found = children.iter().filter(|child| matches(child, wanted.children)).find_map(|child| {
        any = true;
        event_of(child, wanted).map(|event| (child.clone(), event))
    });
    let Some((child, event)) = found else {
        return if any { Ok(None) } else { Err(Errno::ECHILD) };
    };
    if matches!(event, Event::Ended(_)) && !wanted.keep {
        children.retain(|other| !Arc::ptr_eq(other, &child));
        drop(children);
        process.account.note_child(&child.account);
        table::forget(&child);
    }
    Ok(Some((child, event)))
}

fn matches(child: &Process, children: Children) -> bool {
    match children {
        Children::Any => true,
        Children::One(id) => child.id == id,
        Children::Group(group) => child.group.load(Ordering::Relaxed) == group,
    }
}

fn event_of(child: &Process, wanted: Wanted) -> Option<Event> {
    if child.has_ended() {
        return wanted.ended.then(|| Event::Ended(child.exit().unwrap_or(Exit::Exited(0))));
    }
    let mut job = child.job_event.lock();
    let event = (*job)?;
    let wants = match event {
        JobEvent::Stopped(_) => wanted.stopped,
        JobEvent::Continued => wanted.continued,
    };
    if !wants {
        return None;
    }
    if !wanted.keep {
        *job = None;
    }
    Some(Event::Job(event))
}
