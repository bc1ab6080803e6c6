//! What one mapping is: its range, its attributes, its folio sizes, and how far it was moved.

pub(super) mod moved;
pub mod policy;
pub mod vma;
