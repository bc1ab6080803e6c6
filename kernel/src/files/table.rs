//! The descriptors of a process.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::limits;
use super::locks;
use super::open::OpenFile;
use crate::errno::Errno;
use crate::memory::list;
use crate::sync::Mutex;

/// What `CLONE_FILES` shares: which open file each descriptor stands for.
#[derive(Default)]
pub struct FileTable {
    slots: Mutex<Vec<Option<Descriptor>>>,
    /// All descriptors below are in use. Changes under the lock of the slots.
    lowest: AtomicUsize,
}

/// A descriptor.
#[derive(Clone)]
struct Descriptor {
    /// `None` while it is reserved: for other calls it is closed, but not free.
    file: Option<Arc<OpenFile>>,
    close_on_exec: bool,
}

/// A descriptor for a file that the call does not have yet. It is free again if the call fails.
pub struct Reserved<'t> {
    table: &'t FileTable,
    at: usize,
}

impl Reserved<'_> {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.at as u64
    }

    /// Makes it stand for a file.
    pub fn fill(self, file: Arc<OpenFile>, close_on_exec: bool) -> u64 {
        self.table.slots.lock()[self.at] = Some(Descriptor { file: Some(file), close_on_exec });
        core::mem::ManuallyDrop::new(self).at as u64
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut slots = self.table.slots.lock();
        slots[self.at] = None;
        self.table.lowest.fetch_min(self.at, Ordering::Relaxed);
    }
}

