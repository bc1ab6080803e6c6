//! Where a search for underused folios is, and what it looks for.
#![forbid(unsafe_code)]

use super::cursor::Cursor;
use crate::limits::TABLE_ENTRIES;
use crate::rank::Rank;
use crate::sync::SpinLock;

/// Where a search for underused folios is, and what it looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Splitter {
    /// A folio with more pages of zeroes than this is underused. 511, Linux's default: none is.
    pub max_ptes_none: usize,
    pub(super) cursor: Cursor,
}

impl Splitter {
    /// Of folios with more pages of zeroes than this.
    pub fn new(max_ptes_none: usize) -> Self {
        Self { max_ptes_none, cursor: Cursor::default() }
    }
}

/// The search that goes on when memory is short.
pub(in crate::vm) struct WhenShort(pub(super) SpinLock<Splitter>);

impl WhenShort {
    /// One that finds nothing underused, as in Linux.
    pub(in crate::vm) fn new() -> Self {
        Self(SpinLock::new(Rank::Underused, Splitter::new(TABLE_ENTRIES - 1)))
    }
}
