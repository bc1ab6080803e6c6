//! What a broadcast and a grace period cost on other machines, by published and measured figures.

use crate::bench::published::Published;

/// Nanoseconds of a broadcast with two CPUs: `per-page` at `shrink/9000/fresh`, with `/busy` less without
/// (14.4 us less 2.95 us, one broadcast a page, `docs/measured.md` of November 2026).
const WITH_TWO: f64 = 11_000.0;
/// The published machine whose flushes are counted below, its CPUs, and the pages that it freed.
const MACHINE: &str = "VM 252 vCPU on 2-socket EPYC 7J13";
/// CPUs of that machine.
pub const MOST: u16 = 252;
const PAGES: f64 = 524_288.0;

/// Nanoseconds of a grace period of Linux: demoting 100 pages of 1 GiB waits for 513 each, and takes 538 s,
/// or 0.90 s with next to none (Yu Zhao, "mm/hugetlb_vmemmap: batch HVO work when demoting", 2024). Kravetz's
/// figures of 2023 contain none.
pub const GRACE: f64 = (538.0 - 0.9) * 1e9 / (513.0 * 100.0);

/// Nanoseconds of a broadcast to all CPUs of a machine with `cpus` of them: the straight line through two
/// machines. With 252 CPUs, freeing flushed once a page before the work of 2023 and once a request after it,
/// so the difference of both times is the price of a flush for each page.
pub fn broadcast(figures: &[Published], cpus: u16) -> Option<f64> {
    let freeing = |variant: &str| {
        let wanted = |figure: &&Published| {
            figure.machine == MACHINE && figure.variant == variant && figure.case.starts_with("free")
        };
        figures.iter().find(wanted).and_then(Published::number)
    };
    let with_most = (freeing("hvo=1 before")? - freeing("hvo=1 batched")?) * 1e9 / PAGES;
    let share = f64::from(cpus - 2) / f64::from(MOST - 2);
    Some(WITH_TWO + (with_most - WITH_TWO) * share)
}

/// The source of the price of a broadcast with so many CPUs.
pub fn source(cpus: u16) -> &'static str {
    match cpus {
        2 => "measured here, November 2026: `per-page` at `shrink/9000/fresh`, with `/busy` less without",
        MOST => "Kravetz 2023, a virtual machine: time to free, before less batched, by page",
        _ => "the straight line between 2 and 252 CPUs",
    }
}

#[cfg(test)]
mod tests {
    use super::{GRACE, MOST, broadcast, source};
    use crate::bench::published;

    /// The other published figure of that machine, growing, gives the same price: one flush a page, and one for
    /// each 64 pages whose leaf is split.
    #[test]
    fn the_published_times_to_grow_give_the_same_price() {
        let figures = published::figures("hvo").unwrap();
        let with = |cpus| broadcast(&figures, cpus).unwrap();
        let by_growing = (147.609 - 4.799) * 1e9 / 524_288.0 / (1.0 + 1.0 / 64.0);
        assert!((with(MOST) / by_growing - 1.0).abs() < 0.05, "{} and {by_growing}", with(MOST));
        assert_eq!((with(2) as u64, with(MOST) as u64), (11_000, 275_899));
        assert!(with(127) > 143_000.0 && with(127) < 144_000.0);
        assert_eq!((with(16) as u64, with(64) as u64), (25_834, 76_695));
        assert!(
            source(MOST).contains("Kravetz") && source(2).contains("measured") && source(16).contains("line")
        );
        assert_eq!(GRACE as u64, 10_469_785);
    }
}
