//! The directories in which the loader looks for a library, in its order.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::elf::Elf;
use super::tree::{Contents, Tree};

/// Where loaders look last: glibc with and without Debian's names of architectures, and other systems.
const DEFAULT: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];
/// Files of `ld.so.conf` may include each other.
const INCLUDES: usize = 8;

/// One of the two places where files are looked for: first the guest's tree, which has what the user gave,
/// then this machine.
#[derive(Clone, Copy)]
pub(crate) enum Files<'a> {
    Guest(&'a Tree),
    Host,
}

impl Files<'_> {
    /// The file of this machine whose bytes the guest will find at a path.
    pub(crate) fn find(self, path: &Path) -> Option<PathBuf> {
        match self {
            Files::Guest(tree) => match tree.file(path)? {
                Contents::Host(file) => Some(file.clone()),
                Contents::Bytes(_) => None,
            },
            Files::Host => path.metadata().is_ok_and(|metadata| metadata.is_file()).then(|| path.to_owned()),
        }
    }

    /// The files in a directory whose names match a pattern with one `*`, in order.
    fn matching(self, pattern: &Path) -> Vec<PathBuf> {
        let (Some(directory), Some(name)) = (pattern.parent(), pattern.file_name()) else {
            return Vec::new();
        };
        let name = name.as_bytes();
        let Some(star) = name.iter().position(|&byte| byte == b'*') else { return vec![pattern.to_owned()] };
        let matches = |path: &PathBuf| {
            let name_of = path.file_name().unwrap_or_default().as_bytes();
            let long_enough = name_of.len() >= name.len() - 1;
            long_enough && name_of.starts_with(&name[..star]) && name_of.ends_with(&name[star + 1..])
        };
        let found: BTreeSet<PathBuf> = match self {
            Files::Guest(tree) => {
                let Some(place) = tree.resolve(directory) else { return Vec::new() };
                let paths = tree.nodes().map(|(path, _)| path.to_owned());
                paths.filter(|path| path.parent() == Some(&place)).filter(matches).collect()
            }
            Files::Host => {
                let entries = fs::read_dir(directory).into_iter().flatten().flatten();
                entries.map(|entry| entry.path()).filter(matches).collect()
            }
        };
        found.into_iter().collect()
    }

    /// The directories of `/etc/ld.so.conf`.
    fn configured(self) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        self.read_configuration("/etc/ld.so.conf".as_ref(), INCLUDES, &mut directories);
        directories
    }

    fn read_configuration(self, path: &Path, includes: usize, out: &mut Vec<PathBuf>) {
        let Some(bytes) = self.find(path).and_then(|file| fs::read(file).ok()) else { return };
        for line in bytes.split(|&byte| byte == b'\n') {
            let line = line.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
            match line
                .strip_prefix(b"include")
                .filter(|rest| rest.first().is_some_and(u8::is_ascii_whitespace))
            {
                Some(pattern) if includes > 0 => {
                    let pattern = path.parent().unwrap_or("/".as_ref()).join(as_path(pattern.trim_ascii()));
                    for file in self.matching(&pattern) {
                        self.read_configuration(&file, includes - 1, out);
                    }
                }
                Some(_) => {}
                None if line.starts_with(b"/") => out.push(as_path(line).to_owned()),
                None => {}
            }
        }
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// An object that the loader has mapped, and the one that needed it.
pub(crate) struct Loaded {
    /// Where the guest finds it.
    pub(crate) path: PathBuf,
    pub(crate) elf: Elf,
    pub(crate) needed_by: Option<usize>,
}

/// The directories that do not depend on who asks.
pub(crate) struct Search {
    /// `LD_LIBRARY_PATH`.
    library_path: Vec<PathBuf>,
    guest: Vec<PathBuf>,
    host: Vec<PathBuf>,
}

impl Search {
    /// Reads `ld.so.conf` of the guest and of this machine.
    pub(crate) fn new(tree: &Tree, library_path: Option<&OsStr>) -> Search {
        let fixed = |files: Files<'_>| {
            let default = DEFAULT.map(PathBuf::from);
            files.configured().into_iter().chain(default).collect::<Vec<_>>()
        };
        let library_path = library_path.map(|list| directories(list, Path::new("/"))).unwrap_or_default();
        Search { library_path, guest: fixed(Files::Guest(tree)), host: fixed(Files::Host) }
    }

    /// Where the guest finds the library `name` that the object `by` needs, and the file of this machine for
    /// it.
    pub(crate) fn library(
        &self,
        tree: &Tree,
        name: &OsStr,
        loaded: &[Loaded],
        by: usize,
    ) -> Option<(PathBuf, PathBuf, Elf)> {
        let usable = |files: Files<'_>, path: PathBuf| {
            // What another program brought is no choice of the user's: it stands at a path of this machine, where it is
            // found when its turn comes.
            if let Files::Guest(tree) = files
                && tree.is_own(&path)
            {
                return None;
            }
            let file = files.find(&path)?;
            // The loader passes by what is for another machine.
            let elf = super::elf::read(&file)?;
            Some((path, file, elf))
        };
        if name.as_bytes().contains(&b'/') {
            let origin = loaded[by].path.parent().unwrap_or("/".as_ref());
            let path = Path::new("/").join(expand(name, origin));
            return usable(Files::Guest(tree), path.clone()).or_else(|| usable(Files::Host, path));
        }
        let own = searched_by(loaded, by, &self.library_path);
        [(Files::Guest(tree), &self.guest), (Files::Host, &self.host)].into_iter().find_map(
            |(files, fixed)| {
                own.iter().chain(fixed).find_map(|directory| usable(files, directory.join(name)))
            },
        )
    }
}

