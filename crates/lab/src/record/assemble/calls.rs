//! Memory calls: from entry and exit to one event in its place.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Assembler, PendingCall};
use crate::record::queue::{Draft, DraftKind, Key};
use crate::trace::{Call, EventKind, Syscall};

/// `mremap` leaves the old mapping where it was, without its pages.
const MREMAP_DONTUNMAP: u64 = 4;

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
        // Its event may stand at its entry, or anywhere between entry and exit.
        if call.applied_at_entry(&args) || matches!(call, Call::Brk | Call::Mremap) {
            self.queue.hold(key);
        }
        let unfinished = self.thread(pid, tid).call.replace(PendingCall {
            key,
            number,
            call,
            args,
            file: None,
            mapped: None,
        });
        unfinished.iter().for_each(|call| self.queue.release(call.key));
    }

    pub(super) fn leave(&mut self, key: Key, pid: u32, tid: u32, number: u64, result: i64) {
        self.give_up_fault(pid, tid);
        let thread = self.thread(pid, tid);
        // The first call that returns in a new program is the exec itself, under the number that the new program's
        // architecture has for it.
        let was_in_exec = std::mem::take(&mut thread.in_exec);
        // A new process comes out of its parent's call; and the call may have begun before the recording.
        let Some(pending) = thread.call.take() else { return };
        self.queue.release(pending.key);
        if pending.number != number && !was_in_exec {
            return;
        }
        let PendingCall { key: entry, call, args, file, mapped, .. } = pending;
        // Through `ipc` it returns a status; its mapping tells the address.
        let at = mapped.filter(|_| call == Call::Shmat && result == 0);
        let result = at.map_or(result, |address| address as i64);
        let duration_ns = key.0.saturating_sub(entry.0);
        let syscall = Syscall { call, args, result, enter_ns: entry.0, duration_ns, file };
        let shrinks = call == Call::Brk && self.moves_break(pid, result as u64);
        let reused = source(&syscall).and_then(|source| self.first_given(source, pid, entry..key));
        let draft = Draft { pid, tid, kind: DraftKind::Event(EventKind::Syscall(syscall)) };
        match reused {
            Some(other) => self.put_before_reuse(other, draft, key),
            None if shrinks || call.applied_at_entry(&args) => self.queue.put(entry, draft),
            None => self.queue.put(key, draft),
        }
    }

    /// Notes the new program break; true when it is lower than before.
    pub(super) fn moves_break(&mut self, pid: u32, to: u64) -> bool {
        let process = self.processes.entry(pid).or_default();
        std::mem::replace(&mut process.program_break, to) > to
    }

    /// The first call, of those that returned in this span, that was given some of these addresses.
    fn first_given(&self, addresses: Range<u64>, pid: u32, span: Range<Key>) -> Option<Key> {
        let given =
            |draft: &Draft| completed(draft, pid).and_then(target).is_some_and(|to| overlap(&to, &addresses));
        self.queue.between(span).find(|(_, draft)| given(draft)).map(|(key, _)| *key)
    }

    /// Puts an `mremap` that returns now right before the call that was given its source.
    ///
    /// What returned between the two may have released what this one was given: it was done first, and goes before
    /// both, in the order that it has. So does what released the target of that; not what moved on from there, which
    /// was entered only after that had returned.
    fn put_before_reuse(&mut self, other: Key, draft: Draft, exit: Key) {
        let pid = draft.pid;
        let mut given = Vec::from_iter(completed(&draft, pid));
        let mut earlier = BTreeSet::new();
        while let Some(call) = given.pop() {
            let released_for_it = |waiting: &Syscall| {
                let (from, to) = (source(waiting), target(call));
                waiting.enter_ns < call.enter_ns + call.duration_ns
                    && from.zip(to).is_some_and(|(from, to)| overlap(&from, &to))
            };
            for (&key, waiting) in self.queue.between(other..exit).filter(|(key, _)| **key != other) {
                let waiting = completed(waiting, pid).filter(|waiting| released_for_it(waiting));
                given.extend(waiting.filter(|_| earlier.insert(key)));
            }
        }
        self.queue.put_before(other, draft);
        for key in earlier.into_iter().rev() {
            let draft = self.queue.take(key);
            draft.into_iter().for_each(|draft| self.queue.put_before(other, draft));
        }
    }
}

/// The call of this process that an event stands for, if it did what it was asked to.
fn completed(draft: &Draft, pid: u32) -> Option<&Syscall> {
    match &draft.kind {
        DraftKind::Event(EventKind::Syscall(call)) if draft.pid == pid && call.ok() => Some(call),
        _ => None,
    }
}

/// The addresses that an `mremap` released, or may have.
fn source(call: &Syscall) -> Option<Range<u64>> {
    let [start, length, _, flags, ..] = call.args;
    let releases = call.call == Call::Mremap && call.ok() && flags & MREMAP_DONTUNMAP == 0 && length != 0;
    releases.then(|| start..start.saturating_add(length))
}

/// The addresses that a call was given.
fn target(call: &Syscall) -> Option<Range<u64>> {
    let start = call.result as u64;
    let length = match call.call {
        Call::Mmap => call.args[1],
        Call::Mremap => call.args[2],
        _ => return None,
    };
    Some(start..start.saturating_add(length))
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests;
