//! Memory calls: from entry and exit to one event in its place.

use super::{Assembler, PendingCall};
use crate::record::queue::{Draft, DraftKind, Key};
use crate::trace::{Call, EventKind, Syscall};

impl Assembler {
    pub(super) fn enter(&mut self, key: Key, pid: u32, tid: u32, number: u64, mut args: [u64; 6]) {
        self.give_up_fault(pid, tid);
        let Some(call) = Call::from_x86_64(number) else { return };
        args[call.arity()..].fill(0);
        // Its event may stand at its entry, or anywhere between entry and exit.
        if call.applied_at_entry(&args) || matches!(call, Call::Brk | Call::Mremap) {
            self.queue.hold(key);
        }
        let unfinished = self.thread(pid, tid).call.replace(PendingCall { key, call, args, file: None });
        unfinished.iter().for_each(|call| self.queue.release(call.key));
    }

    pub(super) fn leave(&mut self, key: Key, pid: u32, tid: u32, number: u64, result: i64) {
        self.give_up_fault(pid, tid);
        let thread = self.thread(pid, tid);
        if Call::from_x86_64(number).is_some_and(Call::is_exec) {
            thread.in_exec = false;
        }
        // A new process comes out of its parent's call; and the call may have begun before the recording.
        let Some(pending) = thread.call.take() else { return };
        self.queue.release(pending.key);
        if pending.call.x86_64() != number {
            return;
        }
        let PendingCall { key: entry, call, args, file } = pending;
        let duration_ns = key.0.saturating_sub(entry.0);
        let syscall = Syscall { call, args, result, enter_ns: entry.0, duration_ns, file };
        let shrinks = call == Call::Brk && self.moves_break(pid, result as u64);
        let reused = if call == Call::Mremap && syscall.ok() {
            self.source_reused(&syscall, pid, entry, key)
        } else {
            None
        };
        let draft = Draft { pid, tid, kind: DraftKind::Event(EventKind::Syscall(syscall)) };
        match reused {
            Some(other) => self.queue.put_before(other, draft),
            None if shrinks || call.applied_at_entry(&args) => self.queue.put(entry, draft),
            None => self.queue.put(key, draft),
        }
    }

    /// Notes the new program break; true when it is lower than before.
    pub(super) fn moves_break(&mut self, pid: u32, to: u64) -> bool {
        let process = self.processes.entry(pid).or_default();
        std::mem::replace(&mut process.program_break, to) > to
    }

    /// The first call of another thread that was given the source of an `mremap` before that returned.
    pub(super) fn source_reused(&self, mremap: &Syscall, pid: u32, entry: Key, exit: Key) -> Option<Key> {
        let (source, source_end) = (mremap.args[0], mremap.args[0].saturating_add(mremap.args[1]));
        let overlaps = |draft: &Draft| match &draft.kind {
            DraftKind::Event(EventKind::Syscall(call)) if draft.pid == pid && call.ok() => {
                let length = match call.call {
                    Call::Mmap => call.args[1],
                    Call::Mremap => call.args[2],
                    _ => return false,
                };
                let start = call.result as u64;
                start < source_end && source < start.saturating_add(length)
            }
            _ => false,
        };
        self.queue.between(entry, exit).find(|(_, draft)| overlaps(draft)).map(|(key, _)| *key)
    }
}
