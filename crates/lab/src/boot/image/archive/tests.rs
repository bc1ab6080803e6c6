use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use cpio::newc::Reader;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

/// The entries of an archive by their names: mode, links, inode, contents.
fn entries(mut archive: &[u8]) -> BTreeMap<String, (u32, u32, u32, Vec<u8>)> {
    let mut all = BTreeMap::new();
    loop {
        let mut reader = Reader::new(archive).expect("an entry");
        if reader.entry().is_trailer() {
            return all;
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("its contents");
        let entry = reader.entry();
        let found = (entry.mode(), entry.nlink(), entry.ino(), bytes);
        assert!(all.insert(entry.name().to_owned(), found).is_none(), "{} is there twice", entry.name());
        archive = reader.finish().expect("its end");
    }
}

#[test]
fn an_archive_has_what_the_directory_has() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let path = root.path();
    fs::create_dir(path.join("d")).expect("a directory");
    fs::set_permissions(path.join("d"), fs::Permissions::from_mode(0o1777)).expect("it is ours");
    fs::write(path.join("d/a"), "shared").expect("a file");
    fs::set_permissions(path.join("d/a"), fs::Permissions::from_mode(0o4750)).expect("it is ours");
    fs::hard_link(path.join("d/a"), path.join("d/b")).expect("a link");
    fs::write(path.join("alone"), "alone").expect("a file");
    // One of its names is elsewhere, so it has one in the archive.
    let outside = tempfile::NamedTempFile::new_in(path.parent().expect("a parent")).expect("a file");
    fs::hard_link(outside.path(), path.join("outside")).expect("a link");
    symlink("d/a", path.join("link")).expect("a link");
    mkfifo(&path.join("fifo"), Mode::from_bits_truncate(0o600)).expect("a FIFO");

    let mut tree = Tree::default();
    tree.copy(path, "/".as_ref()).expect("it can be read");
    let mut bytes = Vec::new();
    write(&tree, &mut bytes).expect("memory does not fail");
    let found = entries(&bytes);
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ["alone", "d", "d/a", "d/b", "fifo", "link", "outside"]);
    let kind = |name: &str| (found[name].0, found[name].1);
    assert_eq!(kind("d"), (libc::S_IFDIR | 0o1777, 1));
    assert_eq!(kind("fifo"), (libc::S_IFIFO | 0o600, 1));
    assert_eq!(kind("outside").1, 1);
    assert_eq!((kind("link").0 & libc::S_IFMT, &*found["link"].3), (libc::S_IFLNK, &b"d/a"[..]));
    // The first name has the contents.
    assert_eq!(kind("d/a"), (libc::S_IFREG | 0o4750, 2));
    assert_eq!(kind("d/b"), kind("d/a"));
    assert_eq!(found["d/a"].2, found["d/b"].2);
    assert_eq!((&*found["d/a"].3, &*found["d/b"].3), (&b"shared"[..], &b""[..]));
    let inodes: std::collections::BTreeSet<u32> = found.values().map(|entry| entry.2).collect();
    assert_eq!(inodes.len(), 6, "others have numbers of their own");
}

#[test]
fn files_that_cannot_be_packed_are_named() {
    let mut tree = Tree::default();
    let gone = Body::File(Contents::Host("/no/such/file".into()));
    tree.insert("/file".into(), Node::new(gone, 0o644));
    let failed = write(&tree, &mut io::sink()).expect_err("it is not there");
    assert!(matches!(failed, Failed::File(path, _) if path == Path::new("/file")));
    let mut tree = Tree::default();
    tree.insert(Path::new("/").join(std::ffi::OsStr::from_bytes(b"\xff")), Node::new(Body::Directory, 0o755));
    assert!(write(&tree, &mut io::sink()).is_err(), "a name that is no text");
}
