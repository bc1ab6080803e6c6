//! Helpers of the tests of collapses.

use hosted::{Hosted, Translation};
use quire::addr::VirtAddr;
use quire::vm::{Collapsed, Refusal};

use crate::collapse::world::{MIB, Space, load, store};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const HUGE: u64 = 2 * MIB;
pub(crate) const BASE: u64 = 0x4000_0000;

/// What an address translates to.
pub(crate) fn leaf(machine: &Hosted, mm: &Space<'_>, addr: u64) -> Option<Translation> {
    machine.probe(mm.root(), VirtAddr(addr))
}

pub(crate) fn is_large(machine: &Hosted, mm: &Space<'_>, addr: u64) -> bool {
    leaf(machine, mm, addr).is_some_and(|leaf| leaf.frames == 512)
}

/// The word that a page holds in every test.
pub(crate) fn word(addr: u64) -> u64 {
    addr ^ 0x5bd1_e995_0000_0000
}

/// Stores to each of these pages.
pub(crate) fn fill(machine: &Hosted, mm: &Space<'_>, base: u64, pages: impl Iterator<Item = u64>) {
    pages.map(|page| base + page * PAGE).for_each(|at| store(machine, mm, at, word(at)).expect("memory"));
}

/// Checks that these pages of 2 MiB hold what [`fill`] stored, and all others zeroes.
pub(crate) fn check(machine: &Hosted, mm: &Space<'_>, base: u64, filled: impl Fn(u64) -> bool) {
    for page in 0..512 {
        let at = base + page * PAGE;
        assert_eq!(load(machine, mm, at), Ok(if filled(page) { word(at) } else { 0 }), "page {page}");
    }
}

pub(crate) fn refused(mm: &Space<'_>, base: u64, why: Refusal) {
    let report = mm.collapse(VirtAddr(base), HUGE).expect("a mapping");
    assert_eq!((report.all_refused(), report.last), (1, Some(why)));
    assert_eq!(report.refused(why), 1);
}

pub(crate) fn copied(mm: &Space<'_>, base: u64) {
    let report = mm.collapse(VirtAddr(base), HUGE).expect("a mapping");
    assert_eq!(counts(&report), [1, 0, 0, 0], "{report:?}");
}

/// How many were copied, only remapped, large before, and refused.
pub(crate) fn counts(report: &Collapsed) -> [u64; 4] {
    [report.copied, report.reshaped, report.large, report.all_refused()]
}
