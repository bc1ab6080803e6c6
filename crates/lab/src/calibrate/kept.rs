//! The calibration that stays: `quire calibrate` keeps it in the user's cache folder, and commands that clear memory by this
//! machine's policy load it from there. Figures of another processor are not used.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use quire::arch::CpuFeatures;
use quire::clear::{Calibration, ClearPolicy};

use super::saved::{load, save};
use crate::output::quoted;

/// Where the calibration of this machine is kept: in `quire/calibration.json` of `$XDG_CACHE_HOME`, or of `~/.cache`. Nowhere for a
/// user without either.
pub fn place() -> Option<PathBuf> {
    place_of(|name| std::env::var_os(name))
}

fn place_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // What is relative is to be ignored (XDG base directory specification); so is `HOME`, which leads nowhere else then.
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("quire").join("calibration.json"))
}

/// Keeps a calibration in a [place], the directories of which are made.
///
/// # Errors
/// When it cannot be written.
pub(super) fn keep(calibration: &Calibration, place: &Path) -> Result<()> {
    let directory = place.parent().unwrap_or_else(|| Path::new("."));
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make the directory {}", quoted(directory)))?;
    save(calibration, place)
}

/// The policy of this machine, and where it comes from.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// What was measured says so; `None` for what the processor suggests.
    pub policy: Option<ClearPolicy>,
    /// The file of the measurements, if they count.
    pub file: Option<PathBuf>,
    /// Why none count, and the cure.
    pub why: Option<String>,
}

/// The policy by the calibration in `asked`, or by the one that is [kept](place) of this machine. One that is kept and cannot be
/// used is left alone, and said to be.
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
            "nothing is kept of a user without a home: {CURE} --save FILE, and name the file"
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
