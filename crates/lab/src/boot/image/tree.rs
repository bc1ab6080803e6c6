//! The guest's files: what stands at which path, and how a path is followed.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::statfs;

use crate::output::quoted;

/// As many symbolic links as Linux follows in one path.
const LINKS: usize = 40;
/// The file system of `/sys`, for `statfs(2)`.
const SYSFS_MAGIC: i64 = 0x6265_6572;
/// The permissions of directories that no file of this machine describes.
const DIRECTORY_MODE: u32 = 0o755;

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink(PathBuf),
    /// A regular file with these contents.
    File(Contents),
    /// A device with this number, a FIFO or a socket, by the file type of its mode.
    Special { kind: u32, device: u64 },
}

/// Where the bytes of a file come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Contents {
    /// A file of this machine.
    Host(PathBuf),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A file, directory or link of the guest.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) body: Body,
    /// The permissions, without the file type.
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) modified: u32,
    /// Device and inode on this machine, if the file has several names.
    pub(crate) shared: Option<(u64, u64)>,
    /// Whether it was added because a program needs it. All else comes from the user.
    pub(crate) is_own: bool,
}

impl Node {
    /// A node that no file of this machine describes, owned by root.
    pub(crate) fn new(body: Body, mode: u32) -> Node {
        Node { body, mode, owner: (0, 0), modified: 0, shared: None, is_own: false }
    }

    /// The node for a file of this machine, whose metadata are those of the file itself and not of a link's
    /// target.
    fn of(path: &Path, metadata: &Metadata) -> io::Result<Node> {
        let kind = metadata.file_type();
        let body = if kind.is_dir() {
            Body::Directory
        } else if kind.is_symlink() {
            Body::Symlink(fs::read_link(path)?)
        } else if kind.is_file() {
            Body::File(Contents::Host(path.to_owned()))
        } else {
            let device = if kind.is_char_device() || kind.is_block_device() { metadata.rdev() } else { 0 };
            Body::Special { kind: metadata.mode() & libc::S_IFMT, device }
        };
        let several = metadata.nlink() > 1 && !kind.is_dir();
        Ok(Node {
            body,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            modified: metadata.mtime().clamp(0, i64::from(u32::MAX)) as u32,
            shared: several.then(|| (metadata.dev(), metadata.ino())),
            is_own: false,
        })
    }
}

/// Nodes by their absolute paths; every directory on the way to a node is a node too, except `/`.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
}

/// How far a path leads in a tree.
struct Reached {
    /// The last node on the way, after all links.
    at: PathBuf,
    /// The names that are left; the first is not in the directory `at`.
    rest: VecDeque<OsString>,
}

