//! The page allocator: zones and nodes, the block store, per-CPU lists, bulk requests, and map counts.
//!
//! | folder | what it does |
//! |---|---|
//! | `allocator` | [`PageAllocator`] itself |
//! | `init` | takes over a machine's memory, adds and removes memory later |
//! | `request` | allocates and frees: one folio, many, from which zone and node |
//! | `pcp` | per-CPU lists, their common and slow paths, draining |
//! | `store` | free memory: zones, pools of whole blocks, shards of blocks in small pieces |
//! | `mapcount` | counts the leaves that map frames, and frees what no leaf maps |
//! | `frames` | what is known of each frame: state, folio, contents, owner |
//! | `folio` | whole folios in use: splitting, reserving the frames of a block, bad frames |
//! | `contig` | ranges of whole blocks in a row |
//! | `report` | how memory is used, and whether all is consistent |
//!
//! A request tries the running CPU's list first (`pcp/common_path.rs`), then the lists and the store of the
//! first zone that may serve it (`store/small.rs` below a block's size, `store/whole.rs` from there on), then
//! other zones and nodes (`request/zone_order.rs`). Frames that page tables map come back through
//! [`Counter`], which reads no descriptor (`mapcount/counter.rs`).

mod allocator;
mod contig;
mod folio;
mod frames;
mod init;
mod mapcount;
mod pcp;
mod report;
mod request;
mod store;

pub use crate::nodes::{NodeNames, NodePolicy, NodeSet};
#[cfg(feature = "published")]
pub use crate::platform::ListGuard;
pub use allocator::PageAllocator;
pub(crate) use contig::isolate::Effort;
pub use folio::bad::Verdict;
pub use frames::Frames;
pub(crate) use frames::bad::has_marks;
pub(crate) use frames::huge_zeroes::BlockClear;
pub use frames::info::FrameInfo;
pub use frames::origins::Origin;
pub use frames::owned::{Folio, Folios, FrameRun};
#[cfg(feature = "published")]
pub use frames::scheme::CountScheme;
pub use init::config::{AllocatorConfig, MemoryRange, Zeroes};
pub(crate) use init::frame_tables::TableFrames;
pub use mapcount::MapCounts;
pub use mapcount::counter::{CountError, Counter};
pub use mapcount::folio::FolioMaps;
pub use mapcount::group::CountGroup;
pub use pcp::Lists;
pub use pcp::drain::Drained;
pub use report::free_groups::{FREE_ORDERS, FreeGroups};
pub use report::info::{MemoryInfo, ZoneInfo};
pub use report::validate::Violation;
pub use request::Requests;
pub use request::gfp::{Contents, Gfp, Mobility, Urgency, ZoneKind};
pub use store::Store;
pub use store::marks::Watermarks;
pub use store::reservation::BlockReservation;
