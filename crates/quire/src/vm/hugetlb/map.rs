//! `mmap` of huge pages, with reservations.
#![forbid(unsafe_code)]

use core::ops::Range;

use crate::addr::VirtRange;
use crate::arch::Protection;
use crate::error::MmError;
use crate::filemap::FileNode;
use crate::hugetlb::{Account, HugeSize};
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::hugetlb::reservations::Reservations;
use crate::vm::mapping::vma::{Backing, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::tree::VmaBox;
use crate::vm::userfault::changes::Notices;
use crate::vm::verbs::place::Placing;
use crate::vm::verbs::request::{MapRequest, Sharing};

handle! {
    /// `mmap` of huge pages.
    HugeMappings of AddressSpace
}

impl<P: Platform> HugeMappings<'_, '_, P> {
    /// Reserves the pages of a mapping of huge pages and puts it into its place; discards it on failure.
    pub(in crate::vm) fn map_huge_node(
        self,
        request: &MapRequest<'_>,
        mut node: VmaBox,
        size: HugeSize,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let Backing::File { file, page_offset } = &node.attributes.backing else {
            return Placing::of(self.0).map_node(request, node);
        };
        let (file, first) = (file.again(), *page_offset / size.order().frames());
        let indices = first..first + node.range.len() / size.bytes();
        let account = Reservations::of(self.0).account_of(&node.attributes);
        let writes = request.prot.contains(Protection::WRITE);
        let made = if request.noreserve {
            Placing::of(self.0).map_node(request, node)
        } else if request.sharing == Sharing::Private {
            node.attributes.group = account.group;
            node.attributes.flags = node.attributes.flags.union(VmaFlags::RESERVED);
            self.map_reserved(request, node, size, account)
        } else {
            self.map_file_reserved(request, node, file.node(), (size, indices.clone()), account)
        };
        if made.is_ok() {
            self.lengthen(file.node(), size, indices.end, writes);
        }
        self.memory.close(file);
        made
    }

    fn map_reserved(
        self,
        request: &MapRequest<'_>,
        node: VmaBox,
        size: HugeSize,
        account: Account,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let (memory, count) = (self.memory, node.range.len() / size.bytes());
        if let Err(error) = memory.huge().charge_reservations(memory.pages(), size, account, count) {
            memory.discard(node);
            return Err(error.into());
        }
        Placing::of(self.0).map_node(request, node).inspect_err(|_| {
            memory.huge().uncharge_reservations(memory.pages(), size, account, (count, count));
        })
    }

    fn map_file_reserved(
        self,
        request: &MapRequest<'_>,
        node: VmaBox,
        file: &FileNode,
        part: (HugeSize, Range<u64>),
        account: Account,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let memory = self.memory;
        let right = file.resize(memory.platform());
        let reserved = memory.huge().reserve_pages(memory.pages(), memory.files(), right, part, account);
        let reservations = match reserved {
            Ok(reservations) => reservations,
            Err(error) => {
                memory.discard(node);
                return Err(error.into());
            }
        };
        match Placing::of(self.0).place_node(request, node) {
            Ok((range, flags, gone)) => {
                memory.huge().keep_reservations(memory.pages(), memory.files(), reservations);
                // Waits for handlers, which may need the right to resize the file.
                Notices::of(self.0).discard_unmapped(gone);
                Ok((range, flags))
            }
            Err(error) => {
                memory.huge().drop_reservations(memory.pages(), memory.files(), reservations);
                Err(error)
            }
        }
    }

    /// Makes a file at least as long as a writable mapping of it, as `hugetlbfs` does.
    fn lengthen(self, file: &FileNode, size: HugeSize, end: u64, writes: bool) {
        if !writes {
            return;
        }
        let right = file.resize(self.memory.platform());
        if file.size(self.memory.platform()) < end * size.bytes() {
            right.set_bytes(end * size.bytes());
        }
    }
}
