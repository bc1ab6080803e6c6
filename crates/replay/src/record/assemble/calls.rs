//! Combines the entry and the exit of a memory call into one event, and finds its place.
//!
//! A call's event is placed where the call took effect. The proof is a moment inside the locked section that
//! changed the address space: the end of its lock for writing, or a record of the mapping that it made.
//! Without proof the place may be anywhere from entry to exit. If another thread's event is in between, the
//! call is marked as unordered.

use super::{Assembler, PendingCall, Section};
use crate::record::queue::{Draft, DraftKind, Key};
use crate::trace::{Call, EventKind, Syscall};

impl PendingCall {
    fn new(key: Key, (number, call): (u64, Call), args: [u64; 6]) -> PendingCall {
        let (file, section, shown, cut, attached) = (None, None, None, None, None);
        PendingCall { key, number, call, args, file, section, shown, cut, attached, beside_others: false }
    }

    /// A moment at which it took effect.
    fn proof(&self) -> Option<Key> {
        self.section.as_ref().map(|section| section.end).or(self.shown)
    }
}

/// Whether the events of the task that it makes, or of the program that it starts, give its place.
fn told_by_task(call: Call) -> bool {
    call.makes_task() || call.is_exec()
}

/// Whether it may downgrade its lock, to free pages beside faults. Such a call takes no lock for reading before that.
fn downgrades(call: Call) -> bool {
    matches!(call, Call::Munmap | Call::Brk | Call::Mremap)
}

/// Whether it discards pages, under one lock for its whole range.
fn discards(call: Call, args: &[u64; 6]) -> bool {
    const DONTNEED: u64 = 4;
    const FREE: u64 = 8;
    call == Call::Madvise && matches!(args[2], DONTNEED | FREE)
}

impl Assembler {
    pub(super) fn enter(
        &mut self,
        key: Key,
        pid: u32,
        tid: u32,
        (number, call): (u64, Call),
        mut args: [u64; 6],
    ) {
        self.give_up_fault(pid, tid);
        args[call.arity()..].fill(0);
        let mut pending = PendingCall::new(key, (number, call), args);
        if !call.is_exec() {
            // It may take effect at any moment up to its exit.
            self.queue.hold(key);
        }
        if !told_by_task(call) && !call.cuts_file() {
            pending.beside_others = self.comes_beside(pid, tid);
        }
        if let Some(unfinished) = self.thread(pid, tid).call.replace(pending) {
            self.queue.release(unfinished.key);
        }
    }

    /// Records that a thread is inside a call. True if other threads of the same memory are, which are then
    /// marked too.
    fn comes_beside(&mut self, pid: u32, tid: u32) -> bool {
        let inside = self.inside.entry(self.memory(pid)).or_default();
        inside.insert(tid);
        let others: Vec<u32> = inside.iter().copied().filter(|other| *other != tid).collect();
        for other in &others {
            if let Some(call) = self.threads.get_mut(other).and_then(|thread| thread.call.as_mut()) {
                call.beside_others = true;
            }
        }
        !others.is_empty()
    }

    pub(super) fn leave(&mut self, key: Key, pid: u32, tid: u32, number: u64, result: i64) {
        self.give_up_fault(pid, tid);
        let thread = self.thread(pid, tid);
        // The first call that returns in a new program is the exec itself, with its number in the new
        // program's architecture.
        let was_in_exec = std::mem::take(&mut thread.in_exec);
        // A new process returns from its parent's call; and the call may have begun before the recording.
        let Some(pending) = thread.call.take() else { return };
        self.end_call(&pending, pid, tid);
        if pending.number != number && !was_in_exec {
            return;
        }
        let (place, unordered) = self.place(&pending, key, pid, tid);
        let PendingCall { key: entry, call, args, mut file, cut, attached, .. } = pending;
        if call.cuts_file() {
            file = cut.and_then(|cut| self.files.get(&cut).copied());
            if file.is_none() {
                // It took no page, or no program has mapped the file.
                return;
            }
        }
        // Through `ipc` it returns a status; its mapping has the address.
        let at = attached.filter(|_| call == Call::Shmat && result == 0);
        let result = at.map_or(result, |address| address as i64);
        let duration_ns = key.0.saturating_sub(entry.0);
        let syscall = Syscall { call, args, result, enter_ns: entry.0, duration_ns, file, unordered };
        self.queue.put(place, Draft { pid, tid, kind: DraftKind::Event(EventKind::Syscall(syscall)) });
    }

    /// Records that the thread has left this call.
    pub(super) fn end_call(&mut self, call: &PendingCall, pid: u32, tid: u32) {
        self.queue.release(call.key);
        let memory = self.memory(pid);
        if let Some(inside) = self.inside.get_mut(&memory) {
            inside.remove(&tid);
            if inside.is_empty() {
                self.inside.remove(&memory);
            }
        }
    }

    /// The place of a call that returns now, and whether it is unproved: only the start of its time.
    fn place(&self, pending: &PendingCall, exit: Key, pid: u32, tid: u32) -> (Key, bool) {
        let (entry, call) = (pending.key, pending.call);
        if told_by_task(call) {
            return (exit, false);
        }
        if let Some(proof) = pending.proof() {
            return (proof, self.queue.has_passed(proof));
        }
        let fault = |draft: &Draft| {
            draft.tid != tid
                && matches!(draft.kind, DraftKind::Event(EventKind::Fault { .. }))
                && self.memory(draft.pid) == self.memory(pid)
        };
        let beside_faults = || self.queue.between(entry..exit).any(|(_, draft)| fault(draft));
        if pending.beside_others || call.changes_mappings() && beside_faults() {
            return (entry, true);
        }
        // A call may discard pages right after its entry, so a fault meanwhile may be its effect.
        (if call.changes_mappings() { exit } else { entry }, false)
    }

    /// Takes a record that a page has left a file. Its mappings have lost it just before.
    pub(super) fn dropped(&mut self, key: Key, pid: u32, tid: u32, file: (u64, u64)) {
        if let Some(call) = &mut self.thread(pid, tid).call
            && call.call.cuts_file()
            && call.cut.is_none()
        {
            (call.cut, call.shown) = (Some(file), Some(key));
        }
    }

    /// The moment at which the thread's call copies the memory, if a lock record shows it.
    pub(super) fn copied_at(&self, tid: u32) -> Option<Key> {
        let call = self.threads.get(&tid)?.call.as_ref().filter(|call| call.call.makes_task())?;
        Some(call.section.as_ref()?.end)
    }

    /// Takes a record that a thread has the lock for reading: it downgraded it, or looks at mappings whose
    /// pages it discards.
    pub(super) fn shares_lock(&mut self, key: Key, pid: u32, tid: u32, mm: u64) {
        let Some(call) = &mut self.thread(pid, tid).call else { return };
        if call.section.is_some() {
            // It populates what it has mapped.
        } else if downgrades(call.call) {
            call.section = Some(Section { mm, end: key });
        } else if discards(call.call, &call.args) {
            call.shown = Some(key);
        }
    }

    /// Takes a record that a thread is about to release the lock.
    pub(super) fn unlocked(&mut self, key: Key, pid: u32, tid: u32, mm: u64) {
        let Some(call) = &mut self.thread(pid, tid).call else { return };
        // The last section counts: in an earlier one a stack may have grown for an argument. A fork releases the
        // child's lock first, still under its own.
        let section = call.section.get_or_insert(Section { mm, end: key });
        if section.mm == mm {
            section.end = key;
        }
    }
}

#[cfg(test)]
mod tests;
