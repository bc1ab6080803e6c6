//! What a replay says of a program's faults and memory under folio sizes, without its times.

use std::path::Path;

use super::costs::Stopwatch;
use super::error::ReplayError;
use super::host;
use super::need::{self, Bounds};
use super::policy::FolioSize;
use super::progress::Progress;
use super::run::World;
use super::survey::Survey;
use super::verb::PAGE;
use crate::output::quoted;
use crate::trace::Header;

/// A program under one folio size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prediction {
    pub(crate) size: FolioSize,
    /// Faults that Quire took.
    pub(crate) faults: u64,
    /// The largest resident memory that any one process had, in bytes.
    pub(crate) peak_rss_bytes: u64,
}

/// What a trace says of its program.
pub(crate) struct Predicted {
    pub(crate) header: Header,
    /// Records that were lost when it was recorded.
    pub(crate) lost: u64,
    /// In the order in which the sizes were given.
    pub(crate) sizes: Vec<Prediction>,
}

/// Replays a trace once under each size.
///
/// # Errors
/// As `quire replay`.
pub(crate) fn predict(path: &Path, sizes: &[FolioSize]) -> Result<Predicted, ReplayError> {
    let allowed = host::available();
    let mut progress = Progress::new(quoted(path).to_string());
    let survey = Survey::of(path, Bounds { memory: allowed, work: allowed / PAGE * 4 }, &mut progress)?;
    let bytes = sizes.iter().map(|&size| survey.needed(size.set())).max().unwrap_or(0);
    for &size in sizes {
        let taken = need::taken(survey.needed(size.set()));
        if taken > allowed {
            let (needed, allowed) = (need::shown(taken), need::shown(allowed));
            return Err(ReplayError::NoRoom { folio: size.name().to_owned(), needed, allowed });
        }
    }
    progress.expect(survey.header.events * sizes.len() as u64);
    let cpus = survey.header.cpus.clamp(1, quire::limits::MAX_CPUS as u32) as usize;
    let mut world = World::new(bytes, cpus, false)?;
    let watch = Stopwatch::new();
    let mut replay = |&size: &FolioSize| {
        progress.show(format!("folios of {}", size.name()));
        let outcome = world.replay(path, &survey, size.set(), &watch, &mut progress)?;
        let (faults, peak_rss_bytes) = (outcome.faults_taken(), outcome.counts.peak_rss * PAGE);
        Ok(Prediction { size, faults, peak_rss_bytes })
    };
    let sizes = sizes.iter().map(&mut replay).collect::<Result<_, ReplayError>>()?;
    let lost = survey.header.totals.lost.max(survey.lost);
    Ok(Predicted { header: survey.header, lost, sizes })
}
