//! `userfaultfd(2)`: a program brings the pages of its own memory.
//!
//! Quire has the handlers, the events and the answers. Here they get Linux' forms: one address space for each handler,
//! messages that are read, and requests of `ioctl`. When an address space is forked, Quire gives the child's ranges the
//! parent's handler. Linux gives them a handler of their own if the parent's asked for it (`UFFD_FEATURE_EVENT_FORK`),
//! and none otherwise; [`Fork`] does the same.

mod answer;
mod device;
mod file;
mod handler;
mod message;
mod register;
mod registry;
mod requests;

pub use device::{UserfaultDevice, new_handler};
use file::open;
pub use registry::{Fork, notify};
