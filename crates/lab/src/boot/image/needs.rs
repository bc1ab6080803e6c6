//! What a program needs to start: its interpreter, its libraries, and what these need.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{self, Elf};
use super::program::Lookup;
use super::search::{Files, Loaded, Search};
use super::tree::Tree;
use crate::output::{quoted, say};

/// The C library of GNU, and what it opens by itself.
const GLIBC: &str = "libc.so.6";
const UNWINDER: &str = "libgcc_s.so.1";

/// As much of a script's first line as Linux reads.
const FIRST_LINE: u64 = 256;

/// Where programs are looked for that scripts name.
pub(crate) struct Lookups {
    pub(crate) of_guest: Lookup,
    pub(crate) of_caller: Lookup,
}

/// Adds programs' needs to a tree.
pub(crate) struct Needs<'a> {
    pub(crate) tree: &'a mut Tree,
    lookups: Lookups,
    search: Search,
    /// The files whose needs are added already.
    done: BTreeSet<PathBuf>,
    /// What was missed, so that it is told once.
    missed: BTreeSet<OsString>,
    /// Whether a library of this machine was added, so that its loader's cache is of use.
    pub(crate) uses_own_libraries: bool,
}

impl<'a> Needs<'a> {
    pub(crate) fn new(tree: &'a mut Tree, lookups: Lookups, library_path: Option<&OsStr>) -> Needs<'a> {
        let search = Search::new(tree, library_path);
        let (done, missed) = Default::default();
        Needs { tree, lookups, search, done, missed, uses_own_libraries: false }
    }

    /// Adds what the program or library at `path` of the guest needs, whose bytes are those of `file`.
    pub(crate) fn add(&mut self, path: &Path, file: &Path) -> io::Result<()> {
        let mut waiting = VecDeque::from([(path.to_owned(), file.to_owned())]);
        while let Some((path, file)) = waiting.pop_front() {
            if !self.done.insert(path.clone()) {
                continue;
            }
            let wanted = match elf::read(&file) {
                Some(elf) => self.add_libraries(path, elf)?.into_iter().collect(),
                None => self.interpreters(&path, &first_line(&file)?),
            };
            for path in wanted {
                match self.find(&path) {
                    Some(file) => {
                        let place = self.tree.add_own(&path)?;
                        waiting.push_back((place, file));
                    }
                    None => self.miss(path.as_os_str(), "which a program needs as its interpreter"),
                }
            }
        }
        Ok(())
    }

    /// The file of this machine for a path of the guest.
    fn find(&self, path: &Path) -> Option<PathBuf> {
        Files::Guest(self.tree).find(path).or_else(|| Files::Host.find(path))
    }

    fn miss(&mut self, name: &OsStr, purpose: &str) {
        if self.missed.insert(name.to_owned()) {
            say(format_args!("quire: did not find {}, {purpose}", quoted(name)));
        }
    }

    /// The programs that the first line of a script names: its interpreter, and the program that `env`
    /// starts.
    fn interpreters(&mut self, path: &Path, line: &[u8]) -> Vec<PathBuf> {
        let Some(words) = line.strip_prefix(b"#!") else { return Vec::new() };
        let words: Vec<&[u8]> =
            words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
        let Some((first, arguments)) = words.split_first() else { return Vec::new() };
        let interpreter = path.parent().unwrap_or("/".as_ref()).join(OsStr::from_bytes(first));
        let is_env = interpreter.file_name() == Some("env".as_ref());
        let mut found = vec![interpreter];
        let by_env = |word: &&&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
        if is_env && let Some(name) = arguments.iter().find(by_env) {
            found.extend(self.program(OsStr::from_bytes(name)));
        }
        found
    }

    /// A program that `env` starts: it has the guest's `PATH`. A script may add to that, so what the caller's `PATH`
    /// alone leads to is packed too.
    fn program(&mut self, name: &OsStr) -> Option<PathBuf> {
        let Lookups { of_guest, of_caller } = &self.lookups;
        if let Ok(path) = of_guest.find(self.tree, name) {
            return Some(path);
        }
        let path = of_caller.find(self.tree, name).ok()?;
        if self.missed.insert(name.to_owned()) {
            let directory = quoted(path.parent().unwrap_or("/".as_ref())).to_string();
            say(format_args!("quire: the guest's PATH lacks {directory} for {}; see `--env`", quoted(name)));
        }
        Some(path)
    }

    /// Adds the libraries that the loader maps for an object, in its order. Returns the interpreter.
    fn add_libraries(&mut self, path: PathBuf, elf: Elf) -> io::Result<Option<PathBuf>> {
        let interpreter = elf.interpreter.clone();
        let mut names: HashMap<OsString, usize> = HashMap::new();
        let mut loaded = vec![Loaded { path, elf, needed_by: None }];
        if let Some(path) = interpreter.clone() {
            // The interpreter is mapped before any library, and libraries need it by its name.
            names.extend(path.file_name().map(|name| (name.to_owned(), 0)));
            names.extend(self.find(&path).and_then(|file| elf::read(&file)?.soname).map(|name| (name, 0)));
        }
        // musl's loader is its C library.
        let has_libc = interpreter
            .as_deref()
            .and_then(Path::file_name)
            .is_some_and(|name| name.as_bytes().starts_with(b"ld-musl"));
        let mut at = 0;
        while at < loaded.len() {
            for name in needed_by(&loaded[at].elf) {
                let is_libc = has_libc && name.as_bytes().starts_with(b"libc.");
                if names.contains_key(&name) || is_libc {
                    continue;
                }
                let Some((path, file, elf)) = self.search.library(self.tree, &name, &loaded, at) else {
                    if loaded[at].elf.needed.contains(&name) {
                        let by = quoted(&loaded[at].path).to_string();
                        self.miss(&name, &format!("which {by} needs"));
                    }
                    continue;
                };
                self.add_library(&path, &file)?;
                names.insert(name, loaded.len());
                names.extend(elf.soname.clone().map(|name| (name, loaded.len())));
                loaded.push(Loaded { path, elf, needed_by: Some(at) });
            }
            at += 1;
        }
        Ok(interpreter)
    }

    fn add_library(&mut self, path: &Path, file: &Path) -> io::Result<()> {
        if Files::Guest(self.tree).find(path).is_none() {
            self.uses_own_libraries = true;
        }
        debug_assert!(file.is_absolute());
        self.tree.add_own(path)?;
        Ok(())
    }
}

/// The libraries that an object names, and the one that glibc opens when a thread ends by `pthread_exit`.
fn needed_by(elf: &Elf) -> Vec<OsString> {
    let mut names = elf.needed.clone();
    if names.iter().any(|name| name == GLIBC) && elf.interpreter.is_some() {
        names.push(UNWINDER.into());
    }
    names
}

fn first_line(file: &Path) -> io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(file)?.take(FIRST_LINE).read_to_end(&mut start)?;
    let end = start.iter().position(|&byte| byte == b'\n').unwrap_or(start.len());
    start.truncate(end);
    Ok(start)
}
