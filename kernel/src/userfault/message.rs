//! The messages that a handler reads (`struct uffd_msg`).

use alloc::sync::Arc;

use linux_raw_sys::general as abi;
use quire::vm::{Access, UserfaultEvent, UserfaultKind};

use super::handler::Handler;
use crate::errno::Errno;

/// The size of a message.
pub(super) const BYTES: usize = 32;

/// A message, and the handler that it tells of.
pub struct Message {
    words: [u64; 4],
    /// The handler of a new address space, which the reader gets a descriptor for.
    pub child: Option<Arc<Handler>>,
}

impl Message {
    /// The message of an event that `handler` has read.
    fn of(handler: &Arc<Handler>, event: &UserfaultEvent) -> Result<Self, Errno> {
        let words = |event: u32, first, second, third| [u64::from(event), first, second, third];
        let plain = |words| Ok(Self { words, child: None });
        match *event {
            UserfaultEvent::Fault(fault) => {
                let flags = [
                    (abi::UFFD_PAGEFAULT_FLAG_WRITE, fault.access == Access::Write),
                    (abi::UFFD_PAGEFAULT_FLAG_WP, fault.kind == UserfaultKind::WriteProtected),
                    (abi::UFFD_PAGEFAULT_FLAG_MINOR, fault.kind == UserfaultKind::Minor),
                ];
                let set = flags.into_iter().filter(|(_, set)| *set).fold(0, |all, (flag, _)| all | flag);
                let addr =
                    if handler.has(abi::UFFD_FEATURE_EXACT_ADDRESS) { fault.exact } else { fault.addr };
                let thread = if handler.has(abi::UFFD_FEATURE_THREAD_ID) { fault.thread } else { 0 };
                plain(words(abi::UFFD_EVENT_PAGEFAULT, u64::from(set), addr.0, thread))
            }
            UserfaultEvent::Fork { child, .. } => {
                let child = handler.fork(child)?;
                Ok(Self { words: words(abi::UFFD_EVENT_FORK, 0, 0, 0), child: Some(child) })
            }
            UserfaultEvent::Remap { from, to, len, .. } => {
                plain(words(abi::UFFD_EVENT_REMAP, from.0, to.0, len))
            }
            UserfaultEvent::Remove { range, .. } => {
                plain(words(abi::UFFD_EVENT_REMOVE, range.start.0, range.end.0, 0))
            }
            UserfaultEvent::Unmap { range, .. } => {
                plain(words(abi::UFFD_EVENT_UNMAP, range.start.0, range.end.0, 0))
            }
        }
    }

    /// Says which descriptor the child's handler got.
    pub fn set_descriptor(&mut self, descriptor: u64) {
        self.words[1] = descriptor & u64::from(u32::MAX);
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let words = self.words.map(u64::to_le_bytes);
        bytes.copy_from_slice(words.as_flattened());
        bytes
    }
}

impl Handler {
    /// The next message. With `nonblocking` it fails instead of waiting.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] before `UFFDIO_API`, [`Errno::EAGAIN`], [`Errno::EINTR`]; for a fork, that of the new handler.
    pub fn read(self: &Arc<Self>, nonblocking: bool) -> Result<Message, Errno> {
        let ready = self.ready()?;
        let event = self.readers.wait(nonblocking, || self.take(ready))?;
        Message::of(self, &event)
    }

    /// Whether there is something to read.
    pub fn is_readable(&self) -> bool {
        self.ready().is_ok_and(|ready| {
            let info = ready.quire.info();
            info.pending + info.changes > 0
        })
    }
}
