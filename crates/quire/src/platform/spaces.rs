//! What address spaces need of the machine besides: file pages, and a way to sleep.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::limits::FRAME_SIZE;
use crate::nodes::NodePolicy;

use super::tables::TablePlatform;

/// A machine on which a whole memory manager runs.
///
/// Only [`pager`](Self::pager) has no default.
///
/// # Safety
///
/// As for [`TablePlatform`].
pub unsafe trait Platform: TablePlatform {
    /// The source of file pages. A machine without files uses [`NoFiles`].
    type Pager: Pager;

    /// The pager of the machine.
    fn pager(&self) -> &Self::Pager;

    /// The nodes from which the running task's private memory comes, where its mappings say nothing
    /// ([`Mm::set_nodes`](crate::vm::Mm::set_nodes); Linux: `set_mempolicy`). Does not block.
    ///
    /// Default: the node of the running CPU first.
    #[inline]
    fn task_nodes(&self) -> NodePolicy {
        NodePolicy::Local
    }

    /// Waits until `word` differs from `seen`, or a task calls [`Self::wake`] on it. May return at any other
    /// time: the caller checks again. A wait for the lock of an address space comes here after
    /// [`LOCK_TURNS`](crate::limits::LOCK_TURNS) turns of a spin loop, and so does each wait for a fault handler. A
    /// kernel puts the task to sleep in a queue found by the word's address, as Linux's `futex` does, and wakes
    /// it when the task is to be killed ([`is_dying`](super::FramePlatform::is_dying)).
    ///
    /// Precondition: a task, interrupts on, not pinned by the library, that holds no lock. Postcondition: a
    /// store to the word before a `wake`, or before this call, does not leave the caller asleep. Blocks.
    ///
    /// Default: one turn of a spin loop. A task that waits for a fault handler, or for the `munmap` of another
    /// task, then keeps its CPU busy.
    fn wait(&self, word: &AtomicU32, seen: u32) {
        if word.load(Ordering::Acquire) == seen {
            self.relax();
        }
    }

    /// Wakes every task that waits for `word`, which the caller has changed before. The memory of the word
    /// may have been reused: a task that waits at this address for another purpose wakes early at worst. Does
    /// not block. The caller holds no lock but perhaps that of an address space.
    ///
    /// Default: nothing, which fits the default of [`Self::wait`].
    #[inline]
    fn wake(&self, _word: &AtomicU32) {}
}

/// Identifies a file to its [`Pager`]: an inode number, a handle, an index; the library only compares it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u64);

/// Why file pages could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PagerError {
    /// The device or the network failed; the access becomes a bus error.
    Io,
    /// The page lies wholly beyond the end of the file.
    BeyondEnd,
}

/// The source and destination of the contents of file pages. Calls may block. During a call the library holds
/// no lock but the busy mark of the pages concerned; while it asks for a size, it may also hold an address
/// space's lock for reading.
pub trait Pager: Sync {
    /// The file's current size in bytes.
    fn size(&self, file: FileId) -> u64;

    /// Fills `bytes` (one frame) with the file's contents from `page * 4096`, and with zeroes beyond its end.
    ///
    /// # Errors
    /// [`PagerError::BeyondEnd`] when the page holds no byte of the file, [`PagerError::Io`] otherwise.
    fn read(&self, file: FileId, page: u64, bytes: &mut [u8; FRAME_SIZE as usize]) -> Result<(), PagerError>;

    /// Writes a dirty page to the file.
    ///
    /// # Errors
    /// [`PagerError::Io`]; the page then stays dirty.
    fn write(&self, file: FileId, page: u64, bytes: &[u8; FRAME_SIZE as usize]) -> Result<(), PagerError>;

    /// Writes some of the dirty pages from page `first` on, which follow each other, and returns how many: at
    /// least one, and at most all. A disk takes many in one request.
    ///
    /// Default: one, by [`Self::write`].
    ///
    /// # Errors
    /// [`PagerError::Io`] when the first of them could not be written; it then stays dirty.
    fn write_run(
        &self,
        file: FileId,
        first: u64,
        run: &[&[u8; FRAME_SIZE as usize]],
    ) -> Result<usize, PagerError> {
        let Some(page) = run.first() else { return Ok(0) };
        self.write(file, first, page).map(|()| 1)
    }

    /// Sets the file's size in bytes. Contents beyond a smaller size are lost: if the file grows again, it
    /// reads as zeroes there. The caller holds no lock. A page may be written or read at the same time;
    /// beyond the end both fail.
    ///
    /// # Errors
    /// [`PagerError::Io`]; the file is as before then.
    fn resize(&self, file: FileId, bytes: u64) -> Result<(), PagerError>;
}

/// The pager of a machine without files: every file is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFiles;

impl Pager for NoFiles {
    fn size(&self, _file: FileId) -> u64 {
        0
    }

    fn read(&self, _: FileId, _: u64, _: &mut [u8; FRAME_SIZE as usize]) -> Result<(), PagerError> {
        Err(PagerError::BeyondEnd)
    }

    fn write(&self, _file: FileId, _page: u64, _bytes: &[u8; FRAME_SIZE as usize]) -> Result<(), PagerError> {
        Err(PagerError::Io)
    }

    fn resize(&self, _file: FileId, _bytes: u64) -> Result<(), PagerError> {
        Err(PagerError::Io)
    }
}
