//! `quire report html`: one file that shows figures in a browser, without a network.
//!
//! ```text
//! page      the frame of the page: head, styles, sections        style.css   light and dark, phone and print
//! plot      the plots, as SVG whose colours the page chooses
//! compare   what `quire compare --json` and `quire bench --json` wrote
//! verify    what `quire verify --format json` wrote        advise    the same of `quire advise`
//! memory    of its cards those of processes, accesses, first touches   policies  other policies than sizes of folios
//! mappings  its tables of mappings, and of a plan for some of them alone
//! side_by_side several runs of one program
//! ```

mod advise;
mod compare;
mod mappings;
mod memory;
mod page;
mod plot;
mod policies;
mod side_by_side;
mod verify;

use std::path::Path;

use anyhow::{Context, Result, bail};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::results::text_of;
use crate::bench::row::Row;
use crate::output::{Target, quoted};

/// The cure for a file that has no figures.
const FROM: &str = "give what advise, verify, compare or bench wrote with --format json";

/// Writes the page of `files` to `out`. An empty file is that of a shard that had no recording.
///
/// # Errors
/// A file that cannot be read, or that no command of this one wrote; files that are all empty.
pub(super) fn write(files: &[impl AsRef<Path>], out: &Path) -> Result<()> {
    let target = Target::named(out)?;
    let (mut sections, mut programs, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let unusable = || format!("cannot show {}; {FROM}", quoted(file.as_ref()));
        let text = text_of(file.as_ref()).with_context(unusable)?;
        if text.is_empty() {
            continue;
        }
        let name = || file.as_ref().file_name().unwrap_or_default().to_string_lossy().into_owned();
        match read(&text).with_context(unusable)? {
            Figures::Compared(rows) => sections.push(compare::section(&rows)?),
            Figures::Verified(more) => {
                runs.extend(more.iter().map(|program| program.run(name())));
                programs.extend(more);
            }
            Figures::Advised(advice) => {
                runs.extend(advice.iter().map(|advice| advice.run(name())));
                sections.extend(advice.iter().map(advise::section).collect::<Result<Vec<_>>>()?);
            }
        }
    }
    if !programs.is_empty() {
        sections.insert(0, verify::section(&programs)?);
    }
    sections.splice(0..0, side_by_side::sections(&runs)?);
    if let (true, Some(file)) = (sections.is_empty(), files.first()) {
        bail!("{} is empty, and no other file has figures", quoted(file.as_ref()));
    }
    target.write(page::text(&sections).as_bytes())
}

/// What a file says.
enum Figures {
    Compared(Vec<Row>),
    Verified(Vec<verify::Program>),
    Advised(Vec<advise::Advice>),
}

/// The figures of a file of JSON lines.
fn read(text: &str) -> Result<Figures> {
    let first = text.lines().next().unwrap_or_default();
    let first: Value = serde_json::from_str(first).context("its first line is no JSON object")?;
    if first.get("experiment").is_some() {
        Ok(Figures::Compared(all(text)?))
    } else if first.get("recorded_faults").is_some() {
        Ok(Figures::Verified(all(text)?))
    } else if first.get("sets").is_some() {
        Ok(Figures::Advised(all(text)?))
    } else {
        bail!("none of them wrote this one")
    }
}

fn all<T: DeserializeOwned>(text: &str) -> Result<Vec<T>> {
    let lines = (1..).zip(text.lines());
    lines.map(|(number, line)| serde_json::from_str(line).with_context(|| format!("line {number}"))).collect()
}
