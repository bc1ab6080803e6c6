//! A file that is written piece by piece, with seeks, and becomes its target when it is whole.

use std::fs::{File, Metadata, Permissions};
use std::io::{self, Seek};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::{Gid, Uid};
use signal_hook::consts::SIGXFSZ;
use tempfile::NamedTempFile;

use super::target::{Place, Target, directory};
use super::{quoted, say};

/// The future content of a target. Until [`Draft::finish`] a regular file stays as it was; a dropped draft
/// leaves nothing behind.
pub struct Draft(Content);

enum Content {
    /// In the directory of the regular file with this path, so that a rename replaces it in one step.
    Beside(NamedTempFile, PathBuf, Option<Box<Metadata>>),
    /// Without a name, for a target that cannot be read or rewound; it gets a copy at the end.
    Nameless(File, File),
    /// The target itself.
    Direct(File),
}

impl Draft {
    /// An empty draft.
    ///
    /// # Errors
    /// When the directory of the target, or the one of temporary files (`TMPDIR`), cannot be written.
    pub fn of(target: Target) -> io::Result<Self> {
        match Self::in_order(target)?.0 {
            Content::Direct(stream) => Ok(Self(Content::Nameless(tempfile::tempfile()?, stream))),
            content => Ok(Self(content)),
        }
    }

    /// The same for content that is written once, from its start to its end. A target that is no regular file
    /// gets it at once.
    ///
    /// # Errors
    /// When the directory of the target cannot be written.
    pub fn in_order(target: Target) -> io::Result<Self> {
        survive_limits()?;
        Ok(Self(match target.place {
            Place::Regular(path, before) => {
                // The permissions of any new file: the process's umask still applies.
                let mut builder = tempfile::Builder::new();
                builder.prefix(".quire-").suffix(".partial").permissions(Permissions::from_mode(0o666));
                Content::Beside(builder.tempfile_in(directory(&path))?, path, before.map(Box::new))
            }
            Place::Stream(stream) => Content::Direct(stream),
        }))
    }

    /// The file to fill.
    pub fn file(&mut self) -> &mut File {
        match &mut self.0 {
            Content::Beside(file, ..) => file.as_file_mut(),
            Content::Nameless(file, _) | Content::Direct(file) => file,
        }
    }

    /// Moves the content to the target: a regular file gets it in one step and keeps its owner and mode; any
    /// other target gets what it does not have yet.
    ///
    /// # Errors
    /// The error of the system. A regular file that cannot be replaced stays as it was; the draft stays
    /// beside it, and a message says so.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Content::Beside(file, path, before) => {
                if let Some(before) = before {
                    // Only a privileged user may, and only such a user needs to.
                    let (owner, group) = (Uid::from_raw(before.uid()), Gid::from_raw(before.gid()));
                    let _ = rustix::fs::fchown(file.as_file(), Some(owner), Some(group));
                    // New content must not run as its owner: only read, write and execute bits stay.
                    let mode = before.permissions().mode() & 0o777;
                    file.as_file().set_permissions(Permissions::from_mode(mode))?;
                }
                file.as_file().sync_all()?;
                file.persist(path).map(drop).map_err(|refused| {
                    if let Ok((_, path)) = refused.file.keep() {
                        say(format_args!("quire: what was to be written is in {}", quoted(&path)));
                    }
                    refused.error
                })
            }
            Content::Nameless(mut file, mut stream) => {
                file.rewind()?;
                io::copy(&mut file, &mut stream).map(drop)
            }
            Content::Direct(_) => Ok(()),
        }
    }
}

/// Makes reaching `ulimit -f` an error like a full disk, not a kill. A handler, unlike an ignored signal, is
/// not inherited by programs that are started.
fn survive_limits() -> io::Result<()> {
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}
