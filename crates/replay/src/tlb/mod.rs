//! How often a program's accesses miss the translation lookaside buffers (TLBs): a model of the processor's TLBs, and the
//! accesses of the program under valgrind.
//!
//! ```text
//! processor   the TLBs of a processor, as CPUID describes them
//! table       one TLB
//! model       all of them: which one an access hits
//! backing     the leaves that map the program's memory
//! windows     which part of a long run goes through the models
//! lackey      runs the program, and sends its accesses through a model for each backing
//! ```

mod backing;
mod lackey;
mod model;
mod processor;
mod table;
mod windows;

pub(crate) use backing::{Backing, Leaves};
pub(crate) use lackey::{Run, Sampled, require, run};
pub(crate) use model::Counts;
pub(crate) use processor::{Access, Processor, Size};