impl Tree {
    /// All nodes, directories before what they contain.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&Path, &Node)> {
        self.nodes.iter().map(|(path, node)| (path.as_path(), node))
    }

    /// The node at exactly this path.
    pub(crate) fn get(&self, path: &Path) -> Option<&Node> {
        self.nodes.get(path)
    }

    /// Puts a node at a path whose directory exists.
    pub(crate) fn insert(&mut self, path: PathBuf, node: Node) {
        self.nodes.insert(path, node);
    }

    /// Follows a path with all its links, as the guest will; `None` if it leads nowhere.
    pub(crate) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        self.follow(path).ok().filter(|reached| reached.rest.is_empty()).map(|reached| reached.at)
    }

    /// The contents of the file that a path leads to.
    pub(crate) fn file(&self, path: &Path) -> Option<&Contents> {
        match &self.get(&self.resolve(path)?)?.body {
            Body::File(contents) => Some(contents),
            _ => None,
        }
    }

    fn follow(&self, path: &Path) -> io::Result<Reached> {
        let (mut at, mut links) = (PathBuf::from("/"), 0);
        let mut rest = names(path);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            match self.get(&next).map(|node| &node.body) {
                None => {
                    rest.push_front(name);
                    break;
                }
                Some(Body::Symlink(target)) => {
                    links += 1;
                    if links > LINKS {
                        return Err(io::Error::from_raw_os_error(libc::ELOOP));
                    }
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    names(target).into_iter().rev().for_each(|name| rest.push_front(name));
                }
                Some(_) => at = next,
            }
        }
        Ok(Reached { at, rest })
    }

    /// Makes all directories on the way to a path, and those links among them that this machine has. The
    /// result has no links on its way; a node may stand there already.
    pub(crate) fn make_way(&mut self, path: &Path) -> io::Result<PathBuf> {
        // Each round makes a node, and the names that links add are bounded by `follow`.
        loop {
            let Reached { at, mut rest } = self.follow(path)?;
            let Some(name) = rest.pop_front() else { return Ok(at) };
            if self.get(&at).is_some_and(|node| node.body != Body::Directory) {
                return Err(ErrorKind::NotADirectory.into());
            }
            let next = at.join(name);
            let there = fs::symlink_metadata(&next).and_then(|metadata| Node::of(&next, &metadata)).ok();
            match there {
                // Its time changes with files that are not packed, and would make runs differ.
                Some(node) if node.body == Body::Directory => {
                    self.insert(next, Node { modified: 0, ..node });
                }
                Some(node) if matches!(node.body, Body::Symlink(_)) => self.insert(next, node),
                _ if rest.is_empty() => return Ok(next),
                _ => self.insert(next, Node::new(Body::Directory, DIRECTORY_MODE)),
            }
        }
    }

    /// Makes a directory, and those on the way to it. A node that stands there already stays.
    pub(crate) fn make_directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let place = self.make_way(path)?;
        if self.get(&place).is_none() && place.parent().is_some() {
            self.insert(place, Node::new(Body::Directory, mode));
        }
        Ok(())
    }

    /// Makes a file with these bytes, unless a node stands there.
    pub(crate) fn make_file(&mut self, path: &Path, bytes: Vec<u8>, mode: u32) -> io::Result<()> {
        let place = self.make_way(path)?;
        if self.get(&place).is_none() {
            self.insert(place, Node::new(Body::File(Contents::Bytes(bytes)), mode));
        }
        Ok(())
    }

    /// Puts a file of this machine at its own path, with the links that lead to it. A node that stands there
    /// already stays: it comes from the user.
    pub(crate) fn add_own(&mut self, path: &Path) -> io::Result<PathBuf> {
        let place = self.make_way(path)?;
        if self.get(&place).is_none() {
            let file = fs::canonicalize(path)?;
            let node = Node::of(&file, &fs::symlink_metadata(&file)?)?;
            self.insert(place.clone(), Node { is_own: true, ..node });
        }
        Ok(place)
    }

    /// Whether a path leads to a file that was added because a program needs it.
    pub(crate) fn is_own(&self, path: &Path) -> bool {
        self.resolve(path).and_then(|place| self.get(&place)).is_some_and(|node| node.is_own)
    }

    /// Copies a file of this machine, or a directory with all that it contains, to a path of the guest. It
    /// replaces what stands there, except that directories are merged, and that a file replaces no directory. Returns
    /// the path without links on its way.
    pub(crate) fn copy(&mut self, source: &Path, path: &Path) -> Result<PathBuf, (PathBuf, io::Error)> {
        let wrong = |error| (source.to_owned(), error);
        // A link that the user names stands for its target; links below a directory stay links.
        let metadata = fs::metadata(source).map_err(wrong)?;
        if metadata.is_dir() {
            let place = self.make_way(path).map_err(wrong)?;
            self.copy_below(source, &place, &metadata)?;
            return Ok(place);
        }
        let name = path.file_name().filter(|_| !ends_with_dots(path));
        let name = name.ok_or_else(|| wrong(names_a_directory(path)))?;
        let directory = path.parent().unwrap_or("/".as_ref());
        self.make_directory(directory, DIRECTORY_MODE).map_err(wrong)?;
        let place = self.make_way(directory).map_err(wrong)?.join(name);
        self.check_is_free(&place).map_err(wrong)?;
        let node = named(source, &metadata).map_err(wrong)?;
        self.insert(place.clone(), node);
        Ok(place)
    }

    fn copy_below(
        &mut self,
        source: &Path,
        place: &Path,
        metadata: &Metadata,
    ) -> Result<(), (PathBuf, io::Error)> {
        let wrong = |error| (source.to_owned(), error);
        let node = Node::of(source, metadata).map_err(wrong)?;
        if node.body != Body::Directory {
            self.check_is_free(place).map_err(wrong)?;
            self.insert(place.to_owned(), node);
            return Ok(());
        }
        // A link to a directory stays: what it leads to gets the files.
        let target = self.resolve(place).filter(|target| self.is_directory(target));
        let place = target.as_deref().unwrap_or(place);
        if place.parent().is_some() {
            self.insert(place.to_owned(), node);
        }
        for entry in fs::read_dir(source).map_err(|error| (source.to_owned(), error))? {
            let entry = entry.map_err(|error| (source.to_owned(), error))?;
            let metadata = entry.metadata().map_err(|error| (entry.path(), error))?;
            self.copy_below(&entry.path(), &place.join(entry.file_name()), &metadata)?;
        }
        Ok(())
    }

    fn is_directory(&self, place: &Path) -> bool {
        self.get(place).map_or(place.parent().is_none(), |node| node.body == Body::Directory)
    }

    /// A file must not take the place of a directory, whose files would be lost.
    fn check_is_free(&self, place: &Path) -> io::Result<()> {
        match self.is_directory(place) {
            true => Err(names_a_directory(place)),
            false => Ok(()),
        }
    }
}

fn names_a_directory(path: &Path) -> io::Error {
    io::Error::other(format!("the directory {} stands there; end the destination with /", quoted(path)))
}

/// Whether the last name of a path is `.` or `..`: it stands for a directory.
fn ends_with_dots(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/.") || bytes.ends_with(b"/..")
}

/// The node for a file that the user names. A pipe, and a file whose size is not that of its contents, are read now.
fn named(source: &Path, metadata: &Metadata) -> io::Result<Node> {
    let kind = metadata.file_type();
    let is_read = kind.is_fifo() || kind.is_file() && has_no_size(source, metadata)?;
    if !is_read {
        let source = fs::canonicalize(source)?;
        return Node::of(&source, metadata);
    }
    let owner = (metadata.uid(), metadata.gid());
    let body = Body::File(Contents::Bytes(fs::read(source)?));
    Ok(Node { owner, ..Node::new(body, metadata.mode() & 0o7777) })
}

/// Whether a file's size says nothing of its contents, as in `/proc`, where it is 0, and in `/sys`, where it is a page.
fn has_no_size(path: &Path, metadata: &Metadata) -> io::Result<bool> {
    Ok(metadata.len() == 0 || statfs(path)?.f_type == SYSFS_MAGIC)
}

/// The names of a path, without `/` and `.`.
fn names(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

#[cfg(test)]
mod tests;
