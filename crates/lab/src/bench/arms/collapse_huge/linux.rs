//! The running kernel's `MADV_COLLAPSE` of 1 GiB of single pages, which copies them.

use super::{Collapse, To};
use crate::bench::arms::collapse;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::linux::verbs::{Subject, Verb};
use crate::bench::memory::Memory;

pub(super) static COLLAPSE: Verb<Collapse> = Verb {
    about: "one madvise(MADV_COLLAPSE) of 1 GiB of anonymous 4 KiB pages, which the kernel copies into \
     folios of 2 MiB: it maps no page of a pool in pieces. `collapse-thp` compares the cost of copying.",
    memory: |case| {
        let folio = Folio { order: 0, pmd: false };
        let bytes = if is_possible(case) { 1 << 30 } else { PAGE };
        Memory { bytes, folio, shuffled: false, cold: false }
    },
    work: |case, subject: Subject| {
        if !is_possible(case) {
            return Err(Skip("the kernel maps no page of 1 GiB in pieces".to_owned()));
        }
        let sample: Result<Sample, Skip> = collapse::collapse_by_kernel(subject);
        sample
    },
};

fn is_possible(case: &Collapse) -> bool {
    case.to == To::Large && case.spaces == 1 && case.touched_on.is_none()
}
