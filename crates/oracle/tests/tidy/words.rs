//! What no file says: that work is unfinished, or where somebody's machine keeps things.

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
