//! Files: an archive in memory, the pager through which Quire reads it, and what a program has open.

pub mod initramfs;
pub mod open;
pub mod pager;
mod proc;
