//! Pools of huge pages (Linux: hugetlb): pages of 2 MiB and 1 GiB that are set aside, counted and reserved.
//!
//! A pool is the huge pages of one size; each belongs to a node and is free or in use. Those that the
//! administrator asked for are *persistent*; those beyond are *surplus*: taken while there were not enough,
//! up to a limit, or left over when the pool was to be smaller than what was in use; they leave the pool when
//! they become free. A *reservation* sets a page aside that is not chosen yet, so that a mapping cannot run
//! short later.
//!
//! # What a huge page costs
//!
//! Nothing but its block's record (256 bytes for 2 MiB). There are no page descriptors to free when a page
//! joins a pool, and none to bring back when it leaves: a block has some only while it is used in small
//! pieces, and they stand in the block itself ([`crate::memmap`]). So a resize changes no mapping, needs no
//! flush, and a pool can shrink when there is no free memory at all. In the words of Linux,
//! `hugetlb_optimize_vmemmap` is always on and costs nothing.
//!
//! The feature `published` brings three other policies, over a window of descriptors (`vmemmap`), to be
//! compared against.
//!
//! # Protocol
//!
//! Each pool has one lock, under which only numbers and links change: pages are taken from the page allocator
//! before, and given back to it after, [`HUGE_BATCH`](crate::limits::HUGE_BATCH) at a time. What several CPUs
//! are about to add is counted as *claimed*, so that they can grow one pool together without passing its
//! size.
//!
//! The pool *holds* its pages, so that no count that falls to zero frees one. Free ones are linked through
//! their records, the one freed last first, which is the one that is warm.
//!
//! Source: the semantics of `mm/hugetlb.c` and `Documentation/admin-guide/mm/hugetlbpage.rst`.

mod account;
mod charge;
mod control;
mod demote;
mod descriptors;
mod failure;
mod file;
mod file_systems;
mod fs;
mod group;
mod info;
mod pool;
mod pools;
mod resize;
mod size;
mod take;

#[cfg(feature = "published")]
pub use crate::vmemmap::DescriptorPolicy;
pub use account::Account;
pub use control::{ControlError, Outcome};
pub use demote::Demoted;
pub use failure::HugeFailure;
pub(crate) use file::{Claim, object_of};
pub use fs::{HugeFsError, HugeFsInfo, HugeFsLimits};
pub use group::{Charge, GroupCounters, HugeGroup, LimitReached, TooManyGroups};
pub use info::PoolViolation;
pub use pool::PoolInfo;
pub use pools::HugePools;
pub use resize::{Resized, Stopped};
pub use size::HugeSize;
