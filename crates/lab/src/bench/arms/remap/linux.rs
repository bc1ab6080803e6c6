//! The running kernel's `mremap`.

use std::time::Instant;

use super::Move;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::linux::populate::FolioChooser;
use crate::bench::linux::region::Region;
use crate::bench::linux::verbs::Population;

#[derive(Default)]
pub(super) struct Linux {
    chooser: FolioChooser,
}

impl Arm<Move> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "one mremap(MREMAP_MAYMOVE | MREMAP_FIXED) over an untouched mapping, on one thread: system call, \
         VMAs, tables or entries, flush. Folio sizes are forced and verified as in `unmap`."
    }

    fn setup(&mut self, case: &Move) -> Result<Box<dyn Prepared + '_>, Skip> {
        self.chooser.choose(case.memory.folio)?;
        Ok(Box::new(Ready { case: *case, population: Population::new(&self.chooser, case.memory) }))
    }
}

struct Ready<'a> {
    case: Move,
    population: Population<'a>,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let bytes = self.case.memory.bytes;
        let target = Region::map_beyond(bytes, 1 << 30, self.case.beyond);
        let mut target = target.map_err(|error| Skip::because("cannot map the target of mremap", error))?;
        let mut region = self.population.region_beyond(1 << 30, 0)?;
        let folios = self.population.populate(&region)?;
        let found = self.population.verified("self", &region)?;
        let start = Instant::now();
        let outcome = region.move_to(&mut target);
        let time = start.elapsed().as_nanos() as f64;
        outcome.map_err(|error| Skip::because("mremap", error))?;
        Ok(Sample::new(time, target.marked()).count("folios", folios).count("frames_in_sequence", found))
    }
}
