//! Core dumps (`core(5)`): what a process was when a signal ended it, as an ELF file.
//!
//! The task that takes the signal writes the dump. It ends the other tasks of its process first. Each of them comes to
//! [`join`] on its way to its end, hands in its registers and waits, so that the dump shows all of them.

mod image;
mod notes;
mod pattern;
mod thread;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use linux_raw_sys::general as abi;
use quire::limits::FRAME_SIZE;

use super::process::Process;
use super::sched;
use super::signal::{action, info::SigInfo};
use super::thread::Task;
use crate::errno::Errno;
use crate::files::claim::Claim;
use crate::files::dentry::Dentry;
use crate::files::node::{Kind, New, NewKind};
use crate::files::open::{OpenFile, Opening};
use crate::files::walk::{Follow, Walk};
use crate::memory::list;
use crate::sync::Mutex;
use crate::task::credentials::{WRITE, check_file};
pub use pattern::Pattern;
use thread::Thread;

/// The permissions of a dump: its owner's.
const MODE: u32 = 0o600;
/// The permissions that an older file must have to be replaced, of those that Linux looks at.
const MODE_MASK: u32 = 0o677;

/// The dump of a process.
#[derive(Default)]
pub struct Dump(Mutex<State>);

impl Dump {
    /// Whether one is being written.
    pub fn is_written(&self) -> bool {
        self.0.lock().is_written
    }
}

#[derive(Default)]
struct State {
    is_written: bool,
    /// How many of the other tasks wait.
    waiting: usize,
    /// What they were: threads are left out when memory is short.
    threads: Vec<Thread>,
}

/// What became of a dump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// There is none.
    None,
    /// It is in its file, or as much of it as its limit allows.
    Written,
    /// Another task of the process writes one.
    ByAnother,
}

/// Writes a core dump of the running task's process, if the signal asks for one and the process may have one.
pub fn dump(task: &Task, info: &SigInfo) -> Outcome {
    let process = &task.process;
    if !action::dumps_core(info.signal) || process.exit().is_some() {
        return Outcome::None;
    }
    let limit = process.limits.get(abi::RLIMIT_CORE).map_or(0, |limit| limit.soft);
    if limit < FRAME_SIZE || !process.account.is_dumpable.load(Ordering::Relaxed) {
        return Outcome::None;
    }
    if core::mem::replace(&mut process.dump.0.lock().is_written, true) {
        return Outcome::ByAnother;
    }
    let _writing = Writing(process);
    process.kill_threads(Some(&sched::current()));
    if !wait_for_others(task) {
        return Outcome::None;
    }
    let threads = core::mem::take(&mut process.dump.0.lock().threads);
    match write(task, info, &threads, limit) {
        Ok(()) => Outcome::Written,
        Err(_) => Outcome::None,
    }
}

/// While a dump is written. The other tasks of its process end when this is dropped.
struct Writing<'p>(&'p Process);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let state = core::mem::take(&mut *self.0.dump.0.lock());
        drop(state);
        self.0.child_events.wake_all();
    }
}

/// Returns whether all others wait. If the running task must end instead, because another one executes a program or the
/// process is killed, there is no dump.
fn wait_for_others(task: &Task) -> bool {
    let process = &task.process;
    process.child_events.wait_uninterruptible(|| {
        let others = process.threads.lock().len().saturating_sub(1);
        let all_wait = process.dump.0.lock().waiting >= others;
        (task.is_dying() || all_wait).then_some(())
    });
    !task.is_dying()
}

/// On a task's way to its end: waits while another task of its process writes a dump.
pub fn join(task: &Task) {
    let process = &task.process;
    if !process.dump.is_written() {
        return;
    }
    let thread = Thread::of(task);
    {
        let mut state = process.dump.0.lock();
        if !state.is_written {
            return;
        }
        state.waiting += 1;
        if let Ok(thread) = thread {
            // Without memory the dump shows fewer threads.
            let _ = list::append(&mut state.threads, [thread]);
        }
    }
    process.child_events.wake_all();
    process.child_events.wait_uninterruptible(|| (!process.dump.is_written()).then_some(()));
}

fn write(task: &Task, info: &SigInfo, threads: &[Thread], limit: u64) -> Result<(), Errno> {
    let own = Thread::of(task)?;
    let name = pattern::name(task, info, limit)?;
    let file = open(&task.process, &name)?;
    let notes = notes::make(task, info, &own, threads)?;
    image::write(task, &file, &notes, limit)
}

/// Opens the file of a dump, which is made or replaces an older one.
fn open(process: &Arc<Process>, name: &[u8]) -> Result<Arc<OpenFile>, Errno> {
    let places = process.fs.lock().as_ref().map(|fs| fs.places()).ok_or(Errno::ENOENT)?;
    let walk = Walk { root: places.root, base: places.current, follow: Follow::Never, resolve: 0 };
    let found = walk.find(name)?;
    let (place, is_new) = match &found.place {
        Some(place) => (place.clone(), false),
        None => {
            let new = New::within(
                &found.directory.node().attributes(),
                NewKind::Other(Kind::Regular),
                MODE & !places.umask,
            );
            (found.writable_directory()?.create(&found.directory, &found.name, new)?, true)
        }
    };
    if !is_new {
        check_old(process, &place)?;
    }
    let claim = Claim::to_write(place.node())?;
    let flags = abi::O_RDWR | abi::O_LARGEFILE;
    let file = place.node().clone().open(&Opening { place: &place, flags })?;
    if !is_new {
        place.node().truncate(0)?;
    }
    Ok(OpenFile::with_claim(file, place, flags, Some(claim)))
}

/// A file that another user could have put there, or read, is not written to.
fn check_old(process: &Process, place: &Arc<Dentry>) -> Result<(), Errno> {
    let old = place.node().attributes();
    check_file(WRITE, || old)?;
    let is_own = old.uid == process.credentials().user();
    let is_fit = old.kind == Kind::Regular && old.links == 1 && old.mode & MODE_MASK == MODE;
    if is_own && is_fit { Ok(()) } else { Err(Errno::EPERM) }
}
