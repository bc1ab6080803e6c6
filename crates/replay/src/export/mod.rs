//! `quire export`: a recording in the formats that memory simulators and scripts read.
//!
//! ```text
//! touches   the pages that a process touches, in order
//! format    how a touch is written: ChampSim, Ramulator, Virtuoso's MimicOS, and a table of all events
//! ```

mod format;
mod touches;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;

use crate::output::{Draft, Target, cannot_write, quoted, say};
use crate::trace::TraceReader;
use format::Written;
use touches::touches;

/// Write a recording in a format that simulators of memory, or scripts, read.
///
/// A recording knows the first touch of each page, and touches after the page was taken away; it knows no access in
/// between. docs/export.md describes each format and what a simulator can learn from it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace that `quire record` wrote.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The format to write.
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,
    /// Only this process [default for simulators: the one that touches most pages].
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The file to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
}

/// Touches that are written at most: of 4 TiB. A few bytes of a trace may ask for any number.
const MOST_TOUCHES: u64 = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  quire export redis.qtrace | head                         every event, a line each
  quire export --format ramulator -o redis.trace redis.qtrace
  quire export --format champsim redis.qtrace | xz >redis.champsimtrace.xz
  quire export --format mimicos -o redis.vpns redis.qtrace";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Every event, as a table with commas.
    Csv,
    /// Load and store lines of Ramulator 2.
    Ramulator,
    /// Binary instructions of ChampSim.
    Champsim,
    /// Pages for MimicOS, the kernel of Virtuoso.
    Mimicos,
}

/// Runs `quire export`.
///
/// # Errors
/// A trace that cannot be read, a process that is not in it, or output that cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let target = Target::named(&args.output)?;
    let of_output = |error| cannot_write(&args.output, error);
    let mut draft = Draft::in_order(target).map_err(of_output)?;
    let mut out = BufWriter::new(draft.file());
    let written = match args.format {
        Format::Csv => events(&args.file, args.pid, &mut out),
        Format::Ramulator => pages(args, &mut out, format::ramulator),
        Format::Champsim => pages(args, &mut out, format::champsim),
        Format::Mimicos => pages(args, &mut out, format::mimicos),
    };
    // An error of the system is one of the output: the trace's own are of another type.
    let written = written.map_err(|error| match error.downcast() {
        Ok(error) => of_output(error),
        Err(error) => error.context(quoted(&args.file).to_string()),
    })?;
    out.flush().map_err(of_output)?;
    drop(out);
    draft.finish().map_err(of_output)?;
    say(format_args!("{}: {written}", quoted(&args.file)));
    Ok(())
}

/// Every event of the trace, or of one process.
fn events(file: &Path, pid: Option<u32>, out: &mut impl Write) -> Result<Written> {
    let mut reader = TraceReader::open(file)?;
    let mut count = 0;
    let mut table = csv::Writer::from_writer(out);
    while let Some(event) = reader.next() {
        let event = event?;
        if pid.is_none_or(|pid| pid == event.pid) {
            if count == 0 {
                table.write_record(format::HEADING).map_err(of_output)?;
            }
            table.write_record(format::csv(&event, &reader)).map_err(of_output)?;
            count += 1;
        }
    }
    match pid {
        Some(pid) if count == 0 => bail!("no event of process {pid}: leave out --pid to see them all"),
        None if count == 0 => table.write_record(format::HEADING).map_err(of_output)?,
        _ => {}
    }
    table.flush()?;
    Ok(Written::Events(count))
}

/// The error of the system behind one of a table, which does not name it as its source.
fn of_output(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

/// The touched pages of one process.
fn pages<W: Write>(
    args: &Args,
    out: &mut W,
    write: fn(&touches::Touch, &mut W) -> io::Result<()>,
) -> Result<Written> {
    let pid = match args.pid {
        Some(pid) => pid,
        None => touches::largest(&args.file)?,
    };
    let mut count = 0;
    for event in TraceReader::open(&args.file)? {
        let event = event?;
        if event.pid == pid {
            if touches::pages(&event) > MOST_TOUCHES - count {
                bail!(
                    "process {pid} touches over {MOST_TOUCHES} pages, as no recording does; record it again"
                );
            }
            for touch in touches(&event) {
                write(&touch, out)?;
                count += 1;
            }
        }
    }
    if count == 0 {
        bail!("process {pid} touches no page: leave out --pid to get the one that touches most");
    }
    Ok(Written::Touches { pid, count })
}
