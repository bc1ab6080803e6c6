//! A secondary MMU: second-stage tables as a hypervisor has them for its guest's memory, and what it is told by the library.
//!
//! A [`Nested`] keeps copies of an address space's leaves in tables of its own, by guest-physical address: the address in the
//! hypervisor's address space less a base. Virtual CPUs load and store through them. What the library promises a
//! secondary MMU is checked like what it promises a TLB: a frame that is freed while a copy leads to it is a violation
//! ([`crate::Violation::FreedNested`]), and so is a copy that the page table does not bear out ([`Nested::check`]).
//! [`crate::Hosted::lose_brackets`] loses brackets on purpose, to show that this would be noticed.

mod brackets;
mod cpu;
mod guest;
mod radix;
mod registry;
mod slot;
mod tables;
mod told;

pub use brackets::{BracketStats, during};
pub use cpu::VirtualCpu;
pub use guest::{Found, Nested, NestedLeaf};
pub(crate) use registry::NestedTables;
pub use tables::NestedStats;
