//! The copy of the library with the bugs: the same files, with a switch at each place.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::operators::{Found, Operator, Place, find};
use crate::sample::Mutant;

/// Below the repository's root.
pub(crate) const BELOW: &str = "target/mutants";
const LIBRARY: &str = "crates/quire/src/";
/// The copied crates, of which one lies in another.
const CRATES: [&str; 6] = [
    "crates/quire",
    "crates/quire/tests/library",
    "crates/hosted",
    "crates/oracle",
    "crates/pins",
    "crates/testkit",
];
const WHOLE: [&str; 5] = ["Cargo.lock", "rust-toolchain.toml", "README.md", "docs", "traces"];
/// Files that only count, check or name, or must be constant.
const LEFT_ALONE: [&str; 4] = ["stats.rs", "validate.rs", "error.rs", "limits.rs"];

/// The library's files, and the places for bugs in each.
pub(crate) struct Sources {
    pub(crate) files: Vec<(String, String, Found)>,
}

impl Sources {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        for path in files_below(&root.join(LIBRARY))? {
            let name = path.strip_prefix(root)?.to_str().context("a path in UTF-8")?.to_string();
            let last = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_test = name.split('/').any(|part| part == "tests" || part == "tests.rs");
            let is_contract = name.starts_with("crates/quire/src/platform/");
            if !name.ends_with(".rs") || is_test || is_contract || LEFT_ALONE.contains(&last) {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            let found = find(&text).with_context(|| name.clone())?;
            files.push((name, text, found));
        }
        Ok(Self { files })
    }

