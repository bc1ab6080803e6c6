//! The quantities that arms measure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Exact counts that stand beside the times (faults, flushes, folios …), by name.
pub type Counters = BTreeMap<String, u64>;

/// Whether smaller or larger values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Smaller is better (times).
    Lower,
    /// Larger is better (rates).
    Higher,
}

/// A measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Short, stable name.
    pub name: &'static str,
    /// Unit of its samples.
    pub unit: &'static str,
    /// Whether smaller or larger values are better.
    pub better: Better,
}

/// Whether the largest sample counts, in place of the median: a pause is as long as its longest.
pub fn is_worst(name: &str) -> bool {
    name.starts_with("worst-")
}

/// The main metric of every experiment: nanoseconds per page or per call (see [`Experiment::per`](super::experiment::Experiment::per)).
pub const TIME: Metric = Metric { name: "time", unit: "ns", better: Better::Lower };

/// The same as [`TIME`] in cycles of the time-stamp counter, which need not be those of the core.
pub const CYCLES: Metric = Metric { name: "cycles", unit: "cycles", better: Better::Lower };

/// Nanoseconds of allocating.
pub const ALLOC: Metric = Metric { name: "alloc", unit: "ns", better: Better::Lower };

/// Nanoseconds of freeing.
pub const FREE: Metric = Metric { name: "free", unit: "ns", better: Better::Lower };

/// Operations a second.
pub const RATE: Metric = Metric { name: "rate", unit: "ops/s", better: Better::Higher };

/// Nanoseconds that clearing the same bytes takes by itself.
pub const CLEAR: Metric = Metric { name: "clear", unit: "ns", better: Better::Lower };

/// Nanoseconds of a call that are not clearing.
pub const REST: Metric = Metric { name: "rest", unit: "ns", better: Better::Lower };
