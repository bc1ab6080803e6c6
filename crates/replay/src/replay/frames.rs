//! Sets of frames: a bit for each frame of the machine.
//!
//! Advice reads all page tables at each step of its time lines. The frames of a machine lie close together,
//! so one bitmap holds them, and no tree is searched for each page.

/// A set of frame numbers.
#[derive(Default)]
pub(super) struct FrameSet {
    words: Vec<u64>,
    len: u64,
}

impl FrameSet {
    /// Adds a frame; true if it was new.
    pub(super) fn insert(&mut self, frame: u64) -> bool {
        let at = (frame / 64) as usize;
        if at >= self.words.len() {
            // Twice as many, so that frames in ascending order move the words seldom.
            self.words.resize(2 * at + 64, 0);
        }
        let word = &mut self.words[at];
        let before = *word;
        *word |= 1 << (frame % 64);
        let is_new = *word != before;
        self.len += u64::from(is_new);
        is_new
    }

    /// Adds the frames `first..end`.
    pub(super) fn insert_range(&mut self, first: u64, end: u64) {
        (first..end).for_each(|frame| _ = self.insert(frame));
    }

    pub(super) fn contains(&self, frame: u64) -> bool {
        self.words.get((frame / 64) as usize).is_some_and(|word| word >> (frame % 64) & 1 == 1)
    }

    /// How many members there are.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::FrameSet;

    #[test]
    fn frames_are_counted_once_wherever_they_are() {
        let (mut set, mut plain) = (FrameSet::default(), BTreeSet::new());
        for frame in [0, 63, 64, 9000, 64, 511, 0, 200_000] {
            assert_eq!(set.insert(frame), plain.insert(frame), "{frame}");
        }
        set.insert_range(60, 70);
        plain.extend(60..70);
        assert_eq!(set.len(), plain.len() as u64);
        for frame in 0..400_000 {
            assert_eq!(set.contains(frame), plain.contains(&frame), "{frame}");
        }
    }
}
