//! Planted circles are found, and what is none is not.

use super::*;

fn tree(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(path, text)| Source::new(&format!("crates/x/src/{path}"), text)).collect()
}

/// The first lines of the complaints.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let complaints = check(&tree(files), &[]);
    complaints.iter().filter_map(|text| text.lines().next()).map(str::to_string).collect()
}

/// Two folders; `high` may use `low`.
fn two_folders<'a>(high: &'a str, low: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("lib.rs", "mod high; mod low;"),
        ("high/mod.rs", "mod top; pub(crate) use top::{Top, f};"),
        ("high/top.rs", high),
        (
            "low/mod.rs",
            "//! Words.\n#![allow(x)]\nmod base;\npub(crate) mod other;\npub(crate) use base::Base;",
        ),
        ("low/base.rs", low),
        ("low/other.rs", "pub(crate) const OTHER: u8 = 0;"),
    ]
}

const TOP: &str = "use crate::low::Base; pub(crate) struct Top(Base); pub(crate) fn f() {}";

#[test]
fn a_circle_of_two_folders_is_found_however_it_is_written() {
    assert_eq!(found(&two_folders(TOP, "pub(crate) struct Base;")), [""; 0]);
    for low in [
        "use crate::high::Top; pub(crate) struct Base;",
        "use crate::high::top::Top as Renamed; pub(crate) struct Base;",
        "use crate::{high::{self}, low::other}; pub(crate) struct Base(high::Top);",
        "use super::super::high; pub(crate) struct Base; fn g() { high::f() }",
        "pub(crate) struct Base(crate::high::Top);",
        "pub(crate) struct Base; fn g() { use crate::high::*; f() }",
        "pub(crate) struct Base; mod inner { use super::super::super::high::f; }",
        "macro_rules! m { () => { $crate::high::f() } } pub(crate) struct Base;",
    ] {
        assert_eq!(found(&two_folders(TOP, low)).len(), 1, "{low}");
    }
    let complaint = check(&tree(&two_folders(TOP, "pub(crate) struct Base(crate::high::Top);")), &[]);
    let expected = "crates/x/src: a circle of 2 files\n    \
                    crates/x/src/high/top.rs -> crates/x/src/low/base.rs: Base\n    \
                    crates/x/src/low/base.rs -> crates/x/src/high/top.rs: Top";
    assert_eq!(complaint, [expected]);
}

#[test]
fn what_is_no_circle_is_not_found() {
    for low in [
        "#[cfg(test)] mod tests { use crate::high::Top; } pub(crate) struct Base;",
        "#[cfg(test)] use crate::high::{Top, f}; pub(crate) struct Base;",
        "// use crate::high::Top;\npub(crate) struct Base;",
        "use high::Top; pub(crate) struct Base;",
        "use super::other::OTHER; pub(crate) struct Base;",
    ] {
        assert_eq!(found(&two_folders(TOP, low)), [""; 0], "{low}");
    }
    // A name that a folder's own file passes on belongs to the file that defines it.
    let passed_on = "use super::Base; pub(crate) const OTHER: Base = Base;";
    let mut files = two_folders(TOP, "pub(crate) struct Base;");
    files[5].1 = passed_on;
    assert_eq!(found(&files), [""; 0]);
    // A file that passes a name on and has code of its own needs the name where that code says it.
    for (own, circles) in [("pub(crate) struct Own;", 0), ("pub(crate) struct Own(Top);", 1)] {
        let text = format!("mod top; pub(crate) use top::Top; {own}");
        let top = "use super::Own; pub(crate) struct Top;";
        let files = [("lib.rs", "mod a;"), ("a/mod.rs", text.as_str()), ("a/top.rs", top)];
        let arrows = arrows("crates/x", &tree(&files).iter().collect::<Vec<_>>());
        assert_eq!(super::circles(&arrows).len(), circles, "{own}");
    }
}

#[test]
fn four_files_of_a_folder_may_be_a_circle_and_five_may_not() {
    let texts: Vec<(String, String)> = (0..5)
        .map(|n| (format!("r/f{n}.rs"), format!("use super::f{}::X; pub(super) struct X;", (n + 1) % 5)))
        .collect();
    let mut files: Vec<(&str, &str)> =
        texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
    files.extend([("lib.rs", "mod r;"), ("r/mod.rs", "mod f0; mod f1; mod f2; mod f3; mod f4;")]);
    assert_eq!(found(&files), ["crates/x/src/r: a circle of 5 files"]);
    let close = "use super::f0::X; pub(super) struct X;";
    files[3].1 = close;
    assert_eq!(found(&files), [""; 0]);
    // A file beside a folder of its name belongs to the folder.
    let inside = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod b; pub(crate) use b::B; pub(crate) struct A(B);"),
        ("a/b.rs", "use super::A; pub(crate) struct B;"),
    ];
    assert_eq!(found(&inside), [""; 0]);
}

#[test]
fn a_known_circle_may_shrink_and_must_leave_the_list() {
    let files = tree(&two_folders(TOP, "use crate::high::Top; pub(crate) struct Base;"));
    let first = |known| check(&files, known).first().and_then(|text| text.lines().next()).map(str::to_string);
    assert_eq!(first(&[("crates/x/src", 2)]), None);
    assert_eq!(first(&[("crates/x/src", 3)]), None);
    assert_eq!(first(&[("crates/x/src", 1)]).as_deref(), Some("crates/x/src: a circle of 2 files"));
    let gone = check(&tree(&two_folders(TOP, "pub(crate) struct Base;")), &[("crates/x/src", 2)]);
    assert_eq!(gone, ["crates/x/src: no circle any more, so it leaves the list of circles"]);
}
