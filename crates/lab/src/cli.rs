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
}

/// Parses the command line, runs the subcommand and turns an error into one line on standard error.
pub fn main() -> ExitCode {
    let outcome: anyhow::Result<()> = match Cli::parse().command {
        Command::Bench(args) => crate::bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quire: {error:#}");
            ExitCode::FAILURE
        }
    }
}
