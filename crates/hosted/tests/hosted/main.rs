//! The hosted machine as its users see it.

mod machine;
mod mmu;
mod tables;
mod tlb;
