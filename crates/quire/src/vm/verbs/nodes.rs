//! `mbind`: from which nodes the private pages of a range come.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::limits::FRAME_SIZE;
use crate::nodes::{NodeNames, NodePolicy};
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::space::address_space::AddressSpace;
use crate::vm::verbs::change::{AttributeChange, covers};

handle! { Nodes of AddressSpace }

impl<P: Platform> Nodes<'_, '_, P> {
    /// See [`Mm::set_named_nodes`](crate::vm::Mm::set_named_nodes).
    pub(in crate::vm) fn set_nodes(
        self,
        addr: VirtAddr,
        len: u64,
        nodes: Option<NodePolicy>,
        names: NodeNames,
    ) -> Result<(), MmError> {
        let pages = VirtAddr(len).align_up(FRAME_SIZE).ok_or(MmError::Invalid)?.0;
        let end = addr.0.checked_add(pages).map(VirtAddr).ok_or(MmError::Invalid)?;
        if !addr.is_aligned(FRAME_SIZE) {
            return Err(MmError::Invalid);
        }
        // Without a policy there are no nodes to name.
        let names = if nodes.is_some() { names } else { NodeNames::Plain };
        let range = VirtRange::new(addr, end);
        if range.is_empty() {
            return Ok(());
        }
        let space = self.lock();
        covers(&space, range).map_err(|_| MmError::Fault)?;
        check_ends(&space, range)?;
        AttributeChange::of(self.0).change_and_unlock(space, range, |vma| {
            (vma.nodes, vma.node_names) = (nodes, names);
        })
    }
}
