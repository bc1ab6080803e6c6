//! `quire report html`: one file that shows figures in a browser, without a network.
//!
//! ```text
//! page      the frame of the page: head, styles, sections        style.css   light and dark, phone and print
//! plot      the plots, as SVG whose colours the page chooses
//! compare   what `quire compare --json` and `quire bench --json` wrote
//! ```

mod compare;
mod page;
mod plot;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::bench::row::Row;
use crate::output::{Target, quoted};

/// Writes the page of `files` to `out`.
///
/// # Errors
/// A file that cannot be read, or that no command of this one wrote.
pub(super) fn write(files: &[impl AsRef<Path>], out: &Path) -> Result<()> {
    let target = Target::named(out)?;
    let sections = files.iter().map(|file| section(file.as_ref())).collect::<Result<Vec<_>>>()?;
    target.write(page::text(&sections).as_bytes())
}

/// What one file says.
fn section(file: &Path) -> Result<page::Section> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", quoted(file)))?;
    let rows: Result<Vec<Row>, _> = text.lines().map(serde_json::from_str).collect();
    match rows {
        Ok(rows) if !rows.is_empty() => compare::section(&rows).with_context(|| quoted(file).to_string()),
        Ok(_) => bail!("{} is empty", quoted(file)),
        Err(error) => Err(error)
            .with_context(|| format!("{} has a line that neither bench nor compare wrote", quoted(file))),
    }
}
