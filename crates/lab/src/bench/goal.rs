//! Goals as data: an experiment names the case, the arm, the figure, its comparison and the bound.

use super::metric::TIME;

/// A goal.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The goal in words, as the page of measured figures prints it.
    pub what: &'static str,
    /// The cases that must reach it: names, or their start with `*` behind it.
    pub cases: &'static [&'static str],
    /// The arm that must reach it.
    pub arm: &'static str,
    /// Which figure of the arm.
    pub figure: Figure,
    /// What the figure is compared with.
    pub over: Over,
    /// The bound.
    pub bound: Bound,
}

/// A figure of an arm in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The median of a metric.
    Metric(&'static str),
    /// An exact count.
    Counter(&'static str),
}

/// What a figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Nothing: the bound has the unit of the figure.
    Nothing,
    /// The same figure of the best of these arms in the same case.
    BestOf(&'static [&'static str]),
    /// The same figure of the first of these arms that has one in the same case.
    FirstOf(&'static [&'static str]),
    /// The same figure of the same arm in another case.
    Case(&'static str),
    /// The same figure of another arm in another case.
    ArmInCase(&'static str, &'static str),
    /// Another metric of the same arm in the same case.
    Metric(&'static str),
}

/// A bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// The figure, or the figure over the other one, is at most this.
    AtMost(f64),
    /// The figure, or the figure over the other one, is at least this.
    AtLeast(f64),
    /// The other figure over this one is at least this: so many times as fast.
    Times(f64),
}

impl Goal {
    /// A bound on the time of `arm` in `cases`.
    pub const fn new(
        what: &'static str,
        arm: &'static str,
        cases: &'static [&'static str],
        bound: Bound,
    ) -> Self {
        Self { what, cases, arm, figure: Figure::Metric(TIME.name), over: Over::Nothing, bound }
    }

    /// The same bound on another metric.
    #[must_use]
    pub const fn metric(self, name: &'static str) -> Self {
        Self { figure: Figure::Metric(name), ..self }
    }

    /// The same bound on an exact count.
    #[must_use]
    pub const fn counter(self, name: &'static str) -> Self {
        Self { figure: Figure::Counter(name), ..self }
    }

    /// The same bound on a ratio.
    #[must_use]
    pub const fn over(self, over: Over) -> Self {
        Self { over, ..self }
    }

    /// Whether `case` must reach it.
    pub fn is_for(&self, case: &str) -> bool {
        self.cases.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => case.starts_with(start),
            None => case == *pattern,
        })
    }
}

impl Bound {
    /// Whether `value` goes far enough.
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) | Self::Times(least) => value >= least,
        }
    }

    /// How far `value` is from the bound: 1 is the bound itself, larger is worse.
    pub fn distance(self, value: f64) -> f64 {
        match self {
            Self::AtMost(0.0) => 1.0 + value,
            Self::AtMost(most) => value / most,
            Self::AtLeast(least) | Self::Times(least) if value > 0.0 => least / value,
            Self::AtLeast(_) | Self::Times(_) => f64::INFINITY,
        }
    }
}
