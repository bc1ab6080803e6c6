//! Waiting for several files (`poll(2)`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::events::ALWAYS;
use crate::files::open::OpenFile;
use crate::files::poll::{self, Files};
use crate::memory::list;
use crate::syscall::{Answer, Call};
use crate::task::limits::UNLIMITED;
use crate::task::signal::own::Own;
use crate::task::signal::send;
use crate::time;

/// `struct pollfd`: a descriptor, what is asked, what is answered.
const ENTRY_BYTES: u64 = 8;

/// One entry of the array.
struct Entry {
    file: Option<Arc<OpenFile>>,
    asked: u32,
    /// What is answered of a descriptor that is not open.
    fixed: u32,
}

impl Entry {
    fn answer(&self) -> u32 {
        let events = self.file.as_ref().map_or(0, |file| file.file().poll());
        events & (self.asked | ALWAYS) | self.fixed
    }
}

impl Call<'_> {
    pub(in crate::syscall) fn poll(&self) -> Answer {
        let milliseconds = self.arguments[2] as i32;
        let deadline = u64::try_from(milliseconds).ok().map(|time| self.deadline_in(time * 1_000_000));
        self.poll_until(deadline)
    }

    pub(in crate::syscall) fn ppoll(&self) -> Answer {
        let [_, _, timeout, mask, bytes, _] = self.arguments;
        let deadline = self.deadline(timeout)?;
        self.with_mask(mask, bytes, || self.poll_until(deadline), |call| call.store_left(timeout, deadline))
    }

    fn poll_until(&self, deadline: Option<u64>) -> Answer {
        let [array, count, ..] = self.arguments;
        let entries = self.entries(array, count)?;
        let files: Files = list::collect(entries.iter().filter_map(|entry| entry.file.clone()))?;
        // What the last look saw is the answer: meanwhile another task may have taken what there was.
        let mut answers = Vec::new();
        answers.try_reserve_exact(entries.len()).map_err(|_| Errno::ENOMEM)?;
        let scan = || {
            answers.clear();
            answers.extend(entries.iter().map(Entry::answer));
            Ok(answers.iter().any(|&answer| answer != 0).then_some(()))
        };
        poll::wait(&files, deadline, scan)?;
        for (index, &answer) in answers.iter().enumerate() {
            let at = array + index as u64 * ENTRY_BYTES + 6;
            self.memory.write(VirtAddr(at), &(answer as u16).to_le_bytes())?;
        }
        Ok(answers.iter().filter(|&&answer| answer != 0).count() as u64)
    }

    fn entries(&self, array: u64, count: u64) -> Result<Vec<Entry>, Errno> {
        let most = self.process().limits.get(abi::RLIMIT_NOFILE)?.soft;
        if count > most.min(UNLIMITED / ENTRY_BYTES) {
            return Err(Errno::EINVAL);
        }
        array.checked_add(count * ENTRY_BYTES).ok_or(Errno::EFAULT)?;
        let (table, mut entries) = (self.table(), Vec::new());
        entries.try_reserve_exact(count as usize).map_err(|_| Errno::ENOMEM)?;
        for index in 0..count {
            let word = self.memory.read_u64(VirtAddr(array + index * ENTRY_BYTES))?;
            let (descriptor, asked) = (word as u32 as i32, (word >> 32) as u16);
            let file = table.get(word);
            let fixed = if descriptor >= 0 && file.is_err() { abi::POLLNVAL } else { 0 };
            entries.push(Entry { file: file.ok(), asked: asked.into(), fixed });
        }
        Ok(entries)
    }

    /// When a call is to end that may wait so many nanoseconds; 0 for no waiting at all.
    pub(super) fn deadline_in(&self, ns: u64) -> u64 {
        if ns == 0 { 0 } else { self.task.call_end(ns) }
    }

    /// The time at which a `struct timespec` of waiting is up; no address is for ever.
    pub(super) fn deadline(&self, timeout: u64) -> Result<Option<u64>, Errno> {
        if timeout == 0 { Ok(None) } else { Ok(Some(self.deadline_in(self.load_time(timeout)?))) }
    }

    /// Stores how much of the waiting is left, as a `struct timespec`. A bad address does not matter any more.
    pub(super) fn store_left(&self, timeout: u64, deadline: Option<u64>) {
        if let Some(deadline) = deadline {
            let left = deadline.saturating_sub(time::now_ns());
            let _ = self.store_words(timeout, &[left / 1_000_000_000, left % 1_000_000_000]);
        }
    }

    /// Makes a call with another mask of signals, whose address is `mask`, or 0.
    pub(super) fn with_mask(
        &self,
        mask: u64,
        bytes: u64,
        call: impl FnOnce() -> Answer,
        finish: impl FnOnce(&Self),
    ) -> Answer {
        if mask != 0 {
            if bytes != 8 {
                return Err(Errno::EINVAL);
            }
            let mask = self.memory.read_u64(VirtAddr(mask))?;
            send::change(self.task, |own| own.set_mask_for_call(mask));
        }
        let answer = call();
        finish(self);
        if mask != 0 && answer != Err(Errno::EINTR) {
            send::change(self.task, Own::restore_mask);
            self.task.set_signal_flag();
        }
        answer
    }
}
