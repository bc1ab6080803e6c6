//! An address space and what its machine shares: mappings, layout, lock, page table, counts of resident
//! pages; families; the memory of mapping records; and the steps of teardown that several verbs take.

pub(super) mod address_space;
pub(super) mod body;
pub(super) mod family;
pub(super) mod found;
pub(super) mod guard;
pub(super) mod leaves;
pub(super) mod records;
pub(super) mod rss;
pub(super) mod shared;
pub(super) mod state;
pub(super) mod teardown;
