//! Memory: what the kernel tells Quire about its machine, and how it uses Quire.

pub mod failures;
pub mod forced;
pub mod heap;
pub mod kernel_half;
pub mod kernel_map;
pub mod layout;
pub mod list;
pub mod manager;
pub mod platform;
pub mod ranges;
pub mod stacks;
pub mod user;
