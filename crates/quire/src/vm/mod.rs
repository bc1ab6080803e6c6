//! Address spaces: which mappings there are, and one file for each verb that changes them.

pub mod edit;
pub mod layout;
pub mod policy;
pub mod tree;
pub mod vma;
