//! The running kernel's page faults.

use std::time::Instant;

use rustix::mm::Advice;

use super::{Fault, Populate};
use crate::bench::experiment::{Arm, CLEAR, Prepared, REST, Sample, Skip};
use crate::bench::folio::Folio;
use crate::bench::linux::populate::{FolioChooser, minor_faults, verify};
use crate::bench::linux::region::Region;

/// Memory for the clearing estimate: larger than any cache, smaller than the case.
const SCRATCH: usize = 256 << 20;

#[derive(Default)]
pub(super) struct Linux {
    chooser: FolioChooser,
    scratch: Option<Region>,
}

impl Arm<Fault> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "one fault for each folio (or one system call): trap, charge, folio, clearing, reverse map, LRU, \
         entries. `clear` is an estimate: this process clears as many bytes with the kernel's instruction \
         and order; folio sizes are forced in /sys and verified in /proc/kpageflags."
    }

    fn setup(&mut self, case: &Fault) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.folio == (Folio { order: 9, pmd: false }) {
            return Err(Skip(
                "Linux maps a fresh 2 MiB folio by one PMD; only `unmap` splits that PMD".to_owned(),
            ));
        }
        if self.scratch.is_none() {
            self.scratch = Some(scratch(&mut self.chooser, case.bytes.min(SCRATCH))?);
        }
        self.chooser.choose(case.folio)?;
        let Some(scratch) = &mut self.scratch else { return Err(Skip("no memory to clear".to_owned())) };
        Ok(Box::new(Ready { case: *case, chooser: &self.chooser, scratch, verified: false }))
    }
}

/// Warm memory, in 2 MiB folios where this user may choose them, else in base pages.
fn scratch(chooser: &mut FolioChooser, bytes: usize) -> Result<Region, Skip> {
    let huge = Folio { order: 9, pmd: true };
    let folio = if chooser.choose(huge).is_ok() { huge } else { Folio { order: 0, pmd: false } };
    let region = chooser.map(bytes, folio)?;
    region.touch_all();
    Ok(region)
}

struct Ready<'a> {
    case: Fault,
    chooser: &'a FolioChooser,
    scratch: &'a mut Region,
    verified: bool,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let Fault { bytes, folio, populate } = self.case;
        let clear = self.clear();
        let region = self.chooser.map(bytes, folio)?;
        let allocated = self.chooser.allocated(folio);
        let faults = minor_faults()?;
        let start = Instant::now();
        match populate {
            Populate::Touch => region.touch_all(),
            Populate::Call => region.advise(Advice::LinuxPopulateWrite).map_err(|error| {
                Skip::because("MADV_POPULATE_WRITE (needs Linux 5.14 and free memory)", error)
            })?,
        }
        let time = start.elapsed().as_nanos() as f64;
        let faults = minor_faults()? - faults;
        let folios = self.chooser.check_counter(&region, folio, allocated)?;
        if !self.verified {
            verify("self", &region, folio)?;
            self.verified = true;
        }
        if populate == Populate::Call {
            region.touch_all();
        }
        Ok(Sample::new(time, region.marked())
            .metric(CLEAR, clear)
            .metric(REST, time - clear)
            .count("folios", folios)
            .count("faults", faults))
    }
}

impl Ready<'_> {
    /// Nanoseconds to clear the bytes of the case, by clearing the scratch memory as often as needed.
    fn clear(&mut self) -> f64 {
        let start = Instant::now();
        for _ in 0..self.case.bytes / self.scratch.bytes() {
            self.scratch.clear_as_linux(self.case.folio.bytes());
        }
        start.elapsed().as_nanos() as f64
    }
}
