//! Files: names, nodes, open files and descriptors, and what they stand for.
//!
//! ```text
//! descriptor ─► table::FileTable ─► open::OpenFile ─► open::File: what read, write, poll … do
//!                                        │
//! path ─► walk::Walk ─► dentry::Dentry ◄─┘
//!                            └─► node::Node: tmpfs, generated (/proc, /sys), anonymous
//! ```
//!
//! | module | duty |
//! |---|---|
//! | `tmpfs` | the root, in Quire's page cache; `archive` and `unpack` fill it from the initial RAM disk |
//! | `stored`, `ext2`, `mounted` | files on disks, the file system there, and where it is mounted |
//! | `generated` | `/proc` and `/sys`; its head says how to add a file |
//! | `pipe`, `tty`, `memory_device`, `random`, `special` | what is not stored |
//! | `anonymous`, `event_counter` | files without a place: the way to add kinds of descriptors |
//! | `socket`, `rights` | connections inside the machine, and files that go through them |
//! | `poll`, `epoll` | waiting for several files |
//! | `io`, `events`, `locks`, `limits` | copies, waiting, advisory locks, limits of the process |
//! | `mount`, `context` | the tree of files, and where a process is in it |

pub mod anonymous;
mod archive;
pub mod claim;
pub mod context;
pub mod dentry;
mod directory_file;
pub mod epoll;
pub mod event_counter;
pub mod events;
mod ext2;
pub mod generated;
pub mod initramfs;
pub mod io;
pub mod limits;
pub mod locks;
mod memory_device;
pub mod mount;
pub mod mounted;
pub mod mounts;
pub mod node;
pub mod open;
pub mod pipe;
pub mod poll;
pub mod process_file;
pub mod random;
pub mod rights;
pub mod socket;
mod special;
pub mod stored;
pub mod table;
pub mod tmpfs;
pub mod tty;
mod unpack;
pub mod walk;

pub use stored::Storage;
