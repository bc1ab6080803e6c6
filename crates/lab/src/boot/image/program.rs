//! Finds a program by its name, as a shell does.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::search::Files;
use super::tree::{Body, Tree};

/// The directories of the guest's `PATH`.
pub(crate) const GUEST_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// No file has the name.
    NotFound,
    /// A file has the name, and may not be executed.
    NotExecutable,
}

/// The directories in which programs are looked for.
pub(crate) struct Lookup {
    directories: Vec<PathBuf>,
}

impl Lookup {
    /// The directories of these lists, each of which is the value of a `PATH`.
    pub(crate) fn new<'p>(lists: impl IntoIterator<Item = &'p OsStr>) -> Lookup {
        let all = lists.into_iter().flat_map(std::env::split_paths);
        Lookup { directories: all.filter(|directory| directory.is_absolute()).collect() }
    }

    /// The absolute path of a program: one of the guest's tree if there is one, else one of this machine.
    pub(crate) fn find(&self, tree: &Tree, name: &OsStr) -> Result<PathBuf, Missing> {
        let paths: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
            vec![std::path::absolute(name).map_err(|_| Missing::NotFound)?]
        } else {
            self.directories.iter().map(|directory| directory.join(name)).collect()
        };
        let mut missing = Missing::NotFound;
        for files in [Files::Guest(tree), Files::Host] {
            for path in paths.iter().filter(|path| files.find(path).is_some()) {
                if is_executable(files, path) {
                    return Ok(path.clone());
                }
                missing = Missing::NotExecutable;
            }
        }
        Err(missing)
    }
}

fn is_executable(files: Files<'_>, path: &Path) -> bool {
    let mode = match files {
        Files::Guest(tree) => tree.resolve(path).and_then(|place| tree.get(&place)).map(|node| node.mode),
        Files::Host => path.metadata().ok().map(|metadata| metadata.permissions().mode()),
    };
    mode.is_some_and(|mode| mode & 0o111 != 0)
}

/// Whether a file of the tree may be executed or mapped by a loader, so that its needs are to be added.
pub(crate) fn may_need(path: &Path, body: &Body, mode: u32) -> bool {
    let is_library = path.file_name().is_some_and(|name| {
        let name = name.as_bytes();
        name.ends_with(b".so") || name.windows(4).any(|part| part == b".so.")
    });
    matches!(body, Body::File(_)) && (mode & 0o111 != 0 || is_library)
}

/// An argument list or environment as the kernel reads it: every text with a zero byte behind it.
pub(crate) fn terminated<'a>(texts: impl IntoIterator<Item = &'a OsString>) -> Vec<u8> {
    texts.into_iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect()
}
