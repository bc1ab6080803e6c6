//! Prepares the tables that a leaf needs.
#![forbid(unsafe_code)]

use super::PageTables;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::Level;
use crate::error::MapError;
use crate::platform::TablePlatform;

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Ensures that a leaf of `size` at `addr` has a table that no other address space reaches. Until the
    /// address-space lock is given back, mapping there does not fail for lack of memory for tables. Shared.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when a larger leaf is in the way, [`MapError::Shared`],
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`].
    pub fn prepare(&self, addr: VirtAddr, size: PageSize) -> Result<(), MapError> {
        self.check(VirtRange { start: addr, end: addr.add(size.bytes()) })?;
        self.ensure(addr, Level::of_leaf(size)).map(drop)
    }
}
