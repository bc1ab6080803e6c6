//! Sets of frames, a bit for each frame of the machine, and values of frames.
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

    /// The members that are not in another set.
    pub(super) fn without(mut self, other: &Self) -> Self {
        self.words.iter_mut().zip(&other.words).for_each(|(word, others)| *word &= !others);
        self.len = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        self
    }

    /// How many of `first..end` are members.
    pub(super) fn count(&self, first: u64, end: u64) -> u64 {
        let mut count = 0;
        let mut at = first;
        while at < end {
            let next = (at / 64 + 1) * 64;
            let Some(word) = self.words.get((at / 64) as usize) else { break };
            let above = word >> (at % 64);
            let inside = if next <= end { above } else { above & ((1 << (end - at)) - 1) };
            count += u64::from(inside.count_ones());
            at = next;
        }
        count
    }

    /// How many members there are.
    pub(super) const fn len(&self) -> u64 {
        self.len
    }
}

/// Frames of one table of a [`FrameMap`].
const TABLE: u64 = 512;

/// A value for each of some frames, in tables of neighbours.
pub(super) struct FrameMap<V> {
    tables: Vec<Option<Box<[Option<V>; TABLE as usize]>>>,
}

impl<V> Default for FrameMap<V> {
    fn default() -> Self {
        Self { tables: Vec::new() }
    }
}

impl<V: Copy> FrameMap<V> {
    /// Sets the value of a frame.
    pub(super) fn insert(&mut self, frame: u64, value: V) {
        *self.slot(frame) = Some(value);
    }

    /// Sets the value of a frame that has none.
    pub(super) fn insert_first(&mut self, frame: u64, value: V) {
        self.slot(frame).get_or_insert(value);
    }

    /// The frames that have values, in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, V)> + '_ {
        let tables = self.tables.iter().zip((0..).step_by(TABLE as usize));
        let tables = tables.filter_map(|(table, first)| Some((table.as_deref()?, first)));
        tables.flat_map(|(table, first)| {
            (first..).zip(table).filter_map(|(frame, slot)| Some((frame, (*slot)?)))
        })
    }

    fn slot(&mut self, frame: u64) -> &mut Option<V> {
        let at = (frame / TABLE) as usize;
        if at >= self.tables.len() {
            self.tables.resize_with(at + 1, || None);
        }
        let table = self.tables[at].get_or_insert_with(|| Box::new([None; TABLE as usize]));
        &mut table[(frame % TABLE) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{FrameMap, FrameSet};

    #[test]
    fn values_are_those_that_were_set() {
        let (mut map, mut plain) = (FrameMap::default(), BTreeMap::new());
        for (value, frame) in [5, 511, 512, 90_000, 5, 1023, 512].into_iter().enumerate() {
            map.insert(frame, value);
            plain.insert(frame, value);
        }
        for (value, frame) in [5, 6, 90_000, 2_000_000].into_iter().enumerate() {
            map.insert_first(frame, 100 + value);
            plain.entry(frame).or_insert(100 + value);
        }
        assert!(map.iter().eq(plain));
    }

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

    #[test]
    fn members_of_a_range_are_counted_with_and_without_those_of_another_set() {
        let members = [0, 1, 62, 63, 64, 65, 127, 128, 500];
        let (mut set, mut other) = (FrameSet::default(), FrameSet::default());
        members.into_iter().for_each(|frame| _ = set.insert(frame));
        [1, 64, 500, 100_000].into_iter().for_each(|frame| _ = other.insert(frame));
        let check = |set: &FrameSet, members: &[u64]| {
            for first in [0, 1, 2, 62, 63, 64, 65, 126, 127, 128, 129, 499, 500, 90_000] {
                for end in first..first + 200 {
                    let plain = members.iter().filter(|frame| (first..end).contains(*frame)).count();
                    assert_eq!(set.count(first, end), plain as u64, "{first}..{end}");
                }
            }
            assert_eq!(set.len(), members.len() as u64);
        };
        check(&set, &members);
        let rest = set.without(&other);
        check(&rest, &[0, 62, 63, 65, 127, 128]);
        // Another set may have fewer words.
        check(&other.without(&rest), &[1, 64, 500, 100_000]);
    }
}
