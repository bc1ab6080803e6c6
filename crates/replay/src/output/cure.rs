//! What to do about an error of the system at a file.

use std::io::{self, ErrorKind};

/// The words behind the error, in a message that has named the file.
pub fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "check the path",
        ErrorKind::IsADirectory => "give a file in it",
        ErrorKind::NotADirectory => "give a directory in its place",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "check its permissions",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room for it",
        ErrorKind::FileTooLarge => "raise the limit of file sizes (`ulimit -f`)",
        _ => "check the path, its permissions and the free space",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cure_fits_its_error() {
        let cures = [
            (libc::ENOENT, "check the path"),
            (libc::EISDIR, "give a file in it"),
            (libc::EACCES, "check its permissions"),
            (libc::ENOSPC, "make room for it"),
            (libc::EFBIG, "raise the limit of file sizes (`ulimit -f`)"),
            (libc::EIO, "check the path, its permissions and the free space"),
        ];
        for (number, expected) in cures {
            assert_eq!(cure(&io::Error::from_raw_os_error(number)), expected);
        }
    }
}
