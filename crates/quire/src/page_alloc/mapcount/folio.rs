//! How leaves map a folio, by its counts alone: how many do, and whether they map all of it.
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, FrameRange, Order};
use crate::limits::BLOCK_FRAMES;
use crate::memmap::{Block, BlockState, FrameMask};
use crate::page_alloc::frames::info::FrameInfo;
use crate::page_alloc::mapcount::MapCounts;
use crate::platform::FramePlatform;

/// Times that a folio which is being made or taken apart is looked at again.
const ROUNDS: usize = 16;

/// How a folio is mapped. What one number counts for all of a folio (`CountScheme::HeadOnly`, with the feature `published`) cannot be told by frame: then
/// `entire` and `mapped` are `None` while anything maps it, and everything else is as exact as ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolioMaps {
    /// The folio.
    pub folio: FrameRange,
    /// How many leaves of any size map it, or a part of it (Linux: `folio_mapcount`). A leaf in a table that `fork` shared is one.
    pub mapcount: u64,
    /// How many of them map all of it (`folio_entire_mapcount`).
    pub entire: Option<u64>,
    /// How many of its frames some leaf maps.
    pub mapped: Option<u64>,
}

impl FolioMaps {
    /// Whether any leaf maps any of it (`folio_mapped`).
    pub const fn is_mapped(&self) -> bool {
        self.mapcount > 0
    }

    /// Whether some of its frames are mapped and others are not (`folio_test_partially_mapped`, which may be late; this is not).
    pub fn is_partially_mapped(&self) -> Option<bool> {
        self.mapped.map(|mapped| mapped > 0 && mapped < self.folio.count)
    }

    const fn none_of(folio: FrameRange) -> Self {
        Self { folio, mapcount: 0, entire: Some(0), mapped: Some(0) }
    }
}

impl<P: FramePlatform> MapCounts<'_, P> {
    /// How the folio in use around a frame is mapped; `None` where there is none. Each block of it as it was at one moment of the
    /// call, under its lock; so of a folio of one block, or of less, all of it. 512 counts are looked at in a block that is mapped
    /// in pieces, and one number in one that is not.
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

    /// Of a folio in a block of small pieces; `None` if it is none any more.
    fn small_folio_maps(&self, folio: FrameRange) -> Option<FolioMaps> {
        let block = self.frames().memmap.get(folio.start.block())?;
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

    /// Of a folio of whole blocks; `None` if it is none any more.
    fn whole_folio_maps(&self, folio: FrameRange) -> Option<FolioMaps> {
        let mut maps = FolioMaps::none_of(folio);
        let (mut leaves, mut mapped, mut gigantic, mut large) = (0, 0, 0, 0);
        for piece in folio.by_block() {
            let block = self.frames().memmap.get(piece.start.block())?;
            let is_head = piece.start == folio.start;
            block.lock(self.platform());
            let state = if is_head { BlockState::Folio } else { BlockState::FolioTail };
            let same = block.state() == state && 1u64 << block.order.load(Ordering::Relaxed) == folio.count;
            if is_head {
                gigantic = u64::from(block.gigantic_maps.load(Ordering::Relaxed));
                large = block.large_maps.load(Ordering::Relaxed).into();
                leaves = gigantic;
                maps.mapcount = block.folio_maps.load(Ordering::Acquire);
            }
            #[cfg(feature = "published")]
            if self.frames().scheme.is_head_only() {
                // The one number says all there is to say.
                block.unlock(self.platform());
                return same.then(|| maps.of_head());
            }
            let (more, any) = self.count_block(block);
            block.unlock(self.platform());
            if !same {
                return None;
            }
            leaves += more;
            mapped += any;
        }
        maps.entire = Some(match folio.count {
            frames if frames == Order::GIGANTIC.frames() => gigantic,
            frames if frames == Order::BLOCK.frames() => large,
            _ => 0,
        });
        if self.frames().scheme.is_dense() {
            maps.mapcount = leaves;
        }
        maps.mapped = Some(if gigantic > 0 { folio.count } else { mapped });
        Some(maps)
    }

    /// How many leaves of 4 KiB and 2 MiB map the block or a part of it, and how many of its frames. Under its lock.
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

impl FolioMaps {
    /// What is left to say where one number counts all of the folio.
    #[cfg(feature = "published")]
    fn of_head(self) -> Self {
        if self.mapcount == 0 { self } else { Self { entire: None, mapped: None, ..self } }
    }
}
