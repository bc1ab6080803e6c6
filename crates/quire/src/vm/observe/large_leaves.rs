//! How much anonymous memory large leaves map (`AnonHugePages` in `/proc/meminfo`).
#![forbid(unsafe_code)]

use core::sync::atomic::Ordering;

use crate::addr::{Frame, Order};
use crate::memmap::BlockState;
use crate::page_alloc::FrameInfo;
use crate::platform::Platform;
use crate::vm::observe::view::PageSurvey;

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// Frames of anonymous folios that a leaf of 2 MiB or more maps, each counted once. Reads the record of
    /// every block. The caller holds no lock.
    pub(crate) fn anon_in_large_leaves(self) -> u64 {
        let pages = self.pages();
        let mapped = pages.memmap().blocks().filter_map(|(number, block)| {
            let gigantic = block.gigantic_maps.load(Ordering::Relaxed) > 0;
            let large = block.large_maps.load(Ordering::Relaxed) > 0;
            let folio = match block.state() {
                BlockState::Folio => true,
                BlockState::FolioTail => !self.is_counted_with_head(number.first_frame()),
                _ => false,
            };
            let order = if gigantic { Order::GIGANTIC } else { Order::BLOCK };
            (folio && (gigantic || large)).then(|| (number.first_frame(), order))
        });
        mapped.filter(|(frame, _)| self.is_anonymous(*frame)).map(|(_, order)| order.frames()).sum()
    }

    /// Whether a leaf of 1 GiB maps the folio around the frame: then the folio's first block counts all of
    /// it.
    fn is_counted_with_head(self, frame: Frame) -> bool {
        let head =
            self.pages().frames().folio_start(frame).map(|head| self.pages().memmap().block(head.block()));
        head.is_some_and(|head| head.gigantic_maps.load(Ordering::Relaxed) > 0)
    }

    /// Whether a mapped frame is neither a huge page's nor a file's.
    fn is_anonymous(self, frame: Frame) -> bool {
        let frames = self.pages().frames();
        let huge = matches!(frames.frame_info(frame), FrameInfo::InUse { huge: true, .. });
        !(huge || frames.is_held(frame) && frames.is_of_file(frame))
    }
}
