//! The command line of `quire record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;

use super::attach::{Attach, attach};
use super::options::{Interface, Options, Source, Thp, Wait};
use super::{RecordError, Recorded, Subject, record};
use crate::output::{Format, Target, parse_bytes, quoted, say};
use crate::trace::{Program, Tier};

const EXAMPLES: &str = "\
Examples:
  quire record -o gcc.qtrace -- gcc -O2 -c big.c
  quire record --pid 4711 --duration 60s -o service.qtrace
  quire record --cgroup /sys/fs/cgroup/system.slice/foo.service --duration 60s -o service.qtrace";

/// Record a program's memory life, with all its threads and children.
///
/// The trace has every memory system call and every page fault, in one order. Root records everything; a recording by an
/// ordinary user lacks faults from kernel mode, access kinds, fault durations and fault-around. Transparent huge pages are
/// off for the program unless `--thp as-is` is given.
///
/// With `--pid` or `--cgroup` the command attaches to what already runs, as root, and lets go of it after `--duration`,
/// when it ends, or at Ctrl-C. The trace then begins with the mappings and present pages of that moment; huge pages stay
/// as they are, and the exit code is 0.
///
/// The exit code is the program's, or 128 + N after signal N. It is 127 when the program was not found, 126 when it could
/// not be executed, and 125 when nothing could be recorded, or when the program ended with 0 and its trace could not be
/// kept. When the disk is full, the program goes on, and the trace has the events until then.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File for the trace, by custom NAME.qtrace. A regular file is replaced when the trace is whole; devices, FIFOs and
    /// sockets are written to. `-` is standard output, which must not be a terminal; the program's own standard output
    /// then goes to standard error.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Kernel interfaces to use.
    #[arg(long, value_enum, default_value_t = TierChoice::Auto)]
    tier: TierChoice,
    /// What tells faults and calls, as root. BPF programs write one record for each, and cost the program the least; they cannot
    /// follow a control group.
    #[arg(long = "source", value_enum, default_value_t)]
    interface: Interface,
    /// Size of the ring of each CPU, for example 64M. A larger ring loses fewer records.
    #[arg(long, value_name = "BYTES", value_parser = parse_ring)]
    ring: Option<usize>,
    /// Name of the program in the header [default: file name of the command].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Version of the program in the header.
    #[arg(long, value_name = "VERSION", default_value = "")]
    program_version: String,
    /// Store the program's name in the trace without its arguments, which may be secret.
    #[arg(long)]
    no_arguments: bool,
    /// When the recording ends.
    #[arg(long, value_enum, default_value_t)]
    wait: Wait,
    /// Attach to this process, with all its threads and the children that it starts.
    #[arg(long, value_name = "PID", group = "running", conflicts_with_all = ["command", "tier", "wait"])]
    pid: Option<i32>,
    /// Attach to the processes of this control group (version 2), with those that join.
    #[arg(long, value_name = "DIRECTORY", group = "running", conflicts_with_all = ["command", "tier", "wait"])]
    cgroup: Option<PathBuf>,
    /// How long to record what runs, for example 60s [default: until it ends, or Ctrl-C].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "running")]
    duration: Option<Duration>,
    /// Transparent huge pages of COMMAND. What runs already keeps its own.
    #[arg(long, value_enum, default_value_t, conflicts_with = "running")]
    thp: Thp,
    /// Percent of the program's time that recording may cost, as root. Beyond that, faults are not recorded but counted as
    /// lost [default: 5 for what runs already, no bound for COMMAND].
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    max_overhead: Option<f64>,
    /// Record also which memory is accessed, as root: DAMON of the kernel tells regions and how often each is accessed, ten times
    /// a second. Where this kernel cannot, the recording has none, and a line says why.
    #[arg(long)]
    accesses: bool,
    /// Print no summary.
    #[arg(short, long)]
    quiet: bool,
    /// The summary: text on standard error, or one JSON object on standard output. The program's own standard output then goes
    /// to standard error.
    #[arg(long, value_enum, default_value_t, conflicts_with = "quiet")]
    format: Format,
    /// The program and its arguments.
    #[arg(required_unless_present = "running", trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Args {
    const fn source(&self) -> Source {
        if self.accesses { Source::Damon(None) } else { Source::Nothing }
    }
}

/// Percent of its time that recording may cost what runs already, unless the user says otherwise.
const ATTACHED_OVERHEAD: f64 = 5.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TierChoice {
    /// The best tier that the kernel permits.
    Auto,
    /// Everything; fails when the kernel refuses.
    Privileged,
    /// What an ordinary user may record, even as root.
    User,
}

/// Runs `quire record`.
///
/// # Errors
/// The trace is not whole; see [`super::RecordError`].
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.format == Format::Json && args.output == Path::new("-") {
        return Err(RecordError::OutputTaken.into());
    }
    let json = args.format.target(None)?;
    let subject = args.pid.map(Subject::Process).or(args.cgroup.clone().map(Subject::Cgroup));
    if let Some(subject) = subject {
        let recorded = attach(&Attach {
            output: args.output.clone(),
            subject,
            duration: args.duration,
            max_overhead: args.max_overhead.unwrap_or(ATTACHED_OVERHEAD) / 100.0,
            ring_bytes: args.ring,
            name: args.name.clone(),
            version: args.program_version.clone(),
            no_arguments: args.no_arguments,
            accesses: args.source(),
            interface: args.interface,
        })?;
        tell(args, &recorded, json)?;
        return Ok(ExitCode::SUCCESS);
    }
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
        no_arguments: args.no_arguments,
        wait: args.wait,
        ends_with_recorder: false,
        thp: args.thp,
        max_overhead: args.max_overhead.map(|percent| percent / 100.0),
        accesses: args.source(),
        interface: args.interface,
    })?;
    tell(args, &recorded, json)?;
    Ok(ExitCode::from(recorded.exit_code))
}

/// Prints the summary, and to a user who wants none at least a warning that the trace is incomplete.
fn tell(args: &Args, recorded: &Recorded, json: Option<Target>) -> anyhow::Result<()> {
    let path = quoted(&args.output);
    if let Some(json) = json {
        json.write((recorded.json_line(&args.output) + "\n").as_bytes())?;
    } else if !args.quiet {
        format!("{path}: {recorded}").lines().for_each(say);
    }
    if let Some(cause) = &recorded.written.cut {
        let (kept, all) = (recorded.written.events, recorded.summary.events);
        // Without a number the trace reached a limit of its format.
        let cure =
            cause.raw_os_error().map_or("record a shorter run", |_| "make room for it and record again");
        say(format_args!("quire: {path} has the first {kept} of {all} events ({cause}); {cure}"));
    }
    Ok(())
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 1000.0 => Ok(percent),
        _ => Err("a share is a number of percent above 0".to_owned()),
    }
}

/// Parses a power of two of bytes in the form of [`parse_bytes`].
pub(super) fn parse_ring(text: &str) -> Result<usize, String> {
    match usize::try_from(parse_bytes(text)?) {
        Ok(bytes) if bytes.is_power_of_two() && (4 << 10..=64 << 30).contains(&bytes) => Ok(bytes),
        _ => Err("the size of a ring is a power of two from 4K to 64G".to_owned()),
    }
}

#[cfg(test)]
mod tests;
