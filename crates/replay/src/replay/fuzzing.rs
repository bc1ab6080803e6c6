//! For the fuzzer: a whole replay on a tiny machine, without a table.

use std::path::Path;
use std::sync::OnceLock;

use super::ReplayError;
use super::costs::Stopwatch;
use super::need::Bounds;
use super::policy::{FolioSet, parse_folio, parse_memory};
use super::progress::Progress;
use super::run::{Purpose, World};
use super::survey::Survey;
use super::verb::PAGE;

/// Surveys and replays a file on a machine of `memory` bytes with two CPUs, under the folio size with number `folio`.
///
/// # Errors
/// As `quire replay`, except for differences from a forged answer.
pub fn replay(path: &Path, memory: u64, check: bool, folio: u8) -> Result<(), ReplayError> {
    static WATCH: OnceLock<Stopwatch> = OnceLock::new();
    let watch = WATCH.get_or_init(Stopwatch::new);
    let mut progress = Progress::new(String::new());
    // As `quire replay --memory-limit` of the machine's size.
    let bounds = Bounds { memory, work: memory / PAGE * 4 };
    let survey = Survey::of(path, bounds, &mut progress)?;
    let sizes: Vec<FolioSet> = FolioSet::each().collect();
    let size = sizes[usize::from(folio) % sizes.len()];
    let purpose = if check { Purpose::Check } else { Purpose::Time };
    let replayed = World::new(memory, 2, purpose)?.replay(path, &survey, size, watch, &mut progress);
    match replayed {
        Err(ReplayError::Divergence { what, .. }) if only_forged(&what) => Ok(()),
        other => other.map(drop),
    }
}

/// Whether Quire differs from the recording, as opposed to from the model or the machine's rules.
fn only_forged(what: &str) -> bool {
    ["recorded was", "nothing is attached", " fails: "].iter().any(|sign| what.contains(sign))
}

/// Sizes as a command line gives them.
pub fn sizes(text: &str) {
    let _ = (parse_folio(text).is_ok(), parse_memory(text).is_ok());
}
