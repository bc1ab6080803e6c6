//! The processor: its features, and the ways into the kernel and out of it.

pub mod features;
