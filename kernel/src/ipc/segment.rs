//! One segment.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};

use quire::hugetlb::HugeSize;
use quire::limits::FRAME_SIZE;

use crate::errno::Errno;
use crate::memory::manager::{KernelFile, manager};
use crate::sync::Mutex;
use crate::task::credentials::{self, Credentials, Right};
use crate::time;

/// In the mode: the segment goes with its last attachment.
const REMOVED: u32 = 0o1000;
/// In the mode: `SHM_LOCK` was asked for.
const LOCKED: u32 = 0o2000;
const PERMISSIONS: u32 = 0o777;

/// A segment of shared memory.
pub struct Segment {
    /// Its number for programs.
    pub id: u32,
    /// The size that was asked for.
    pub bytes: u64,
    /// The process that made it.
    pub creator: u32,
    /// That process's user and group.
    creating: Owner,
    /// Its memory.
    pub file: KernelFile,
    /// How many tasks are about to attach it: see [`Attaching`](super::Attaching).
    pub(super) attaching: AtomicU32,
    state: Mutex<State>,
}

/// What changes in the life of a segment.
#[derive(Clone, Copy, Debug)]
struct State {
    key: u32,
    mode: u32,
    owner: Owner,
    /// The process that attached or detached it last.
    last: u32,
    attached: u64,
    detached: u64,
    changed: u64,
}

/// Who owns a segment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
}

impl Segment {
    /// A segment of this many bytes, in pages of this size. Huge pages are reserved at once, if `reserve`.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn new(
        (id, key, creator): (u32, u32, u32),
        bytes: u64,
        mode: u32,
        huge: Option<HugeSize>,
        reserve: bool,
    ) -> Result<Self, Errno> {
        let file = match huge {
            None => manager().shmem(bytes)?,
            Some(size) => manager().huge_file(size, bytes)?,
        };
        if huge.is_some() && reserve {
            file.reserve(bytes)?;
        }
        let (uid, gid) = credentials::owner();
        let creating = Owner { uid, gid };
        let state = State {
            key,
            mode: mode & PERMISSIONS,
            owner: creating,
            last: 0,
            attached: 0,
            detached: 0,
            changed: seconds(),
        };
        let attaching = AtomicU32::new(0);
        Ok(Self { id, bytes, creator, creating, file, attaching, state: Mutex::new(state) })
    }

    /// The key by which programs find it; 0 for none.
    pub fn key(&self) -> u32 {
        self.state.lock().key
    }

    /// How often it is attached.
    pub fn attachments(&self) -> u64 {
        self.file.mapping_count() as u64
    }

    /// Whether it goes with its last attachment.
    pub fn is_removed(&self) -> bool {
        self.state.lock().mode & REMOVED != 0
    }

    /// Whether it was removed, is attached nowhere, and no task is about to attach it.
    pub fn is_gone(&self) -> bool {
        // In this order: a task that has attached it counts until the file is mapped.
        self.is_removed() && self.attaching.load(Ordering::Acquire) == 0 && self.file.is_unmapped()
    }

    /// From now on it goes with its last attachment, and is not found by its key.
    pub fn mark_removed(&self) {
        let mut state = self.state.lock();
        state.mode |= REMOVED;
        state.key = 0;
    }

    /// A process attached it.
    pub fn note_attached(&self, process: u32) {
        let mut state = self.state.lock();
        (state.last, state.attached) = (process, seconds());
    }

    /// A process detached it.
    pub fn note_detached(&self, process: u32) {
        let mut state = self.state.lock();
        (state.last, state.detached) = (process, seconds());
    }

    /// `SHM_LOCK` and `SHM_UNLOCK`. Shared memory is never written to a disk, so that nothing else changes.
    pub fn set_locked(&self, locked: bool) {
        let mut state = self.state.lock();
        state.mode = if locked { state.mode | LOCKED } else { state.mode & !LOCKED };
    }

    /// `IPC_SET`
    pub fn set(&self, owner: Owner, mode: u32) {
        let mut state = self.state.lock();
        state.owner = owner;
        state.mode = state.mode & !PERMISSIONS | mode & PERMISSIONS;
        state.changed = seconds();
    }

    /// The words of `struct shmid64_ds`.
    pub fn words(&self) -> [u64; 14] {
        let (state, attachments) = (*self.state.lock(), self.attachments());
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let sequence = self.id >> super::table::SLOT_BITS;
        [
            pair(state.key, state.owner.uid),
            pair(state.owner.gid, self.creating.uid),
            pair(self.creating.gid, state.mode),
            pair(sequence & 0xffff, 0),
            0,
            0,
            self.bytes,
            state.attached,
            state.detached,
            state.changed,
            pair(self.creator, state.last),
            attachments,
            0,
            0,
        ]
    }

    /// Fails unless the caller may do this with it, in the words of a file's permissions.
    ///
    /// # Errors
    /// [`Errno::EACCES`].
    pub fn check(&self, own: &Credentials, wanted: u32) -> Result<(), Errno> {
        let state = *self.state.lock();
        let is_in = |group: u32| own.is_in(group);
        let shift = match () {
            () if [state.owner.uid, self.creating.uid].contains(&own.user()) => 6,
            () if is_in(state.owner.gid) || is_in(self.creating.gid) => 3,
            () => 0,
        };
        let allowed = wanted & !(state.mode >> shift) == 0 || own.has(Right::UseAnySegment);
        if allowed { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Whether the caller may change or remove it, by this right or as its owner.
    pub fn is_owned(&self, own: &Credentials, right: Right) -> bool {
        [self.state.lock().owner.uid, self.creating.uid].contains(&own.user()) || own.has(right)
    }

    /// Its line in `/proc/sysvipc/shm`.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn line(&self, out: &mut dyn Write) -> fmt::Result {
        let (state, attachments) = (*self.state.lock(), self.attachments());
        let State { key, mode, owner, last, attached, detached, changed } = state;
        let (id, bytes, creator, creating) = (self.id, self.bytes, self.creator, self.creating);
        let resident = self.file.resident() * FRAME_SIZE;
        writeln!(
            out,
            "{:10} {id:10}  {mode:4o} {bytes:21} {creator:5} {last:5}  {attachments:5} {:5} {:5} {:5} {:5} \
             {attached:10} {detached:10} {changed:10} {resident:21} {:21}",
            key as i32, owner.uid, owner.gid, creating.uid, creating.gid, 0
        )
    }

    /// How many bytes an attachment takes.
    pub fn mapped_bytes(&self) -> u64 {
        self.file.node().size(&crate::memory::platform::MACHINE).next_multiple_of(FRAME_SIZE)
    }
}

fn seconds() -> u64 {
    time::realtime_ns() / 1_000_000_000
}
