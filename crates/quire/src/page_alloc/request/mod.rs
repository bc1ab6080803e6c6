//! What is asked for, and how it is answered: one folio, many, or a range of nodes.

pub(super) mod alloc;
pub(super) mod bulk;
pub(super) mod gfp;
pub(super) mod last_block;
pub(super) mod node_set;
pub(super) mod placement;
pub(super) mod zeroed;
pub(super) mod zone_order;
