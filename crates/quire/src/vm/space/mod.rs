//! An address space (mappings, layout, lock, page table, counts of resident pages), what all address spaces
//! of a machine share, and the steps of teardown that several verbs take.

pub(super) mod address_space;
pub(super) mod beside;
pub(super) mod body;
pub(super) mod family;
pub(super) mod found;
pub(super) mod guard;
pub(super) mod hooks;
pub(super) mod leaves;
pub(super) mod limits;
pub(super) mod records;
pub(super) mod rss;
pub(super) mod shared;
pub(super) mod state;
pub(super) mod teardown;
