//! The page cache: the pages of files, by file and offset, filled through the machine's
//! [`Pager`](crate::platform::Pager).
//!
//! # Protocol
//!
//! - A file's pages stand in a radix tree under the file's lock. A page that is being read or written is
//!   *busy*: its frame belongs to the task that set the mark, without the lock; all others wait for the mark
//!   to go.
//! - A cached frame is *held* (it has an owner besides the leaves that map it), so it outlives its mappings.
//! - A task that looks a page up and uses its frame after giving the lock back has made itself a *user* of
//!   the file first ([`FileUse`]). Pages of a file with users are not dropped. A user that came too late for
//!   the check sees the page gone, since both go through the file's lock.
//! - A task that keeps others from using pages of a file, for a moment or while it drops some that are
//!   mapped, *closes* it ([`FileClosed`], [`FileResize`]): there are no users then, and a task that would
//!   become one tries again.
//! - A page is written only through mappings that marked it dirty first, and only by users. Dirty pages are
//!   written back when asked, after the file was closed and every mapping has lost the right to store to
//!   them; or when the last reference goes, when the file is not mapped.

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
mod relocate;
mod table;
mod truncate;
mod views;
mod writeback;

pub use collapse::{BlockSurvey, NotMoved, PagesMoving};
pub use file::{FileClosed, FileCollapse, FileKind, FileNode, FileRef, FileResize, FileUse};
pub use fill::Filled;
pub use huge::HugePage;
pub use loss::{LostPage, SoughtPage};
pub use reclaim::PageRuns;
pub use relocate::MovedPage;
pub use table::FileTable;
pub use views::{FileViews, Mapper, View, ViewPtr};
