//! Arms of the experiment `khugepaged`: a bundled recording, replayed beside a background that collapses and
//! splits folios.

use std::path::PathBuf;

use quire::addr::Order;
use quire::vm::CollapseLimits;

use crate::bench::experiment::{Arm, Better, Metric, Prepared, Sample, Skip};
use crate::replay::{BackgroundPlan, BackgroundResult, FolioSet, Moment, Pace, Recording};

/// Nanoseconds of collapsing and splitting; [`TIME`](crate::bench::experiment::TIME) is that of the program's
/// own faults and calls.
const BACKGROUND: Metric = Metric { name: "background", unit: "ns", better: Better::Lower };
/// The share of the touched pages that leaves of 2 MiB map; the mean over time.
const COVERAGE: Metric = Metric { name: "coverage", unit: "%", better: Better::Higher };
/// The same at the end.
const COVERAGE_END: Metric = Metric { name: "coverage-end", unit: "%", better: Better::Higher };
/// Resident pages that were never touched, for each hundred that were; the mean over time.
const UNTOUCHED: Metric = Metric { name: "untouched", unit: "%", better: Better::Lower };
/// Resident private memory, the mean over time.
const RESIDENT: Metric = Metric { name: "resident", unit: "pages", better: Better::Lower };

/// A recording, and the limits of the background work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Name of a bundled recording.
    pub recording: &'static str,
    /// Holes that a collapse fills, and zero pages beyond which a folio is split.
    pub max_ptes_none: usize,
}

/// A way to get large folios and to split them.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    about: &'static str,
    large_faults: bool,
    collapses: bool,
    splits: bool,
}

const WAYS: [Way; 5] = [
    Way {
        name: FAULTS,
        about: "faults bring single frames; no background work.",
        large_faults: false,
        collapses: false,
        splits: false,
    },
    Way {
        name: "collapse",
        about: "faults bring single frames, as if no folio of 2 MiB were free; a background collapses them \
         within the case's max_ptes_none, 4096 pages in each of 256 turns.",
        large_faults: false,
        collapses: true,
        splits: false,
    },
    Way {
        name: "collapse-split",
        about: "as `collapse`, and each turn also looks at 32 folios and splits those with more zero pages \
         than max_ptes_none.",
        large_faults: false,
        collapses: true,
        splits: true,
    },
    Way {
        name: "large",
        about: "faults bring folios of 2 MiB wherever they fit; no background work.",
        large_faults: true,
        collapses: false,
        splits: false,
    },
    Way {
        name: "large-split",
        about: "as `large`, and the background splits folios with more zero pages than max_ptes_none, as \
         above.",
        large_faults: true,
        collapses: false,
        splits: true,
    },
];

/// The arm without background work.
pub const FAULTS: &str = "frames";

/// Every arm. The checksum of a repetition is the number of events of the recording.
pub fn all() -> Vec<Box<dyn Arm<Life>>> {
    WAYS.into_iter().map(|way| -> Box<dyn Arm<Life>> { Box::new(Quire { way }) }).collect()
}

struct Quire {
    way: Way,
}

impl Arm<Life> for Quire {
    fn name(&self) -> &'static str {
        self.way.name
    }

    fn about(&self) -> &'static str {
        self.way.about
    }

    fn setup(&mut self, case: &Life) -> Result<Box<dyn Prepared + '_>, Skip> {
        let file = format!("traces/{}.qtrace", case.recording);
        let path =
            find(&file).ok_or_else(|| Skip(format!("{file} is not here: run it in the repository")))?;
        let recording = Recording::open(&path).map_err(|error| Skip(error.to_string()))?;
        let Way { large_faults, collapses, splits, .. } = self.way;
        let max_ptes_none = case.max_ptes_none;
        let limits = CollapseLimits { max_ptes_none, ..CollapseLimits::default() };
        let set = if large_faults { FolioSet::FRAMES.and(Order::BLOCK.get()) } else { FolioSet::FRAMES };
        let plan = BackgroundPlan {
            set,
            pace: Pace::Events,
            collapse: collapses.then_some(limits),
            split: splits.then_some(max_ptes_none),
        };
        Ok(Box::new(Ready { recording, plan }))
    }
}

/// Finds a file of the repository from any folder inside it.
fn find(file: &str) -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    here.ancestors().map(|folder| folder.join(file)).find(|path| path.exists())
}

struct Ready {
    recording: Recording,
    plan: BackgroundPlan,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let behind = self.recording.replay(self.plan).map_err(|error| Skip(error.to_string()))?;
        Ok(sample(&behind))
    }
}

fn sample(behind: &BackgroundResult) -> Sample {
    let moments = &behind.moments;
    let mean =
        |value: fn(&Moment) -> f64| moments.iter().map(value).sum::<f64>() / moments.len().max(1) as f64;
    let coverage = |moment: &Moment| 100.0 * moment.large as f64 / moment.touched.max(1) as f64;
    let untouched =
        |moment: &Moment| 100.0 * (moment.resident - moment.touched) as f64 / moment.touched.max(1) as f64;
    let sample = Sample::new(behind.program_ns as f64, behind.events)
        .metric(BACKGROUND, behind.background_ns as f64)
        .metric(COVERAGE, mean(coverage))
        .metric(COVERAGE_END, moments.iter().rev().find(|moment| moment.touched > 0).map_or(0.0, coverage))
        .metric(UNTOUCHED, mean(untouched))
        .metric(RESIDENT, mean(|moment| moment.resident as f64));
    // Samples over time, by hundredths of the events.
    let over_time = moments.iter().enumerate().fold(sample, |sample, (at, moment)| {
        let percent = at * 100 / moments.len().max(1);
        sample
            .count(&format!("large_pages_at_{percent:02}"), moment.large)
            .count(&format!("touched_pages_at_{percent:02}"), moment.touched)
            .count(&format!("resident_pages_at_{percent:02}"), moment.resident)
    });
    over_time
        .count("collapsed", behind.collapsed)
        .count("split", behind.split)
        .count("frames_recovered", behind.freed)
}
