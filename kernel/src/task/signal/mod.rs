//! Signals (`signal(7)`): sent to a task or a process, kept until a task takes them on its way to its program.

pub mod action;
pub mod deliver;
mod frame;
pub mod info;
pub mod own;
pub mod queue;
pub mod send;
pub mod shared;
mod vectors;

pub use frame::restore;

use linux_raw_sys::general as abi;

/// A set of signals: bit 0 is signal 1.
pub type SignalSet = u64;

/// The number of signals.
pub const COUNT: u32 = 64;

/// The set of one signal.
pub const fn set_of(signal: u32) -> SignalSet {
    1 << (signal - 1)
}

/// Signals that cannot be caught, blocked or ignored.
pub const UNSTOPPABLE: SignalSet = set_of(abi::SIGKILL) | set_of(abi::SIGSTOP);
/// Signals that the fault of an instruction sends, and that it meets again if they are not handled.
pub const SYNCHRONOUS: SignalSet = set_of(abi::SIGSEGV)
    | set_of(abi::SIGBUS)
    | set_of(abi::SIGILL)
    | set_of(abi::SIGTRAP)
    | set_of(abi::SIGFPE)
    | set_of(abi::SIGSYS);
