use std::os::unix::fs::symlink;

use super::*;

/// A directory of this machine, and the tree that has it as `/`.
fn copied(make: impl FnOnce(&Path)) -> (tempfile::TempDir, Tree) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    make(directory.path());
    let mut tree = Tree::default();
    tree.copy(directory.path(), "/".as_ref()).expect("it can be read");
    (directory, tree)
}

fn resolved(tree: &Tree, path: &str) -> Option<String> {
    tree.resolve(path.as_ref()).map(|path| path.to_str().expect("text").to_owned())
}

#[test]
fn links_are_followed_as_the_guest_follows_them() {
    let (_directory, tree) = copied(|root| {
        fs::create_dir_all(root.join("usr/lib/x")).expect("directories");
        fs::write(root.join("usr/lib/x/file"), "").expect("a file");
        for (target, link) in [
            ("usr/lib", "lib"),
            ("/lib/x", "usr/absolute"),
            ("../usr/./lib/../lib", "usr/dots"),
            ("loop", "loop"),
        ] {
            symlink(target, root.join(link)).expect("a link");
        }
    });
    for path in ["/usr/lib/x/file", "/lib/x/file", "/usr/absolute/file", "/usr/dots/x/file", "lib/./x//file"]
    {
        assert_eq!(resolved(&tree, path).as_deref(), Some("/usr/lib/x/file"), "{path}");
    }
    assert_eq!(resolved(&tree, "/../../lib").as_deref(), Some("/usr/lib"));
    for path in ["/none", "/loop", "/loop/x", "/usr/lib/x/file/x"] {
        assert_eq!(resolved(&tree, path), None, "{path}");
    }
}

#[test]
fn a_root_without_links_of_this_machine_gets_them() {
    if !fs::symlink_metadata("/lib").is_ok_and(|metadata| metadata.is_symlink()) {
        return eprintln!("/lib is no link on this machine");
    }
    let mut tree = Tree::default();
    let place = tree.make_way("/lib/some-library.so".as_ref()).expect("a way");
    assert_eq!(place, Path::new("/usr/lib/some-library.so"));
    assert!(matches!(tree.get("/lib".as_ref()).map(|node| &node.body), Some(Body::Symlink(_))));

    // A root that has a directory there keeps it.
    let (_directory, mut tree) = copied(|root| fs::create_dir(root.join("lib")).expect("a directory"));
    let place = tree.make_way("/lib/some-library.so".as_ref()).expect("a way");
    assert_eq!(place, Path::new("/lib/some-library.so"));
}

#[test]
fn what_the_user_gives_stays() {
    let (directory, mut tree) = copied(|root| {
        fs::create_dir(root.join("etc")).expect("a directory");
        fs::write(root.join("etc/passwd"), "theirs").expect("a file");
    });
    tree.make_file("/etc/passwd".as_ref(), b"ours".to_vec(), 0o644).expect("it is there");
    tree.add_own("/etc/passwd".as_ref()).expect("it is there");
    let file = directory.path().join("etc/passwd");
    assert_eq!(tree.file("/etc/passwd".as_ref()), Some(&Contents::Host(file)));
    assert!(tree.make_way("/etc/passwd/below".as_ref()).is_err(), "a file is no directory");
}

#[test]
fn a_copy_replaces_files_and_merges_directories() {
    let (_directory, mut tree) = copied(|root| {
        fs::create_dir(root.join("opt")).expect("a directory");
        fs::write(root.join("opt/a"), "old").expect("a file");
        fs::write(root.join("opt/b"), "old").expect("a file");
    });
    let new = tempfile::tempdir().expect("a temporary directory");
    fs::write(new.path().join("b"), "new").expect("a file");
    symlink("b", new.path().join("link")).expect("a link");
    tree.copy(new.path(), "/opt".as_ref()).expect("it can be read");
    // A link that is named stands for its target.
    tree.copy(&new.path().join("link"), "/opt/deep/er/c".as_ref()).expect("it can be read");
    let of = |path: &str| match tree.file(path.as_ref()) {
        Some(Contents::Host(file)) => fs::read_to_string(file).expect("it can be read"),
        other => panic!("{path}: {other:?}"),
    };
    assert_eq!(
        [of("/opt/a"), of("/opt/b"), of("/opt/link"), of("/opt/deep/er/c")],
        ["old", "new", "new", "new"]
    );
    assert!(matches!(tree.get("/opt/deep/er/c".as_ref()).map(|node| &node.body), Some(Body::File(_))));
    // A directory stays, with its files.
    for path in ["/opt", "/opt/deep"] {
        let refused = tree.copy(&new.path().join("b"), path.as_ref()).expect_err("a directory stands there");
        assert!(refused.1.to_string().contains("end the destination with /"), "{}", refused.1);
    }
    let missing = tree.copy(&new.path().join("none"), "/x".as_ref()).expect_err("it is not there");
    assert!(missing.0.ends_with("none"));
}

#[test]
fn a_directory_does_not_replace_a_link_to_one() {
    let (_directory, mut tree) = copied(|root| {
        fs::create_dir_all(root.join("usr/bin")).expect("directories");
        fs::write(root.join("usr/bin/sh"), "").expect("a file");
        symlink("usr/bin", root.join("bin")).expect("a link");
    });
    let new = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir(new.path().join("bin")).expect("a directory");
    fs::write(new.path().join("bin/tool"), "").expect("a file");
    tree.copy(new.path(), "/".as_ref()).expect("it can be read");
    for (path, place) in [("/bin/sh", "/usr/bin/sh"), ("/bin/tool", "/usr/bin/tool")] {
        assert_eq!(resolved(&tree, path).as_deref(), Some(place));
        assert!(tree.file(path.as_ref()).is_some(), "{path}");
    }
    fs::write(new.path().join("usr"), "").expect("a file");
    assert!(tree.copy(new.path(), "/".as_ref()).is_err(), "a file below replaces no directory either");
}

/// A file whose size is not that of its contents is packed as it is now, and so is what a pipe brings.
#[test]
fn contents_without_a_size_are_read() {
    let mut tree = Tree::default();
    for path in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        if let Ok(text) = fs::read(path) {
            tree.copy(path.as_ref(), "/file".as_ref()).expect("it can be read");
            assert_eq!(tree.file("/file".as_ref()), Some(&Contents::Bytes(text)), "{path}");
        }
    }
    let (reader, mut writer) = io::pipe().expect("a pipe");
    io::Write::write_all(&mut writer, b"piped").expect("there is room");
    drop(writer);
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    tree.copy(path.as_ref(), "/pipe".as_ref()).expect("it can be read");
    assert_eq!(tree.file("/pipe".as_ref()), Some(&Contents::Bytes(b"piped".to_vec())));
}
