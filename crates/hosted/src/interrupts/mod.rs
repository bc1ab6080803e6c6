//! Interrupts that arrive by themselves on a CPU of the machine: at any machine instruction, at any call of
//! the platform, or periodically.
//!
//! Each runs its handler as [`Hosted::interrupt`](crate::Hosted::interrupt) would, on the same CPU and
//! thread, if the modelled interrupts are on; else it waits for
//! [`Hosted::restore_interrupts`](crate::Hosted::restore_interrupts). The machine's own work in one call (a
//! walk of its MMU, a flush of its TLBs) is one step to them, as in hardware. They nest as on a real CPU: a
//! soft interrupt interrupts tasks only, a hard one also soft ones.

#[cfg(not(miri))]
mod instruction;
#[cfg(not(miri))]
mod signals;
#[cfg(not(miri))]
mod ticker;
mod verbs;
#[cfg(not(miri))]
mod watch;

#[cfg(not(miri))]
pub use instruction::Access;
pub use verbs::Interrupted;
#[cfg(not(miri))]
pub use watch::Steps;
