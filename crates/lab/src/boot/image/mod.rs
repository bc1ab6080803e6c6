//! The guest's files, packed into its initial RAM disk.
//!
//! ```text
//! tree      what stands at which path; follows links as the guest will
//! elf       what an ELF file needs                  search    where the loader looks for a library
//! program   a program by its name                   needs     all that a program needs to start
//! archive   a tree as a cpio archive
//! ```

mod archive;
mod elf;
mod needs;
mod program;
mod search;
mod tree;

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::BootError;
use crate::output::quoted;
use archive::Failed;
use needs::{Lookups, Needs};
pub(super) use program::GUEST_PATH;
use program::{Lookup, Missing, may_need, terminated};
use search::Files;
use tree::{Body, Contents, Node, Tree};

/// The loader's list of libraries: without it the loader does not find those in directories that are only
/// configured.
const LOADER_CACHE: &str = "/etc/ld.so.cache";
/// What stands at the top of every Linux system, with the permissions.
const DIRECTORIES: [(&str, u32); 5] =
    [("/dev", 0o755), ("/proc", 0o555), ("/root", 0o700), ("/sys", 0o555), ("/tmp", 0o1777)];
/// Where programs refer to by fixed paths. On this machine they may be links into `/usr`.
const FIXED: [&str; 4] = ["/bin", "/lib", "/lib64", "/sbin"];
/// Where the guest has other files than those of the archive.
const HIDDEN: [&str; 4] = ["/dev", "/proc", "/sys", START];
/// The directory of what the kernel reads to start the program.
const START: &str = "/.quire";
const PASSWD: &str =
    "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// A file that the user gives, and its path in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) source: PathBuf,
    pub(super) path: PathBuf,
}

/// What to pack.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    /// The program as typed, and its arguments.
    pub(super) command: &'a [OsString],
    pub(super) environment: &'a [OsString],
    pub(super) directory: &'a Path,
    /// Rows and columns, if the guest's terminal is one that a user sees.
    pub(super) terminal: Option<(u16, u16)>,
    pub(super) root: Option<&'a Path>,
    pub(super) files: &'a [Given],
}

/// The guest's files.
pub(super) struct Image {
    tree: Tree,
    /// Where the program stands, without links on the way.
    pub(super) program: PathBuf,
}

impl Image {
    /// Collects the files.
    pub(super) fn new(request: &Request<'_>) -> Result<Image, BootError> {
        let mut tree = Tree::default();
        if let Some(root) = request.root {
            tree.copy(root, "/".as_ref()).map_err(unreadable)?;
        }
        let given = request.files.iter().map(|file| copy_given(&mut tree, file));
        let given: Vec<PathBuf> = given.collect::<Result<_, _>>()?;
        let packed = |error: io::Error| unreadable((PathBuf::from("the guest's files"), error));
        for path in FIXED {
            // What a link leads to may have no files yet.
            tree.make_directory(path.as_ref(), 0o755).map_err(packed)?;
        }

        let of_caller = env::var_os("PATH").unwrap_or_default();
        let lookup = Lookup::new([of_caller.as_os_str(), GUEST_PATH.as_ref()]);
        let name = request.command.first().map(OsString::as_os_str).unwrap_or_default();
        let path = lookup.find(&tree, name).map_err(|missing| not_found(name, missing))?;
        let program = tree.add_own(&path).map_err(|error| unreadable((path.clone(), error)))?;
        let library_path = joined(variable(request, "LD_LIBRARY_PATH"), env::var_os("LD_LIBRARY_PATH"));
        let of_guest = Lookup::new([variable(request, "PATH").unwrap_or_default()]);
        let wanted = Needs::new(&mut tree, Lookups { of_guest, of_caller: lookup }, library_path.as_deref());
        add_needs(wanted, &program, &given)?;

        for (directory, mode) in DIRECTORIES {
            tree.make_directory(directory.as_ref(), mode).map_err(packed)?;
        }
        add_text(&mut tree, "/etc/passwd", PASSWD.into()).map_err(packed)?;
        add_text(&mut tree, "/etc/group", GROUP.into()).map_err(packed)?;
        tree.make_directory(request.directory, 0o755).map_err(packed)?;
        add_start(&mut tree, request, &path);
        Ok(Image { tree, program })
    }

    /// Writes the archive; `not_written` tells that it takes nothing more.
    pub(super) fn write(
        &self,
        out: &mut impl Write,
        not_written: impl Fn(io::Error) -> BootError,
    ) -> Result<(), BootError> {
        archive::write(&self.tree, out).map_err(|failed| match failed {
            Failed::File(path, source) => unreadable((path, source)),
            Failed::Archive(source) => not_written(source),
        })
    }
}

