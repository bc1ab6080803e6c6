//! `quire record`: follows a program and records its memory calls and faults as a trace.
//!
//! ```text
//! child, setup           the process that waits at a gate until everything is set up, then becomes the program
//! perf, sink, ring       the kernel's events, one ring for each CPU
//! tracepoints            those of the privileged tier
//! filters, locks         which of them the kernel lets through
//! feed                   both of these, or BPF programs beside the kernel's events
//! bpf                    programs that the kernel runs at faults and calls: one record for each
//! tracer, calls_by_ptrace, report, hold, progress   an ordinary user's system calls, traced by a process of its own
//! attach, subject        the same of what already runs
//! traced                 waits for children and traced threads, and restarts these with any signal
//! stop, present          stops a process for a moment; its mappings and present pages
//! proc_files             files of /proc as text, whatever bytes names have
//! own                    faults of the calling thread, to learn what a recording adds to them
//! overhead               what a recording costs the program, and a bound on it
//! samplers               beside a recording: which memory is accessed, by the best source there is
//! damon, referenced      those sources: regions with access rates; how many bytes of each mapping are referenced
//! abi, privilege         numbers and arguments of calls; programs that gain rights by their file
//! follow, signals, tree  waits for the program's end; signals; the processes that descend from it
//! parse, assemble        records to events, in order of time
//! unrecorded, exits      the same without any of that: only what the kernel counts
//! collect, queue         empties the rings; puts events into their places in the trace file
//! closing                closes the events in a process of its own
//! ```

mod abi;
mod args;
mod assemble;
mod attach;
mod bpf;
mod calls_by_ptrace;
mod child;
mod closing;
mod collect;
mod damon;
mod error;
mod exits;
mod feed;
mod filters;
mod follow;
#[cfg(fuzzing)]
pub mod fuzzing;
mod hold;
mod locks;
mod options;
mod overhead;
mod own;
mod parse;
mod perf;
mod populate;
mod present;
mod privilege;
mod proc_files;
mod progress;
mod queue;
mod raw;
mod referenced;
mod report;
mod ring;
mod samplers;
mod setup;
mod signals;
mod sink;
mod stop;
mod subject;
mod summary;
mod target;
mod traced;
mod tracefs;
mod tracepoints;
mod tracer;
mod tree;
mod unrecorded;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use nix::sys::prctl;
use nix::unistd::Pid;

pub use args::{Args, run};
use attach::has_no_huge_pages;
pub use attach::{Attach, attach};
pub use error::RecordError;
pub use exits::ProcessPeak;
pub use options::{Interface, Options, Source, Thp, Wait};
pub use overhead::{Costs, Overhead};
pub(crate) use own::{OwnFault, OwnFaults};
pub use referenced::{Referenced, ReferencedMapping, ReferencedProcess, Sampling};
#[doc(hidden)]
pub use signals::is_left_ignored;
pub use subject::Subject;
pub use summary::{Attached, Faults, Recorded, Summary};
pub use unrecorded::{Counted, Peak, run_unrecorded};

use crate::output::{Target, output_name, say};
use crate::trace::{Header, Tier, Totals, TraceWriter};
use assemble::Assembler;
use collect::Collected;
use follow::{Ended, Following};
use samplers::Samplers;
use setup::Setup;
use signals::Signals;

/// Runs the command to its end, with all that it starts, and writes the trace.
///
/// Call it from a process with one thread and no other children: it forks, and waits for every child.
///
/// # Errors
/// See [`RecordError`]. A regular file that is the output is then as it was before.
pub fn record(options: &Options) -> Result<Recorded, RecordError> {
    // Opened before the program's process is made, which inherits the standard output that is left then.
    let target = target::open(&options.output)?;
    let signals = Signals::keep()?;
    let of = |tier| Setup::of(tier, options, &signals.inherited()).map_err(|error| error.in_tier(tier));
    let setup = match options.tier {
        Some(tier) => of(tier)?,
        None => match Setup::of(Tier::Privileged, options, &signals.inherited()) {
            Err(refused) if refused.is_permission() => {
                let setup = of(Tier::User)?;
                say(format_args!(
                    "quire: recording as an ordinary user, without faults from kernel mode, access kinds, \
                     durations and fault-around; {}",
                    error::privileges()
                ));
                setup
            }
            setup => setup?,
        },
    };
    if let Some(note) = privilege::note(&options.command, setup.tier) {
        say(format_args!("quire: {note}"));
    }
    let tier = setup.tier;
    with_setup(options, setup, signals, target).map_err(|error| error.in_tier(tier))
}

