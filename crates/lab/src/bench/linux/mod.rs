//! What the `linux` arms share: mapped memory, its folio size, and the check that folios have it.

pub mod census;
pub mod child;
pub mod populate;
pub mod region;
pub mod verbs;
