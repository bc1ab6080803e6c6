//! `quire restore`: puts back the settings of the kernel that a killed run left.

use anyhow::Result;

use crate::output;
use crate::settings::{Left, Places, put_back_left};

/// Put back the settings of the kernel that a killed run of this command left.
///
/// Every other subcommand does the same when it starts. A value that was set since the kill stays. Settings that a
/// running `bench` or `verify` has changed are left to it.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs `quire restore`.
///
/// # Errors
/// Settings that this user may not change, or whose old value the kernel refuses.
pub fn run(_: &Args) -> Result<()> {
    let told = match put_back_left(&Places::of_this_machine())? {
        Left::Nothing => vec!["nothing to put back".to_owned()],
        Left::InUse => vec!["another run has changed settings and will put them back".to_owned()],
        Left::PutBack(told) => told,
    };
    let lines = told.iter().map(|told| format!("{}\n", output::line(told)));
    Ok(output::show(&lines.collect::<String>())?)
}
