//! Resolves the name of an output, once, before any work is done.
//!
//! A regular file is replaced in one step; a symbolic link stays, and its target is replaced. Devices, FIFOs
//! and sockets are written to as they are: a name in `/dev` stays a device.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Draft, cure, quoted};

/// The number of links that the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// The target of output.
#[derive(Debug)]
pub struct Target {
    pub(super) place: Place,
    /// As the user gave it.
    name: PathBuf,
}

#[derive(Debug)]
pub(super) enum Place {
    /// A regular file, present or future, by its path without links, and its metadata if present.
    Regular(PathBuf, Option<Metadata>),
    /// Any other target, open for writing.
    Stream(File),
}

/// The end of a name's links.
enum Followed {
    /// A name without links; the file need not exist.
    Path(PathBuf),
    /// An open file of this process, as in `/dev/stdout` and `/dev/fd/7`.
    Descriptor(u32),
}

impl Target {
    /// Opens the target of a name. `-` is standard output; all other output of this process goes to standard
    /// error from then on. A FIFO waits for its reader here.
    ///
    /// # Errors
    /// A directory, a file or directory that this user may not write, a name without a directory, a loop of links.
    pub fn open(name: &Path) -> io::Result<Self> {
        Ok(Self { place: Place::of(name)?, name: name.to_owned() })
    }

    /// The same, with an error that names the file and the cure.
    ///
    /// # Errors
    /// As [`Target::open`].
    pub fn named(path: &Path) -> anyhow::Result<Self> {
        Self::open(path).with_context(|| {
            format!(
                "cannot write {}: give a file in a directory that exists and is writable",
                output_name(path)
            )
        })
    }

    /// Whether binary output would go to a screen.
    pub fn is_terminal(&self) -> bool {
        matches!(&self.place, Place::Stream(stream) if stream.is_terminal())
    }

    /// Writes all bytes. A regular file is then replaced in one step: a reader sees the old content or the
    /// new, never a part.
    ///
    /// # Errors
    /// The error of the system; a regular file then stays as it was.
    pub fn write(self, bytes: &[u8]) -> anyhow::Result<()> {
        let name = self.name.clone();
        self.put(bytes).map_err(|error| cannot_write(&name, error))
    }

    fn put(self, bytes: &[u8]) -> io::Result<()> {
        if let Place::Stream(mut stream) = self.place {
            return stream.write_all(bytes);
        }
        let mut draft = Draft::of(self)?;
        draft.file().write_all(bytes)?;
        draft.finish()
    }
}

/// An error of the system at output with this name, with the name and the cure.
pub fn cannot_write(name: &Path, error: io::Error) -> anyhow::Error {
    let cure = cure(&error);
    anyhow::Error::new(error).context(format!("cannot write {}; {cure}", output_name(name)))
}

/// What a message calls the output with this name.
pub fn output_name(name: &Path) -> String {
    match name == Path::new("-") {
        true => "standard output".to_owned(),
        false => quoted(name).to_string(),
    }
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return take_standard_output();
        }
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let path = match follow(path)? {
            Followed::Descriptor(1) => return take_standard_output(),
            Followed::Descriptor(2) => return stream(io::stderr().as_fd().try_clone_to_owned()?),
            // Appends, since a file that the shell opened for this command may have content already.
            Followed::Descriptor(_) => return stream(OpenOptions::new().append(true).open(path)?),
            Followed::Path(path) => path,
        };
        let there = match fs::metadata(&path) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !slash => {
                probe(&path)?;
                return Ok(Self::Regular(path, None));
            }
            Err(error) => return Err(error),
        };
        let kind = there.file_type();
        if kind.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if kind.is_socket() {
            return stream(UnixStream::connect(path)?);
        }
        // The directory may let this user replace a file that the user may not write.
        let open = OpenOptions::new().write(true).custom_flags(libc::O_NOCTTY).open(&path)?;
        if !kind.is_file() {
            return stream(open);
        }
        probe(&path)?;
        Ok(Self::Regular(path, Some(there)))
    }
}

fn stream(file: impl Into<OwnedFd>) -> io::Result<Place> {
    Ok(Place::Stream(File::from(file.into())))
}

/// Reserves standard output for the target: the rest of this process, and the programs that it starts, write
/// to standard error.
fn take_standard_output() -> io::Result<Place> {
    io::stdout().flush()?;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    stream(own)
}

/// Fails if the directory of `path` takes no new file.
fn probe(path: &Path) -> io::Result<()> {
    tempfile::tempfile_in(directory(path)).map(drop)
}

/// The directory of a name.
pub(super) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Follows the links of a name, even if the last one is dangling.
fn follow(path: &Path) -> io::Result<Followed> {
    let descriptors = fs::canonicalize("/proc/self/fd").ok();
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Some(name) = path.file_name() else { return Ok(Followed::Path(path)) };
        let parent = fs::canonicalize(directory(&path))?;
        if descriptors.as_ref() == Some(&parent)
            && let Some(number) = name.to_str().and_then(|name| name.parse().ok())
        {
            return Ok(Followed::Descriptor(number));
        }
        let plain = parent.join(name);
        match fs::read_link(&plain) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(Followed::Path(plain)),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}
