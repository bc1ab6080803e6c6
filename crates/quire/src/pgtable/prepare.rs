//! What a leaf needs before there is one.
#![forbid(unsafe_code)]

use super::PageTables;
use crate::addr::{PageSize, VirtAddr, VirtRange};
use crate::arch::Level;
use crate::error::MapError;
use crate::platform::TablePlatform;

impl<P: TablePlatform> PageTables<'_, '_, P> {
    /// Ensures that there is a table for a leaf of `size` at `addr`, which no other address space reaches:
    /// mapping there fails for no lack of memory for tables from now on, until the address-space lock is
    /// given back. Shared.
    ///
    /// # Errors
    /// [`MapError::Occupied`] when a larger leaf is in the way, [`MapError::Shared`],
    /// [`MapError::BadAddress`], [`MapError::OutOfMemory`].
    pub fn prepare(&self, addr: VirtAddr, size: PageSize) -> Result<(), MapError> {
        self.check(VirtRange { start: addr, end: addr.add(size.bytes()) })?;
        self.ensure(addr, Level::of_leaf(size)).map(drop)
    }
}
