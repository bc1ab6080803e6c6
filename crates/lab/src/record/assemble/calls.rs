//! Makes one event of the entry and the exit of a memory call, and finds its place.
//!
//! A call stands where it took effect. Its place is proved by a moment that lies inside the locked section that
//! changed the address space: the end of its lock for writing, or a record of the mapping that it made. Without proof it may
//! be anywhere from entry to exit; that is no matter if nothing of another thread is there, else the event says so.

use super::locks::Section;
use super::{Assembler, PendingCall};
use crate::record::queue::{Draft, DraftKind, Key};
use crate::trace::{Call, EventKind, Syscall};

impl PendingCall {
    fn new(key: Key, (number, call): (u64, Call), args: [u64; 6]) -> PendingCall {
        let (file, section, shown, attached) = (None, None, None, None);
        PendingCall { key, number, call, args, file, section, shown, attached, beside_others: false }
    }

    /// A moment of its effect.
    fn proof(&self, exit: Key) -> Option<Key> {
        let section = self.section.as_ref().map(|section| section.end.unwrap_or(exit));
        section.or(self.shown)
    }
}

/// Has its own place told by the events of the task that it makes, or of the program that it starts.
fn told_by_task(call: Call) -> bool {
    call.makes_task() || call.is_exec()
}

/// Does it discard pages, under one lock for all of its range?
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
            // Its effect may lie anywhere up to its exit.
            self.queue.hold(key);
        }
        if !told_by_task(call) {
            pending.beside_others = self.comes_beside(pid, tid);
        }
        if let Some(unfinished) = self.thread(pid, tid).call.replace(pending) {
            self.queue.release(unfinished.key);
        }
    }

    /// Notes that a thread is inside a call; true if others of the same memory are, which then are beside it too.
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
        // The first call that returns in a new program is the exec itself, under the number that the new program's
        // architecture has for it.
        let was_in_exec = std::mem::take(&mut thread.in_exec);
        // A new process comes out of its parent's call; and the call may have begun before the recording.
        let Some(pending) = thread.call.take() else { return };
        self.end_call(&pending, pid, tid);
        if pending.number != number && !was_in_exec {
            return;
        }
        let (place, unordered) = self.place(&pending, key, pid, tid);
        let PendingCall { key: entry, call, args, file, attached, .. } = pending;
        // Through `ipc` it returns a status; its mapping tells the address.
        let at = attached.filter(|_| call == Call::Shmat && result == 0);
        let result = at.map_or(result, |address| address as i64);
        let duration_ns = key.0.saturating_sub(entry.0);
        let syscall = Syscall { call, args, result, enter_ns: entry.0, duration_ns, file, unordered };
        self.queue.put(place, Draft { pid, tid, kind: DraftKind::Event(EventKind::Syscall(syscall)) });
    }

    /// The thread is not inside this call any more.
    pub(super) fn end_call(&mut self, call: &PendingCall, pid: u32, tid: u32) {
        self.queue.release(call.key);
        if let Some(section) = &call.section {
            self.locks.left(section, tid);
        }
        let memory = self.memory(pid);
        if let Some(inside) = self.inside.get_mut(&memory) {
            inside.remove(&tid);
            if inside.is_empty() {
                self.inside.remove(&memory);
            }
        }
    }

    /// Where a call stands that returns now, and whether that is only where its time begins.
    fn place(&self, pending: &PendingCall, exit: Key, pid: u32, tid: u32) -> (Key, bool) {
        let (entry, call) = (pending.key, pending.call);
        if told_by_task(call) {
            return (exit, false);
        }
        if let Some(proof) = pending.proof(exit) {
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
        // What discards pages may do so as soon as it is entered: a fault that comes meanwhile may be of its making.
        (if call.changes_mappings() { exit } else { entry }, false)
    }

    /// The moment at which the call that a thread is inside copies the memory, if the lock has told it.
    pub(super) fn copied_at(&self, tid: u32) -> Option<Key> {
        let call = self.threads.get(&tid)?.call.as_ref().filter(|call| call.call.makes_task())?;
        call.section.as_ref()?.end
    }

    /// The lock of an address space was taken for writing.
    pub(super) fn locked(&mut self, key: Key, pid: u32, tid: u32, mm: u64) {
        self.end_section_before(key, mm, tid);
        if let Some(call) = &mut self.thread(pid, tid).call
            && call.section.as_ref().is_none_or(|section| section.mm == mm)
        {
            // The last one counts: before it, a stack may have grown for an argument.
            call.section = Some(Section { mm, end: None });
            self.locks.taken(mm, tid);
        }
    }

    /// A thread has the lock of an address space for reading: it downgraded it, or it looks at the mappings whose pages
    /// it discards.
    pub(super) fn shares_lock(&mut self, key: Key, pid: u32, tid: u32, mm: u64) {
        let downgraded = self.locks.holder(mm) == Some(tid);
        if downgraded {
            self.locks.released(mm);
        }
        let Some(call) = &mut self.thread(pid, tid).call else { return };
        match &mut call.section {
            Some(section) if downgraded && section.mm == mm => section.end = Some(key),
            None if discards(call.call, &call.args) => call.shown = Some(key),
            _ => {}
        }
    }

    /// The lock of an address space is about to be released.
    pub(super) fn unlocked(&mut self, key: Key, pid: u32, tid: u32, mm: u64) {
        self.end_section_before(key, mm, tid);
        self.locks.released(mm);
        if let Some(call) = &mut self.thread(pid, tid).call {
            // Without one, the record that it was taken is lost.
            let section = call.section.get_or_insert(Section { mm, end: None });
            if section.mm == mm {
                section.end = Some(key);
            }
        }
    }

    /// Another thread has the lock now: that the holder before released it was not told.
    fn end_section_before(&mut self, (time, sequence, rank): Key, mm: u64, tid: u32) {
        let Some(holder) = self.locks.holder(mm).filter(|holder| *holder != tid) else { return };
        self.locks.released(mm);
        if let Some(call) = self.threads.get_mut(&holder).and_then(|thread| thread.call.as_mut())
            && let Some(section) = call.section.as_mut().filter(|section| section.mm == mm)
        {
            section.end = Some((time, sequence, rank - 1));
        }
    }
}

#[cfg(test)]
mod tests;
