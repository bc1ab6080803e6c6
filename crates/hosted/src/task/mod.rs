//! The running thread as a CPU: its record, other identities that it takes for a while, and its sources of
//! interrupts.

mod by_register;
mod entered;
#[cfg(not(miri))]
mod mask;
mod record;
mod source;
mod stack;

pub(crate) use entered::{Entered, Held, hold};
#[cfg(not(miri))]
pub(crate) use mask::TICK;
pub(crate) use record::Task;
pub(crate) use source::{Events, Source, called};
#[cfg(not(miri))]
pub(crate) use source::{stepped, ticked};
pub(crate) use stack::stack_left;
