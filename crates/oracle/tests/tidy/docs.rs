//! Pages lead somewhere: links between them, and the paths that they name. Their lines are at most 100 columns long.

use std::collections::{HashMap, HashSet};

use crate::source::Source;

/// The longest line of prose.
const COLUMNS: usize = 100;

pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let mut known: HashSet<&str> = HashSet::new();
    for source in sources {
        known.insert(&source.path);
        let folders = source.path.match_indices('/').map(|(at, _)| &source.path[..at]);
        known.extend(folders);
    }
    let mut complaints = Vec::new();
    for page in sources.iter().filter(|source| source.path.ends_with(".md")) {
        let links = links(&page.text).into_iter().map(|link| resolve(&page.path, link));
        let paths = paths(&page.text).into_iter().map(|path| path.trim_end_matches('/').to_string());
        let named = files_below(&page.text, &page.path).filter(|file| !stands_somewhere(sources, file));
        complaints.extend(named.map(|file| format!("{}: there is no file `{file}`", page.path)));
        let gone = links.chain(paths).filter(|path| !known.contains(path.as_str()));
        complaints.extend(gone.map(|path| format!("{}: leads to `{path}`, which is not there", page.path)));
    }
    complaints
}

/// Links to a heading that its page does not have.
pub(crate) fn headless(sources: &[Source]) -> Vec<String> {
    let pages: HashMap<&str, &str> =
        sources.iter().map(|source| (source.path.as_str(), source.text.as_str())).collect();
    let mut complaints = Vec::new();
    for page in sources.iter().filter(|source| source.path.ends_with(".md")) {
        for target in targets(&page.text) {
            let Some((link, heading)) = target.split_once('#') else { continue };
            let path = if link.is_empty() { page.path.clone() } else { resolve(&page.path, link) };
            let there = pages.get(path.as_str()).is_some_and(|text| anchors(text).any(|at| at == heading));
            if path.ends_with(".md") && !there {
                complaints.push(format!("{}: leads to `{heading}`, a heading that {path} lacks", page.path));
            }
        }
    }
    complaints
}

/// What links call the headings of a page, as the sites do that show Markdown.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    let headings =
        page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| {
        let kept = heading.chars().filter(|&letter| letter.is_alphanumeric() || " -_".contains(letter));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    })
}

/// Lines of prose that are longer than `COLUMNS`. Tables and code stay as they are, and so does a single long word.
pub(crate) fn unwrapped(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for page in sources.iter().filter(|source| source.path.ends_with(".md")) {
        let mut is_code = false;
        for (at, line) in page.text.lines().enumerate() {
            let fence = line.trim_start().starts_with("```");
            is_code ^= fence;
            let stays = is_code || fence || line.starts_with('|') || line.split_whitespace().count() == 1;
            let columns = line.chars().count();
            if columns > COLUMNS && !stays {
                complaints.push(format!("{}:{}: {columns} columns", page.path, at + 1));
            }
        }
    }
    complaints
}

/// The targets of links inside the repository.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://"))
}

/// The same without their headings, and without those to the page itself.
fn links(text: &str) -> Vec<&str> {
    let others = targets(text).filter(|target| !target.starts_with('#'));
    others.map(|target| target.split('#').next().unwrap_or_default()).collect()
}

/// What stands in backquotes and looks like a path from the repository's root.
fn paths(text: &str) -> Vec<&str> {
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    let named = |word: &&str| {
        let rooted = ["crates/", "docs/", "traces/", ".ci/"].iter().any(|root| word.starts_with(root));
        rooted && !word.contains([' ', '*', '…', '{', '<'])
    };
    quoted.filter(named).map(|path| path.split("::").next().unwrap_or_default()).collect()
}

/// What stands in backquotes and looks like the end of a Rust file's path. Decisions are history: they may name what was.
fn files_below<'a>(text: &'a str, page: &str) -> impl Iterator<Item = &'a str> {
    let history = page.starts_with("docs/decisions/") || page.starts_with("docs/measured");
    let quoted = text.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    quoted.filter(move |word| !history && word.ends_with(".rs") && !word.contains([' ', '*', '…', '{', '<']))
}

fn stands_somewhere(sources: &[Source], file: &str) -> bool {
    let ends =
        |path: &str| path.strip_suffix(file).is_some_and(|before| before.is_empty() || before.ends_with('/'));
    sources.iter().any(|source| ends(&source.path))
}

/// The files that answer the questions of `CONTRIBUTING.md`: the last column of the table below the heading.
pub(crate) fn answers(page: &str) -> Vec<&str> {
    let (_, table) = page.split_once("## Which file do I open?\n").unwrap_or_default();
    let section = table.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.filter_map(|row| row.rsplit('`').nth(1)).collect()
}

fn resolve(page: &str, link: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let pages = |text: &str| {
        [Source::new("docs/a.md", text), Source::new("docs/b/c.md", ""), Source::new("crates/x.rs", "")]
    };
    let good = "[c](b/c.md#part) [r](../crates/x.rs) [w](https://x.y/z) [h](#h) `crates/x.rs` `docs/b/` `crates/*` `docs/a b`";
    assert_eq!(check(&pages(good)), [""; 0]);
    assert_eq!(check(&pages("`x.rs`, `*.rs`")), [""; 0]);
    assert_eq!(check(&pages("`b/x.rs`")), ["docs/a.md: there is no file `b/x.rs`"]);
    for bad in ["[c](b/d.md)", "`docs/b/d.md`"] {
        assert_eq!(check(&pages(bad)), ["docs/a.md: leads to `docs/b/d.md`, which is not there"]);
    }
}

#[test]
fn a_link_to_a_heading_that_is_gone_is_found() {
    let of = |heading: &str| {
        let text = format!("# A\n## What is `x.y`, and why?\n[w](https://x.y/#z) [x](#{heading})");
        headless(&[
            Source::new("docs/a.md", &text),
            Source::new("b.md", &format!("[a](docs/a.md#{heading})")),
        ])
    };
    assert_eq!(of("what-is-xy-and-why"), [""; 0]);
    let expected = |page: &str| format!("{page}: leads to `why`, a heading that docs/a.md lacks");
    assert_eq!(of("why"), [expected("docs/a.md"), expected("b.md")]);
}

#[test]
fn a_long_line_of_prose_is_found() {
    let long = "word ".repeat(21);
    let exempt = format!("| {long}|\n```\n{long}\n```\n{}\n{}", "w".repeat(101), "ä ".repeat(50));
    assert_eq!(unwrapped(&[Source::new("a.md", &exempt), Source::new("a.rs", &long)]), [""; 0]);
    let found = unwrapped(&[Source::new("a.md", &format!("{exempt}\n{long}"))]);
    assert_eq!(found, ["a.md:7: 105 columns"]);
}

#[test]
fn answers_are_the_last_column() {
    let page = "# A\n\n## Which file do I open?\n\n| question | file |\n|---|---|\n| What is `b`? | `a/b.rs` |\n\n## C\n\n| d | `e` |\n";
    assert_eq!(answers(page), ["a/b.rs"]);
}
