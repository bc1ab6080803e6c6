use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

const ME: u32 = 1_000_000;

fn file(contents: &[u8], mode: u32) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), contents).expect("it is ours");
    std::fs::set_permissions(file.path(), Permissions::from_mode(mode)).expect("it is ours");
    file
}

#[test]
fn what_grants_a_privilege() {
    let of = |contents: &[u8], mode, ids| {
        let file = file(contents, mode);
        let metadata = file.path().metadata().expect("it exists");
        granted(file.path(), if ids { (ME, ME) } else { (metadata.uid(), metadata.gid()) })
    };
    assert_eq!(of(b"\x7fELF", 0o755, true), None);
    assert_eq!(of(b"\x7fELF", 0o4755, true), Some("is set-uid"));
    assert_eq!(of(b"\x7fELF", 0o2755, true), Some("is set-gid"));
    // Without the right to execute it marks a mandatory lock.
    assert_eq!(of(b"\x7fELF", 0o2745, true), None);
    assert_eq!(of(b"\x7fELF", 0o6755, false), None);
    assert_eq!(of(b"#!/bin/sh\n", 0o6755, true), None);
}
