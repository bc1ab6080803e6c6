//! `kcmp`: whether two processes share something.

use alloc::sync::Arc;

use super::{Answer, Call};
use crate::errno::Errno;
use crate::files::open::OpenFile;
use crate::task::process::Process;
use crate::task::table;

/// What is compared (`enum kcmp_type`).
const FILE: u64 = 0;
const MEMORY: u64 = 1;
const DESCRIPTORS: u64 = 2;
const PLACES: u64 = 3;
const ACTIONS: u64 = 4;
const IO: u64 = 5;
const SEMAPHORES: u64 = 6;

impl Call<'_> {
    /// 0 for the same, otherwise 1 or 2: an order, by which a caller can sort many.
    pub(super) fn kcmp(&self) -> Answer {
        let [one, other, kind, first, second, _] = self.arguments;
        let process = |id: u64| table::process_of(id as u32).ok_or(Errno::ESRCH);
        let (one, other) = (process(one)?, process(other)?);
        let files = || -> Result<_, Errno> { Ok([open_file(&one, first)?, open_file(&other, second)?]) };
        let files = if kind == FILE { Some(files()) } else { None };
        // After that: a process that executes a program meanwhile, with more rights, shows nothing.
        if !self.process().may_trace(&one) || !self.process().may_trace(&other) {
            return Err(Errno::EPERM);
        }
        if let Some(files) = files {
            return Ok(order(files?.each_ref().map(|file| Arc::as_ptr(file).addr())));
        }
        let numbers = match kind {
            MEMORY => {
                [one, other].map(|process| process.space_handle().map_or(0, |it| Arc::as_ptr(&it).addr()))
            }
            DESCRIPTORS => [one, other].map(|process| Arc::as_ptr(&*process.files.lock()).addr()),
            PLACES => {
                [one, other].map(|process| process.fs.lock().as_ref().map_or(0, |it| Arc::as_ptr(it).addr()))
            }
            ACTIONS => [one, other].map(|process| process.signals.actions_number()),
            // No process has any of these, as many in Linux.
            IO | SEMAPHORES => [0; 2],
            _ => return Err(Errno::EINVAL),
        };
        Ok(order(numbers))
    }
}

fn order([one, other]: [usize; 2]) -> u64 {
    if one == other { 0 } else { 1 + u64::from(one > other) }
}

fn open_file(process: &Process, descriptor: u64) -> Result<Arc<OpenFile>, Errno> {
    let files = process.files.lock().clone();
    files.get(descriptor)
}