    pub(crate) fn count(&self, of: impl Fn(&Found) -> usize) -> usize {
        self.files.iter().map(|(_, _, found)| of(found)).sum()
    }
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A copy, and the places of the bugs in its files.
pub(crate) struct Copy {
    pub(crate) root: PathBuf,
    pub(crate) ranges: HashMap<String, Vec<(Range<usize>, u32)>>,
}

/// Writes the copy. Unchanged files are not written, so that cargo rebuilds little.
pub(crate) fn write(root: &Path, sources: &Sources, chosen: &[(Mutant, Place)]) -> Result<Copy> {
    let copy = root.join(BELOW).join("copy");
    for part in CRATES.iter().chain(&WHOLE) {
        let from = root.join(part);
        let files = if from.is_dir() { files_below(&from)? } else { vec![from] };
        for file in files {
            let below = file.strip_prefix(root)?;
            let is_library = below.starts_with(LIBRARY);
            if !is_library || !sources.files.iter().any(|(name, ..)| Path::new(name) == below) {
                put(&copy.join(below), &fs::read(&file)?)?;
            }
        }
    }
    let mut ranges = HashMap::new();
    for (file, text, _) in &sources.files {
        let mut here: Vec<_> = chosen.iter().filter(|(mutant, _)| mutant.file == *file).collect();
        here.sort_by_key(|(_, place)| place.range.start);
        let (mut text, switched) = switch(text, &here);
        if file.ends_with("src/lib.rs") {
            text.push_str("\npub mod mutants;\n");
        }
        put(&copy.join(file), text.as_bytes())?;
        ranges.insert(file.clone(), switched);
    }
    put(&copy.join(LIBRARY).join("mutants.rs"), include_bytes!("switch.rs"))?;
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    put(&copy.join("Cargo.toml"), only_copied(&workspace).as_bytes())?;
    Ok(Copy { root: copy, ranges })
}

/// The workspace with only the copied members.
fn only_copied(workspace: &str) -> String {
    let members = format!("members = {CRATES:?}");
    let kept = workspace.lines().filter(|line| !line.starts_with("default-members"));
    let lines = kept.map(|line| if line.starts_with("members") { &members } else { line });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a file in a folder")?)?;
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

/// The text with a switch at each place, in order, and the places of the switches in it.
fn switch(text: &str, places: &[&(Mutant, Place)]) -> (String, Vec<(Range<usize>, u32)>) {
    let (mut out, mut ranges, mut done) = (String::new(), Vec::new(), 0);
    for (mutant, place) in places {
        out.push_str(&text[done..place.range.start]);
        let start = out.len();
        let (original, number) = (&text[place.range.clone()], mutant.number);
        let other = &place.mutated;
        let choice = format!("if crate::mutants::on({number}) {{ {other} }} else {{ {original} }}");
        out += &match mutant.operator {
            _ if other.is_empty() => format!("if !crate::mutants::on({number}) {{ {original} }}"),
            // No comma need follow an arm that is a block.
            Operator::Arm => format!("{{ {choice} }}"),
            _ => format!("({choice})"),
        };
        ranges.push((start..out.len(), number));
        done = place.range.end;
    }
    out.push_str(&text[done..]);
    (out, ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::locate;

    fn sources(text: &str) -> Sources {
        let found = find(text).expect("Rust");
        Sources { files: vec![("crates/quire/src/a.rs".into(), text.into(), found)] }
    }

    fn mutant(number: u32, operator: Operator, original: &str, mutated: &str, nth: usize) -> Mutant {
        let json = serde_json::json!({
            "number": number, "file": "crates/quire/src/a.rs", "line": 1, "function": "f", "operator": operator,
            "class": "step", "original": original, "mutated": mutated, "nth": nth,
        });
        serde_json::from_value(json).expect("a bug")
    }

    #[test]
    fn switches_stand_at_their_places() {
        let text = "fn f() -> bool {\n    flush();\n    flush();\n    a < b\n}\n";
        let list = [
            mutant(7, Operator::Statement, "flush();", "", 1),
            mutant(8, Operator::Boundary, "a < b", "a <= b", 0),
            mutant(9, Operator::Boundary, "gone < b", "gone <= b", 0),
        ];
        let chosen = locate(&sources(text), &list);
        assert_eq!(chosen.len(), 2, "a place whose text is gone is left out");
        let (switched, ranges) = switch(text, &chosen.iter().collect::<Vec<_>>());
        let expected = "fn f() -> bool {\n    flush();\n    if !crate::mutants::on(7) { flush(); }\n    \
            (if crate::mutants::on(8) { a <= b } else { a < b })\n}\n";
        assert_eq!(switched, expected);
        assert!(
            switched[ranges[1].0.clone()].contains("on(8)"),
            "an error of the compiler is traced to its bug"
        );
    }

    #[test]
    fn an_arm_stays_a_block_without_a_comma() {
        let text = "fn f() {\n    match x {\n        A => {\n            g();\n        }\n        B => h(),\n    }\n}\n";
        let list = [mutant(5, Operator::Arm, "{\n            g();\n        }", "h()", 0)];
        let chosen = locate(&sources(text), &list);
        let (switched, _) = switch(text, &chosen.iter().collect::<Vec<_>>());
        assert!(find(&switched).is_ok(), "{switched}");
    }

    #[test]
    fn a_bug_moves_with_its_function() {
        let text = "fn f() -> bool {\n    a < b\n}\n";
        let list = [mutant(8, Operator::Boundary, "a < b", "a <= b", 0)];
        let file = |name: &str| (name.to_string(), text.to_string(), find(text).expect("Rust"));
        let moved = Sources { files: vec![file("crates/quire/src/room/b.rs")] };
        let chosen = locate(&moved, &list);
        assert_eq!(chosen[0].0.file, "crates/quire/src/room/b.rs");
        let twice = Sources { files: vec![file("crates/quire/src/b.rs"), file("crates/quire/src/c.rs")] };
        assert!(locate(&twice, &list).is_empty(), "which of the two it was is not known");
    }

    #[test]
    fn the_copy_has_fewer_members() {
        let text = only_copied(
            "[workspace]\nmembers = [\"crates/quire\", \"crates/lab\"]\ndefault-members = [\"crates/lab\"]\nx = 1\n",
        );
        let expected = "[workspace]\nmembers = [\"crates/quire\", \"crates/quire/tests/library\", \"crates/hosted\", \"crates/oracle\", \"crates/pins\", \"crates/testkit\"]\nx = 1\n";
        assert_eq!(text, expected);
    }
}