/// Where the object `by` has its libraries looked for, before the directories that are the same for all.
/// `DT_RPATH` counts for what a library needs too, up to the program; `DT_RUNPATH` counts for the object
/// itself, and switches `DT_RPATH` off.
fn searched_by(loaded: &[Loaded], by: usize, library_path: &[PathBuf]) -> Vec<PathBuf> {
    let list = |object: &Loaded, list: &Option<OsString>| {
        let origin = object.path.parent().unwrap_or("/".as_ref());
        list.as_deref().map(|list| directories(list, origin)).unwrap_or_default()
    };
    let object = &loaded[by];
    let mut found = Vec::new();
    if object.elf.runpath.is_none() {
        let chain = std::iter::successors(Some(object), |object| Some(&loaded[object.needed_by?]));
        chain
            .filter(|object| object.elf.runpath.is_none())
            .for_each(|object| found.extend(list(object, &object.elf.rpath)));
    }
    found.extend_from_slice(library_path);
    found.extend(list(object, &object.elf.runpath));
    found
}

/// The directories of a list, made absolute.
fn directories(list: &OsStr, origin: &Path) -> Vec<PathBuf> {
    let parts = list.as_bytes().split(|byte| matches!(byte, b':' | b';')).filter(|part| !part.is_empty());
    parts.map(|part| Path::new("/").join(expand(OsStr::from_bytes(part), origin))).collect()
}

/// Replaces `$ORIGIN`, `$LIB` and `$PLATFORM`, with or without braces, as Debian's loader does.
fn expand(text: &OsStr, origin: &Path) -> PathBuf {
    let mut bytes = text.as_bytes().to_vec();
    let values = [
        ("ORIGIN", origin.as_os_str().as_bytes()),
        ("LIB", b"lib/x86_64-linux-gnu"),
        ("PLATFORM", b"x86_64"),
    ];
    for (name, value) in values {
        for form in [format!("${{{name}}}"), format!("${name}")] {
            bytes = replace(&bytes, form.as_bytes(), value);
        }
    }
    OsString::from_vec(bytes).into()
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let (mut rest, mut out) = (bytes, Vec::new());
    while let Some(at) = rest.windows(from.len()).position(|window| window == from) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(to);
        rest = &rest[at + from.len()..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests;
