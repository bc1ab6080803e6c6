//! `mmap`: makes mappings.
#![forbid(unsafe_code)]

use crate::addr::{VirtAddr, VirtRange};
use crate::arch::Protection;
use crate::error::MmError;
use crate::filemap::FileRef;
use crate::hugetlb::HugeSize;
use crate::limits::{FRAME_SHIFT, FRAME_SIZE};
use crate::platform::Platform;
use crate::vm::mapping::vma::{Backing as Behind, Vma, VmaAttributes, VmaFlags};
use crate::vm::space::mm::{LockMode, Mm, Space};
use crate::vm::tree::edit;
use crate::vm::tree::layout::{Fit, Placement};
use crate::vm::tree::{VmaBox, VmaList};

/// File offsets end here, in pages: offsets are signed 64-bit numbers.
const OFFSET_END: u64 = i64::MAX as u64 >> FRAME_SHIFT;

/// Who sees stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sharing {
    /// Only this address space (`MAP_PRIVATE`).
    #[default]
    Private,
    /// Everybody who maps the object (`MAP_SHARED`).
    Shared,
}

/// What is mapped.
#[derive(Clone, Copy, Debug, Default)]
pub enum Backing<'a> {
    /// Memory that starts as zeroes (`MAP_ANONYMOUS`).
    #[default]
    Anonymous,
    /// A file, from one of its pages on.
    File {
        /// The file.
        file: &'a FileRef,
        /// The page at the mapping's start, in units of 4096 bytes.
        page_offset: u64,
    },
}

/// The arguments of [`Mm::mmap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MapRequest<'a> {
    /// Where; `placement` says how it is meant.
    pub addr: VirtAddr,
    /// How many bytes; rounded up to pages.
    pub len: u64,
    /// What accesses may do.
    pub prot: Protection,
    /// How `addr` is meant.
    pub placement: Placement,
    /// Who sees stores.
    pub sharing: Sharing,
    /// What is mapped.
    pub backing: Backing<'a>,
    /// Grows down on faults below (`MAP_GROWSDOWN`); private anonymous memory only.
    pub grows_down: bool,
    /// Bring the pages in at once (`MAP_POPULATE`).
    pub populate: bool,
    /// Lock the pages (`MAP_LOCKED`).
    pub locked: bool,
    /// Reserve nothing (`MAP_NORESERVE`).
    pub noreserve: bool,
    /// Anonymous memory of huge pages of this size (`MAP_HUGETLB`, `MAP_HUGE_2MB`, `MAP_HUGE_1GB`). Files know it of
    /// themselves.
    pub huge: Option<HugeSize>,
}

