//! How many leaves map a folio, and whether they map all of it, by its counts alone.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::frames::info::FrameInfo;
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

/// How often a folio that is being made or taken apart is read again.
const ROUNDS: usize = 16;

/// How a folio is mapped. `CountScheme::HeadOnly` (feature `published`) has one count for the whole folio:
/// `entire` and `mapped` are `None` while anything maps it; all else is exact as ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolioMaps {
    /// The folio.
    pub folio: FrameRange,
    /// Leaves that map any of it (Linux: `folio_mapcount`). A leaf in a table that `fork` shared is one.
    pub mapcount: u64,
    /// Leaves that map all of it (`folio_entire_mapcount`).
    pub entire: Option<u64>,
    /// Frames of it that some leaf maps.
    pub mapped: Option<u64>,
}

impl FolioMaps {
    /// Whether any leaf maps any of it (`folio_mapped`).
    pub const fn is_mapped(&self) -> bool {
        self.mapcount > 0
    }

    /// Whether only some of its frames are mapped (exact, unlike Linux's `folio_test_partially_mapped`).
    pub fn is_partially_mapped(&self) -> Option<bool> {
        self.mapped.map(|mapped| mapped > 0 && mapped < self.folio.count)
    }
}

impl<P: FramePlatform> MapCounts<'_, P> {
    /// How the folio in use around a frame is mapped; `None` where there is none. Each block is read at one
    /// moment, under its lock: one count, or 512 counts where small leaves map it.
    pub fn folio_maps(&self, frame: Frame) -> Option<FolioMaps> {
        for _ in 0..ROUNDS {
            match self.frames().frame_info(frame) {
                FrameInfo::InUse { head, frames, .. } => {
                    let folio = FrameRange::new(head, frames);
                    let found = if frames < BLOCK_FRAMES as u64 {
                        self.small_folio_maps(folio)
                    } else {
                        self.whole_folio_maps(folio)
                    };
                    if found.is_some() {
                        return found;
                    }
                }
                FrameInfo::Changing => {}
                FrameInfo::NotMemory | FrameInfo::Metadata | FrameInfo::Free | FrameInfo::Bad => {
                    return None;
                }
            }
            self.platform().relax();
        }
        None
    }

    /// Of a folio in a block of small pieces; `None` if it is no folio any more.
    fn small_folio_maps(&self, folio: FrameRange) -> Option<FolioMaps> {
        let block = self.frames().memmap.get_around(folio.start)?;
        block.lock(self.platform());
        let same = FrameInfo::InUse { head: folio.start, frames: folio.count, huge: false };
        let found = (block.state() == BlockState::Small
            && self.frames().in_small_pieces(block, folio.start) == same)
            .then(|| {
                let (small, first) = (block.small_maps(self.platform()), folio.start.index_in_block());
                let counts = (first..first + folio.count as usize).map(|index| u64::from(small.get(index)));
                let (mapcount, mapped) =
                    counts.fold((0, 0), |(sum, mapped), count| (sum + count, mapped + u64::from(count > 0)));
                let entire = if folio.count == 1 { mapcount } else { 0 };
                FolioMaps { folio, mapcount, entire: Some(entire), mapped: Some(mapped) }
            });
        block.unlock(self.platform());
        found
    }

    /// Of a folio of whole blocks; `None` if it is no folio any more.
    fn whole_folio_maps(&self, folio: FrameRange) -> Option<FolioMaps> {
        let (mut mapcount, mut leaves, mut mapped, mut gigantic, mut large) = (0, 0, 0, 0, 0);
        for piece in folio.by_block() {
            let block = self.frames().memmap.get_around(piece.start)?;
            let is_head = piece.start == folio.start;
            block.lock(self.platform());
            let state = if is_head { BlockState::Folio } else { BlockState::FolioTail };
            let same = block.state() == state && 1u64 << block.order.load(Ordering::Relaxed) == folio.count;
            if is_head {
                gigantic = u64::from(block.gigantic_maps.load(Ordering::Relaxed));
                large = block.large_maps.load(Ordering::Relaxed).into();
                leaves = gigantic;
                mapcount = block.folio_maps.load(Ordering::Acquire);
            }
            #[cfg(feature = "published")]
            if self.frames().scheme.is_head_only() {
                // The head's count is the only one.
                block.unlock(self.platform());
                let mapcount = self.frames().scheme.leaves(mapcount);
                let known = (mapcount == 0).then_some(0);
                return same.then_some(FolioMaps { folio, mapcount, entire: known, mapped: known });
            }
            let (more, any) = self.count_block(block);
            block.unlock(self.platform());
            if !same {
                return None;
            }
            leaves += more;
            mapped += any;
        }
        let entire = match folio.count {
            frames if frames == Order::GIGANTIC.frames() => gigantic,
            frames if frames == Order::BLOCK.frames() => large,
            _ => 0,
        };
        if self.frames().scheme.is_dense() {
            mapcount = leaves;
        }
        let mapped = if gigantic > 0 { folio.count } else { mapped };
        Some(FolioMaps { folio, mapcount, entire: Some(entire), mapped: Some(mapped) })
    }

    /// How many leaves of 4 KiB and 2 MiB map any of the block, and how many frames they map. Under its lock.
    fn count_block(&self, block: &Block) -> (u64, u64) {
        let (small, large) = (block.small_maps(self.platform()), block.large_maps.load(Ordering::Relaxed));
        let any = small.any();
        let mapped = match (large, any) {
            (0, false) => FrameMask::EMPTY,
            (0, true) => small.nonzero(),
            _ => FrameMask::ALL,
        };
        (u64::from(large) + if any { small.sum() } else { 0 }, mapped.count() as u64)
    }
}
