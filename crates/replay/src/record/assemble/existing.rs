//! Processes that ran before the recording: what a reader of the trace must know of them.

use super::{Assembler, MAP_ANONYMOUS};
use crate::record::queue::Key;
use crate::record::raw::{Existing, Mapping, Present};
use crate::trace::{Call, EventKind, FileId, MapCause, PopulateCause, Syscall, clone_flags};

impl Assembler {
    /// Takes a process as it was at this moment. One that a known process has started is known already.
    pub(super) fn existing(&mut self, at: Key, pid: u32, existing: Existing) {
        if self.processes.contains_key(&pid) {
            return;
        }
        let Existing { name, threads, heap, mappings } = existing;
        let name = self.writer.path(&name);
        let mut key = at;
        let mut put = |this: &mut Self, tid, kind| {
            this.put(key, pid, tid, kind);
            key.2 += 1;
        };
        put(self, pid, EventKind::Exec { name });
        if let Some((start, end)) = heap {
            put(self, pid, no_time(at, Call::Brk, [0; 3], start));
            if end > start {
                put(self, pid, no_time(at, Call::Brk, [end, 0, 0], end));
            }
        }
        for Present { mapping, advice, pages } in mappings {
            let file = self.file_of(&mapping);
            let Mapping { start, len, prot, mut flags, offset: file_offset, ref name, .. } = mapping;
            // Shared anonymous memory has a file of its own.
            if file.is_none() || name.starts_with("/dev/zero") {
                flags |= MAP_ANONYMOUS;
            }
            let cause = MapCause::Before;
            put(self, pid, EventKind::Map { cause, start, len, prot, flags, file, file_offset });
            for advice in advice {
                put(self, pid, no_time(at, Call::Madvise, [start, len, advice], 0));
            }
            for (start, len, written) in pages {
                let cause = if written { PopulateCause::BeforeWritten } else { PopulateCause::BeforeRead };
                put(self, pid, EventKind::Populate { start, len, cause });
            }
        }
        for tid in &threads {
            self.thread(pid, *tid);
            if *tid != pid {
                put(
                    self,
                    *tid,
                    EventKind::ThreadStart { creator_tid: pid, flags: clone_flags::VM | clone_flags::THREAD },
                );
            }
        }
        if !threads.contains(&pid) {
            put(self, pid, EventKind::ThreadExit);
        }
    }

    /// The file of a mapping.
    pub(super) fn file_of(&mut self, mapping: &Mapping) -> Option<FileId> {
        if !mapping.is_file() {
            return None;
        }
        let path = self.writer.path(&mapping.name);
        let file = FileId { device: mapping.device, inode: mapping.inode, path };
        self.files.insert((file.device, file.inode), file);
        Some(file)
    }
}

/// A call that stands for what earlier ones did.
fn no_time((enter_ns, ..): Key, call: Call, [first, second, third]: [u64; 3], result: u64) -> EventKind {
    let (args, result) = ([first, second, third, 0, 0, 0], result as i64);
    EventKind::Syscall(Syscall { call, args, result, enter_ns, duration_ns: 0, file: None, unordered: false })
}
