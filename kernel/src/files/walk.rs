//! From a path to a name: `..`, symbolic links, mounts.

use alloc::sync::Arc;
use alloc::vec::Vec;

use linux_raw_sys::general as abi;

use super::dentry::Dentry;
use super::node::{Directory, Kind, Target};
use crate::errno::Errno;
use crate::memory::list;
use crate::task::credentials::{EXECUTE, WRITE, check_file, check_owner, check_search};

/// The longest path, with the zero byte at its end (`PATH_MAX`).
pub const PATH_BYTES: usize = 4096;
/// The longest name (`NAME_MAX`).
pub const NAME_BYTES: usize = 255;
/// How many symbolic links may stand on the way, as in Linux.
const MOST_LINKS: u32 = 40;

/// What a path leads to.
pub struct Found {
    /// The directory of its last name.
    pub directory: Arc<Dentry>,
    /// Its last name; empty if the path ends in `/`, `.` or `..`: then the place exists.
    pub name: Vec<u8>,
    /// The place, if it exists.
    pub place: Option<Arc<Dentry>>,
    /// It must be a directory: a slash follows it.
    pub slash: bool,
}

impl Found {
    /// The place.
    ///
    /// # Errors
    /// [`Errno::ENOENT`] if it does not exist, [`Errno::ENOTDIR`] if it must be a directory and is not.
    pub fn existing(self) -> Result<Arc<Dentry>, Errno> {
        let place = self.place.ok_or(Errno::ENOENT)?;
        if self.slash && !place.node().is_directory() {
            return Err(Errno::ENOTDIR);
        }
        Ok(place)
    }

    /// The directory, in which names can be made and removed.
    ///
    /// # Errors
    /// [`Errno::EACCES`].
    pub fn writable_directory(&self) -> Result<&dyn Directory, Errno> {
        let node = self.directory.node();
        check_file(WRITE | EXECUTE, || node.attributes())?;
        node.directory()
    }

    /// The same, in which this entry can be removed: in a sticky one, only its owner can.
    ///
    /// # Errors
    /// [`Errno::EACCES`], [`Errno::EPERM`].
    pub fn directory_without(&self, entry: &Arc<Dentry>) -> Result<&dyn Directory, Errno> {
        let here = self.directory.node().attributes();
        if here.mode & abi::S_ISVTX != 0 && check_owner(&here).is_err() {
            check_owner(&entry.node().attributes())?;
        }
        self.writable_directory()
    }
}

/// When a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Always.
    Always,
    /// Only if a slash follows its name.
    BeforeSlash,
    /// Never: the call makes, removes or changes the name itself.
    Never,
}

impl Follow {
    /// For a call that looks at a node: whether it is one behind a link.
    pub fn when(follow: bool) -> Self {
        if follow { Self::Always } else { Self::BeforeSlash }
    }
}

/// A walk along a path.
pub struct Walk {
    /// Where `/` leads.
    pub root: Arc<Dentry>,
    /// Where a relative path starts.
    pub base: Arc<Dentry>,
    /// Whether a symbolic link at the end is followed.
    pub follow: Follow,
    /// What `openat2(2)` forbids on the way (`RESOLVE_*`).
    pub resolve: u32,
}

/// The state of a walk.
struct Walker<'w> {
    walk: &'w Walk,
    root: &'w Arc<Dentry>,
    at: Arc<Dentry>,
    /// What is left of the path.
    rest: Vec<u8>,
    links: u32,
}

impl Walk {
    /// Walks along a path. All but its last name must exist.
    ///
    /// # Errors
    /// [`Errno::ENOENT`], [`Errno::ENOTDIR`], [`Errno::ELOOP`], [`Errno::ENAMETOOLONG`]; [`Errno::EXDEV`] when
    /// it leaves the directory that `resolve` confines it to.
    pub fn find(&self, path: &[u8]) -> Result<Found, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= PATH_BYTES {
            return Err(Errno::ENAMETOOLONG);
        }
        let root = if self.has(abi::RESOLVE_IN_ROOT) { &self.base } else { &self.root };
        let mut walker =
            Walker { walk: self, root, at: self.base.clone(), rest: path.to_vec(), links: MOST_LINKS };
        walker.start()?;
        walker.run()
    }

    fn has(&self, flag: u32) -> bool {
        self.resolve & flag != 0
    }
}