impl FileTable {
    /// The open file of a descriptor.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn get(&self, descriptor: u64) -> Result<Arc<OpenFile>, Errno> {
        let slots = self.slots.lock();
        let slot = index(descriptor).and_then(|index| slots.get(index)?.as_ref());
        slot.and_then(|descriptor| descriptor.file.clone()).ok_or(Errno::EBADF)
    }

    /// Gives an open file the lowest free descriptor.
    ///
    /// # Errors
    /// [`Errno::EMFILE`], [`Errno::ENOMEM`].
    pub fn add(&self, file: Arc<OpenFile>, close_on_exec: bool) -> Result<u64, Errno> {
        self.add_from(0, file, close_on_exec)
    }

    /// The same for the lowest free one from `least` on (`F_DUPFD`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] when `least` is beyond the limit, and as [`Self::add`].
    pub fn add_from(&self, least: u64, file: Arc<OpenFile>, close_on_exec: bool) -> Result<u64, Errno> {
        let least = index(least).filter(|index| *index < limits::descriptors()).ok_or(Errno::EINVAL)?;
        Ok(self.take_from(least, Descriptor { file: Some(file), close_on_exec })? as u64)
    }

    /// Reserves the lowest free descriptor.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn reserve(&self) -> Result<Reserved<'_>, Errno> {
        let at = self.take_from(0, Descriptor { file: None, close_on_exec: false })?;
        Ok(Reserved { table: self, at })
    }

    fn take_from(&self, least: usize, descriptor: Descriptor) -> Result<usize, Errno> {
        let mut slots = self.slots.lock();
        let lowest = self.lowest.load(Ordering::Relaxed);
        let start = least.max(lowest);
        let free = slots.iter().skip(start).position(Option::is_none).map(|at| start + at);
        let free = free.unwrap_or(slots.len().max(start));
        if free >= limits::descriptors() {
            return Err(Errno::EMFILE);
        }
        grow(&mut slots, free)?;
        slots[free] = Some(descriptor);
        if least <= lowest {
            self.lowest.store(free + 1, Ordering::Relaxed);
        }
        Ok(free)
    }

    /// Makes a descriptor stand for an open file, whatever it stood for (`dup2`).
    ///
    /// # Errors
    /// [`Errno::EBADF`] beyond the limit, [`Errno::EBUSY`] if it is reserved, [`Errno::ENOMEM`].
    pub fn set(&self, descriptor: u64, file: Arc<OpenFile>, close_on_exec: bool) -> Result<u64, Errno> {
        let at = index(descriptor).filter(|index| *index < limits::descriptors()).ok_or(Errno::EBADF)?;
        let mut slots = self.slots.lock();
        grow(&mut slots, at)?;
        if is_reserved(&slots[at]) {
            return Err(Errno::EBUSY);
        }
        let old = slots[at].replace(Descriptor { file: Some(file), close_on_exec });
        drop(slots);
        self.closed(old);
        Ok(descriptor)
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn close(&self, descriptor: u64) -> Result<(), Errno> {
        let mut slots = self.slots.lock();
        let at = index(descriptor).filter(|index| *index < slots.len()).ok_or(Errno::EBADF)?;
        if is_reserved(&slots[at]) {
            return Err(Errno::EBADF);
        }
        let old = slots[at].take();
        self.lowest.fetch_min(at, Ordering::Relaxed);
        drop(slots);
        let closed = if old.is_some() { Ok(()) } else { Err(Errno::EBADF) };
        self.closed(old);
        closed
    }

    /// Closes the descriptors from `first` to `last` that are open.
    pub fn close_range(&self, first: u64, last: u64) {
        let end = self.slots.lock().len() as u64;
        for descriptor in first..=last.min(end) {
            // Those in between need not be open.
            let _ = self.close(descriptor);
        }
    }

    /// Lets the descriptors from `first` to `last` be closed by `execve`.
    pub fn mark_range(&self, first: u64, last: u64) {
        let mut slots = self.slots.lock();
        let end = last.saturating_add(1).min(slots.len() as u64);
        let range = first.min(end) as usize..end as usize;
        slots[range].iter_mut().flatten().for_each(|descriptor| descriptor.close_on_exec = true);
    }

    /// Whether `execve` closes a descriptor (`F_GETFD`).
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn close_on_exec(&self, descriptor: u64) -> Result<bool, Errno> {
        let slots = self.slots.lock();
        let slot = index(descriptor).and_then(|index| slots.get(index));
        Ok(slot.and_then(Option::as_ref).ok_or(Errno::EBADF)?.close_on_exec)
    }

    /// Says whether `execve` closes a descriptor (`F_SETFD`).
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn set_close_on_exec(&self, descriptor: u64, closes: bool) -> Result<(), Errno> {
        let mut slots = self.slots.lock();
        let slot = index(descriptor).and_then(|index| slots.get_mut(index));
        slot.and_then(Option::as_mut).ok_or(Errno::EBADF)?.close_on_exec = closes;
        Ok(())
    }

    /// A table of its own with the same open files.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn copy(&self) -> Result<Arc<Self>, Errno> {
        self.copy_if(|_| true)
    }

    /// The same, without the descriptors that `execve` closes.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn copy_for_program(&self) -> Result<Arc<Self>, Errno> {
        self.copy_if(|descriptor| !descriptor.close_on_exec)
    }

    fn copy_if(&self, keep: impl Fn(&Descriptor) -> bool) -> Result<Arc<Self>, Errno> {
        let slots = self.slots.lock();
        let mut copy = Vec::new();
        copy.try_reserve_exact(slots.len()).map_err(|_| Errno::ENOMEM)?;
        let keep = |descriptor: &Descriptor| descriptor.file.is_some() && keep(descriptor);
        copy.extend(slots.iter().map(|slot| slot.clone().filter(keep)));
        Ok(Arc::new(Self { slots: Mutex::new(copy), lowest: AtomicUsize::new(0) }))
    }

    /// Closes what `execve` closes.
    pub fn close_for_program(&self) {
        let marked = |slots: &[Option<Descriptor>]| {
            slots.iter().position(|slot| slot.as_ref().is_some_and(|descriptor| descriptor.close_on_exec))
        };
        loop {
            let mut slots = self.slots.lock();
            let Some(at) = marked(&slots) else { return };
            let old = slots[at].take();
            self.lowest.fetch_min(at, Ordering::Relaxed);
            drop(slots);
            self.closed(old);
        }
    }

    /// The descriptors that are open.
    ///
    /// # Errors
    /// [`Errno::ENOMEM`].
    pub fn list(&self) -> Result<Vec<u64>, Errno> {
        let slots = self.slots.lock();
        let is_open = |slot: &Option<Descriptor>| slot.is_some() && !is_reserved(slot);
        list::collect(slots.iter().zip(0..).filter(|(slot, _)| is_open(slot)).map(|(_, at)| at))
    }

    /// A descriptor of this table no longer stands for a file. The table's lock is not held.
    fn closed(&self, old: Option<Descriptor>) {
        if let Some(file) = old.and_then(|old| old.file) {
            locks::release_process_locks(self, &file);
        }
    }
}

impl Drop for FileTable {
    fn drop(&mut self) {
        for slot in core::mem::take(self.slots.get_mut()) {
            self.closed(slot);
        }
    }
}

fn is_reserved(slot: &Option<Descriptor>) -> bool {
    slot.as_ref().is_some_and(|descriptor| descriptor.file.is_none())
}

fn index(descriptor: u64) -> Option<usize> {
    // Descriptors are `int`: the upper half of the register says nothing.
    usize::try_from(descriptor as u32 as i32).ok()
}

fn grow(slots: &mut Vec<Option<Descriptor>>, index: usize) -> Result<(), Errno> {
    if index >= limits::MOST_DESCRIPTORS {
        return Err(Errno::EMFILE);
    }
    if index >= slots.len() {
        slots.try_reserve(index + 1 - slots.len()).map_err(|_| Errno::ENOMEM)?;
        slots.resize(index + 1, None);
    }
    Ok(())
}
