//! The rules that this repository keeps, as tests over its own text: the order of the library's modules,
//! circles of imports, what experiments name as measured, where unsafe code may stand, which modules may name
//! a processor, which words names are made of, which test each invariant has, how long files and functions
//! are, what packages depend on, and what no file may say.
//!
//! Each rule is a function from texts to complaints, so that each is also shown a text that breaks it.

mod circles;
mod docs;
mod glossary;
mod invariants;
mod length;
mod measured;
mod order;
mod packages;
mod processors;
mod source;
mod unsafe_code;
mod words;

use source::{Source, all, rust};

/// Panics with every complaint, one a line.
fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn page(sources: &[Source], path: &str) -> String {
    let found = sources.iter().find(|source| source.path == path);
    found.unwrap_or_else(|| panic!("{path} is missing")).text.clone()
}

#[test]
fn modules_use_only_those_before_them() {
    let sources = all();
    let order = order::order_of(&page(&sources, "docs/architecture.md"));
    expect_none(&order::check(&order, &rust(&sources, "crates/quire/src/")));
}

#[test]
fn no_circle_of_imports_joins_folders() {
    // The kernel's folders know each other: an interrupt wakes a task, and a task waits for an interrupt (decision 45).
    expect_none(&circles::check(&rust(&all(), "crates/"), circles::KNOWN));
}

#[test]
fn an_experiment_names_every_file_that_its_arms_are_made_of() {
    let all = all();
    let both: Vec<Source> =
        ["crates/lab/", "crates/replay/"].into_iter().flat_map(|below| rust(&all, below)).collect();
    expect_none(&measured::check(&both));
}

#[test]
fn only_arch_speaks_of_a_processor() {
    expect_none(&processors::check(&rust(&all(), "crates/quire/src/")));
}

#[test]
fn unsafe_code_stands_where_the_pages_say() {
    let sources = all();
    let pages = ["docs/unsafe-code.md", "docs/unsafe-in-the-command.md"];
    let listed: Vec<String> =
        pages.iter().flat_map(|path| unsafe_code::listed(&page(&sources, path))).collect();
    let mut files = rust(&sources, "crates/quire/");
    files.extend(rust(&sources, "crates/hosted/"));
    files.extend(rust(&sources, "crates/interop/"));
    files.extend(rust(&sources, "crates/lab/"));
    files.extend(rust(&sources, "crates/replay/"));
    files.extend(rust(&sources, "crates/pins/"));
    files.extend(rust(&sources, "kernel/"));
    expect_none(&unsafe_code::check(&listed, &files));
}

#[test]
fn names_are_made_of_words_that_are_ordinary_or_explained() {
    let sources = all();
    let crates = ["quire", "hosted", "interop", "lab", "oracle", "pins", "replay", "testkit"];
    let files: Vec<Source> =
        crates.iter().flat_map(|name| rust(&sources, &format!("crates/{name}/"))).collect();
    expect_none(&glossary::check(&page(&sources, "docs/glossary.md"), glossary::ORDINARY, &files));
}

#[test]
fn safety_comments_name_an_invariant() {
    let sources = all();
    let mut files = rust(&sources, "crates/");
    files.extend(rust(&sources, "kernel/src/"));
    expect_none(&unsafe_code::refers_elsewhere(&files));
    files.retain(|file| !file.is_test());
    expect_none(&unsafe_code::unargued(&files));
}

#[test]
fn every_invariant_has_a_test_that_cites_it() {
    let sources = all();
    let is_page = |path: &str| path == "docs/invariants.md" || path.starts_with("docs/invariants/");
    let pages = sources.iter().filter(|source| is_page(&source.path));
    let invariants: Vec<_> = pages.flat_map(|source| invariants::parse(&source.text)).collect();
    assert!(invariants.len() > 20, "the pages could not be read");
    let mut files = rust(&sources, "crates/");
    files.extend(rust(&sources, "kernel/src/"));
    // Programs that test the kernel are in C.
    let is_program =
        |source: &&Source| source.path.starts_with("kernel/tests/") && source.path.ends_with(".c");
    files.extend(sources.iter().filter(is_program).cloned());
    expect_none(&invariants::check(&invariants, &files));
}

#[test]
fn files_and_functions_are_short() {
    let sources = all();
    let mut files = rust(&sources, "crates/");
    files.retain(|file| !file.is_test());
    expect_none(&length::check(&files, length::LONGER));
}

#[test]
fn a_package_of_tests_depends_on_what_its_library_does() {
    let sources = all();
    let manifest = |name: &str| page(&sources, &format!("crates/{name}/Cargo.toml"));
    expect_none(&packages::check(&manifest("replay"), &manifest("replay-tests")));
}

#[test]
fn no_file_has_unfinished_work_or_names_a_machine() {
    expect_none(&words::check(&all()));
}

#[test]
fn only_loom_includes_files_by_path() {
    expect_none(&words::included(&rust(&all(), "")));
}

#[test]
fn ten_questions_are_answered_by_a_file() {
    let sources = all();
    let contributing = page(&sources, "CONTRIBUTING.md");
    let answers = docs::answers(&contributing);
    assert_eq!(answers.len(), 10);
    let gone = answers.iter().filter(|path| !sources.iter().any(|source| source.path == **path));
    expect_none(&gone.map(|path| format!("CONTRIBUTING.md: there is no file `{path}`")).collect::<Vec<_>>());
}

#[test]
fn pages_wrap_at_100_columns() {
    expect_none(&docs::unwrapped(&all()));
}

#[test]
fn pages_name_files_that_exist_and_the_commands_that_are_run() {
    let sources = all();
    expect_none(&docs::check(&sources));
    expect_none(&docs::headless(&sources));
    let last = page(&sources, ".ci/run").lines().last().unwrap_or_default().to_string();
    let command =
        last.strip_prefix("step ").expect("the last step of .ci/run is the test command").to_string();
    assert!(page(&sources, "README.md").contains(&format!("\n{command}\n")), "README.md lacks `{command}`");
}
