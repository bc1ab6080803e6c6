//! The machine as a value, threads that run as its CPUs, and its handling of broken rules.

mod cleared;
mod cpus;
mod hosted;
mod violations;

pub(crate) use cpus::Quiet;
pub use hosted::Hosted;
pub(crate) use hosted::not_a_cpu;
