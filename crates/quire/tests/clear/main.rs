//! Clearing and copying: every way to do it, alone and through the library's choice.

#[path = "../common/mod.rs"]
mod common;

#[cfg(not(miri))]
mod emulated;
mod kernels;
mod support;
mod visible;
