//! What the `linux` arms share: mapped memory, the folio-size settings of the running kernel, and the check
//! that folios have the wanted size.

pub mod census;
pub mod child;
pub mod populate;
pub mod region;
pub mod thp;
pub mod verbs;
