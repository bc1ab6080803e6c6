//! Writes events to the trace when their turn comes, with the events that follow from them.

use super::{Assembler, PAGE};
use crate::record::populate;
use crate::record::queue::{Draft, DraftKind};
use crate::trace::{Event, EventKind, TraceError};

impl Assembler {
    /// Writes an event whose turn has come, and the events that follow from it.
    pub(super) fn emit(&mut self, time_ns: u64, draft: Draft) -> Result<(), TraceError> {
        let Draft { pid, tid, kind } = draft;
        let mut kind = match kind {
            DraftKind::Event(kind) => kind,
            DraftKind::Around { addr, device, inode, first, last } => {
                match self.around(pid, addr, (device, inode), first, last) {
                    Some(kind) => kind,
                    None => return Ok(()),
                }
            }
        };
        if let EventKind::ProcessExit { minor_faults, major_faults, .. } = &mut kind
            && let Some((minor, major)) = self.counted.remove(&pid)
        {
            (*minor_faults, *major_faults) = (Some(minor), Some(major));
        }
        let break_before = self.layouts.program_break(pid);
        // A record may arrive after later ones were written.
        self.last_ns = self.last_ns.max(time_ns);
        let mut event = Event { time_ns: self.last_ns, pid, tid, kind };
        if !self.known.admit(&event) {
            // The process has ended since the kernel looked, and nothing that it did is missing.
            if matches!(event.kind, EventKind::Accesses(_)) {
                return Ok(());
            }
            event.kind = EventKind::Lost { records: 1 };
        }
        self.layouts.apply(&event);
        self.write(&event)?;
        if let EventKind::Syscall(call) = &event.kind {
            for kind in populate::derived(call, pid, break_before, &self.layouts) {
                self.write(&Event { time_ns: self.last_ns, pid, tid, kind })?;
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, event: &Event) -> Result<(), TraceError> {
        self.summary.count(event);
        self.writer.write(event)
    }

    /// The addresses of page-cache pages, from the mapping that the fault was in.
    pub(super) fn around(
        &self,
        pid: u32,
        addr: u64,
        file: (u64, u64),
        first: u64,
        last: u64,
    ) -> Option<EventKind> {
        let mapping = self.layouts.find(pid, addr)?;
        let mapped = mapping.file?;
        if (mapped.device, mapped.inode) != file {
            return None;
        }
        let base = mapping.start as i128 - mapping.offset as i128;
        let start = (base + (first * PAGE) as i128).max(mapping.start.into());
        let end = (base + ((last + 1) * PAGE) as i128).min(mapping.end.into());
        (start < end).then(|| EventKind::FaultAround { start: start as u64, len: (end - start) as u64 })
    }
}
