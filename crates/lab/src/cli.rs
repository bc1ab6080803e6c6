//! The command line: one subcommand, one module.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Record a program's memory life, replay it under other policies, measure it against this machine's Linux.
#[derive(Parser)]
#[command(name = "quire", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(crate::bench::BenchArgs),
    Calibrate(crate::calibrate::Args),
    Record(crate::record::Args),
    Replay(crate::replay::Args),
}

/// Parses the command line, runs the subcommand and turns an error into one line on standard error.
pub fn main() -> ExitCode {
    let outcome: anyhow::Result<ExitCode> = match Cli::parse().command {
        Command::Bench(args) => crate::bench::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Calibrate(args) => crate::calibrate::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => crate::record::run(&args),
        Command::Replay(args) => crate::replay::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("quire: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The fuzzer's way in: whether the words are a command.
#[cfg(fuzzing)]
pub fn parses(words: &[&str]) -> bool {
    Cli::try_parse_from(words).is_ok()
}

/// An error and what caused it, in one line; a cause that is told already is not told again.
fn one_line(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |line, cause| {
        if line.is_empty() {
            cause
        } else if line.contains(&cause) {
            line
        } else {
            format!("{line}: {cause}")
        }
    })
}
