//! Unsafe code stands in the files that pages list, and in no other; SAFETY comments name invariants.

use crate::source::Source;

/// The files in the table below the heading `Unsafe code`.
pub(crate) fn listed(page: &str) -> Vec<String> {
    let (_, rest) = page.split_once("## Unsafe code\n").expect("the page has the heading `Unsafe code`");
    let section = rest.split_once("\n## ").map_or(rest, |(section, _)| section);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_string).collect()
}

pub(crate) fn check(listed: &[String], files: &[Source]) -> Vec<String> {
    let has_some = |file: &Source| file.tokens().iter().any(|token| token.is_word("unsafe"));
    let mut complaints = Vec::new();
    for file in files {
        match (has_some(file), listed.contains(&file.path)) {
            (true, false) => {
                complaints.push(format!("{}: unsafe code in a file that is not listed", file.path))
            }
            (false, true) => complaints.push(format!("{}: listed, and has no unsafe code", file.path)),
            _ => {}
        }
    }
    let gone = listed.iter().filter(|path| !files.iter().any(|file| file.path == **path));
    complaints.extend(gone.map(|path| format!("{path}: listed, and does not exist")));
    complaints
}

/// SAFETY comments that name no invariant: neither `invariant 1` nor a letter and a number.
pub(crate) fn unargued(files: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let Some(said) = line.trim_start().strip_prefix("// SAFETY:") else { continue };
            let more = file.text.lines().skip(at + 1).map_while(|line| line.trim_start().strip_prefix("// "));
            if !names_an_invariant(said) && !more.clone().any(names_an_invariant) {
                complaints.push(format!("{}:{}: a SAFETY comment names no invariant", file.path, at + 1));
            }
        }
    }
    complaints
}

/// SAFETY comments that say no more than that another comment argues the same.
pub(crate) fn refers_elsewhere(files: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in files {
        let lines = file.text.lines().map(str::trim_start).enumerate();
        for (at, line) in lines.filter(|(_, line)| line.starts_with("// SAFETY:")) {
            if line.contains("as above") || line.contains("as below") || line.contains("SAFETY: as for") {
                complaints.push(format!("{}:{}: a SAFETY comment refers to another", file.path, at + 1));
            }
        }
    }
    complaints
}

fn names_an_invariant(said: &str) -> bool {
    let named = |word: &str| {
        let digits = word.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
        word.len() == digits.len() + 1 && digits.parse::<u8>().is_ok()
    };
    said.contains("invariant ")
        || said.contains("invariants ")
        || said.split(|letter: char| !letter.is_alphanumeric()).any(named)
}

#[test]
fn a_safety_comment_without_an_invariant_is_found() {
    let text = "// SAFETY: a table of\n// the pool (C1).\n\n// SAFETY: C1: inside.\n// SAFETY: invariant 1, by contract.\n    // SAFETY: as above.\nlet a = \"// SAFETY: no\";";
    assert_eq!(unargued(&[Source::new("a.rs", text)]), ["a.rs:6: a SAFETY comment names no invariant"]);
}

#[test]
fn a_safety_comment_that_refers_to_another_is_found() {
    let text = "// SAFETY: X9: as above.\n// SAFETY: inside, as below.\n// SAFETY: as for `a`.";
    let found = refers_elsewhere(&[Source::new("a.rs", text)]);
    assert_eq!(found, [1, 2, 3].map(|at| format!("a.rs:{at}: a SAFETY comment refers to another")));
    assert_eq!(refers_elsewhere(&[Source::new("a.rs", "// As above.\n// SAFETY: X9: the other.")]), [""; 0]);
}

#[test]
fn unsafe_code_in_another_file_is_found() {
    let listed = listed(
        "# A\n\n## Unsafe code\n\n| file | for |\n|---|---|\n| `a.rs` | x |\n| `b.rs` | y |\n\n## B\n\n| `c.rs` |",
    );
    assert_eq!(listed, ["a.rs", "b.rs"]);
    let files = |texts: [&str; 3]| {
        let named = ["a.rs", "b.rs", "c.rs"].into_iter().zip(texts);
        named.map(|(path, text)| Source::new(path, text)).collect::<Vec<_>>()
    };
    let quiet = "#![forbid(unsafe_code)] // unsafe\nconst A: &str = \"unsafe\";";
    assert_eq!(check(&listed, &files(["fn f() { unsafe {} }", "unsafe impl A for B {}", quiet])), [""; 0]);
    let found = check(&listed, &files([quiet, "unsafe fn f();", "macro_rules! m { () => { unsafe {} } }"]));
    assert_eq!(
        found,
        ["a.rs: listed, and has no unsafe code", "c.rs: unsafe code in a file that is not listed"]
    );
    assert_eq!(
        check(&listed, &files(["unsafe trait A {}", "unsafe {}", ""])[..1]),
        ["b.rs: listed, and does not exist"]
    );
}
