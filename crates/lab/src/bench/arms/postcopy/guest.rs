//! The virtual CPUs of a guest that is being migrated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::case::tag;
use crate::bench::folio::PAGE;

/// One in so many pages is hot.
const HOT_SHARE: u64 = 10;
/// Of so many accesses all but one go to hot pages.
const HOT_ACCESSES: u64 = 5;
/// An access that takes longer has waited for something: one that finds its page takes a tenth of it.
const WAITED_NS: u64 = 2_000;

/// What one virtual CPU felt.
pub(super) struct Felt {
    /// Nanoseconds of each fetch that it waited for.
    pub(super) fetches: Vec<u64>,
    /// Nanoseconds that it waited in all.
    pub(super) stall: u64,
    pub(super) accesses: u64,
    /// A page that held something else than was sent.
    pub(super) wrong: Option<u64>,
}

/// Touches pages of a guest of so many, four times in five one of a tenth of them, until it is over: `load` gives the word at an
/// address of the guest. `fetched` is told once of each piece that a virtual CPU waits for.
pub(super) fn run(
    mut load: impl FnMut(u64) -> Option<u64>,
    (pages, piece): (u64, u64),
    fetched: &[AtomicBool],
    seed: u64,
    over: &AtomicBool,
) -> Felt {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut felt = Felt { fetches: Vec::new(), stall: 0, accesses: 0, wrong: None };
    while !over.load(Ordering::Relaxed) {
        let hot = rng.u64(..HOT_ACCESSES) > 0;
        let page = if hot { scattered(rng.u64(..pages / HOT_SHARE), pages) } else { rng.u64(..pages) };
        let start = Instant::now();
        let seen = load(page * PAGE as u64);
        let took = start.elapsed().as_nanos() as u64;
        felt.accesses += 1;
        if seen != Some(tag(page)) {
            felt.wrong = Some(page);
            return felt;
        }
        if took > WAITED_NS {
            felt.stall += took;
            let fetch = &fetched[(page * PAGE as u64 / piece) as usize];
            if fetch.load(Ordering::Acquire) && fetch.swap(false, Ordering::AcqRel) {
                felt.fetches.push(took);
            }
        }
    }
    felt
}

/// Hot pages stand apart: a different one for each number below a tenth of all.
fn scattered(number: u64, pages: u64) -> u64 {
    number * HOT_SHARE % pages
}
