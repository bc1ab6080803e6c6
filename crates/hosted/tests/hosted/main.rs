//! The hosted machine as its users see it.

mod cleared;
mod interrupts;
mod machine;
mod mmu;
mod shipped;
mod stale;
mod support;
mod tables;
mod tlb;
