//! Programs that get a privilege from their file: set-uid, set-gid, file capabilities.
//!
//! The kernel withholds it from traced or filtered programs, as in the user tier, and reports nothing of a
//! program that has gained it. The user must be told of both.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::{AccessFlags, Pid, access, getegid, geteuid};

use super::proc_files;
use crate::trace::Tier;

/// A note for the user if the program would gain a privilege that this recording withholds, or that hides the
/// program.
pub(super) fn note(command: &[OsString], tier: Tier) -> Option<String> {
    let program = command.first()?;
    let how = granted(&find(program)?, (geteuid().as_raw(), getegid().as_raw()))?;
    let program = program.to_string_lossy();
    Some(match tier {
        Tier::User => format!(
            "{program} {how}: it runs without that privilege, which the kernel withholds from what an ordinary user \
             records; record as root to keep it"
        ),
        Tier::Privileged => format!(
            "{program} {how}: the kernel stops reporting once it has that privilege; record with `--tier user` to see \
             what it does without"
        ),
    })
}

/// The name of the program that a traced process has just started, if the kernel withheld a privilege from it.
pub(super) fn withheld(pid: Pid) -> Option<[u8; 16]> {
    let status = proc_files::status(pid.as_raw()).ok()?;
    granted(Path::new(&format!("/proc/{pid}/exe")), (status.euid, status.egid))?;
    let mut name = [0; 16];
    let length = status.name.len().min(15);
    name[..length].copy_from_slice(&status.name.as_bytes()[..length]);
    Some(name)
}

/// How a file grants a privilege to a process with these user and group numbers.
fn granted(file: &Path, (uid, gid): (u32, u32)) -> Option<&'static str> {
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    // The kernel ignores these bits of a script.
    if is_script(file) {
        return None;
    }
    let has = |bits| metadata.mode() & bits == bits;
    if has(libc::S_ISUID) && metadata.uid() != uid {
        Some("is set-uid")
    } else if has(libc::S_ISGID | libc::S_IXGRP) && metadata.gid() != gid {
        Some("is set-gid")
    } else if uid != 0 && has_capabilities(file) {
        Some("has file capabilities")
    } else {
        None
    }
}

/// A file that only its owner may read counts as a program.
fn is_script(file: &Path) -> bool {
    let mut start = [0; 2];
    File::open(file).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"#!"
}

fn has_capabilities(file: &Path) -> bool {
    let mut capabilities = [0; 64];
    rustix::fs::getxattr(file, c"security.capability", &mut capabilities[..]).is_ok_and(|length| length > 0)
}

/// The file that `execvp` would start.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let candidates = std::env::split_paths(&path).map(|directory| directory.join(program));
    candidates.into_iter().find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

#[cfg(test)]
mod tests;
