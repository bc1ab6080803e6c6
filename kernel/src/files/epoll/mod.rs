//! A set of files to wait for: what `epoll_create(2)` opens.
//!
//! Each file of the set has an [`Item`], which watches it. A change puts the item on the list of those that may be
//! ready. Waiting takes items from that list, asks their files, and puts those back that are to be reported as long
//! as they are ready. So a wait looks at files that changed, not at all.

mod item;
mod set;

pub use set::Epoll;

/// What is reported: the events, and what the caller has given for the file.
pub type Report = (u32, u64);
