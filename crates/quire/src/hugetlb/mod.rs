//! Pools of huge pages (Linux: hugetlb): pages of 2 MiB and 1 GiB that are set aside, counted and reserved.
//!
//! A pool is the huge pages of one size; each belongs to a node and is free or in use. *Persistent* pages are
//! those that the administrator asked for. *Surplus* pages are taken, up to a limit, when there are too few,
//! or are left over when a pool shrinks below what is in use; they leave the pool when they become free. A
//! *reservation* keeps one free page, not chosen yet, so that a mapping cannot run short later.
//!
//! # What does a huge page cost?
//!
//! Only its block's record and columns (1856 bytes for 2 MiB). A frame has a page descriptor only while its
//! block is used in small pieces ([`crate::memmap`]): so none are freed when a page joins a pool, and none
//! are allocated when it leaves. A resize changes no mapping and needs no flush, and a pool can shrink when
//! no memory is free. In Linux's words, `hugetlb_optimize_vmemmap` is always on, and free.
//!
//! The feature `published` adds three other policies, with a window of descriptors (`vmemmap`), to compare.
//!
//! # Protocol
//!
//! Each pool has one lock, under which only numbers and links change. Before it, pages are allocated from the
//! page allocator, and after it they are freed, [`HUGE_BATCH`](crate::limits::HUGE_BATCH) at a time. Pages
//! that CPUs are about to add count as *claimed*, so that CPUs can grow a pool together without passing its
//! size. Surplus pages are claimed apart: a pool that grows leaves their limit alone.
//!
//! The pool *holds* its pages, so that a map count of zero frees none. Free pages are linked through their
//! records, the one freed last first, as it is warm.
//!
//! Source: the semantics of `mm/hugetlb.c` and `Documentation/admin-guide/mm/hugetlbpage.rst`.

mod account;
mod charge;
mod clear;
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
mod replace;
mod resize;
mod size;
mod take;

#[cfg(feature = "published")]
pub use crate::vmemmap::DescriptorPolicy;
pub use account::Account;
pub(crate) use account::HugeRequest;
pub use control::{ControlError, Outcome, parse_bytes};
pub use demote::Demoted;
pub use failure::HugeFailure;
pub(crate) use file::{Claim, object_of};
pub use fs::{HugeFsError, HugeFsInfo, HugeFsLimits};
pub use group::{Charge, GroupCounters, GroupEvents, HugeGroup, HugeGroupError, LimitReached};
pub use info::PoolViolation;
pub use pool::PoolInfo;
pub use pools::HugePools;
pub(crate) use replace::OtherPage;
pub use resize::{Resized, Stopped};
pub use size::HugeSize;
