//! The command line of `quire record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;

use super::{Options, record};
use crate::trace::{Program, Tier};

/// Record a program's memory life, with all its threads and children.
///
/// Reports every memory system call and every page fault in one order. As root it records everything; an ordinary user
/// gets no faults from kernel mode, no access kinds, no fault durations and no fault-around. Transparent huge pages
/// are off for the program. Ends with the program's exit code.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the trace goes (by custom NAME.qtrace).
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What to ask of the kernel.
    #[arg(long, value_enum, default_value_t = TierChoice::Auto)]
    tier: TierChoice,
    /// Ring per CPU, for example 64M; larger ones lose less.
    #[arg(long, value_name = "BYTES", value_parser = parse_ring)]
    ring: Option<usize>,
    /// Name of the program for the header (default: file name of the command).
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Version of the program for the header.
    #[arg(long, value_name = "VERSION", default_value = "")]
    program_version: String,
    /// No summary at the end.
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TierChoice {
    /// The best that is permitted.
    Auto,
    /// Everything, or an error.
    Privileged,
    /// What an ordinary user may see, even as root.
    User,
}

/// Runs `quire record`.
///
/// # Errors
/// Whatever keeps the trace from being whole; see [`super::RecordError`].
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = args.name.clone().unwrap_or_else(|| {
        let program = Path::new(args.command.first().map_or("".as_ref(), OsString::as_os_str));
        program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    });
    let recorded = record(&Options {
        output: args.output.clone(),
        command: args.command.clone(),
        tier: match args.tier {
            TierChoice::Auto => None,
            TierChoice::Privileged => Some(Tier::Privileged),
            TierChoice::User => Some(Tier::User),
        },
        ring_bytes: args.ring,
        program: Program { name, version: args.program_version.clone() },
    })?;
    if !args.quiet {
        eprintln!("{}: {recorded}", args.output.display());
    }
    Ok(ExitCode::from(recorded.exit_code))
}

/// A power of two of bytes, with `K`, `M` or `G` behind it if wanted.
pub(super) fn parse_ring(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        unit => return Err(format!("no such unit: {unit}; use K, M or G")),
    };
    let number: usize = digits.parse().map_err(|_| "not a number".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if bytes.is_power_of_two() && bytes >= 4096 => Ok(bytes),
        _ => Err("a ring has a power of two of bytes, at least 4K".to_owned()),
    }
}

#[cfg(test)]
mod tests;
