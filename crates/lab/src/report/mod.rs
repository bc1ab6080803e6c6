//! `quire report`: keeps the figures of `quire bench --json` in short form, and writes the page of measured
//! figures.
//!
//! ```text
//! results   one file for each experiment, machine and state of the code: medians and spread of each launch
//! judge     which figures missed their goal, and where this library is slower than another arm
//! counts    exact counts on the page
//! machines  the runs and the machines of the pages
//! markdown  tables and wrapped prose
//! figures   the tables of one experiment on one machine
//! lists     figures missed, cases lost, every figure to reach
//! page      the pages, from the results, the goals beside the experiments and the notes: a first one, and one for each
//!           experiment
//! html      a page for a browser, from the figures of a run
//! ```

mod counts;
mod figures;
mod html;
mod lists;
mod machines;
mod markdown;
// Public for the tests beside the command, so that unit tests need not compile every arm again.
#[doc(hidden)]
pub mod judge;
#[doc(hidden)]
pub mod page;
#[doc(hidden)]
pub mod results;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bench::row::Row;
use crate::files;
use crate::output::{self, Target, quoted};

const EXAMPLES: &str = "\
Examples:
  quire report html advice.json                    report.html, for a browser
  quire report add unmap.json --remark 'idle'      one launch into results/
  quire report tables                              docs/measured.md and docs/measured/ from results/";

/// Show figures in a browser; keep figures of `quire bench --json`, and write the page of tables from them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[command(
        after_help = "Example:\n  quire report html -o all.html results.d    what `advise` wrote of many programs"
    )]
    /// Write one HTML file that shows figures: it needs no network, and fits a phone, a desk and paper.
    Html {
        /// Files that `advise --format json`, `verify --format json`, `compare --json` or `bench --json` wrote. Programs of several files are shown together; of a folder, all files
        /// whose names end in .json.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The file to write.
        #[arg(short, long, value_name = "FILE", default_value = "report.html")]
        output: PathBuf,
    },
    /// Keep the medians and the spread of one launch of `quire bench --json`.
    ///
    /// Launches of the same experiment on the same machine go into one file while the code is the same.
    Add {
        /// Files that `quire bench --json` wrote, one for each launch.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// The folder that keeps the results.
        #[arg(long, value_name = "DIR", default_value = "results")]
        results: PathBuf,
        /// What a reader must know about this launch, such as other work on the machine.
        #[arg(long, value_name = "TEXT")]
        remark: Option<String>,
    },
    /// Write the pages of tables from the results: a first one, and one for each experiment.
    Tables {
        /// The folder that keeps the results; notes to print are in its folder `notes`.
        #[arg(long, value_name = "DIR", default_value = "results")]
        results: PathBuf,
        /// The first page to write. Those of the experiments are in the folder `measured` beside it.
        #[arg(long, value_name = "FILE", default_value = "docs/measured.md")]
        page: PathBuf,
        /// Write nothing: fail when a page differs from its data.
        #[arg(long)]
        check: bool,
    },
}

/// Runs `quire report`.
///
/// # Errors
/// A file that cannot be read or written, figures that may not be kept, or a page that differs from its data.
pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        Command::Html { files, output } => html::write(&files::chosen(files, "json", None)?, output),
        Command::Add { files, results, remark } => add(files, results, remark.as_deref()),
        Command::Tables { results, page, check } => tables(results, page, *check),
    }
}

fn add(files: &[PathBuf], folder: &Path, remark: Option<&str>) -> Result<()> {
    let rows_of = |file: &PathBuf| -> Result<Vec<Row>> {
        let text = results::text_of(file)?;
        let rows: Result<Vec<Row>, _> = text.lines().map(serde_json::from_str).collect();
        rows.with_context(|| format!("{} has a line that no bench wrote", quoted(file)))
    };
    let launches = files.iter().map(rows_of).collect::<Result<Vec<_>>>()?;
    let kept = results::keep(&launches, folder, remark)?;
    Ok(kept.iter().try_for_each(|path| output::show(&format!("{}\n", quoted(path))))?)
}

fn tables(folder: &Path, page: &Path, check: bool) -> Result<()> {
    let pages = page::text(&results::load(folder)?, &folder.join("notes"))?;
    let beside = page.with_file_name(page::FOLDER);
    if !check {
        fs::create_dir_all(&beside).with_context(|| format!("{} cannot be made", quoted(&beside)))?;
    }
    let of_experiments = pages.of_experiments.into_iter();
    let of_experiments = of_experiments.map(|(name, text)| (beside.join(format!("{name}.md")), text));
    let all: Vec<(PathBuf, String)> =
        std::iter::once((page.to_owned(), pages.first)).chain(of_experiments).collect();
    let entries = fs::read_dir(&beside).into_iter().flatten().flatten().map(|entry| entry.path());
    if let Some(other) = entries.into_iter().find(|path| all.iter().all(|(page, _)| page != path)) {
        bail!("{} is the page of no experiment that has results: delete it", quoted(&other))
    }
    for (path, text) in &all {
        if !check {
            Target::named(path)?.write(text.as_bytes())?;
            continue;
        }
        let Some(line) = first_difference(&results::text_of(path)?, text) else { continue };
        bail!(
            "{} differs from its data or from today's code, from line {line} on: write it with `quire report \
             tables`",
            quoted(path)
        )
    }
    Ok(())
}

/// The number of the first line that differs.
fn first_difference(one: &str, other: &str) -> Option<usize> {
    if one == other {
        return None;
    }
    let same = one.lines().zip(other.lines()).take_while(|(one, other)| one == other).count();
    Some(same + 1)
}