impl<P: Platform> Mm<'_, P> {
    /// Maps memory or a file and says where.
    ///
    /// # Errors
    /// [`MmError::Invalid`] (no bytes, an unaligned fixed address, growing down on what is not private anonymous; for huge
    /// pages an address or offset off their size, or a file of others),
    /// [`MmError::NoMemory`] (no memory, no room, too many mappings, too few huge pages to promise), [`MmError::Exists`], [`MmError::NotPermitted`]
    /// (below the lowest address), [`MmError::Overflow`] (behind the last file offset). Nothing has changed then. A
    /// mapping whose pages could not all be brought in is made all the same.
    pub fn mmap(&self, request: &MapRequest<'_>) -> Result<VirtAddr, MmError> {
        let size = huge_size(request)?;
        let len = self.check_request(request, size)?;
        let node = self.node_for(request, len, size)?;
        let (range, flags) = match size {
            None => self.map_node(request, node)?,
            Some(size) => self.map_huge_node(request, node, size)?,
        };
        let now = flags.contains(VmaFlags::LOCKED) && !flags.contains(VmaFlags::LOCK_ON_FAULT);
        if request.populate || now {
            // As Linux: the mapping stands, whatever becomes of this.
            let _stopped = self.populate(range);
        }
        Ok(range.start)
    }

    /// Puts a node into its place, or discards it.
    pub(in crate::vm) fn map_node(
        &self,
        request: &MapRequest<'_>,
        node: VmaBox,
    ) -> Result<(VirtRange, VmaFlags), MmError> {
        let mut space = self.lock();
        let made = self.map_locked(&mut space, request, node);
        if let Ok((.., gone)) = &made {
            self.announce_unmapped(gone);
        }
        drop(space);
        match made {
            Ok((range, flags, gone)) => {
                self.discard_unmapped(gone);
                Ok((range, flags))
            }
            Err((error, node)) => {
                self.memory.discard(node);
                Err(error)
            }
        }
    }

    /// The length in whole pages, if nothing about the request is wrong that shows without the mappings.
    fn check_request(&self, request: &MapRequest<'_>, size: Option<HugeSize>) -> Result<u64, MmError> {
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
        let fixed = request.placement != Placement::Hint;
        let off = !first.is_multiple_of(unit >> FRAME_SHIFT) || fixed && !request.addr.is_aligned(unit);
        if size.is_some() && off { Err(MmError::Invalid) } else { Ok(len) }
    }

    /// A node with the attributes that the request asks for, and with its own count on a file.
    fn node_for(
        &self,
        request: &MapRequest<'_>,
        len: u64,
        size: Option<HugeSize>,
    ) -> Result<VmaBox, MmError> {
        let mut node = self.memory.blank()?;
        let backing = match (request.backing, request.sharing) {
            (Backing::File { file, page_offset }, _) => Behind::File { file: file.again(), page_offset },
            (Backing::Anonymous, Sharing::Private) if size.is_none() => Behind::Anonymous,
            (Backing::Anonymous, _) => {
                let made = match size {
                    None => self.memory.files().nameless(self.memory.pages(), len).map_err(MmError::from),
                    Some(size) => self.memory.huge_file(size, 0, len),
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
            .with_if(VmaFlags::NO_RESERVE, request.noreserve);
        let attributes = VmaAttributes { flags, backing, ..VmaAttributes::anonymous(request.prot) };
        *node = Vma::new(VirtRange::from_len(VirtAddr(0), len), attributes);
        Ok(node)
    }

    fn map_locked(
        &self,
        space: &mut Space,
        request: &MapRequest<'_>,
        mut node: VmaBox,
    ) -> Result<(VirtRange, VmaFlags, VmaList), (MmError, VmaBox)> {
        let (len, size) = (node.range.len(), node.attributes.huge_size());
        space.huge |= size.is_some();
        let range = match choose_place(space, request, len, size) {
            Ok(range) => range,
            Err(error) => return Err((error, node)),
        };
        let mut gone = match self.unmap_range(space, range) {
            Ok(gone) => gone,
            Err(error) => return Err((error, node)),
        };
        let wanted = if request.locked && space.lock_future == LockMode::None {
            LockMode::Now
        } else {
            space.lock_future
        };
        let flags = node.attributes.flags.union(wanted.flags());
        // Huge pages never count as locked; but they are brought in.
        node.attributes.flags =
            if node.attributes.huge_size().is_none() { flags } else { node.attributes.flags };
        node.range = range;
        match edit::insert(&mut space.tree, node, &mut gone) {
            Ok(()) => Ok((range, flags, gone)),
            Err(node) => {
                debug_assert!(false, "{range:?} was free a moment ago");
                self.memory.discard_list(gone);
                Err((MmError::NoMemory, node))
            }
        }
    }
}

/// The size of the huge pages that a request asks for, by itself or by its file.
fn huge_size(request: &MapRequest<'_>) -> Result<Option<HugeSize>, MmError> {
    let Backing::File { file, .. } = request.backing else { return Ok(request.huge) };
    let size = file.node().huge_order().and_then(HugeSize::of_order);
    // A file has the pages that it has.
    if request.huge.is_some_and(|asked| Some(asked) != size) { Err(MmError::Invalid) } else { Ok(size) }
}

fn choose_place(
    space: &Space,
    request: &MapRequest<'_>,
    len: u64,
    size: Option<HugeSize>,
) -> Result<VirtRange, MmError> {
    if space.tree.len() > space.mapping_limit {
        return Err(MmError::NoMemory);
    }
    let anonymous = matches!(request.backing, Backing::Anonymous);
    let private = request.sharing == Sharing::Private;
    let fit = match size {
        Some(size) => Fit::Must(size.bytes()),
        None => Fit::large_if(anonymous && private),
    };
    let range = space.layout.place(&space.tree, request.addr, len, request.placement, fit)?;
    if let Backing::File { page_offset, .. } = request.backing
        && page_offset.saturating_add(range.pages()) > OFFSET_END
    {
        return Err(MmError::Overflow);
    }
    if request.grows_down && !(anonymous && private && size.is_none()) {
        return Err(MmError::Invalid);
    }
    Ok(range)
}
