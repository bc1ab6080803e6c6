//! Clearing and copying: every way to do it, alone and through the library's choice.

#[path = "../common/mod.rs"]
mod common;

#[cfg(not(miri))]
mod emulated;
mod faults;
#[cfg(not(miri))]
mod forming;
mod kernels;
mod lengths;
mod machine;
mod policy;
mod stretches;
mod support;
mod visible;
