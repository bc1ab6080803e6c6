//! The kinds of bugs: those that tests miss most easily weigh more in the sample.

use serde::{Deserialize, Serialize};

use super::Operator;

/// The kinds, the rarest paths first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Class {
    /// Undoing or reporting after a failure.
    ErrorPath,
    /// Flushes, and notifications of a secondary MMU.
    Flush,
    /// Charges, reservations, counts.
    Counter,
    /// Exact limits.
    Limit,
    /// Bits of entries and flags.
    Bits,
    /// Locks, atomics and checks under them.
    Race,
    /// Branches.
    Condition,
    /// Any other step.
    Step,
}

const FLUSH: [&str; 6] = ["flush", "tell", "bracket", "owe", "invalidate", "announce"];
const RACE: [&str; 6] = [".load(", "compare_exchange", "lock", "fetch_", "swap(", "is_current"];
const COUNTER: [&str; 11] =
    ["charge", "count", "add(", "sub(", "rss", "book", "promise", "reserve", "fs(", "+=", "-="];
const BITS: [&str; 8] =
    ["union", "without", "intersection", "ACCESSED", "DIRTY", "bits", "flags", "contains"];

impl Class {
    pub(crate) const ALL: [Self; 8] = [
        Self::ErrorPath,
        Self::Flush,
        Self::Counter,
        Self::Limit,
        Self::Bits,
        Self::Race,
        Self::Condition,
        Self::Step,
    ];

    /// The kind of a change of this text. `on_error`: it runs only after a failure.
    pub(super) fn of(operator: Operator, text: &str, on_error: bool) -> Self {
        let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
        match operator {
            _ if on_error => Self::ErrorPath,
            _ if says(&FLUSH) => Self::Flush,
            _ if says(&RACE) => Self::Race,
            Operator::Boundary | Operator::OffByOne | Operator::Literal => Self::Limit,
            Operator::Link if !says(&BITS) => Self::Limit,
            Operator::Statement if says(&COUNTER) => Self::Counter,
            _ if says(&BITS) => Self::Bits,
            Operator::Statement => Self::Step,
            _ => Self::Condition,
        }
    }

    /// Its weight in the draw.
    pub(crate) fn weight(self) -> f64 {
        match self {
            Self::ErrorPath | Self::Flush => 4.0,
            Self::Counter | Self::Limit | Self::Bits | Self::Race => 2.0,
            Self::Condition | Self::Step => 1.0,
        }
    }
}
