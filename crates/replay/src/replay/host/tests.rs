use super::*;

/// A folder with files, as a control group is.
fn group(at: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(at).expect("a folder");
    files.iter().for_each(|(name, text)| fs::write(at.join(name), text).expect("a file"));
}

#[test]
fn a_limit_above_the_own_group_counts() {
    let root = tempfile::tempdir().expect("a folder");
    group(root.path(), &[("memory.stat", "")]);
    let above = root.path().join("a");
    group(
        &above,
        &[("memory.max", "1000\n"), ("memory.current", "900\n"), ("memory.stat", "inactive_file 50\n")],
    );
    group(&above.join("b"), &[("memory.max", "max\n"), ("memory.current", "10\n")]);
    assert_eq!(within_groups("0::/a/b\n", root.path()), 150);
    assert_eq!(within_groups("0::/c\n", root.path()), u64::MAX);
    assert_eq!(within_groups("", root.path()), u64::MAX);
}

#[test]
fn the_first_version_has_other_names() {
    let root = tempfile::tempdir().expect("a folder");
    let files = [
        ("memory.limit_in_bytes", "4096"),
        ("memory.usage_in_bytes", "5000"),
        ("memory.stat", "inactive_file 1\ntotal_inactive_file 2000\n"),
    ];
    group(&root.path().join("memory/jobs"), &files);
    let own = "9:name=systemd:/jobs\n4:cpu,memory:/jobs\n0::/\n";
    assert_eq!(within_groups(own, root.path()), 1096);
}

#[test]
fn this_host_has_memory() {
    assert!((1 << 20..u64::MAX).contains(&available()));
}
