//! The arms, one file each, by experiment. A new arm is a file here and its name in the list `all` beside it.

pub mod boot;
pub mod fault;
pub mod page_alloc;
pub mod unmap;
