//! The page cache: the pages of files, by file and offset, filled through the machine's
//! [`Pager`](crate::platform::Pager).
//!
//! # Protocol
//!
//! - A file's pages stand in a radix tree under the file's lock. A page that is being read or written is
//!   *busy*: its frame belongs to the task that set the mark, without the lock, and other tasks wait until it
//!   is cleared.
//! - The cache *holds* its frames: it owns them besides the leaves that map them, so they outlive their
//!   mappings.
//! - Before a task uses a page's frame without the lock, it makes itself a *user* of the file ([`FileUse`]).
//!   Pages of a file with users are not dropped. A task that becomes a user after that check finds the page
//!   gone, since both go through the file's lock.
//! - A task that must keep others from using pages, for a moment or while it drops mapped ones, *closes* the
//!   file ([`FileClosed`], [`FileResize`]): it has no users then, and a task that wants to be one tries
//!   again.
//! - Only users write to a page, through mappings that marked it dirty first. Dirty pages are written back on
//!   request, after the file was closed and every mapping has lost the right to store to them; or when the
//!   last reference goes, as no mapping is left then.

mod bytes;
mod collapse;
mod file;
mod fill;
mod huge;
mod lookup;
mod loss;
mod pages;
mod put;
mod radix;
mod reclaim;
mod references;
mod relocate;
mod table;
mod truncate;
mod views;
mod writeback;

pub(crate) use bytes::PageLookup;
pub use collapse::{BlockSurvey, NotMoved, PagesMoving};
pub use file::{FileClosed, FileCollapse, FileKind, FileNode, FileRef, FileResize, FileUse};
pub use fill::Filled;
pub use huge::HugePage;
pub use loss::{FoundPage, LostPage};
pub use reclaim::PageRuns;
pub use relocate::MovedPage;
pub use table::FileTable;
pub use views::{FileViews, Mapper, View, ViewPtr};
