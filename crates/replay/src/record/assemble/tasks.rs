//! Processes and threads: fork, exec, exit.

use super::{Assembler, UnfinishedFork};
use crate::record::queue::Key;
use crate::trace::{EventKind, ForkKind, clone_flags};

impl Assembler {
    pub(super) fn exec(&mut self, key: Key, pid: u32, tid: u32, name: &str) {
        let others: Vec<u32> =
            self.processes.entry(pid).or_default().threads.drain().filter(|other| *other != tid).collect();
        let process = self.processes.entry(pid).or_default();
        process.threads.insert(tid);
        for other in others {
            // A thread that calls exec gets the number of the first one.
            let call = self.threads.get_mut(&other).and_then(|thread| thread.call.take());
            if let Some(call) = call {
                if call.call.is_exec() {
                    self.thread(pid, tid).call = Some(call);
                } else {
                    self.end_call(&call, pid, other);
                }
            }
            self.forget_thread(other);
        }
        self.processes.entry(pid).or_default().shares_with = None;
        self.give_up_fault(pid, tid);
        self.thread(pid, tid).in_exec = true;
        let name = self.writer.path(name);
        self.put(key, pid, tid, EventKind::Exec { name });
    }

    pub(super) fn fork(&mut self, key: Key, (pid, tid): (u32, u32), (child_pid, child_tid): (u32, u32)) {
        self.thread(pid, tid);
        self.thread(child_pid, child_tid);
        // The kernel copies the memory under its lock, well before it reports the fork.
        let key = if child_pid == pid { key } else { self.copied_at(tid).unwrap_or(key) };
        self.queue.hold(key);
        let unfinished = UnfinishedFork { key, parent: pid, child: child_pid, child_tid };
        // A former fork of the thread whose flags were lost gets none.
        let former = self.unfinished_forks.insert(tid, unfinished);
        former.into_iter().for_each(|fork| self.queue.release(fork.key));
        // The effect of the call is recorded now, since the parent of a `vfork` stays inside it for long.
        let entry = self.threads.get(&tid).and_then(|thread| thread.call.as_ref()).map(|call| call.key);
        entry.into_iter().for_each(|entry| self.queue.release(entry));
        if child_pid == pid {
            self.put(key, pid, child_tid, EventKind::ThreadStart { creator_tid: tid, flags: 0 });
        } else {
            let kind = ForkKind::Copy;
            self.put(key, pid, tid, EventKind::Fork { child_pid, child_tid, flags: 0, kind });
        }
    }

    /// The flags of the thread's latest fork. They come with no usable number of the new thread: the tracepoint
    /// has the one of the first PID namespace, all other records have those of the recorder's.
    pub(super) fn new_task(&mut self, creator_tid: u32, actual: u64) {
        let Some(fork) = self.unfinished_forks.remove(&creator_tid) else { return };
        let UnfinishedFork { key, parent, child, .. } = fork;
        self.queue.release(key);
        match self.queue.kind_mut(key) {
            Some(EventKind::ThreadStart { flags, .. }) => *flags = actual,
            Some(EventKind::Fork { flags, kind, .. }) => {
                *flags = actual;
                if actual & clone_flags::VM != 0 {
                    *kind = ForkKind::SharedMemory;
                }
            }
            _ => {}
        }
        if actual & clone_flags::VM != 0 && parent != child {
            let memory = self.memory(parent);
            self.processes.entry(child).or_default().shares_with = Some(memory);
        }
    }

    pub(super) fn exit(&mut self, key: Key, pid: u32, tid: u32) {
        self.forget_thread(tid);
        for (_, fork) in
            self.unfinished_forks.extract_if(|creator, fork| [*creator, fork.child_tid].contains(&tid))
        {
            self.queue.release(fork.key);
        }
        let process = self.processes.entry(pid).or_default();
        process.threads.remove(&tid);
        if !process.threads.is_empty() {
            self.put(key, pid, tid, EventKind::ThreadExit);
            return;
        }
        let recorded_faults = process.resolved;
        self.processes.remove(&pid);
        // The counts are filled in when the event is written, since they are read a moment later.
        let kind = EventKind::ProcessExit { minor_faults: None, major_faults: None, recorded_faults };
        self.put(key, pid, tid, kind);
    }
}
