//! The state of a search for underused folios.
#![forbid(unsafe_code)]

use super::cursor::Cursor;
use crate::limits::TABLE_ENTRIES;
use crate::rank::Rank;
use crate::sync::SpinLock;

/// The limit and the progress of a search for underused folios.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Splitter {
    /// A folio with more pages of zeroes than this is underused. With 511, Linux's default, none is.
    pub max_ptes_none: usize,
    pub(super) cursor: Cursor,
}

impl Splitter {
    /// A search for folios with more pages of zeroes than this.
    pub fn new(max_ptes_none: usize) -> Self {
        Self { max_ptes_none, cursor: Cursor::default() }
    }
}

/// The search that runs when memory is short.
pub(in crate::vm) struct WhenShort(pub(super) SpinLock<Splitter>);

impl WhenShort {
    /// As in Linux, no folio is underused at first.
    pub(in crate::vm) fn new() -> Self {
        Self(SpinLock::new(Rank::Underused, Splitter::new(TABLE_ENTRIES - 1)))
    }
}
