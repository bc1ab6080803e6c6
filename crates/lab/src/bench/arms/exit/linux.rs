//! The end of a process of the running kernel.

use super::EMPTY;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::linux::child::{Child, moment};
use crate::bench::linux::populate::FolioChooser;
use crate::bench::linux::verbs::Population;
use crate::bench::memory::{Memory, Other};

#[derive(Default)]
pub(super) struct Linux {
    chooser: FolioChooser,
}

impl Arm<Memory> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "from just before _exit in a forked child, which populated the memory itself, until waitpid returns \
         in its parent. `empty` is the same without the memory, and is not subtracted; folio sizes are \
         forced in /sys and verified in the child's /proc."
    }

    fn setup(&mut self, case: &Memory) -> Result<Box<dyn Prepared + '_>, Skip> {
        self.chooser.choose(case.folio)?;
        let other = Other::for_case(case)?;
        Ok(Box::new(Ready { population: Population::new(&self.chooser, *case), other }))
    }
}

struct Ready<'a> {
    population: Population<'a>,
    other: Other,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let empty = self.once(false)?;
        let full = self.once(true)?;
        Ok(Sample::new(full.time, full.pages)
            .metric(EMPTY, empty.time)
            .count("folios", full.folios)
            .count("frames_in_sequence", full.in_sequence))
    }
}

struct Exit {
    time: f64,
    pages: u64,
    folios: u64,
    in_sequence: u64,
}

impl Ready<'_> {
    fn once(&mut self, populate: bool) -> Result<Exit, Skip> {
        let region = self.population.region()?;
        let before = self.population.allocated();
        let population = &self.population;
        // SAFETY: C2: the child touches its own memory, calls madvise, uses its pipes and reads the clock. It
        // allocates only for an error message, after which it ends.
        let mut child = unsafe {
            Child::start(|line| {
                if populate {
                    population.touch(&region);
                }
                let shaped = !populate || population.shape(&region).is_ok();
                let pages = if populate { region.marked() } else { 0 };
                shaped && line.say(pages) && line.wait() && line.say(moment())
            })
        }?;
        let pages = child.hear()?;
        let (mut folios, mut in_sequence) = (0, 0);
        if populate {
            folios = self.population.check(&region, before)?;
            in_sequence = self.population.verified(&child.name(), &region)?;
        }
        // The child waits on the same processor.
        self.other.fill_caches();
        child.tell()?;
        let end = child.end()?;
        let start = child.hear()?;
        Ok(Exit { time: end.saturating_sub(start) as f64, pages, folios, in_sequence })
    }
}
