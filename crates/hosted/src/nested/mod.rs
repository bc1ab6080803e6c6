//! A secondary MMU: second-stage tables as a hypervisor has them for its guest's memory, and the library's
//! calls to it.
//!
//! A [`Nested`] keeps copies of an address space's leaves in its own tables, by guest-physical address: the
//! address in the hypervisor's address space minus a base. Virtual CPUs load and store through them. The
//! machine checks the library's promises to a secondary MMU as it checks those to a TLB: it is a violation if
//! a frame is freed while a copy leads to it ([`crate::Violation::FreedNested`]), or if a copy does not agree
//! with the page table ([`Nested::check`]). [`crate::Hosted::lose_brackets`] loses brackets on purpose, to
//! show that this would be noticed.

mod brackets;
mod calls;
mod cpu;
mod guest;
mod radix;
mod registry;
mod slot;
mod tables;

pub use brackets::{BracketStats, during};
pub use cpu::VirtualCpu;
pub use guest::{Found, Nested, NestedLeaf};
pub(crate) use registry::NestedTables;
pub use tables::NestedStats;
