//! The virtual CPUs of a guest that is being migrated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::case::{WORDS, tag};
use crate::bench::folio::PAGE;

/// One page in this many is hot.
const HOT_SHARE: u64 = 10;
/// One access in this many goes to any page, the others to hot pages.
const HOT_ACCESSES: u64 = 5;
/// A longer access has waited for a piece: one that finds its page takes a tenth of this.
const WAITED_NS: u64 = 2_000;

/// The waits of one virtual CPU.
pub(super) struct GuestWaits {
    pub(super) fetches: Vec<u64>,
    pub(super) stall: u64,
    pub(super) accesses: u64,
    /// A page that held other contents than were sent.
    pub(super) wrong: Option<u64>,
}

/// Touches pages of a guest of `pages` pages until `over`, four times in five a hot one. `load` reads the
/// word at a guest address. `fetched` is called once for each piece that a virtual CPU waits for.
pub(super) fn run(
    mut load: impl FnMut(u64) -> Option<u64>,
    (pages, piece): (u64, u64),
    fetched: &[AtomicBool],
    seed: u64,
    over: &AtomicBool,
) -> GuestWaits {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut waits = GuestWaits { fetches: Vec::new(), stall: 0, accesses: 0, wrong: None };
    while !over.load(Ordering::Relaxed) {
        let hot = rng.u64(..HOT_ACCESSES) > 0;
        let page = if hot { scattered(rng.u64(..pages / HOT_SHARE), pages) } else { rng.u64(..pages) };
        let word = rng.u64(..WORDS);
        let start = Instant::now();
        let seen = load(page * PAGE as u64 + word * 8);
        let took = start.elapsed().as_nanos() as u64;
        waits.accesses += 1;
        if seen != Some(tag(page)) {
            waits.wrong = Some(page);
            return waits;
        }
        if took > WAITED_NS {
            waits.stall += took;
            let fetch = &fetched[(page * PAGE as u64 / piece) as usize];
            if fetch.load(Ordering::Acquire) && fetch.swap(false, Ordering::AcqRel) {
                waits.fetches.push(took);
            }
        }
    }
    waits
}

/// Spreads the hot pages: a different page for each number below a tenth of all.
fn scattered(number: u64, pages: u64) -> u64 {
    number * HOT_SHARE % pages
}
