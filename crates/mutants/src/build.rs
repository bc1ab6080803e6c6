//! Builds the copy, and names the bugs that the compiler refuses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::copy::Copy;

/// A test program.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The folder in which `cargo test` would run it.
    pub(crate) folder: PathBuf,
}

/// Test programs of the copy that do not test the library.
const OTHERS: [&str; 3] = ["tidy", "linux", "quire_mm_loom"];

/// The numbers of the bugs with which the library does not compile: some of them, since a compiler stops at the first
/// phase that finds an error.
pub(crate) fn refused(copy: &Copy) -> Result<BTreeSet<u32>> {
    let (messages, done) = cargo(copy, &["check", "-p", "quire-mm", "--lib"])?;
    let mut refused = BTreeSet::new();
    for message in messages.iter().filter(|message| message["message"]["level"] == "error") {
        refused.extend(switches_of(copy, &message["message"]));
    }
    ensure!(
        done || !refused.is_empty(),
        "the copy does not compile, and no bug is to blame:\n{}",
        said(&messages)
    );
    Ok(refused)
}

fn said(messages: &[Value]) -> String {
    messages.iter().filter_map(|message| message["message"]["rendered"].as_str()).collect()
}

/// The bugs at the places of the message; if there are none, those at the places of its notes.
fn switches_of(copy: &Copy, message: &Value) -> Vec<u32> {
    let named = switches_at(copy, &message["spans"]);
    if !named.is_empty() {
        return named;
    }
    let notes = message["children"].as_array().into_iter().flatten();
    notes.flat_map(|note| switches_at(copy, &note["spans"])).collect()
}

fn switches_at(copy: &Copy, spans: &Value) -> Vec<u32> {
    let spans = spans.as_array().into_iter().flatten();
    let mut numbers = Vec::new();
    for span in spans {
        let number = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
        let file = span["file_name"].as_str().unwrap_or_default();
        let Some(ranges) = copy.ranges.get(file) else { continue };
        let touched = ranges
            .iter()
            .filter(|(range, _)| range.start < number("byte_end") && number("byte_start") < range.end);
        numbers.extend(touched.map(|(_, number)| *number));
    }
    numbers
}

/// Builds every test program.
///
/// # Errors
/// The copy does not compile.
pub(crate) fn programs(copy: &Copy) -> Result<Vec<Program>> {
    let packages = ["-p", "quire-mm", "-p", "quire-mm-tests", "-p", "quire-oracle", "-p", "quire-pins"];
    let mut arguments = vec!["test", "--no-run", "--lib", "--tests"];
    arguments.extend(packages);
    let (messages, done) = cargo(copy, &arguments)?;
    ensure!(done, "the copy does not compile: draw the list again\n{}", said(&messages));
    let mut programs = Vec::new();
    for message in &messages {
        let (Some(path), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        let name = message["target"]["name"].as_str().unwrap_or_default();
        if message["profile"]["test"] == true && !OTHERS.contains(&name) {
            let folder = Path::new(manifest).parent().context("a manifest in a folder")?;
            programs.push(Program { path: path.into(), folder: folder.into() });
        }
    }
    Ok(programs)
}

/// Runs cargo in the copy; returns its messages and whether it succeeded.
fn cargo(copy: &Copy, arguments: &[&str]) -> Result<(Vec<Value>, bool)> {
    let mut command = Command::new("cargo");
    command.args(arguments).arg("--message-format=json").current_dir(&copy.root);
    command.env("CARGO_TARGET_DIR", copy.root.with_file_name("build"));
    command.env("CARGO_INCREMENTAL", "0").env("CARGO_PROFILE_DEV_DEBUG", "none");
    // Unused code because of a bug is no reason to refuse it.
    command.env("RUSTFLAGS", "--cap-lints=allow");
    let output = command.stderr(Stdio::inherit()).output().context("cargo")?;
    let lines = output.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"{"));
    let messages = lines.map(serde_json::from_slice).collect::<Result<_, _>>()?;
    Ok((messages, output.status.success()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use serde_json::json;

    use super::*;

    /// As the compiler refuses a value that is moved in a loop, since the statement that sets it anew has a switch.
    #[test]
    fn a_bug_that_only_a_note_points_at_is_to_blame() {
        let file = "crates/quire/src/vm/fault/faults.rs";
        let ranges = HashMap::from([(file.to_owned(), vec![(10..20, 3), (50..60, 4)])]);
        let copy = Copy { root: PathBuf::new(), ranges };
        let span = |start: u32, end: u32| json!({ "file_name": file, "byte_start": start, "byte_end": end });
        let note = json!({ "spans": [span(55, 56)], "children": [] });
        let moved = json!({ "spans": [span(30, 34)], "children": [note] });
        assert_eq!(switches_of(&copy, &moved), [4]);
        // A note of an error that names its bug may point at innocent ones.
        let named = json!({ "spans": [span(12, 13)], "children": [note] });
        assert_eq!(switches_of(&copy, &named), [3]);
    }
}
