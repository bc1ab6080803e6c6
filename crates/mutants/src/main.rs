//! Deliberate bugs in the library, by the hundred: all compiled in at once and switched on by number, to
//! learn which test finds each.
//!
//! `list` draws the bugs. `run` builds a copy of the library with all of them and runs, for each, the tests
//! that execute its place until one fails. `report` prints the result. `docs/testing/mutants.md` describes
//! their use.

mod build;
mod campaign;
mod copy;
mod operators;
mod process;
mod report;
mod sample;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use sample::List;

#[derive(Parser)]
#[command(about = "Deliberate bugs in the library, and which test finds each")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// The repository's root.
    #[arg(long, default_value = ".")]
    root: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Fills the list up where places are gone or are no bugs.
    List {
        #[arg(long, default_value_t = 300)]
        count: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Draws all of them anew; explanations are lost.
        #[arg(long)]
        anew: bool,
    },
    /// Runs what has no result yet.
    Run {
        /// How many bugs at the same time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Only the first bugs of the list.
        #[arg(long)]
        first: Option<usize>,
        /// Only these numbers, even if they have a result.
        #[arg(long, value_delimiter = ',')]
        only: Vec<u32>,
    },
    /// What was found. Fails with a survivor that has no explanation, or when fewer than 95 of 100 were caught.
    Report,
}

fn main() -> ExitCode {
    match obey(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey(arguments: Arguments) -> Result<()> {
    let root = arguments.root.canonicalize()?;
    ensure!(
        root.join(sample::LIST).parent().is_some_and(|at| at.is_dir()),
        "run it from the repository's root"
    );
    match arguments.command {
        Command::List { count, seed, anew } => sample::draw(&root, count, seed, anew),
        Command::Run { jobs, first, only } => {
            let list = List::read(&root)?;
            campaign::run(&root, &list, jobs.max(1), &campaign::wanted(&list, first, only))?;
            report::print(&root, &list).map(drop)
        }
        Command::Report => {
            let all_well = report::print(&root, &List::read(&root)?)?;
            ensure!(all_well, "fewer than 95 of 100 were caught, or a survivor is not explained");
            Ok(())
        }
    }
}
