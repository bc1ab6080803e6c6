//! `mmap`: makes mappings.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::hugetlb::HugeSize;
use crate::limits::{FRAME_SHIFT, FRAME_SIZE};
use crate::platform::Platform;
use crate::vm::handle::handle;
use crate::vm::hugetlb::file::HugeFiles;
use crate::vm::hugetlb::map::HugeMappings;
use crate::vm::mapping::vma::{Backing as Behind, Vma, VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::tree::VmaBox;
use crate::vm::tree::layout::Placement;
use crate::vm::verbs::place::Placing;
use crate::vm::verbs::populate::Populate;
use crate::vm::verbs::request::{Backing, MapRequest, Sharing};

handle! { Mmap of AddressSpace }

impl<P: Platform> Mmap<'_, '_, P> {
    pub(in crate::vm) fn mmap(self, request: &MapRequest<'_>) -> Result<VirtAddr, MmError> {
        let size = huge_size(request)?;
        let len = self.check_request(request, size)?;
        let node = self.node_for(request, len, size)?;
        let (range, flags) = match size {
            None => Placing::of(self.0).map_node(request, node)?,
            Some(size) => HugeMappings::of(self.0).map_huge_node(request, node, size)?,
        };
        let now = flags.contains(VmaFlags::LOCKED) && !flags.contains(VmaFlags::LOCK_ON_FAULT);
        if request.populate || now {
            // As in Linux, the mapping stays even if this fails.
            let _stopped = Populate::of(self.0).populate(range);
        }
        Ok(range.start)
    }

    /// Checks what needs no look at the mappings, and returns the length in whole pages.
    fn check_request(self, request: &MapRequest<'_>, size: Option<HugeSize>) -> Result<u64, MmError> {
        let first = match request.backing {
            Backing::Anonymous => 0,
            Backing::File { page_offset, .. } => page_offset,
        };
        let pages = request.len.div_ceil(1 << FRAME_SHIFT);
        if request.len != 0 && first.checked_add(pages).is_none() {
            return Err(MmError::Overflow);
        }
        let unit = size.map_or(FRAME_SIZE, HugeSize::bytes);
        let len = self.layout().length(request.len, unit)?;
        let fixed = matches!(request.placement, Placement::Fixed | Placement::FixedNoReplace);
        let off = !first.is_multiple_of(unit >> FRAME_SHIFT) || fixed && !request.addr.is_aligned(unit);
        if size.is_some() && off { Err(MmError::Invalid) } else { Ok(len) }
    }

    /// A node with the attributes of the request, and with its own count on a file.
    fn node_for(self, request: &MapRequest<'_>, len: u64, size: Option<HugeSize>) -> Result<VmaBox, MmError> {
        let mut node = self.memory.blank()?;
        let backing = match (request.backing, request.sharing) {
            (Backing::File { file, page_offset }, _) => Behind::File { file: file.again(), page_offset },
            (Backing::Anonymous, Sharing::Private) if size.is_none() => Behind::Anonymous,
            (Backing::Anonymous, _) => {
                let made = match size {
                    None => self.memory.files().shmem(self.memory.pages(), len).map_err(MmError::from),
                    Some(size) => HugeFiles::of(self.memory).huge_file(size, 0, len),
                };
                match made {
                    Ok(file) => Behind::File { file, page_offset: 0 },
                    Err(error) => {
                        self.memory.discard(node);
                        return Err(error);
                    }
                }
            }
        };
        let flags = VmaFlags::NONE
            .with_if(VmaFlags::SHARED, request.sharing == Sharing::Shared)
            .with_if(VmaFlags::GROWS_DOWN, request.grows_down)
            .with_if(VmaFlags::NO_RESERVE, request.noreserve)
            .with_if(VmaFlags::APART, request.apart);
        let usual = VmaAttributes::anonymous(request.prot);
        let may = usual.may.without(request.forbid);
        let mut attributes = VmaAttributes { flags, backing, may, ..usual };
        attributes.protect(request.prot);
        *node = Vma::new(VirtRange::from_len(VirtAddr(0), len), attributes);
        Ok(node)
    }
}

/// The size of the huge pages that a request asks for, by itself or by its file.
fn huge_size(request: &MapRequest<'_>) -> Result<Option<HugeSize>, MmError> {
    let Backing::File { file, .. } = request.backing else { return Ok(request.huge) };
    let size = file.node().huge_order().and_then(HugeSize::of_order);
    // A request cannot change a file's page size.
    if request.huge.is_some_and(|asked| Some(asked) != size) { Err(MmError::Invalid) } else { Ok(size) }
}
