//! The kept calibration: `quire calibrate` saves it in the user's cache folder, where commands that clear
//! memory by this machine's policy load it. Figures of another processor are not used.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut};
use quire::arch::{ClearKernel, CpuFeatures};
use quire::clear::{Calibration, ClearPolicy, class_of};

use super::saved::{load, save};
use crate::output::quoted;

/// The file of this machine's calibration: `quire/calibration.json` in `$XDG_CACHE_HOME`, or in `~/.cache`.
/// `None` for a user without either.
pub fn place() -> Option<PathBuf> {
    place_of(|name| std::env::var_os(name))
}

fn place_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // A relative path is ignored (XDG base directory specification), and so is a relative `HOME`.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("quire").join("calibration.json"))
}

/// Saves a calibration in a [place], and makes its directories.
///
/// # Errors
/// When it cannot be written.
pub(super) fn keep(calibration: &Calibration, place: &Path) -> Result<()> {
    let directory = place.parent().unwrap_or_else(|| Path::new("."));
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", quoted(directory)))?;
    save(calibration, place)
}

/// The policy of this machine, and its source.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The policy of the measurements; `None` for the one that the processor's features suggest.
    pub policy: Option<ClearPolicy>,
    /// The file of the measurements, if they are used.
    pub file: Option<PathBuf>,
    /// Why none are used, and the cure.
    pub why: Option<String>,
}

/// The policy of the calibration in `asked`, or of this machine's [kept](place) one. A kept one that cannot
/// be used is left alone and reported.
///
/// # Errors
/// When the file that was asked for cannot be read, or is of another machine.
pub fn choose(asked: Option<&Path>) -> Result<Chosen> {
    match asked {
        Some(file) => Ok(Chosen::measured(&load(file)?, file)),
        None => Ok(kept_in(place().as_deref())),
    }
}

fn kept_in(place: Option<&Path>) -> Chosen {
    const CURE: &str = "run `quire calibrate`";
    let Some(place) = place else {
        return Chosen::suggested(format!(
            "no calibration is kept for a user without a home directory: {CURE} --save FILE, and name the \
             file"
        ));
    };
    if !place.exists() {
        return Chosen::suggested(format!("this machine was never calibrated: {CURE}"));
    }
    match load(place) {
        Ok(calibration) => Chosen::measured(&calibration, place),
        Err(error) => Chosen::suggested(format!("{error:#} ({CURE})")),
    }
}

/// Nanoseconds to clear 4 KiB as a part of a larger extent, as Linux does it: by this machine's kept calibration, or as a
/// quick measurement shows.
///
/// # Errors
/// When there is no memory to measure it in.
pub fn clearing_ns_per_frame() -> Result<f64> {
    const FRAMES: u64 = (1 << 20) / 4096;
    let kept = place().filter(|place| place.exists()).and_then(|place| load(&place).ok());
    let cost = kept.map(|kept| kept.clear[0][ClearKernel::String as usize][class_of(64 << 10)]);
    match cost.filter(|cost| cost.is_known()) {
        Some(cost) => Ok(f64::from(cost.fill) / FRAMES as f64),
        None => quick_clearing_ns(),
    }
}

/// The shortest of a few passes over more memory than most caches hold, piece by piece: other work on the machine only adds
/// time. Linux clears page after page by one instruction for each, and so does the C library with so few bytes; a larger extent
/// it would clear several times as fast. The kernel reaches its memory by large pages.
fn quick_clearing_ns() -> Result<f64> {
    const BYTES: usize = 64 << 20;
    const PIECE: usize = 8 << 20;
    const PAGE: usize = 4096;
    let mut memory = MmapMut::map_anon(BYTES).context("no memory to measure how long clearing takes")?;
    // Without them it takes a little longer.
    let _ = memory.advise(Advice::HugePage);
    let mut shortest = f64::MAX;
    // The first pass also gets the memory, so it is not the shortest.
    for _ in 0..4 {
        for piece in memory.chunks_exact_mut(PIECE) {
            let start = Instant::now();
            for page in piece.chunks_exact_mut(PAGE) {
                page.fill(0);
                std::hint::black_box(page);
            }
            shortest = shortest.min(start.elapsed().as_nanos() as f64 / (PIECE / PAGE) as f64);
        }
    }
    Ok(shortest)
}

impl Chosen {
    fn measured(calibration: &Calibration, file: &Path) -> Self {
        let policy = calibration.policy(CpuFeatures::detect());
        Self { policy: Some(policy), file: Some(file.to_owned()), why: None }
    }

    fn suggested(why: String) -> Self {
        Self { policy: None, file: None, why: Some(why) }
    }
}

#[cfg(test)]
mod tests;
