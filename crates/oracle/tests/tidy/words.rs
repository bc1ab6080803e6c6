//! What no file says or does: that work is unfinished, or where one machine keeps its files. Modules are found by their names, not by `#[path]`.

use crate::source::Source;

/// Each in two parts, so that this file does not say it either.
const UNFINISHED: [[&str; 2]; 6] =
    [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["to", "do!("], ["unimple", "mented!("], ["#[ig", "nore"]];
const PLACES: [[&str; 2]; 4] = [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Use", "rs/"]];

pub(crate) fn check(files: &[Source]) -> Vec<String> {
    let forbidden: Vec<String> = UNFINISHED.iter().chain(&PLACES).map(|parts| parts.concat()).collect();
    let mut complaints = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let said = forbidden.iter().filter(|word| says(line, word));
            complaints.extend(said.map(|word| format!("{}:{}: {word}", file.path, at + 1)));
        }
    }
    complaints
}

/// Whether the line has the words, not as a part of longer ones.
fn says(line: &str, words: &str) -> bool {
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(words).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + words.len()..].chars().next());
        let (first, last) = (words.chars().next(), words.chars().next_back());
        !(joins(before) && joins(first)
            || joins(after) && joins(last)
            || words.starts_with('/') && joins(before))
    })
}

/// Where files are included by path: loom's models compile the library's files with other atomics and smaller limits.
const MODELS: &str = "crates/quire/tests/loom/";

/// Modules whose file is named by an attribute, so that their path does not say where they are.
pub(crate) fn included(files: &[Source]) -> Vec<String> {
    let elsewhere = files.iter().filter(|file| !file.path.starts_with(MODELS));
    let lines =
        elsewhere.flat_map(|file| file.text.lines().enumerate().map(move |(at, line)| (file, at, line)));
    let by_path = lines.filter(|(.., line)| line.trim_start().starts_with("#[path"));
    by_path
        .map(|(file, at, _)| format!("{}:{}: a file that is included by path", file.path, at + 1))
        .collect()
}

#[test]
fn a_file_that_is_included_by_path_is_found() {
    let text = "mod a;\n    #[path = \"../b.rs\"]\n    mod b;\n// #[path]";
    assert_eq!(included(&[Source::new(&format!("{MODELS}a.rs"), text)]), [""; 0]);
    assert_eq!(included(&[Source::new("src/a.rs", text)]), ["src/a.rs:2: a file that is included by path"]);
}

#[test]
fn unfinished_work_and_places_are_found() {
    for parts in UNFINISHED.iter().chain(&PLACES) {
        let word = parts.concat();
        let found = check(&[Source::new("a.md", &format!("fine\nsome {word} here\n"))]);
        assert_eq!(found, [format!("a.md:2: {word}")]);
    }
    let inside = PLACES.map(|parts| format!("a{}b", parts.concat())).join(" ");
    let innocent = format!("TODOS FIXMES XXXL mastodon todo! work/ ignored {inside}");
    assert_eq!(check(&[Source::new("a.md", &innocent)]), [""; 0]);
}
