//! What of the mappings DAMON saw accessed.

use super::{Layouts, Mapping};
use crate::trace::Accesses;

impl Layouts {
    /// Parts of mappings of a process, by address, each with the share of its bytes that was accessed from one look to
    /// the next.
    pub(crate) fn accessed(&self, pid: u32, accesses: &Accesses) -> Vec<(Mapping, f64)> {
        let mut found = Vec::new();
        for region in accesses.regions.iter().filter(|region| region.accessed > 0) {
            let share = f64::from(region.accessed.min(accesses.samples)) / f64::from(accesses.samples.max(1));
            let mapped = self.mapped_in(pid, region.start, region.end());
            let all: u64 = mapped.iter().map(|part| part.end - part.start).sum();
            // Looks at addresses where nothing is mapped have found nothing.
            let of_mapped = (region.len as f64 * share / all as f64).min(1.0);
            found.extend(mapped.into_iter().map(|part| (part, of_mapped)));
        }
        found
    }
}
