//! The list `code` of an experiment covers every file that its arms are made of: what an experiment names
//! decides whether its kept figures count as those of today's code.
//!
//! The files of arms are followed through their imports. What they take from other files of the command, and
//! from the crate that the command passes on, is in the list too, unless it runs the arms of every
//! experiment.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};

use crate::circles::{Arrows, arrows};
use crate::source::Source;

const CRATE: &str = "crates/lab";
/// The crate whose modules the command passes on as its own.
const PASSED_ON: &str = "crates/replay";
const EXPERIMENTS: &str = "crates/lab/src/bench/experiments/";
const ARMS: &str = "crates/lab/src/bench/arms/";
const LISTS: &str = "crates/lab/src/bench/code.rs";
/// What every experiment is made of, beside its own list.
const RUNNER: &str = "RUNNER";
/// Files that change no figure: what an arm and a metric are, what is printed, settings that the runner
/// checks, and published figures.
const NOT_MEASURED: [&str; 5] = [
    "crates/lab/src/bench/experiment.rs",
    "crates/lab/src/bench/metric.rs",
    "crates/lab/src/bench/published.rs",
    "crates/replay/src/output/",
    "crates/replay/src/settings/",
];

/// Complaints about experiments among the sources of the command and of the crate that it passes on.
pub(crate) fn check(sources: &[Source]) -> Vec<String> {
    let files: Vec<&Source> = sources.iter().filter(|source| !source.is_test()).collect();
    let arrows = arrows_to_both(&files);
    let lists = constants(&files);
    let mut complaints = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(EXPERIMENTS)) {
        let Some(listed) = listed(file, &lists) else {
            if file.text.contains("pub const EXPERIMENT:") {
                complaints.push(format!("{}: its `code` is no list", file.path));
            }
            continue;
        };
        let (used, taken) = used(&file.path, &arrows);
        let runner = lists.get(RUNNER).into_iter().flatten().map(String::as_str);
        let known: Vec<&str> = listed.iter().map(String::as_str).chain(runner).chain(NOT_MEASURED).collect();
        let missed = used.iter().filter(|used| !listed.iter().any(|path| covers(path, used)));
        let others = taken.iter().filter(|taken| !known.iter().any(|path| covers(path, taken)));
        complaints.extend(missed.chain(others).map(|used| format!("{}: its `code` lacks {used}", file.path)));
        let idle = listed.iter().filter(|path| path.starts_with(ARMS));
        let idle = idle.filter(|path| !used.iter().any(|used| covers(path, used)));
        complaints.extend(idle.map(|path| format!("{}: its arms do not use {path}", file.path)));
    }
    complaints
}

fn covers(path: &str, used: &str) -> bool {
    match path.strip_suffix('/') {
        Some(_) => used.starts_with(path),
        None => used == path,
    }
}

/// The imports of the command, those from the crate that it passes on among them: as if the modules of both
/// were one crate.
fn arrows_to_both(files: &[&Source]) -> Arrows {
    let own = format!("{CRATE}/src/");
    let passed_on = format!("{PASSED_ON}/src/");
    let own_names: BTreeSet<&str> = files.iter().filter_map(|file| file.path.strip_prefix(&own)).collect();
    let mut moved = BTreeMap::new();
    let mut both = Vec::new();
    for file in files {
        match file.path.strip_prefix(&passed_on) {
            Some(name) if !own_names.contains(name) => {
                let path = format!("{own}{name}");
                moved.insert(path.clone(), file.path.clone());
                both.push(Source::new(&path, &file.text));
            }
            Some(_) => {}
            None => both.push(Source::new(&file.path, &file.text)),
        }
    }
    let back = |path: &String| moved.get(path).unwrap_or(path).clone();
    let arrows = arrows(CRATE, &both.iter().collect::<Vec<&Source>>());
    let targets = |names: &BTreeMap<String, BTreeSet<String>>| {
        names.iter().map(|(to, names)| (back(to), names.clone())).collect()
    };
    arrows.iter().map(|(from, names)| (back(from), targets(names))).collect()
}

/// The files of arms that an experiment reaches by imports, those of its arms' arms among them, and what
/// these take from other files that are not of an experiment.
fn used<'a>(experiment: &'a str, arrows: &'a Arrows) -> (BTreeSet<&'a str>, BTreeSet<&'a str>) {
    let (mut used, mut taken) = (BTreeSet::new(), BTreeSet::new());
    let mut open = vec![experiment];
    while let Some(file) = open.pop() {
        for next in arrows.get(file).into_iter().flat_map(|names| names.keys()) {
            if next.starts_with(ARMS) {
                if used.insert(next.as_str()) {
                    open.push(next);
                }
            } else if file != experiment {
                taken.insert(next.as_str());
            }
        }
    }
    (used, taken)
}

/// The lists that experiments name, by their names.
fn constants(files: &[&Source]) -> BTreeMap<String, Vec<String>> {
    let Some(file) = files.iter().find(|file| file.path == LISTS) else { return BTreeMap::new() };
    let stream: TokenStream = file.text.parse().unwrap_or_else(|error| panic!("{LISTS}: {error}"));
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    let named = trees.windows(2).enumerate().filter_map(|(at, pair)| match pair {
        [TokenTree::Ident(word), TokenTree::Ident(name)] if word == "const" => {
            Some((at + 2, name.to_string()))
        }
        _ => None,
    });
    let value = |from: usize| {
        let rest = trees[from..]
            .iter()
            .skip_while(|tree| !matches!(tree, TokenTree::Punct(sign) if sign.as_char() == '='));
        rest.take_while(|tree| !matches!(tree, TokenTree::Punct(sign) if sign.as_char() == ';'))
            .cloned()
            .collect()
    };
    named
        .map(|(from, name)| {
            let mut paths = Vec::new();
            literals(value(from), &BTreeMap::new(), &mut paths);
            (name, paths)
        })
        .collect()
}

