//! Page faults of the program that `perf stat` ran: as the kernel counted them, and as the trace has them.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Context;
use lab::trace::{EventKind, Tier, TraceReader};

/// What a trace contains.
#[derive(Default)]
pub(crate) struct Counted {
    pub(crate) events: u64,
    /// Faults of the programs that `perf` started, from their `execve` on.
    pub(crate) faults: u64,
    pub(crate) lost: u64,
}

/// Counts in a recording of `perf stat`.
pub(crate) fn in_trace(path: &Path) -> anyhow::Result<Counted> {
    let reader = TraceReader::open(path)?;
    let mut counted = Counted { lost: reader.header().totals.lost, ..Counted::default() };
    let mut perf = None;
    // Processes that `perf` made, and those of them that run the program.
    let (mut made, mut counting) = (HashSet::new(), HashSet::new());
    for event in reader {
        let event = event?;
        counted.events += 1;
        perf.get_or_insert(event.pid);
        match event.kind {
            EventKind::Fork { child_pid, .. } if counting.contains(&event.pid) => {
                counting.insert(child_pid);
            }
            EventKind::Fork { child_pid, .. } if perf == Some(event.pid) => {
                made.insert(child_pid);
            }
            EventKind::Exec { .. } if made.contains(&event.pid) => {
                counting.insert(event.pid);
            }
            EventKind::Fault { .. } => counted.faults += u64::from(counting.contains(&event.pid)),
            _ => {}
        }
    }
    Ok(counted)
}

/// The kernel's count, of all faults or of those from user mode, which is what a tier can see.
pub(crate) fn of_perf(path: &Path, tier: Tier) -> anyhow::Result<u64> {
    let event = match tier {
        Tier::Privileged => "page-faults",
        Tier::User => "page-faults:u",
    };
    let text = std::fs::read_to_string(path).context("the counts of `perf stat`")?;
    let fields = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let row = fields.into_iter().find(|fields| fields.get(2) == Some(&event));
    let row = row.with_context(|| format!("`perf stat` has not counted {event}"))?;
    row[0].parse().with_context(|| format!("`perf stat` counted {} of {event}", row[0]))
}