fn with_setup(
    options: &Options,
    setup: Setup,
    mut signals: Signals,
    target: Target,
) -> Result<Recorded, RecordError> {
    let Setup { tier, gated, mut tracer, feed, governor } = setup;
    let shown = if options.no_arguments { &options.command[..1] } else { &options.command };
    let header = Header {
        ring_bytes: feed.ring_bytes() as u64,
        program: options.program.clone(),
        thp_disabled: options.thp == Thp::Off || has_no_huge_pages(gated.pid.as_raw()),
        ..setup::header(tier, shown, feed.fault_around)?
    };
    let writer =
        TraceWriter::to(target, &header).map_err(|error| target::cannot_write(&options.output, error))?;
    let (sender, receiver) = mpsc::channel();
    let end_ns = AtomicU64::new(collect::GO_ON);
    let heard_ns = AtomicU64::new(if tracer.is_some() { 0 } else { collect::ALL_HEARD });
    // Descendants whose parent has ended become children of the recorder, so that it sees the last of them
    // end.
    prctl::set_child_subreaper(true).map_err(RecordError::system("becoming subreaper"))?;
    let (started, ended, collected, referenced) = thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let assembler = Assembler::new(writer);
            collect::run(feed, assembler, governor, receiver, &heard_ns, &end_ns)
        });
        let mut samplers = Samplers::default();
        let followed = (|| {
            let before = follow::fault_counts(gated.pid).unwrap_or_default();
            let started = gated.start()?;
            let traced_by = tracer.as_ref().map(|tracer| tracer.pid);
            samplers = Samplers::start(scope, options.accesses, move || pids(traced_by), sender.clone());
            let (program, wait) = (started.pid, options.wait);
            let (signals, messages, heard_ns) = (&mut signals, &sender, &heard_ns);
            let following = Following { program, before, signals, wait, messages, heard_ns };
            let ended = match &mut tracer {
                None => following.children()?,
                Some(tracer) => following.reports(tracer)?,
            };
            Ok::<_, RecordError>((started, ended))
        })();
        let end = followed.as_ref().ok().and_then(|(_, ended)| ended.early_ns);
        let referenced = samplers.end();
        end_ns.store(end.unwrap_or(u64::MAX), Ordering::Release);
        let collected = collector.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        followed.map(|(started, ended)| (started, ended, collected, referenced))
    })?;
    prctl::set_child_subreaper(false).map_err(RecordError::system("being subreaper no more"))?;
    started.outcome()?;
    let Ended { exit_code, kernel_faults, left, unprivileged, .. } = ended;
    if !left.is_empty() {
        let pids: Vec<String> = left.iter().map(ToString::to_string).collect();
        say(format_args!(
            "quire: the recording has ended; these processes run on unrecorded: {}",
            pids.join(" ")
        ));
    }
    let not_kept = |source| RecordError::NotKept {
        path: output_name(&options.output),
        source,
        program_exit_code: exit_code,
    };
    let Collected { writer, summary, grown_to, overhead, interface, events } = collected.map_err(not_kept)?;
    closing::leave(events);
    let totals = Totals { lost: summary.lost, wall_ns: summary.wall_ns(), kernel_faults };
    let written = writer.close(totals).map_err(not_kept)?;
    let recorded = Recorded::of(exit_code, tier, written, summary, totals, grown_to);
    Ok(Recorded { unprivileged, overhead, interface, asked_to_end: signals.asked(), referenced, ..recorded })
}

/// The numbers of all living descendants of this process, without the tracer.
fn pids(tracer: Option<Pid>) -> Vec<i32> {
    tree::members(tracer).iter().map(|member| member.pid.as_raw()).collect()
}
