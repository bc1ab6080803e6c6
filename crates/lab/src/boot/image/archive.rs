//! Writes a tree as a cpio archive in the format "newc", which kernels take as their initial RAM disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cpio::newc::{self, Builder};
use rustix::fs::{major, minor};

use super::tree::{Body, Contents, Node, Tree};

/// Why an archive was not written.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The file at this path of the guest cannot be packed.
    File(PathBuf, io::Error),
    /// The archive takes nothing more.
    Archive(io::Error),
}

/// The archive, and whether a write to it has failed.
struct Out<W> {
    to: W,
    has_failed: bool,
}

impl<W> Out<W> {
    fn noted<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        self.has_failed |= outcome.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::Interrupted);
        outcome
    }
}

impl<W: Write> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        self.noted(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.to.flush();
        self.noted(flushed)
    }
}

/// Writes all nodes. Of a file with several names, the first has the contents.
pub(crate) fn write(tree: &Tree, out: &mut impl Write) -> Result<(), Failed> {
    let mut names: HashMap<(u64, u64), u32> = HashMap::new();
    for shared in tree.nodes().filter_map(|(_, node)| node.shared) {
        *names.entry(shared).or_default() += 1;
    }
    let mut inodes = Inodes::default();
    let mut out = Out { to: out, has_failed: false };
    for (path, node) in tree.nodes() {
        let (inode, is_first) = inodes.number(node);
        let links = node.shared.map_or(1, |shared| names[&shared]);
        let entry = Entry { inode, links, has_contents: is_first };
        entry.write(path, node, &mut out).map_err(|error| match out.has_failed {
            true => Failed::Archive(error),
            false => Failed::File(path.to_owned(), error),
        })?;
    }
    newc::trailer(out).map(|_| ()).map_err(Failed::Archive)
}

/// Numbers for the files of the archive, from 1.
#[derive(Default)]
struct Inodes {
    last: u32,
    of_shared: HashMap<(u64, u64), u32>,
}

impl Inodes {
    /// The number of a node's file, and whether it is the first node of that file.
    fn number(&mut self, node: &Node) -> (u32, bool) {
        if let Some(&known) = node.shared.and_then(|shared| self.of_shared.get(&shared)) {
            return (known, false);
        }
        self.last += 1;
        self.of_shared.extend(node.shared.map(|shared| (shared, self.last)));
        (self.last, true)
    }
}

struct Entry {
    inode: u32,
    links: u32,
    has_contents: bool,
}

impl Entry {
    fn write(&self, path: &Path, node: &Node, out: &mut impl Write) -> io::Result<()> {
        let name = path.strip_prefix("/").unwrap_or(path).to_str();
        let name = name.ok_or_else(|| io::Error::other("an archive has names in UTF-8 alone"))?;
        let (kind, device) = match node.body {
            Body::Directory => (libc::S_IFDIR, 0),
            Body::Symlink(_) => (libc::S_IFLNK, 0),
            Body::File(_) => (libc::S_IFREG, 0),
            Body::Special { kind, device } => (kind, device),
        };
        let header = Builder::new(name)
            .ino(self.inode)
            .mode(kind | node.mode)
            .uid(node.owner.0)
            .gid(node.owner.1)
            .nlink(self.links)
            .mtime(node.modified)
            .rdev_major(major(device))
            .rdev_minor(minor(device));
        match &node.body {
            Body::Symlink(target) => write_bytes(header, target.as_os_str().as_bytes(), out),
            Body::File(Contents::Bytes(bytes)) => write_bytes(header, bytes, out),
            Body::File(Contents::Host(file)) if self.has_contents => write_file(header, file, out),
            Body::File(_) | Body::Directory | Body::Special { .. } => write_bytes(header, &[], out),
        }
    }
}

fn write_bytes(header: Builder, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    let mut writer = header.write(out, size(bytes.len() as u64)?);
    writer.write_all(bytes)?;
    writer.finish().map(|_| ())
}

fn write_file(header: Builder, file: &Path, out: &mut impl Write) -> io::Result<()> {
    let file = File::open(file)?;
    let bytes = file.metadata()?.len();
    let mut writer = header.write(out, size(bytes)?);
    // A file that grows meanwhile is cut; one that shrinks would leave the archive without its end.
    if io::copy(&mut file.take(bytes), &mut writer)? < bytes {
        return Err(io::Error::other("the file has become shorter"));
    }
    writer.finish().map(|_| ())
}

fn size(bytes: u64) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::other("an archive has no files of 4 GiB"))
}

#[cfg(test)]
mod tests;
