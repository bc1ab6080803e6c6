//! The list `code` of an experiment covers every file that its arms are made of: what an experiment names decides whether
//! its kept figures count as those of today's code.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};

use crate::circles::{Arrows, arrows};
use crate::source::Source;

const CRATE: &str = "crates/lab";
const EXPERIMENTS: &str = "crates/lab/src/bench/experiments/";
const ARMS: &str = "crates/lab/src/bench/arms/";

/// Complaints about experiments among the sources of the command.
pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let files: Vec<&Source> = sources.iter().filter(|source| !source.is_test()).collect();
    let arrows = arrows(CRATE, &files);
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(EXPERIMENTS)) {
        let Some(listed) = listed(file) else { continue };
        let covers = |path: &String, used: &str| match path.strip_suffix('/') {
            Some(_) => used.starts_with(path.as_str()),
            None => used == path,
        };
        let used = used(&file.path, &arrows);
        let missed = used.iter().filter(|used| !listed.iter().any(|path| covers(path, used)));
        complaints.extend(missed.map(|used| format!("{}: its `code` lacks {used}", file.path)));
        let idle = listed.iter().filter(|path| path.starts_with(ARMS));
        let idle = idle.filter(|path| !used.iter().any(|used| covers(path, used)));
        complaints.extend(idle.map(|path| format!("{}: its arms do not use {path}", file.path)));
    }
    complaints
}

/// The files of arms that an experiment reaches by imports, those of its arms' arms among them.
fn used<'a>(experiment: &'a str, arrows: &'a Arrows) -> BTreeSet<&'a str> {
    let mut used = BTreeSet::new();
    let mut open = vec![experiment];
    while let Some(file) = open.pop() {
        let names = arrows.get(file).into_iter().flat_map(|names| names.keys());
        for next in names.filter(|next| next.starts_with(ARMS)) {
            if used.insert(next.as_str()) {
                open.push(next);
            }
        }
    }
    used
}

/// The paths that the field `code` of an experiment spells out; `None` for a file without one.
fn listed(file: &Source) -> Option<Vec<String>> {
    let stream: TokenStream = file.text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.path));
    field(stream)
}

fn field(stream: TokenStream) -> Option<Vec<String>> {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        if let TokenTree::Group(group) = tree
            && let Some(found) = field(group.stream())
        {
            return Some(found);
        }
        let is_field = matches!(tree, TokenTree::Ident(word) if word == "code")
            && matches!(trees.get(at + 1), Some(TokenTree::Punct(sign)) if sign.as_char() == ':')
            && matches!(trees.get(at + 2), Some(TokenTree::Punct(sign)) if sign.as_char() == '&');
        if is_field && let Some(TokenTree::Group(lists)) = trees.get(at + 3) {
            let mut paths = Vec::new();
            literals(lists.stream(), &mut paths);
            return Some(paths);
        }
    }
    None
}

fn literals(stream: TokenStream, out: &mut Vec<String>) {
    for tree in stream {
        match tree {
            TokenTree::Literal(text) => out.push(text.to_string().trim_matches('"').to_string()),
            TokenTree::Group(group) => literals(group.stream(), out),
            _ => {}
        }
    }
}

#[test]
fn a_file_that_an_arm_imports_and_no_list_names_is_found() {
    let complaints = |code: &str, arm: &str| {
        let experiment = format!(
            "use crate::bench::arms::one; pub const EXPERIMENT: Experiment = Experiment {{ file: file!(), \
             code: &[code::FRAMES, &[{code}]], run }}; fn run() {{ one::all(); }}"
        );
        let files = [
            ("lib.rs", "mod bench;"),
            ("bench/mod.rs", "mod arms; mod experiments;"),
            ("bench/experiments/mod.rs", "mod one;"),
            ("bench/experiments/one.rs", &experiment),
            ("bench/arms/mod.rs", "pub mod one; pub mod two;"),
            ("bench/arms/one/mod.rs", "mod linux; pub fn all() { linux::run() }"),
            ("bench/arms/one/linux.rs", arm),
            ("bench/arms/two/mod.rs", "mod far; mod near; pub use near::near; pub fn all() {}"),
            ("bench/arms/two/near.rs", "use super::far::far; pub fn near() { far() }"),
            ("bench/arms/two/far.rs", "pub fn far() {}"),
        ];
        let source = |(path, text): (&str, &str)| Source::new(&format!("crates/lab/src/{path}"), text);
        check(&files.map(source))
    };
    let own = r#""crates/lab/src/bench/arms/one/""#;
    let alone = "pub fn run() {}";
    let borrows = "use crate::bench::arms::two::near; pub fn run() { near() }";
    assert_eq!(complaints(own, alone), [""; 0]);
    let lacks = |file: &str| format!("{EXPERIMENTS}one.rs: its `code` lacks {ARMS}two/{file}.rs");
    assert_eq!(complaints(own, borrows), [lacks("far"), lacks("near")]);
    let listed = format!("{own}, {0}far.rs\", {0}near.rs\"", r#""crates/lab/src/bench/arms/two/"#);
    assert_eq!(complaints(&listed, borrows), [""; 0]);
    let idle = |file: &str| format!("{EXPERIMENTS}one.rs: its arms do not use {ARMS}two/{file}.rs");
    assert_eq!(complaints(&listed, alone), [idle("far"), idle("near")]);
}
