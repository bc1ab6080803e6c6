//! `quire record`: follows a real program and writes down its memory life.
//!
//! ```text
//! child      a process that waits at a gate until everything is set up, then becomes the program
//! perf, ring the kernel's records, one ring per CPU      calls_by_ptrace  the ordinary user's system calls
//! parse      bytes of a record -> Raw                    follow           waits for the program's end
//! collect    empties the rings -> assemble: Raw in time order -> queue: events in their places -> trace file
//! ```

mod args;
mod assemble;
mod calls_by_ptrace;
mod child;
mod collect;
mod error;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzing;
mod parse;
mod perf;
mod populate;
mod queue;
mod raw;
mod ring;
mod setup;
mod summary;
mod tracefs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use nix::sys::prctl;

pub use args::{Args, run};
pub use error::RecordError;
pub use summary::{Faults, Recorded, Summary};

use crate::trace::{Header, Program, Tier, Totals, TraceError, TraceWriter};
use collect::Collected;
use follow::{Ended, Signals};
use setup::Setup;

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the trace goes.
    pub output: PathBuf,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Which tier; `None` for the best that is permitted.
    pub tier: Option<Tier>,
    /// Bytes of each CPU's ring, a power of two of at least a page; `None` for the tier's default.
    pub ring_bytes: Option<usize>,
    /// Name and version of the program, as far as known.
    pub program: Program,
}

/// Runs the command to its end, with all that it starts, and writes the trace.
///
/// To be called from a process with one thread and no other children: it forks, and waits for whatever ends.
///
/// # Errors
/// See [`RecordError`]. The output file is then as it was before.
pub fn record(options: &Options) -> Result<Recorded, RecordError> {
    match options.tier {
        Some(tier) => with_setup(options, Setup::of(tier, options)?),
        None => match Setup::of(Tier::Privileged, options) {
            Err(refused) if refused.is_permission() => {
                let setup = Setup::of(Tier::User, options)?;
                eprintln!(
                    "quire: recording as an ordinary user, without faults from kernel mode, access kinds, \
                     durations and fault-around; run as root for those"
                );
                with_setup(options, setup)
            }
            setup => with_setup(options, setup?),
        },
    }
}

fn with_setup(options: &Options, setup: Setup) -> Result<Recorded, RecordError> {
    let Setup { tier, gated, events, parser, fault_around } = setup;
    let output =
        |source: TraceError| RecordError::Output { path: options.output.display().to_string(), source };
    let header = Header {
        ring_bytes: events.ring_bytes as u64,
        program: options.program.clone(),
        ..setup::header(tier, &options.command, fault_around)?
    };
    let writer = TraceWriter::create(&options.output, &header).map_err(output)?;
    let (sender, receiver) = mpsc::channel();
    let stop = AtomicBool::new(false);
    let signals = Signals::catch(gated.pid)?;
    // Descendants whose parent has gone come to the recorder, so that it sees the last of them end.
    prctl::set_child_subreaper(true).map_err(RecordError::system("becoming subreaper"))?;
    let (started, ended, collected) = thread::scope(|scope| {
        let collector = scope.spawn(|| collect::run(events, &parser, writer, receiver, &stop));
        let followed = (|| {
            let before = follow::fault_counts(gated.pid).unwrap_or_default();
            let started = gated.start()?;
            let ended = match tier {
                Tier::Privileged => follow::all(started.pid, before, &signals, &sender)?,
                Tier::User => calls_by_ptrace::follow(started.pid, before, &sender)?,
            };
            Ok::<_, RecordError>((started, ended))
        })();
        stop.store(true, Ordering::Release);
        let collected = collector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        followed.map(|(started, ended)| (started, ended, collected))
    })?;
    prctl::set_child_subreaper(false).map_err(RecordError::system("being subreaper no more"))?;
    started.outcome()?;
    let Ended { exit_code, kernel_faults, stopped_early } = ended;
    if stopped_early {
        eprintln!("quire: interrupted; the trace ends before the last of the program's children");
    }
    let Collected { writer, summary, lost } = collected.map_err(output)?;
    let totals = Totals { lost, wall_ns: summary.wall_ns(), kernel_faults };
    let bytes = writer.finish(totals).map_err(output)?;
    Ok(Recorded { exit_code, tier, bytes, summary, totals })
}
