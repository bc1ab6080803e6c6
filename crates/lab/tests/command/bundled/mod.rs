//! The traces that come with the project.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};

/// Where they are.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces")
}

/// All of them, by name.
pub fn bundled() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory())
        .expect("the directory of traces is there")
        .map(|entry| entry.expect("the directory is readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "qtrace"))
        .collect();
    paths.sort();
    paths
}
