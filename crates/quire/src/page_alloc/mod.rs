//! The page allocator: zones and nodes, the block store, per-CPU lists, bulk requests, and map counts.
//!
//! | folder | what it does |
//! |---|---|
//! | `allocator` | [`PageAllocator`] itself: what it is made of |
//! | `init` | takes over a machine's memory |
//! | `request` | allocates and frees: one folio, many, from which zone and node |
//! | `pcp` | per-CPU lists, their common and slow paths, draining |
//! | `store` | free memory: zones, pools of whole blocks, shards of blocks in small pieces |
//! | `mapcount` | counts the leaves that map frames, and frees what no leaf maps |
//! | `folio` | folios in use: their owners, their contents, splitting, huge pages, bad frames |
//! | `contig` | ranges of whole blocks in a row |
//! | `report` | what is used and free, what a frame is, whether all is consistent |
//!
//! A request goes to the running CPU's list first (`pcp/common_path.rs`), then to the store of the first zone that may
//! serve it (`store/small.rs` below a block's size, `store/whole.rs` from there on), and on to other zones and nodes
//! (`request/zone_order.rs`). Frames that page tables map come back through [`Counter`], which looks at no descriptor
//! (`mapcount/counter.rs`).

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

#[cfg(feature = "published")]
pub use crate::platform::ListGuard;
pub use allocator::PageAllocator;
pub use folio::bad::Verdict;
pub use frames::Frames;
pub(crate) use frames::bad::has_marks;
pub use frames::info::FrameInfo;
pub use frames::origins::Origin;
pub use frames::owned::{Folio, Folios, FrameRun};
#[cfg(feature = "published")]
pub use frames::scheme::CountScheme;
pub use init::config::{AllocatorConfig, MemoryRange, Zeroes};
pub use mapcount::MapCounts;
pub use mapcount::counter::{CountError, Counter};
pub use mapcount::folio::FolioMaps;
pub use mapcount::group::CountGroup;
pub use pcp::Lists;
pub use pcp::drain::Drained;
pub use report::info::{MemoryInfo, ZoneInfo};
pub use report::validate::Violation;
pub use request::Requests;
pub use request::gfp::{Contents, Gfp, Mobility, NodePolicy, Urgency, ZoneKind};
pub use request::node_set::NodeSet;
pub use store::Store;
pub use store::marks::Watermarks;
pub use store::reservation::BlockReservation;
