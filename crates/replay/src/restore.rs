//! `quire restore`: puts back the settings of the kernel that a killed run left.

use anyhow::Result;

use crate::output::{self, Format};
use crate::settings::{Left, Places, put_back_left};

const EXAMPLE: &str = "\
Example:
  sudo quire restore";

/// Put back the settings of the kernel that a killed run of this command left.
///
/// Every other subcommand does the same when it starts. A value that was set since the kill stays. Settings that a
/// running `bench` or `verify` has changed are left to it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct Args {
    /// What was done, as text or as one JSON object.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Runs `quire restore`.
///
/// # Errors
/// Settings that this user may not change, or whose old value the kernel refuses.
pub fn run(args: &Args) -> Result<()> {
    let (outcome, told) = match put_back_left(&Places::of_this_machine())? {
        Left::Nothing => ("nothing", vec!["nothing to put back".to_owned()]),
        Left::InUse => ("in-use", vec!["another run has changed settings and will put them back".to_owned()]),
        Left::PutBack(told) => ("put-back", told),
    };
    if args.format == Format::Json {
        let object = serde_json::json!({"schema": 1, "outcome": outcome, "told": told});
        return Ok(output::show(&format!("{object}\n"))?);
    }
    let lines = told.iter().map(|told| format!("{}\n", output::line(told)));
    Ok(output::show(&lines.collect::<String>())?)
}
