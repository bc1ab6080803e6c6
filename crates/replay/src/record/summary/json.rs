//! The summary of a recording for programs.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Attached, Recorded};
use crate::output::quoted;
use crate::record::options::Interface;
use crate::record::overhead::Overhead;
use crate::trace::Tier;

/// The version of the fields below.
const SCHEMA: u32 = 1;

impl Recorded {
    /// The summary as one line of JSON. `output` is the trace's file.
    pub(in crate::record) fn json_line(&self, output: &Path) -> String {
        let Self { summary, totals, written, .. } = self;
        let faults = &summary.faults;
        let calls: Map<String, Value> = summary
            .calls
            .iter()
            .map(|(call, (count, ns))| (call.name().to_owned(), json!({"count": count, "ns": ns})))
            .collect();
        let object = json!({
            "schema": SCHEMA,
            "trace": quoted(output).to_string(),
            "trace_bytes": written.bytes,
            "trace_events": written.events,
            "cut": written.cut.as_ref().map(ToString::to_string),
            "exit_code": self.exit_code,
            "asked_to_end": self.asked_to_end.map(|signal| signal.to_string()),
            "tier": match self.tier {
                Tier::Privileged => "privileged",
                Tier::User => "user",
            },
            "source": self.interface.map(Interface::name),
            "wall_ns": totals.wall_ns,
            "events": summary.events,
            "forks": summary.forks,
            "forks_sharing_memory": summary.vforks,
            "execs": summary.execs,
            "threads": summary.threads,
            "faults": {
                "all": faults.all,
                "kernel_mode": faults.kernel_mode,
                "write": faults.write,
                "protection": faults.protection,
                "major": faults.major,
                "resolved": faults.resolved,
                "around": faults.around,
            },
            "kernel_faults": totals.kernel_faults,
            "populated": {"ranges": summary.populated.0, "bytes": summary.populated.1},
            "calls": calls,
            "accesses": summary.accesses,
            "lost": totals.lost,
            "ring_grown_to_bytes": self.grown_to,
            "unprivileged": self.unprivileged,
            "attached": self.attached.as_ref().map(Attached::json),
            "overhead": self.overhead.as_ref().map(Overhead::json),
        });
        object.to_string()
    }
}

impl Attached {
    fn json(&self) -> Value {
        let Self { processes, before: (mappings, bytes), stopped } = self;
        json!({
            "processes": processes,
            "mappings_before": mappings,
            "bytes_before": bytes,
            "stopped_ns": stopped.as_nanos() as u64,
        })
    }
}

impl Overhead {
    fn json(&self) -> Value {
        let Self { costs, spent_ns, program_ns, dropped, .. } = self;
        json!({
            "fault_cost_ns": costs.fault_ns,
            "call_cost_ns": costs.call_ns,
            "spent_ns": spent_ns,
            "program_ns": program_ns,
            "dropped": dropped,
        })
    }
}
