//! Which part of a long run goes through the models: windows of one length, equally far apart from its start
//! on.
//!
//! At first one window follows the other, so all of a short run goes through. When there are [`MOST`] of
//! them, every second one is forgotten, and from then on twice as much lies between two windows; and so on.
//! So there are always half as many at least. Entries of a TLB are older at the start of a window that
//! follows no other: its first quarter fills the models and is not counted.

use super::model::Counts;

/// Accesses and fetches of a window.
const LENGTH: u64 = 1 << 20;
/// An even number.
const MOST: usize = 64;

/// The windows of a run.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    length: u64,
    most: usize,
    /// Every so many windows one goes through the models.
    apart: u64,
    /// Accesses and fetches so far.
    at: u64,
    is_open: bool,
    /// What was counted until the counting of the open window began.
    begun: Option<Window>,
    kept: Vec<Window>,
}

/// Accesses, fetches, and what they missed under each model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) accesses: u64,
    pub(super) fetches: u64,
    pub(super) counts: Vec<Counts>,
}

/// What is due before an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// It goes through the models or does not.
    Nothing { is_open: bool },
    /// The window before it ends, if one is open, and another may begin.
    Edge,
    /// What was counted so far is not the window's.
    Count,
}

impl Default for Windows {
    fn default() -> Self {
        Self::of(LENGTH, MOST)
    }
}

impl Windows {
    pub(super) fn of(length: u64, most: usize) -> Self {
        Self { length, most, apart: 1, at: 0, is_open: false, begun: None, kept: Vec::new() }
    }

    /// What is due before the next access or fetch.
    pub(super) fn due(&mut self) -> Due {
        let within = self.at % self.length;
        self.at += 1;
        match within {
            0 => Due::Edge,
            _ if self.is_open && self.begun.is_none() && within >= self.length / 4 => Due::Count,
            _ => Due::Nothing { is_open: self.is_open },
        }
    }

    /// A window ends, and another begins if its turn is due. `now` is all that was counted so far. Returns
    /// whether it is open.
    pub(super) fn edge(&mut self, now: &Window) -> bool {
        self.close(now);
        let number = (self.at - 1) / self.length;
        self.is_open = number.is_multiple_of(self.apart);
        // Without a gap before it the models are filled.
        self.begun = (self.is_open && self.apart == 1).then(|| now.clone());
        self.is_open
    }

    /// From here on the open window counts.
    pub(super) fn count(&mut self, now: &Window) {
        self.begun = Some(now.clone());
    }

    fn close(&mut self, now: &Window) {
        let Some(begun) = self.begun.take() else { return };
        if self.kept.len() == self.most {
            let mut at = 0;
            self.kept.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.apart *= 2;
        }
        self.kept.push(now.since(&begun));
    }

    /// The end of the run: all of it went through the models (`None`), or these windows did.
    pub(super) fn end(mut self, now: &Window) -> Option<Vec<Window>> {
        if self.apart == 1 {
            return None;
        }
        // Half of a window at least tells something.
        let counted = self.begun.as_ref().map(|begun| now.since(begun));
        let long = counted.filter(|last| last.accesses + last.fetches >= self.length / 2);
        self.kept.extend(long);
        Some(self.kept)
    }
}

impl Window {
    fn since(&self, begun: &Self) -> Self {
        let counts = self.counts.iter().zip(&begun.counts).map(|(now, before)| now.since(before)).collect();
        Self { accesses: self.accesses - begun.accesses, fetches: self.fetches - begun.fetches, counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of so many fetches, each of which walks if its number is below `walks`: the numbers of those
    /// that go through, and the windows.
    fn run(fetches: u64, walks: u64) -> (Vec<u64>, Option<Vec<Window>>) {
        let mut windows = Windows::of(8, 4);
        let mut now = Window { counts: vec![Counts::default()], ..Window::default() };
        let mut through = Vec::new();
        for number in 0..fetches {
            let is_open = match windows.due() {
                Due::Edge => windows.edge(&now),
                Due::Count => {
                    windows.count(&now);
                    true
                }
                Due::Nothing { is_open } => is_open,
            };
            if is_open {
                through.push(number);
                now.fetches += 1;
                now.counts[0].fetch_walks += u64::from(number < walks);
            }
        }
        (through, windows.end(&now))
    }

    #[test]
    fn all_of_a_short_run_goes_through() {
        for fetches in [7, 32, 40] {
            assert_eq!(run(fetches, 0), ((0..fetches).collect(), None));
        }
    }

    #[test]
    fn windows_of_a_long_run_are_equally_far_apart() {
        let (through, windows) = run(320, 96);
        let windows = windows.expect("not all goes through");
        assert!(through.len() < 160, "{through:?}");
        // The run has the length of 40 windows. Those at 0, 16 and 32 are kept.
        assert!((2..=5).contains(&windows.len()), "{windows:?}");
        let starts: Vec<u64> = through.iter().copied().filter(|number| number % 8 == 0).collect();
        let last: Vec<u64> = starts[starts.len() - 2..].to_vec();
        assert_eq!((last[1] - last[0]) / 8, 8, "{starts:?}");
        // The first quarter of a window behind a gap is not counted.
        assert_eq!((windows[0].fetches, windows.last().expect("some").fetches), (8, 6));
        assert_eq!(
            (windows[0].counts[0].fetch_walks, windows.last().expect("some").counts[0].fetch_walks),
            (8, 0)
        );
    }
}
