//! An experiment: a question, its cases, and arms that do the same work in different ways.
//!
//! A new arm is one file: a type that implements [`Arm`] for the case type of its experiment, named in
//! `arms/<experiment>/mod.rs`.

use serde_json::{Map, Value};

use super::goal::Goal;
pub use super::metric::{ALLOC, Better, CLEAR, CYCLES, Counters, FREE, Metric, RATE, REST, TIME};
use super::row::Row;
use super::runner::Runner;
use crate::host::cycles::Span;
use crate::settings::SettingsError;

/// The result of an experiment.
pub struct Measured {
    /// A row for each case, arm and metric.
    pub rows: Vec<Row>,
    /// The name of each arm and its [`about`](Arm::about).
    pub about: Vec<(&'static str, &'static str)>,
}

/// Text about the rows of an experiment.
pub type Appendix = fn(&[Row]) -> anyhow::Result<String>;

/// One question, with the expectation that was written down before the first run.
pub struct Experiment {
    /// Short name, as given on the command line.
    pub name: &'static str,
    /// The question that the figures answer.
    pub question: &'static str,
    /// What was expected before the first run, so that surprises show.
    pub expectation: &'static str,
    /// The arms that ratios are taken against; with several, the fastest of them in each case.
    pub baseline: &'static [&'static str],
    /// The unit of work of one `time`: `page` or `call`.
    pub per: &'static str,
    /// How the arms differ and what the cases mean; printed under the table.
    pub notes: &'static [&'static str],
    /// The arms of this library as it ships; the others are for comparison.
    pub own: &'static [&'static str],
    /// The arms that are not compared: they do less work, or show another policy.
    pub apart: &'static [&'static str],
    /// Figures to reach.
    pub goals: &'static [Goal],
    /// The file of the repository that says what is measured: `file!()` there.
    pub file: &'static str,
    /// Folders (with `/` behind them) and files of the repository whose code is measured, in lists.
    pub code: &'static [&'static [&'static str]],
    /// Builds cases and arms and measures them.
    pub run: fn(&Experiment, &Runner) -> anyhow::Result<Measured>,
    /// Text printed after the table (published figures beside the measured ones), if any.
    pub appendix: Option<Appendix>,
}

/// One row of an experiment: the work of every arm.
pub struct Case<S> {
    /// Short, stable name: operation first, modifiers after a slash.
    pub name: String,
    /// The parameters as they appear in the JSON lines.
    pub params: Map<String, Value>,
    /// The parameters as the arms read them.
    pub spec: S,
}

/// One way of doing the work of the cases `S`.
pub trait Arm<S> {
    /// Short, stable name (`quire`, `linux`, the name of a crate).
    fn name(&self) -> &'static str;

    /// One or two sentences: what this arm does, and which parts of the work are only its own. Printed under
    /// the table.
    fn about(&self) -> &'static str;

    /// Builds whatever `case` needs, outside every measurement.
    ///
    /// # Errors
    /// [`Skip`] when this arm cannot do the case on this machine; the table and the JSON line show the
    /// reason.
    fn setup(&mut self, case: &S) -> Result<Box<dyn Prepared + '_>, Skip>;
}

/// An arm that is ready for one case; dropping it undoes the setup.
pub trait Prepared {
    /// Does the work of the case once and times only the part that the case names.
    ///
    /// # Errors
    /// [`Skip`] when the work is impossible here; the samples so far are discarded.
    fn run(&mut self) -> Result<Sample, Skip>;
}

/// Why an arm did not run, in words that name the cure where there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

impl Skip {
    /// A reason: the step that failed, and its error.
    pub fn because(what: &str, error: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

impl From<SettingsError> for Skip {
    fn from(error: SettingsError) -> Self {
        Self(error.0)
    }
}

/// The result of one repetition.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Every metric of this repetition; [`TIME`] always among them.
    pub metrics: Vec<(Metric, f64)>,
    /// Exact counts of this repetition.
    pub counters: Counters,
    /// A sum over the work. It must be the same in every repetition and for every arm of a case, which proves
    /// that neither the compiler nor an arm left work out.
    pub checksum: u64,
}

impl Sample {
    /// A repetition that took `nanoseconds` and did the work summed up in `checksum`.
    pub fn new(nanoseconds: f64, checksum: u64) -> Self {
        Self { metrics: vec![(TIME, nanoseconds)], counters: Counters::new(), checksum }
    }

    /// A repetition in which each page or call took the part `span` over `count`, in both units.
    pub fn of(span: Span, count: f64, checksum: u64) -> Self {
        Self::new(span.nanoseconds / count, checksum).metric(CYCLES, span.cycles / count)
    }

    /// Adds a further metric.
    #[must_use]
    pub fn metric(mut self, metric: Metric, value: f64) -> Self {
        self.metrics.push((metric, value));
        self
    }

    /// Adds an exact count.
    #[must_use]
    pub fn count(mut self, name: &str, value: u64) -> Self {
        self.counters.insert(name.to_owned(), value);
        self
    }

    /// Adds exact counts.
    #[must_use]
    pub fn counts(mut self, counts: Counters) -> Self {
        self.counters.extend(counts);
        self
    }
}
