//! Small objects in frames: VMAs, files, nodes of the page cache.
//!
//! A [`Cache`] serves objects of one type. A *slab* is a frame with a header and as many objects behind it as
//! fit; the header says which of them are free. Slabs with free objects are on the cache's list, full ones on
//! none. A slab is freed with its last object, so that an unused cache occupies no memory.
//!
//! # Invariants
//!
//! S1. The frame of a slab belongs to one cache from the moment its header is written until it is freed. The
//!     header is changed under the cache's lock only.
//! S2. A bit of `free` is set exactly when the object is neither handed out nor in use.
//! S3. A slab is on the list exactly when `free` is not zero; links lead to slabs of the same cache.
//! S4. The direct map keeps alignment to 4096 bytes
//!     ([`FramePlatform::direct_map`](crate::platform::FramePlatform::direct_map)), so an object's address,
//!     rounded down, is its slab's header.

mod cache;

pub use cache::{Cache, CacheUsage};