impl Walker<'_> {
    /// An absolute path starts at the root.
    fn start(&mut self) -> Result<(), Errno> {
        if self.rest.first() == Some(&b'/') {
            if self.walk.has(abi::RESOLVE_BENEATH) {
                return Err(Errno::EXDEV);
            }
            self.at = self.root.clone();
        }
        Ok(())
    }

    fn run(mut self) -> Result<Found, Errno> {
        loop {
            let (name, more, slash) = self.next_name();
            // Only a directory can be left, be it by "." or "..".
            let node = self.at.node().clone();
            let directory = node.directory()?;
            check_search(|| node.attributes())?;
            match name.as_slice() {
                b"" | b"." if !more => return Ok(self.found_here(slash)),
                b"" | b"." => continue,
                b".." => {
                    self.up()?;
                    if !more {
                        return Ok(self.found_here(slash));
                    }
                    continue;
                }
                _ if name.len() > NAME_BYTES => return Err(Errno::ENAMETOOLONG),
                _ => {}
            }
            let place = match directory.find(&self.at, &name) {
                Ok(place) => place.covered(),
                Err(Errno::ENOENT) if !more => {
                    return Ok(Found { directory: self.at, name, place: None, slash });
                }
                Err(errno) => return Err(errno),
            };
            if place.node().kind() == Kind::Symlink && (more || self.follows(slash)) {
                let done = self.follow(&place, more)?;
                if done {
                    return Ok(self.found_here(slash));
                }
                continue;
            }
            self.check_mount(&place)?;
            if !more {
                return Ok(Found { directory: self.at, name, place: Some(place), slash });
            }
            self.at = place;
        }
    }

    /// Takes the next name off the path. Returns whether another one follows, and whether a slash does.
    fn next_name(&mut self) -> (Vec<u8>, bool, bool) {
        let start = self.rest.iter().position(|&byte| byte != b'/').unwrap_or(self.rest.len());
        let end =
            self.rest[start..].iter().position(|&byte| byte == b'/').map_or(self.rest.len(), |at| start + at);
        let name = self.rest[start..end].to_vec();
        let slash = end < self.rest.len();
        let more = self.rest[end..].iter().any(|&byte| byte != b'/');
        self.rest.drain(..end);
        (name, more, slash)
    }

    /// Whether a link at the end is followed.
    fn follows(&self, slash: bool) -> bool {
        match self.walk.follow {
            Follow::Always => true,
            Follow::BeforeSlash => slash,
            Follow::Never => false,
        }
    }

    fn found_here(self, slash: bool) -> Found {
        Found { directory: self.at.clone(), name: Vec::new(), place: Some(self.at), slash }
    }

    fn up(&mut self) -> Result<(), Errno> {
        let top = Arc::ptr_eq(&self.at, self.root);
        if self.walk.has(abi::RESOLVE_BENEATH) && Arc::ptr_eq(&self.at, &self.walk.base) {
            return Err(Errno::EXDEV);
        }
        if !top && let Some(parent) = self.at.parent() {
            self.check_mount(&parent)?;
            self.at = parent;
        }
        Ok(())
    }

    /// Replaces a symbolic link by where it leads. Returns whether the walk ends there: a link of `/proc` leads to a
    /// place that may not be a directory.
    fn follow(&mut self, link: &Arc<Dentry>, more: bool) -> Result<bool, Errno> {
        self.links = self.links.checked_sub(1).ok_or(Errno::ELOOP)?;
        if self.walk.has(abi::RESOLVE_NO_SYMLINKS) {
            return Err(Errno::ELOOP);
        }
        match link.node().target()? {
            Target::Path(path) => {
                if path.is_empty() {
                    return Err(Errno::ENOENT);
                }
                self.rest = list::concat([path.as_slice(), &self.rest].into_iter())?;
                self.start()?;
                Ok(false)
            }
            Target::Place(place) => {
                if self.walk.has(abi::RESOLVE_NO_MAGICLINKS) {
                    return Err(Errno::ELOOP);
                }
                if self.walk.has(abi::RESOLVE_BENEATH | abi::RESOLVE_IN_ROOT) {
                    return Err(Errno::EXDEV);
                }
                self.at = place;
                Ok(!more)
            }
        }
    }

    fn check_mount(&self, place: &Arc<Dentry>) -> Result<(), Errno> {
        if self.walk.has(abi::RESOLVE_NO_XDEV) && place.node().fs_info().fs != self.at.node().fs_info().fs {
            return Err(Errno::EXDEV);
        }
        Ok(())
    }
}
