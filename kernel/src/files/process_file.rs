//! A process as an open file: what `pidfd_open(2)` opens. It is readable when the process has ended.

use alloc::boxed::Box;
use alloc::sync::Arc;

use linux_raw_sys::general as abi;

use super::anonymous;
use super::events::{Events, READABLE, Waiters};
use super::open::{File, OpenFile};
use crate::task::process::Process;

/// A process.
pub struct ProcessFile(pub Arc<Process>);

/// Opens a process.
pub fn open(process: Arc<Process>, nonblocking: bool) -> Arc<OpenFile> {
    let flags = if nonblocking { abi::O_NONBLOCK } else { 0 };
    anonymous::open(Box::new(ProcessFile(process)), "anon_inode:[pidfd]", abi::O_RDWR | flags)
}

impl File for ProcessFile {
    fn is_seekable(&self) -> bool {
        false
    }

    fn poll(&self) -> Events {
        if self.0.has_ended() { READABLE } else { 0 }
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.0.end_waiters)
    }
}
