//! Arms of the experiment `unmap`.

mod linux;
mod quire;

use crate::bench::experiment::Arm;
use crate::bench::folio::Folio;

/// Unmap `bytes` of anonymous memory that is populated by folios like `folio`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// Bytes to unmap, a multiple of 2 MiB.
    pub bytes: usize,
    /// Size and mapping of the folios.
    pub folio: Folio,
}

/// Every arm. The checksum of a repetition is the number of pages that were mapped, written, and then unmapped.
pub fn all() -> Vec<Box<dyn Arm<Unmap>>> {
    vec![Box::<quire::Quire>::default(), Box::<linux::Linux>::default()]
}
