//! The command line: one subcommand, one module.

use std::io;
use std::process::ExitCode;

use clap::error::ContextValue;
use clap::{CommandFactory, Parser, Subcommand};
use signal_hook::consts::SIGPIPE;

use crate::host::machine::{Build, set_build};
use crate::output::{line, say};
use crate::record::RecordError;
use crate::settings::{Left, Places, put_back_left};

/// The exit codes; `docs/exit-codes.md` has the same lines.
const EXIT_CODES: &str = "\
Exit codes:
  0        the work is done
  1        the work failed, or `replay --check` found a divergence
  2        the command line is wrong
  3        `replay --check` stopped at a gap in a trace and found no divergence
  123      the kernel of `boot` failed
  124      the time that `boot` gave the program ran out
  125      `record`, `advise` or `verify` could not record, or `boot` could not run its kernel
  126      `record`, `advise`, `verify` or `boot` could not execute the program
  127      `record`, `advise`, `verify` or `boot` did not find the program
  128 + N  signal N ended the program under `record` or `boot`
  other    the program under `record` or `boot` ended with this code
A closed pipe on standard output ends the command by SIGPIPE, without a message.";

/// Here, since result files store a hash of the code that calibrates.
const CALIBRATE_EXAMPLES: &str = "\
Examples:
  quire calibrate                  how to clear and copy here, for `quire replay`
  sudo quire calibrate --kernel    what a fault takes here, for `quire advise`";

/// Record the memory calls and faults of a program, replay them under other policies, measure Quire against this machine's Linux, and run programs on a kernel that uses it.
#[derive(Parser)]
#[command(name = "quire", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Advise(crate::advise::Args),
    #[cfg(feature = "bench")]
    Bench(crate::bench::BenchArgs),
    #[cfg(feature = "boot")]
    Boot(crate::boot::Args),
    #[command(after_help = CALIBRATE_EXAMPLES)]
    Calibrate(crate::calibrate::Args),
    #[cfg(feature = "bench")]
    Compare(crate::compare::Args),
    Completions(crate::manual::Completions),
    Export(crate::export::Args),
    Man(crate::manual::Man),
    Record(crate::record::Args),
    Replay(crate::replay::Args),
    #[cfg(feature = "bench")]
    Report(crate::report::Args),
    Restore(crate::restore::Args),
    Verify(crate::verify::Args),
    /// One run of `verify`.
    #[command(hide = true)]
    VerifyRun(crate::verify::RunArgs),
    /// A process of `verify` that only faults.
    #[command(hide = true)]
    VerifyFaults(crate::verify::FaultsArgs),
}

impl Command {
    /// Puts back the settings that a killed run left; `restore` does so itself.
    fn tidy_up(&self) {
        if matches!(self, Self::Restore(_)) {
            return;
        }
        match put_back_left(&Places::of_this_machine()) {
            Ok(Left::PutBack(told)) => told.iter().for_each(|told| say(format_args!("quire: {told}"))),
            Ok(Left::Nothing | Left::InUse) => {}
            Err(error) => say(format_args!("quire: {error}")),
        }
    }
}

/// Parses the command line, runs the subcommand and turns an error into one line on standard error.
pub fn main() -> ExitCode {
    set_build(Build {
        commit: env!("QUIRE_COMMIT"),
        rustc: env!("QUIRE_RUSTC"),
        opt_level: env!("QUIRE_OPT_LEVEL"),
    });
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(error),
    };
    cli.command.tidy_up();
    let outcome: anyhow::Result<ExitCode> = match cli.command {
        Command::Advise(args) => crate::advise::run(&args),
        #[cfg(feature = "bench")]
        Command::Bench(args) => crate::bench::run(&args).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "boot")]
        Command::Boot(args) => crate::boot::run(&args),
        Command::Calibrate(args) => crate::calibrate::run(&args).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "bench")]
        Command::Compare(args) => crate::compare::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => args.run(&mut Cli::command()).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => crate::export::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => args.run(Cli::command()).map(|()| ExitCode::SUCCESS),
        Command::Record(args) => crate::record::run(&args),
        Command::Replay(args) => crate::replay::run(&args),
        #[cfg(feature = "bench")]
        Command::Report(args) => crate::report::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Restore(args) => crate::restore::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Verify(args) => crate::verify::run(&args).map(|()| ExitCode::SUCCESS),
        Command::VerifyRun(args) => crate::verify::run_once(&args).map(|()| ExitCode::SUCCESS),
        Command::VerifyFaults(args) => crate::verify::fault(&args).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => {
            // Ends by the signal, without a message, as other programs do whose reader has closed the pipe.
            let _ = signal_hook::low_level::emulate_default_handler(SIGPIPE);
            ExitCode::FAILURE
        }
        Err(error) => {
            say(format_args!("quire: {}", one_line(&error)));
            exit_code(&error).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// The code of an error that has one of its own.
fn exit_code(error: &anyhow::Error) -> Option<u8> {
    let code = error.downcast_ref().map(RecordError::exit_code);
    #[cfg(feature = "boot")]
    let code = code.or_else(|| error.downcast_ref().map(crate::boot::BootError::exit_code));
    code
}

/// Shows help as it is. A refused word may be the name of a file, so its control characters are escaped.
fn refuse(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    let given = error.context().filter_map(|(kind, value)| match value {
        ContextValue::String(text) => Some((kind, ContextValue::String(line(text).into_owned()))),
        ContextValue::StyledStrs(tips) => {
            let tips = tips.iter().map(|tip| line(&tip.to_string()).into_owned().into()).collect();
            Some((kind, ContextValue::StyledStrs(tips)))
        }
        _ => None,
    });
    let given: Vec<_> = given.collect();
    given.into_iter().for_each(|(kind, value)| _ = error.insert(kind, value));
    let said = error.render().to_string();
    said.lines().for_each(say);
    // The usage error of clap, and of most commands.
    ExitCode::from(2)
}

/// For the fuzzer: whether the words are a command.
#[cfg(fuzzing)]
pub fn parses(words: &[&str]) -> bool {
    Cli::try_parse_from(words).is_ok()
}

/// Whether the reader of an output pipe has closed it.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.into_iter().any(|kind| kind == io::ErrorKind::BrokenPipe)
}

/// An error and its causes in one line; a cause that the line contains already is not repeated.
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
