//! Files: an archive in memory, and the pager through which Quire reads it.

pub mod initramfs;
pub mod pager;
