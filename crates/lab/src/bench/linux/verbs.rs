//! Arms of the running kernel that call one verb on populated memory of this process.

use super::census;
use super::populate::{FolioChooser, split_pmds, verify};
use super::region::Region;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::memory::{Memory, Other, neighbours};

/// A verb of the running kernel, called on populated memory.
pub struct Verb<S> {
    /// The text of [`Arm::about`].
    pub about: &'static str,
    /// The memory of a case.
    pub memory: fn(&S) -> Memory,
    /// Calls the verb once and times only the call.
    pub work: fn(&S, Subject) -> Result<Sample, Skip>,
}

/// Memory whose folio size was forced through the kernel's settings.
pub struct Subject {
    /// The memory.
    pub region: Region,
    /// Pages that were written and still hold the written byte.
    pub pages: u64,
}

/// The arm of a verb.
pub struct Linux<S: 'static> {
    verb: &'static Verb<S>,
    chooser: FolioChooser,
}

impl<S: Clone + 'static> Linux<S> {
    /// The arm of `verb`, for the list of an experiment.
    pub fn arm(verb: &'static Verb<S>) -> Box<dyn Arm<S>> {
        Box::new(Self { verb, chooser: FolioChooser::default() })
    }
}

impl<S: Clone> Arm<S> for Linux<S> {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        self.verb.about
    }

    fn setup(&mut self, case: &S) -> Result<Box<dyn Prepared + '_>, Skip> {
        let memory = (self.verb.memory)(case);
        self.chooser.choose(memory.folio)?;
        let population = Population::new(&self.chooser, memory);
        let other = Other::for_case(&memory)?;
        Ok(Box::new(Ready { verb: self.verb, case: case.clone(), population, other }))
    }
}

struct Ready<'a, S: 'static> {
    verb: &'static Verb<S>,
    case: S,
    population: Population<'a>,
    other: Other,
}

impl<S> Prepared for Ready<'_, S> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let region = self.population.region()?;
        let folios = self.population.populate(&region)?;
        let pages = region.marked();
        let found = self.population.verified("self", &region)?;
        self.other.fill_caches();
        let sample = (self.verb.work)(&self.case, Subject { region, pages })?;
        Ok(sample.count("folios", folios).count("frames_in_sequence", found))
    }
}

/// Populates regions as a case says.
pub struct Population<'a> {
    chooser: &'a FolioChooser,
    memory: Memory,
    touches: Vec<u32>,
    /// Pages whose frame follows that of the page before, once that was looked up.
    scatter: Option<u64>,
}

impl<'a> Population<'a> {
    /// For a chooser that has chosen the folios of `memory`.
    pub fn new(chooser: &'a FolioChooser, memory: Memory) -> Self {
        Self { chooser, touches: memory.touches(), memory, scatter: None }
    }

    /// A region that is not populated yet.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses.
    pub fn region(&self) -> Result<Region, Skip> {
        self.chooser.map(self.memory.bytes, self.memory.folio)
    }

    /// The same, `beyond` bytes after a multiple of `align`.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses.
    pub fn region_beyond(&self, align: usize, beyond: usize) -> Result<Region, Skip> {
        self.chooser.advise(Region::map_beyond(self.memory.bytes, align, beyond), self.memory.folio)
    }

    /// Writes to every page of a region, folio by folio in the order of the case, and maps them as the case
    /// says. Returns the folios that the kernel counted.
    ///
    /// # Errors
    /// [`Skip`] when too many folios had another size.
    pub fn populate(&self, region: &Region) -> Result<u64, Skip> {
        let before = self.allocated();
        self.touch(region);
        let folios = self.check(region, before)?;
        self.shape(region)?;
        Ok(folios)
    }

    /// Folios of the case's size that the kernel gave out so far, in the whole system.
    pub fn allocated(&self) -> u64 {
        self.chooser.allocated(self.memory.folio)
    }

    /// Checks by the kernel's counter that touching a region took folios of the case's size; how many.
    ///
    /// # Errors
    /// [`Skip`] when too many folios had another size.
    pub fn check(&self, region: &Region, before: u64) -> Result<u64, Skip> {
        self.chooser.check_counter(region, self.memory.folio, before)
    }

    /// Writes to every page of a region, folio by folio in the order of the case. Allocates nothing.
    pub fn touch(&self, region: &Region) {
        let pages = self.memory.folio_pages();
        for &first in &self.touches {
            (0..pages).for_each(|page| region.touch(first as usize * pages + page));
        }
    }

    /// Maps the pages of a region as the case says. Allocates only for an error message.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses.
    pub fn shape(&self, region: &Region) -> Result<(), Skip> {
        let folio = self.memory.folio;
        if folio.order == 9 && !folio.pmd { split_pmds(region) } else { Ok(()) }
    }

    /// Checks frame by frame that `region` of the process `process` (a number or `self`) is populated as the
    /// case says, and counts pages whose frame follows the frame of the page before. Called once, in the
    /// warm-up: reading every frame's state would leave the descriptors in the cache.
    ///
    /// # Errors
    /// [`Skip`] when it is not, or when this user may not look.
    pub fn verified(&mut self, process: &str, region: &Region) -> Result<u64, Skip> {
        if let Some(found) = self.scatter {
            return Ok(found);
        }
        verify(process, region, self.memory.folio)?;
        // Single frames need no setting and so no privilege; without privilege, frames cannot be read.
        let found = match census::frames(process, region) {
            Ok(frames) => neighbours(frames.into_iter().flatten()),
            Err(_) if !self.memory.shuffled => 0,
            Err(skip) => return Err(skip),
        };
        if self.memory.shuffled && found > self.memory.pages() as u64 / 20 {
            let pages = self.memory.pages();
            return Err(Skip(format!("{found} of {pages} frames are in sequence: not shuffled")));
        }
        Ok(*self.scatter.insert(found))
    }
}
