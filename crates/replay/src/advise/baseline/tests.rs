use std::fs;

use super::*;
use crate::replay::parse_set;

/// Settings in a directory that goes with the value.
fn settings(files: &[(&str, &str)]) -> (tempfile::TempDir, Settings) {
    let root = tempfile::tempdir().expect("a directory");
    for (name, text) in files {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().expect("a directory")).expect("it is made");
        fs::write(path, text).expect("it is written");
    }
    let read = Settings::read(root.path());
    (root, read)
}

fn set(name: &str) -> FolioSet {
    parse_set(name).expect("a set")
}

#[test]
fn sizes_are_as_the_kernel_has_them() {
    let (_root, found) = settings(&[
        ("enabled", "always [madvise] never\n"),
        ("hugepages-16kB/enabled", "[always] inherit madvise never"),
        ("hugepages-64kB/enabled", "always inherit madvise [never]"),
        ("hugepages-512kB/enabled", "always inherit [madvise] never"),
        ("hugepages-2048kB/enabled", "always [inherit] madvise never"),
    ]);
    assert_eq!(found.set(), set("16K").on_request(set("512K,2M")));
    assert_eq!(found.changes(set("256K")), Err(6));
    let changes = found.changes(set("64K,2M")).expect("all sizes are there");
    let said: Vec<(String, String)> =
        changes.iter().map(|change| (short(&change.run), short(&change.undo))).collect();
    assert_eq!(
        said,
        [
            ("echo always > hugepages-64kB".into(), "echo never > hugepages-64kB".into()),
            ("echo always > hugepages-2048kB".into(), "echo inherit > hugepages-2048kB".into()),
            ("echo never > hugepages-16kB".into(), "echo always > hugepages-16kB".into()),
        ]
    );
    let asked: Vec<String> =
        found.requests(set("16K,64K,2M")).iter().map(|change| short(&change.run)).collect();
    assert_eq!(asked, ["echo madvise > hugepages-64kB", "echo never > hugepages-512kB"]);
    assert_eq!(found.changes(set("16K")), Ok(Vec::new()));
    let asking = found.changes(set("64K").on_request(set("2M"))).expect("all sizes are there");
    let said: Vec<String> = asking.iter().map(|change| short(&change.run)).collect();
    let expected =
        ["echo always > hugepages-64kB", "echo never > hugepages-16kB", "echo never > hugepages-512kB"];
    assert_eq!(said, expected, "2M stays for memory that asks, 512K does not");
    let asking = found.changes(set("4K").on_request(set("16K"))).expect("all sizes are there");
    assert_eq!(short(&asking[0].run), "echo madvise > hugepages-16kB");
}

/// A command with the last directory of its file alone.
fn short(command: &str) -> String {
    let (verb, path) = command.split_once(" > ").expect("a command");
    let directory = Path::new(path).parent().and_then(Path::file_name).expect("a directory");
    format!("{verb} > {}", directory.to_string_lossy())
}

#[test]
fn older_kernels_have_2_mib_alone_or_nothing() {
    let (_root, found) = settings(&[("enabled", "[always] madvise never\n")]);
    assert_eq!(found.set(), set("2M"));
    let changes = found.changes(FolioSet::FRAMES).expect("4K is everywhere");
    assert!(changes[0].run.starts_with("echo never > ") && changes[0].undo.starts_with("echo always > "));
    let (_root, found) = settings(&[]);
    assert_eq!((found.set(), found.changes(set("2M"))), (FolioSet::FRAMES, Err(9)));
}
