//! Clearing and copying: every way to do it, alone and through the library's choice.

#[cfg(not(miri))]
mod emulated;
mod faults;
mod fences;
#[cfg(not(miri))]
mod gigantic_clear;
mod kernels;
mod lengths;
mod policy;
mod stretches;
mod support;
mod visible;
