//! Every invariant of `docs/invariants.md` and `docs/invariants/` names tests that exist and cite it, and SAFETY comments
//! cite only what these pages define.

use std::collections::HashSet;

use crate::source::Source;

/// An entry of a page: what it is called, and the tests that it names as file and function.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Invariant {
    pub(crate) name: String,
    tests: Vec<(String, String)>,
}

/// Entries start with `**NAME. `, and their tests stand in a paragraph that starts with `Tests:`: a file in backquotes
/// and behind it, in backquotes as well, its functions.
pub(crate) fn parse(page: &str) -> Vec<Invariant> {
    let mut found: Vec<Invariant> = Vec::new();
    let mut in_tests = false;
    for line in page.lines() {
        if let Some(name) =
            line.strip_prefix("**").and_then(|rest| rest.split(". ").next()).filter(|name| is_name(name))
        {
            found.push(Invariant { name: name.into(), tests: Vec::new() });
        }
        in_tests = line.starts_with("Tests:") || in_tests && !line.is_empty();
        if let (true, Some(last)) = (in_tests, found.last_mut()) {
            for word in line.split('`').skip(1).step_by(2) {
                let file = last.tests.last().map(|(file, _)| file.clone()).unwrap_or_default();
                let named = last.tests.last().is_some_and(|(_, test)| test.is_empty());
                match [".rs", ".c"].iter().any(|end| word.ends_with(end)) {
                    true => last.tests.push((word.into(), String::new())),
                    false if named => last.tests.last_mut().expect("just seen").1 = word.into(),
                    false => last.tests.push((file, word.into())),
                }
            }
        }
    }
    found
}

/// A number, or a letter and a number.
fn is_name(word: &str) -> bool {
    let digits = word.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or(word);
    !digits.is_empty() && digits.len() <= 2 && digits.chars().all(|c| c.is_ascii_digit())
}

pub(crate) fn check(invariants: &[Invariant], files: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for Invariant { name, tests } in invariants {
        let mut cited = false;
        for (path, test) in tests {
            let Some(file) = files.iter().find(|file| file.path == *path).filter(|file| file.is_test())
            else {
                complaints.push(format!("invariant {name}: `{path}` is no test"));
                continue;
            };
            let is_defined = match path.ends_with(".c") {
                true => file.text.lines().any(|line| defines_in_c(line, test)),
                false => file.text.contains(&format!("fn {test}(")),
            };
            if !is_defined {
                complaints.push(format!("invariant {name}: `{path}` has no test `{test}`"));
            }
            cited |= cites(&file.text, name);
        }
        if !cited {
            complaints.push(format!("invariant {name}: none of its tests cites it"));
        }
    }
    let defined: HashSet<&str> = invariants.iter().map(|invariant| invariant.name.as_str()).collect();
    for file in files {
        for name in in_safety_comments(&file.text) {
            if !defined.contains(name) {
                complaints.push(format!("{}: cites {name}, which is not defined", file.path));
            }
        }
    }
    complaints
}

/// Whether a line of C starts the definition of a function of its file.
fn defines_in_c(line: &str, function: &str) -> bool {
    line.starts_with("static ") && line.contains(&format!("{function}(")) && !line.ends_with(';')
}

/// Whether a text says `invariant 3` (or `invariants 2 and 3`), or for a name with a letter, the name.
fn cites(text: &str, name: &str) -> bool {
    let numbered = name.chars().all(|c| c.is_ascii_digit());
    if !numbered {
        return words(text).any(|word| word == name);
    }
    text.to_lowercase().split("invariant").skip(1).any(|rest| {
        let list = rest.strip_prefix('s').unwrap_or(rest);
        words(list).take_while(|word| is_name(word) || ["and", "to"].contains(word)).any(|word| word == name)
    })
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// Names with a letter in comments that start with `SAFETY:`.
fn in_safety_comments(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        let comment = line.strip_prefix("// ");
        inside = comment.is_some_and(|comment| inside || comment.starts_with("SAFETY:"));
        let lettered = |word: &&str| is_name(word) && word.starts_with(|c: char| c.is_ascii_uppercase());
        found.extend(
            comment.filter(|_| inside).into_iter().flat_map(|comment| words(comment).filter(lettered)),
        );
    }
    found
}

#[cfg(test)]
mod broken {
    use super::*;

    const PAGE: &str = "# I\n\n**1. One.** Text.\nTests: `a/tests/x.rs` `one`, `two`;\n`a/tests/y.rs` `three`.\n\n\
                        **M2. Two.** `not_a_test`.\n\nTests: `a/tests/y.rs` `three`.\n";

    fn files(x: &str, y: &str, code: &str) -> [Source; 3] {
        [Source::new("a/tests/x.rs", x), Source::new("a/tests/y.rs", y), Source::new("a/src/z.rs", code)]
    }

    #[test]
    fn the_page_is_read() {
        let found = parse(PAGE);
        assert_eq!(found.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["1", "M2"]);
        let pairs = [("a/tests/x.rs", "one"), ("a/tests/x.rs", "two"), ("a/tests/y.rs", "three")];
        assert_eq!(found[0].tests, pairs.map(|(file, test)| (file.to_string(), test.to_string())));
    }

    #[test]
    fn missing_tests_and_citations_are_found() {
        let invariants = parse(PAGE);
        let x = "/// Invariants 1 and 3.\nfn one() {}\nfn two() {}";
        let y = "/// M2\nfn three() {}";
        let code = "// SAFETY: M2: it is so,\n// by M2.\nunsafe {}\n// M9 is a road\n";
        assert_eq!(check(&invariants, &files(x, y, code)), [""; 0]);
        let complaints = |x, y, code| check(&invariants, &files(x, y, code));
        assert_eq!(
            complaints("/// invariant 1\nfn one() {}", y, code),
            ["invariant 1: `a/tests/x.rs` has no test `two`"]
        );
        assert_eq!(
            complaints("/// invariant 11\nfn one() {}\nfn two() {}", y, code),
            ["invariant 1: none of its tests cites it"]
        );
        assert_eq!(
            complaints(x, "/// M21\nfn three() {}", code),
            ["invariant M2: none of its tests cites it"]
        );
        assert_eq!(
            complaints(x, y, "// SAFETY: by\n// M3.\n"),
            ["a/src/z.rs: cites M3, which is not defined"]
        );
        let c = Source::new("a/tests/y.c", "/* M2 */\nstatic int *three(void)\n{\n    four(2);\n}");
        let in_c = |test: &str| parse(&format!("**M2. Two.**\nTests: `a/tests/y.c` `{test}`."));
        assert_eq!(check(&in_c("three"), std::slice::from_ref(&c)), [""; 0]);
        assert_eq!(check(&in_c("four"), &[c]), ["invariant M2: `a/tests/y.c` has no test `four`"]);
        let gone = check(&invariants, &files(x, y, code)[1..]);
        assert!(gone.contains(&"invariant 1: `a/tests/x.rs` is no test".to_string()));
    }
}
