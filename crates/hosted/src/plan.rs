//! Plans: which of a sequence of numbered events fail, or are interrupted.

/// Which allocations fail, counted from the moment the plan is set. Questions are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailurePlan {
    /// None fails and none is counted: costs one load.
    #[default]
    Off,
    /// None fails; they are counted.
    Count,
    /// The `n`-th fails, and no other.
    Nth(u64),
    /// The `n`-th and all after it fail.
    From(u64),
    /// Every `k`-th fails: those numbered `k - 1`, `2 k - 1`, and so on. Zero fails none.
    Every(u64),
    /// Each fails with a probability of one in `one_in`, decided from the seed and its number alone.
    Seeded {
        /// Where the decisions come from.
        seed: u64,
        /// One in how many fails; zero fails none.
        one_in: u64,
    },
}

impl FailurePlan {
    pub(crate) fn fails(self, number: u64) -> bool {
        match self {
            Self::Off | Self::Count => false,
            Self::Nth(n) => number == n,
            Self::From(n) => number >= n,
            Self::Every(k) => k != 0 && (number + 1).is_multiple_of(k),
            Self::Seeded { seed, one_in } => one_in != 0 && mix(seed ^ mix(number)).is_multiple_of(one_in),
        }
    }
}

/// A bijective hash of 64 bits: the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
pub(crate) const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// At which of the counted events an interrupt arrives. Events are numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptPlan {
    /// At none: they are counted.
    Count,
    /// At the `n`-th, and no more are counted.
    Nth(u64),
    /// At every `k`-th: those numbered `k - 1`, `2 k - 1`, and so on. Zero is none.
    Every(u64),
    /// At each with a probability of one in `one_in`, decided from the seed and the event's number alone.
    Seeded {
        /// Where the decisions come from.
        seed: u64,
        /// At one in how many it arrives; zero is none.
        one_in: u64,
    },
}

impl InterruptPlan {
    pub(crate) fn chooses(self, number: u64) -> bool {
        match self {
            Self::Count => FailurePlan::Count,
            Self::Nth(n) => FailurePlan::Nth(n),
            Self::Every(k) => FailurePlan::Every(k),
            Self::Seeded { seed, one_in } => FailurePlan::Seeded { seed, one_in },
        }
        .fails(number)
    }
}
