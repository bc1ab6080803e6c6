//! What the `linux` arms stand on: mapped memory, the folio-size settings of the running kernel, and the proof
//! that folios of the wanted size were really used.

pub mod census;
pub mod child;
pub mod populate;
pub mod region;
pub mod thp;
pub mod verbs;
