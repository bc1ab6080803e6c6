//! The threads that a reader of the trace knows.

use std::collections::HashMap;

use crate::trace::{Event, EventKind};

/// Threads whose start was written and whose end was not, with their processes.
#[derive(Default)]
pub(super) struct Known {
    processes: HashMap<u32, u32>,
}

impl Known {
    /// Takes the next event. False if the trace lacks the start of its thread, so that no reader could tell
    /// which memory it is about.
    pub(super) fn admit(&mut self, event: &Event) -> bool {
        let Event { pid, tid, ref kind, .. } = *event;
        let knows = |tid| self.processes.get(&tid) == Some(&pid);
        match *kind {
            EventKind::Lost { .. } => {}
            // The new memory is described from here on, and the other threads are gone.
            EventKind::Exec { .. } => {
                self.processes.retain(|_, of| *of != pid);
                self.processes.insert(tid, pid);
            }
            EventKind::ThreadStart { creator_tid, .. } if knows(creator_tid) => {
                self.processes.insert(tid, pid);
            }
            EventKind::ThreadStart { .. } => return false,
            _ if !knows(tid) => return false,
            EventKind::Fork { child_pid, child_tid, .. } => {
                self.processes.insert(child_tid, child_pid);
            }
            EventKind::ThreadExit | EventKind::ProcessExit { .. } => {
                self.processes.remove(&tid);
            }
            _ => {}
        }
        true
    }
}
