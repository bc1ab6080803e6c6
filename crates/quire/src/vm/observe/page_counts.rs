//! How many times each frame is mapped, as in `/proc/kpagecount`.
#![forbid(unsafe_code)]

use crate::addr::{Frame, FrameRange};
use crate::platform::Platform;
use crate::vm::observe::view::PageSurvey;
use crate::vm::space::shared::ForkStrategy;

impl<P: Platform> PageSurvey<'_, '_, P> {
    /// Shows how many leaves map each of these frames, in ascending order, runs with the same number
    /// together. Where `fork` shares tables, it counts address spaces instead (see
    /// [`Mm::mapped`](crate::vm::Mm::mapped)): for an anonymous frame that leaves of 4 KiB map, it visits
    /// each address space of the family. The caller holds no lock.
    pub(crate) fn page_counts(self, frames: FrameRange, mut show: impl FnMut(FrameRange, u64)) {
        let shares = self.fork_strategy() == ForkStrategy::Share;
        let mut open: Option<(FrameRange, u64)> = None;
        let mut at = frames.start;
        while at < frames.end() {
            let group = self.pages().counts().count_group(at);
            let end =
                group.map_or(Frame(at.0 / 512 * 512 + 512), |group| group.frames.end()).min(frames.end());
            while at < end {
                let (mut count, mut run) = (0, end.0 - at.0);
                if let Some(group) = &group {
                    let by_spaces = |at: Frame| {
                        let of_file = || group.is_held(at) && self.pages().frames().is_of_file(at);
                        shares && group.small(at) > 0 && !of_file()
                    };
                    count = group.leaves(at);
                    if by_spaces(at) {
                        (count, run) = (self.spaces_of(at).max(count), 1);
                    } else {
                        let alike = |at: &Frame| group.leaves(*at) == count && !by_spaces(*at);
                        run = 1 + (at.0 + 1..end.0).map(Frame).take_while(alike).count() as u64;
                    }
                }
                match &mut open {
                    Some((frames, same)) if *same == count => frames.count += run,
                    _ => {
                        if let Some((frames, count)) = open.replace((FrameRange::new(at, run), count)) {
                            show(frames, count);
                        }
                    }
                }
                at = at.add(run);
            }
            self.platform().reschedule_point();
        }
        if let Some((frames, count)) = open {
            show(frames, count);
        }
    }

    /// How many address spaces map an anonymous frame.
    fn spaces_of(self, frame: Frame) -> u64 {
        let mut found = [0];
        if let Some(origin) = self.pages().frames().origin(frame) {
            self.count_spaces(origin.family(), &[Some(frame)], &mut found);
        }
        found[0]
    }
}
