//! The running kernel's `munmap`.

use std::time::Instant;

use super::Unmap;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::linux::populate::{FolioChooser, split_pmds, verify};

/// `munmap` in this process, of memory whose folio size was forced through the kernel's settings.
#[derive(Default)]
pub(super) struct Linux {
    chooser: FolioChooser,
}

impl Arm<Unmap> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "one munmap call: system call, VMA, zap, reverse map, flush, cgroup uncharge, LRU, frames and page tables. \
         Folio sizes are forced in /sys and verified in /proc/kpageflags; `2MiB-pte` is a huge page whose PMD was \
         split by advice on one of its pages. One thread: no other CPU has to flush."
    }

    fn setup(&mut self, case: &Unmap) -> Result<Box<dyn Prepared + '_>, Skip> {
        self.chooser.choose(case.folio)?;
        Ok(Box::new(Ready { case: *case, chooser: &self.chooser, verified: false }))
    }
}

struct Ready<'a> {
    case: Unmap,
    chooser: &'a FolioChooser,
    verified: bool,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let Unmap { bytes, folio } = self.case;
        let mut region = self.chooser.map(bytes, folio)?;
        let allocated = self.chooser.allocated(folio);
        region.touch_all();
        let folios = self.chooser.check_counter(&region, folio, allocated)?;
        if folio.order == 9 && !folio.pmd {
            split_pmds(&region)?;
        }
        let pages = region.marked();
        // Once, in the warm-up: looking at every frame would leave the descriptors in the cache.
        if !self.verified {
            verify(&region, folio)?;
            self.verified = true;
        }
        let start = Instant::now();
        let outcome = region.unmap();
        let time = start.elapsed().as_nanos() as f64;
        outcome.map_err(|error| Skip::because("munmap", error))?;
        Ok(Sample::new(time, pages).count("folios", folios))
    }
}
