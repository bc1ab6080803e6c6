//! Waiting for sets of descriptors (`select(2)`).

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use crate::errno::Errno;
use crate::files::events::{Events, READABLE, WRITABLE};
use crate::files::open::OpenFile;
use crate::files::poll::{self, Files};
use crate::memory::list;
use crate::syscall::{Answer, Call};
use crate::time;

/// What the three sets ask for.
const ASKED: [Events; 3] = [
    READABLE | abi::POLLRDBAND | abi::POLLHUP | abi::POLLERR,
    WRITABLE | abi::POLLWRBAND | abi::POLLERR,
    abi::POLLPRI,
];
const WORD_BITS: u64 = 64;

/// A descriptor of one of the sets.
struct Member {
    set: usize,
    descriptor: u64,
    file: Arc<OpenFile>,
}

impl Member {
    fn is_ready(&self) -> bool {
        self.file.file().poll() & ASKED[self.set] != 0
    }
}

impl Call<'_> {
    pub(in crate::syscall) fn select(&self) -> Answer {
        let timeout = self.arguments[4];
        let deadline = match timeout {
            0 => None,
            at => {
                let [seconds, microseconds] = self.load_words(at)?;
                if seconds > i64::MAX as u64 || microseconds > i64::MAX as u64 {
                    return Err(Errno::EINVAL);
                }
                let ns =
                    seconds.saturating_mul(1_000_000_000).saturating_add(microseconds.saturating_mul(1000));
                Some(self.deadline_in(ns))
            }
        };
        let answer = self.select_until(deadline);
        if let Some(deadline) = deadline {
            let left = deadline.saturating_sub(time::now_ns());
            // A bad address does not matter any more.
            let _ = self.store_words(timeout, &[left / 1_000_000_000, left % 1_000_000_000 / 1000]);
        }
        answer
    }

    pub(in crate::syscall) fn pselect6(&self) -> Answer {
        let [_, _, _, _, timeout, mask] = self.arguments;
        let deadline = self.deadline(timeout)?;
        let [mask, bytes] = if mask == 0 { [0; 2] } else { self.load_words(mask)? };
        let call = || self.select_until(deadline);
        self.with_mask(mask, bytes, call, |call| call.store_left(timeout, deadline))
    }

    fn select_until(&self, deadline: Option<u64>) -> Answer {
        let count = self.arguments[0] as u32 as i32;
        let most = self.process().limits.get(abi::RLIMIT_NOFILE)?.soft;
        let count = u64::try_from(count).map_err(|_| Errno::EINVAL)?.min(most);
        let members = self.members(count)?;
        let files: Files = list::collect(members.iter().map(|member| member.file.clone()))?;
        // What the last look saw is the answer: meanwhile another task may have taken what there was.
        let mut ready: Vec<&Member> = Vec::new();
        ready.try_reserve_exact(members.len()).map_err(|_| Errno::ENOMEM)?;
        let scan = || {
            ready.clear();
            ready.extend(members.iter().filter(|member| member.is_ready()));
            Ok((!ready.is_empty()).then_some(()))
        };
        poll::wait(&files, deadline, scan)?;
        for set in 0..ASKED.len() {
            self.store_set(set, count, &ready)?;
        }
        Ok(ready.len() as u64)
    }

    /// The descriptors of all sets.
    fn members(&self, count: u64) -> Result<Vec<Member>, Errno> {
        let (table, mut members) = (self.table(), Vec::new());
        for (set, &at) in self.arguments[1..4].iter().enumerate() {
            for word_at in (0..count).step_by(WORD_BITS as usize).filter(|_| at != 0) {
                let mut word = self.memory.read_u64(VirtAddr(word_address(at, word_at)?))?;
                if count - word_at < WORD_BITS {
                    word &= (1 << (count - word_at)) - 1;
                }
                while word != 0 {
                    let descriptor = word_at + u64::from(word.trailing_zeros());
                    word &= word - 1;
                    members.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
                    members.push(Member { set, descriptor, file: table.get(descriptor)? });
                }
            }
        }
        Ok(members)
    }

    /// Stores which members of a set are ready.
    fn store_set(&self, set: usize, count: u64, ready: &[&Member]) -> Result<(), Errno> {
        let at = self.arguments[1 + set];
        for word_at in (0..count).step_by(WORD_BITS as usize).filter(|_| at != 0) {
            let here = ready.iter().filter(|member| member.set == set && member.descriptor & !63 == word_at);
            let word: u64 = here.fold(0, |word, member| word | 1 << (member.descriptor % WORD_BITS));
            self.memory.write(VirtAddr(word_address(at, word_at)?), &word.to_le_bytes())?;
        }
        Ok(())
    }
}

fn word_address(set: u64, descriptor: u64) -> Result<u64, Errno> {
    set.checked_add(descriptor / 8).ok_or(Errno::EFAULT)
}