/// The paths of the field `code` of an experiment; `None` for a file without one.
fn listed(file: &Source, lists: &BTreeMap<String, Vec<String>>) -> Option<Vec<String>> {
    let stream: TokenStream = file.text.parse().unwrap_or_else(|error| panic!("{}: {error}", file.path));
    field(stream, lists)
}

fn field(stream: TokenStream, lists: &BTreeMap<String, Vec<String>>) -> Option<Vec<String>> {
    let trees: Vec<TokenTree> = stream.into_iter().collect();
    for (at, tree) in trees.iter().enumerate() {
        if let TokenTree::Group(group) = tree
            && let Some(found) = field(group.stream(), lists)
        {
            return Some(found);
        }
        let is_field = matches!(tree, TokenTree::Ident(word) if word == "code")
            && matches!(trees.get(at + 1), Some(TokenTree::Punct(sign)) if sign.as_char() == ':')
            && matches!(trees.get(at + 2), Some(TokenTree::Punct(sign)) if sign.as_char() == '&');
        if is_field && let Some(TokenTree::Group(group)) = trees.get(at + 3) {
            let mut paths = Vec::new();
            literals(group.stream(), lists, &mut paths);
            return Some(paths);
        }
    }
    None
}

fn literals(stream: TokenStream, lists: &BTreeMap<String, Vec<String>>, out: &mut Vec<String>) {
    for tree in stream {
        match tree {
            TokenTree::Literal(text) => out.push(text.to_string().trim_matches('"').to_string()),
            TokenTree::Ident(name) => out.extend(lists.get(&name.to_string()).cloned().unwrap_or_default()),
            TokenTree::Group(group) => literals(group.stream(), lists, out),
            TokenTree::Punct(_) => {}
        }
    }
}

#[test]
fn a_file_that_an_arm_imports_and_no_list_names_is_found() {
    let complaints_of = |code: &str, arm: &str| {
        let experiment = format!(
            "use crate::bench::arms::one; pub const EXPERIMENT: Experiment = Experiment {{ file: file!(), \
             code: {code}, run }}; fn run() {{ one::all(); }}"
        );
        let files = [
            ("lib.rs", "mod bench; pub use quire_replay::{host, output};"),
            ("bench/mod.rs", "mod arms; mod code; mod experiments; mod runner;"),
            (
                "bench/code.rs",
                r#"pub const FRAMES: &[&str] = &["crates/replay/src/host/thp.rs"];
                 pub const RUNNER: &[&str] = &["crates/lab/src/bench/runner.rs"];"#,
            ),
            ("bench/runner.rs", "pub fn runner() {}"),
            ("bench/experiments/mod.rs", "mod one;"),
            ("bench/experiments/one.rs", &experiment),
            ("bench/arms/mod.rs", "pub mod one; pub mod two;"),
            ("bench/arms/one/mod.rs", "mod linux; pub fn all() { linux::run() }"),
            ("bench/arms/one/linux.rs", arm),
            ("bench/arms/two/mod.rs", "mod far; mod near; pub use near::near; pub fn all() {}"),
            ("bench/arms/two/near.rs", "use super::far::far; pub fn near() { far() }"),
            ("bench/arms/two/far.rs", "pub fn far() {}"),
        ];
        let passed_on = [
            ("lib.rs", "pub mod host; pub mod output;"),
            ("host/mod.rs", "pub mod cycles; pub mod thp;"),
            ("host/thp.rs", "pub fn compact() {}"),
            ("host/cycles.rs", "pub fn now() {}"),
            ("output/mod.rs", "pub fn say() {}"),
        ];
        let of = |folder: &'static str| {
            move |(path, text): (&str, &str)| Source::new(&format!("{folder}/src/{path}"), text)
        };
        let sources = files.into_iter().map(of(CRATE)).chain(passed_on.into_iter().map(of(PASSED_ON)));
        check(&sources.collect::<Vec<Source>>())
    };
    let complaints = |code: &str, arm: &str| complaints_of(&format!("&[code::FRAMES, &[{code}]]"), arm);
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
    // What the runner has, what is printed and what a named list has is covered, all else is not.
    let takes =
        |path: &str| format!("use crate::{path}; pub fn run() {{ {} }}", path.rsplit("::").next().unwrap());
    for covered in ["bench::runner::runner", "output::say", "host::thp::compact"] {
        assert_eq!(complaints(own, &takes(covered)), [""; 0], "{covered}");
    }
    let cycles = format!("{EXPERIMENTS}one.rs: its `code` lacks crates/replay/src/host/cycles.rs");
    assert_eq!(complaints(own, &takes("host::cycles::now")), [cycles]);
    let no_list = format!("{EXPERIMENTS}one.rs: its `code` is no list");
    assert_eq!(complaints_of("code::FRAMES", alone), [no_list]);
}
