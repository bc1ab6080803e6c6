//! Memory: what the kernel tells Quire about its machine, and how it uses Quire.

pub mod layout;
