//! A run-off between two sets of folio sizes: further turns of these alone, until they tell whether the one takes longer than it
//! may.
//!
//! Of nine sets the fastest is the luckiest too, and a few turns of all nine leave open which it is. So only the turns of the
//! run-off count.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::turns::{TAIL, between, longer, median};

/// Turns before the first look at whether they tell. Before each further look their number doubles.
const FIRST: usize = 10;

/// How long a run-off may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) turns: usize,
    pub(super) time: Duration,
    /// By how many percent the one may take longer.
    pub(super) percent: f64,
}

/// What the turns say.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct RunOff {
    pub(super) turns: usize,
    /// By how much the one takes longer: the median of the turns.
    pub(super) longer_percent: f64,
    /// The interval that contains the median of all such turns with a chance of nine in ten, of all looks together.
    pub(super) between_percent: (f64, f64),
}

impl RunOff {
    /// Calls `turn` until its run times, those of the one and of the other, tell. It is given the number of the turn, which says
    /// what runs first. `None` without a turn.
    ///
    /// # Errors
    /// Those of `turn`.
    pub(super) fn of(
        limits: Limits,
        mut turn: impl FnMut(usize) -> Result<(u64, u64)>,
    ) -> Result<Option<Self>> {
        let began = Instant::now();
        // Each look may be deceived by chance, so each has its share of the chance that all have together.
        let looks: Vec<usize> = std::iter::successors(Some(FIRST), |turns| Some(turns * 2))
            .take_while(|&at| at < limits.turns)
            .collect();
        let tail = TAIL / (looks.len() + 1) as f64;
        let mut times = Vec::new();
        while times.len() < limits.turns && (times.is_empty() || began.elapsed() < limits.time) {
            if looks.contains(&times.len()) && Self::from(&times, tail).tells(limits.percent) {
                break;
            }
            times.push(turn(times.len())?);
        }
        Ok((!times.is_empty()).then(|| Self::from(&times, tail)))
    }

    fn from(times: &[(u64, u64)], tail: f64) -> Self {
        let longer = longer(times.iter().copied());
        let (longer_percent, between_percent) = (median(&longer), between(&longer, tail));
        Self { turns: times.len(), longer_percent, between_percent }
    }

    /// Whether the one takes no longer than it may, or does.
    fn tells(&self, percent: f64) -> bool {
        let (least, most) = self.between_percent;
        most <= percent || least > percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { turns: 160, time: Duration::from_secs(3600), percent: 2.0 };

    /// Two programs whose runs differ by a tenth, as on a machine whose clock changes: the one takes so much longer.
    fn drawn(seed: u64, factor: f64) -> RunOff {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut time = move |length: f64| {
            // Twelve draws are about normally distributed, with a deviation of one.
            let chance: f64 = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            (1e8 * length * (1.0 + chance / 14.0)) as u64
        };
        RunOff::of(LIMITS, |_| Ok((time(factor), time(1.0)))).unwrap().unwrap()
    }

    #[test]
    fn a_run_off_is_seldom_deceived() {
        let (seeds, below, above) = (200, LIMITS.percent, LIMITS.percent);
        let within =
            |factor| (0..seeds).filter(|&seed| drawn(seed, factor).between_percent.1 <= below).count();
        let longer =
            |factor| (0..seeds).filter(|&seed| drawn(seed, factor).between_percent.0 > above).count();
        // At the border itself either answer may be given in one of twenty cases; further away the right one is.
        assert!(within(1.02) <= 10 && longer(1.02) <= 10, "{} and {}", within(1.02), longer(1.02));
        assert_eq!((within(1.08), longer(0.96)), (0, 0));
        assert!(longer(1.08) >= 190 && within(0.96) >= 190, "{} and {}", longer(1.08), within(0.96));
    }

    #[test]
    fn a_run_off_ends_when_it_is_decided() {
        let turns = |one, other| RunOff::of(LIMITS, |_| Ok((one, other))).unwrap().unwrap();
        assert_eq!(
            turns(130, 100),
            RunOff { turns: 10, longer_percent: 30.0, between_percent: (30.0, 30.0) }
        );
        assert_eq!(turns(100, 100).turns, 10, "as fast is no longer");
        // What cannot be told takes all of it.
        let unsteady =
            RunOff::of(LIMITS, |turn| Ok((if turn % 2 == 0 { 90 } else { 120 }, 100))).unwrap().unwrap();
        assert_eq!((unsteady.turns, unsteady.between_percent), (160, (-10.0, 20.0)));
    }

    #[test]
    fn a_run_off_keeps_to_its_limits() {
        let turn = |_| Ok((130, 100));
        assert_eq!(RunOff::of(Limits { turns: 0, ..LIMITS }, turn).unwrap(), None);
        assert_eq!(RunOff::of(Limits { turns: 3, ..LIMITS }, turn).unwrap().unwrap().turns, 3);
        // The run that is measured is told in any case.
        assert_eq!(RunOff::of(Limits { time: Duration::ZERO, ..LIMITS }, turn).unwrap().unwrap().turns, 1);
        assert!(RunOff::of(LIMITS, |_| anyhow::bail!("killed")).is_err());
    }
}