/// Copies a given file or directory; returns its path without links on its way. Refuses files that a program
/// would not see: those where the guest has a file system of its own, and those that start the program.
fn copy_given(tree: &mut Tree, given: &Given) -> Result<PathBuf, BootError> {
    let before = hidden(tree);
    let place = tree.copy(&given.source, &given.path).map_err(unreadable)?;
    if HIDDEN.iter().any(|directory| place.starts_with(directory)) {
        return Err(not_seen(given.source.clone(), &place));
    }
    // A directory that is merged with `/` may contain some. What the user's root has there is hidden, not
    // refused.
    match hidden(tree).into_iter().find(|(path, body)| before.get(path) != Some(body)) {
        None => Ok(place),
        Some((path, _)) => {
            let below = path.strip_prefix(&place).unwrap_or(&path);
            Err(not_seen(given.source.join(below), &path))
        }
    }
}

/// All files and links that the guest's own files hide, with their paths. Directories are the same with both.
fn hidden(tree: &Tree) -> BTreeMap<PathBuf, Body> {
    let is_hidden = |path: &Path| HIDDEN.iter().any(|directory| path.starts_with(directory));
    let nodes = tree.nodes().filter(|(path, node)| is_hidden(path) && node.body != Body::Directory);
    nodes.map(|(path, node)| (path.to_owned(), node.body.clone())).collect()
}

fn not_seen(source: PathBuf, path: &Path) -> BootError {
    let directory = HIDDEN.iter().find(|directory| path.starts_with(directory)).unwrap_or(&"/");
    unreadable((source, io::Error::other(format!("the guest has files of its own in {directory}"))))
}

fn unreadable((path, source): (PathBuf, io::Error)) -> BootError {
    BootError::NotPacked { path: quoted(&path).to_string(), source }
}

fn not_found(name: &OsStr, missing: Missing) -> BootError {
    let program = quoted(name).to_string();
    match missing {
        Missing::NotFound => BootError::NotFound { program },
        Missing::NotExecutable => BootError::NotExecutable { program },
    }
}

/// Adds what the program and the programs and libraries among the user's files need.
fn add_needs(mut needs: Needs<'_>, program: &Path, given: &[PathBuf]) -> Result<(), BootError> {
    let is_given = |path: &Path| given.iter().any(|place| path.starts_with(place));
    let with_needs = |(path, node): (&Path, &Node)| match &node.body {
        Body::File(Contents::Host(file))
            if path == program || is_given(path) && may_need(path, &node.body, node.mode) =>
        {
            Some((path.to_owned(), file.clone()))
        }
        _ => None,
    };
    let all: Vec<_> = needs.tree.nodes().filter_map(with_needs).collect();
    for (path, file) in all {
        needs.add(&path, &file).map_err(|error| unreadable((path, error)))?;
    }
    if needs.uses_own_libraries && Files::Host.find(LOADER_CACHE.as_ref()).is_some() {
        needs
            .tree
            .add_own(LOADER_CACHE.as_ref())
            .map_err(|error| unreadable((LOADER_CACHE.into(), error)))?;
    }
    Ok(())
}

/// The value of a variable of the program's environment.
fn variable<'r>(request: &'r Request<'_>, name: &str) -> Option<&'r OsStr> {
    let value = |text: &'r OsString| text.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=");
    request.environment.iter().find_map(value).map(OsStr::from_bytes)
}

/// A list of directories, and another behind it.
fn joined(first: Option<&OsStr>, second: Option<OsString>) -> Option<OsString> {
    let Some(first) = first else { return second };
    let mut list = first.to_owned();
    second.into_iter().for_each(|second| list.extend([OsStr::new(":"), &second]));
    Some(list)
}

fn add_text(tree: &mut Tree, path: &str, text: Vec<u8>) -> io::Result<()> {
    tree.make_file(path.as_ref(), text, 0o644)
}

/// Adds what the kernel reads to start the program.
fn add_start(tree: &mut Tree, request: &Request<'_>, program: &Path) {
    let text = |path: &Path| path.as_os_str().as_encoded_bytes().to_vec();
    let size = |(rows, columns)| ("terminal", format!("{rows} {columns}\n").into_bytes());
    let files = [
        ("arguments", terminated(request.command)),
        ("directory", text(request.directory)),
        ("environment", terminated(request.environment)),
        ("program", text(program)),
    ];
    let files = files.into_iter().chain(request.terminal.map(size));
    tree.insert(START.into(), Node::new(Body::Directory, 0o700));
    for (name, bytes) in files {
        let path = Path::new(START).join(name);
        tree.insert(path, Node::new(Body::File(Contents::Bytes(bytes)), 0o600));
    }
}

#[cfg(test)]
mod tests;
