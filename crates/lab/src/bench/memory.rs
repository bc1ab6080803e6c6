//! Populated memory as a case: its size, its folios, the order in which they are touched.

use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};

use quire::arch::Caches;
use rustix::mm::Advice;

use super::experiment::{Case, Skip};
use super::folio::{Folio, PAGE};
use super::linux::region::Region;
use super::runner::Scale;

/// Seed of shuffled touches, the same in every arm and round.
const SEED: u64 = 4;

/// Anonymous memory of which every page was written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes, a multiple of 2 MiB.
    pub bytes: usize,
    /// Size and mapping of the folios.
    pub folio: Folio,
    /// The folios were touched in random order, so that neighbouring pages have frames that are far apart.
    pub shuffled: bool,
    /// The processor's caches hold other memory when the verb starts.
    pub cold: bool,
}

impl Memory {
    /// `bytes` in folios of every size, touched in order of address.
    pub fn of_every_folio(bytes: usize) -> impl Iterator<Item = Self> {
        Folio::all().map(move |folio| Self { bytes, folio, shuffled: false, cold: false })
    }

    /// The same, and single frames a second time with shuffled frames.
    pub fn of_every_folio_and_shuffled(bytes: usize) -> impl Iterator<Item = Self> {
        let first = Folio::all().next().map(|folio| Self { bytes, folio, shuffled: true, cold: false });
        let mut all: Vec<Self> = Self::of_every_folio(bytes).collect();
        all.splice(1..1, first);
        all.into_iter()
    }

    /// Bytes of the memory that an experiment unmaps.
    pub fn bytes_at(scale: &Scale) -> usize {
        scale.pick(8 << 20, 1 << 30)
    }

    /// A case for each of these memories, without further parameters.
    pub fn plain_cases(memories: impl Iterator<Item = Self>) -> Vec<Case<Self>> {
        memories.map(|memory| memory.case("", &[], memory)).collect()
    }

    /// Base pages.
    pub fn pages(&self) -> usize {
        self.bytes / PAGE
    }

    /// Base pages of one folio.
    pub fn folio_pages(&self) -> usize {
        self.folio.bytes() / PAGE
    }

    /// The folios by number, in the order in which they are touched first.
    pub fn touches(&self) -> Vec<u32> {
        let mut folios: Vec<u32> = (0..(self.bytes / self.folio.bytes()) as u32).collect();
        if self.shuffled {
            fastrand::Rng::with_seed(SEED).shuffle(&mut folios);
        }
        folios
    }

    /// Short, stable name of the case.
    pub fn name(&self) -> String {
        let modifier = |set, text| if set { text } else { "" };
        let (shuffled, cold) = (modifier(self.shuffled, "/shuffled"), modifier(self.cold, "/cold"));
        format!("{}{shuffled}{cold}", self.folio.name())
    }

    /// A case on this memory: `modifier` (empty or from its slash on) and `more` parameters say what is done with it.
    pub fn case<S>(&self, modifier: &str, more: &[(&str, Value)], spec: S) -> Case<S> {
        let own = [
            ("bytes", json!(self.bytes)),
            ("pages", json!(self.pages())),
            ("folio_bytes", json!(self.folio.bytes())),
            ("pmd_mapped", json!(self.folio.pmd)),
            ("shuffled", json!(self.shuffled)),
            ("cold", json!(self.cold)),
        ];
        let params: Map<String, Value> =
            own.iter().chain(more).map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Case { name: format!("{}{modifier}", self.name()), params, spec }
    }
}

/// How much other memory fills the processor's caches before a verb; none where they are left alone.
pub struct Other {
    bytes: usize,
}

/// The other memory, of all cases. Forked children do not get it: a timed fork or exit would copy and free its page tables.
static OTHER: Mutex<Option<Region>> = Mutex::new(None);

/// At least so much: a virtual machine may name a smaller cache than it has.
const OTHER_BYTES: usize = 128 << 20;

/// Bytes of a cache line.
const LINE: usize = 64;

impl Other {
    /// For a case with `memory`.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses the memory.
    pub fn for_case(memory: &Memory) -> Result<Self, Skip> {
        if !memory.cold {
            return Ok(Self { bytes: 0 });
        }
        // Not more than the case itself has: a small run only shows that it works.
        let bytes = (Caches::detect().last as usize).max(OTHER_BYTES).min(memory.bytes);
        let mut other = OTHER.lock().unwrap_or_else(PoisonError::into_inner);
        if other.as_ref().is_none_or(|region| region.bytes() < bytes) {
            let refused = |error| Skip::because("no memory to fill the caches with", error);
            let region = Region::map(bytes).map_err(refused)?;
            region.advise(Advice::LinuxDontFork).map_err(refused)?;
            *other = Some(region);
        }
        Ok(Self { bytes })
    }

    /// Evicts everything else from the caches.
    pub fn fill_caches(&self) {
        let mut other = OTHER.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = other.as_mut().map_or_else(Default::default, Region::as_bytes);
        // Written, so that every line is this memory's own and no other copy may stay.
        let lines = bytes.iter_mut().take(self.bytes).step_by(LINE);
        lines.for_each(|byte| *byte = std::hint::black_box(*byte).wrapping_add(1));
    }
}

/// Pages whose frame follows that of the page before, out of the frames of a range in order of address.
pub fn neighbours(frames: impl Iterator<Item = u64>) -> u64 {
    let mut before = None;
    let follows = |frame: &u64| before.replace(*frame).is_some_and(|before| before + 1 == *frame);
    frames.filter(follows).count() as u64
}

#[cfg(test)]
mod tests;
