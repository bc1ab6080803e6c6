//! The page cache: the pages of files, by file and offset.

mod file;
mod radix;

pub use file::{FileNode, FileRef};
pub use radix::{INDEX_END, NodeMemory, RadixNode, RadixTree};
