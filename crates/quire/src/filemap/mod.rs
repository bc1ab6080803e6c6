//! The page cache: the pages of files, by file and offset.

mod file;

pub use file::{FileNode, FileRef};
