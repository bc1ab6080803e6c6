//! The address spaces of a trace during its survey, and the pages that forked ones share.
//!
//! A page that was stored to before a fork is one frame that parent and child map. One of the address spaces
//! that map it has it among its written pages, where the estimate counts it; the others have inherited it. If
//! the one that has it written stores to it again or gives it up, another one may keep the old frame: it has
//! the page written from then on. Which one does not matter. At least as many are counted as there are
//! frames.

use std::collections::{BTreeSet, HashMap};

use super::error::ReplayError;
use super::need::{Estimate, Life};
use super::pages::PageSet;
use super::verb::Verb;

/// All living address spaces, by number, and the estimate of their needs.
pub(super) struct Families {
    lives: HashMap<u32, Life>,
    /// By family, the address spaces that have inherited pages.
    heirs: HashMap<u32, BTreeSet<u32>>,
    pub(super) estimate: Estimate,
}

impl Families {
    pub(super) fn new(estimate: Estimate) -> Self {
        Self { lives: HashMap::new(), heirs: HashMap::new(), estimate }
    }

    pub(super) fn get(&self, number: u32) -> Option<&Life> {
        self.lives.get(&number)
    }

    /// Pages of work to take pages of a file from all mappings of it: each address space is searched for
    /// them. Calls have mapped the file so often.
    ///
    /// # Errors
    /// [`ReplayError::TooLong`].
    pub(super) fn cut(&mut self, mapped: u64) -> Result<(), ReplayError> {
        let mappings = self.estimate.mappings();
        let most = mapped.saturating_mul(self.lives.len() as u64);
        self.estimate.work(mappings / 16 + most.min(mappings))
    }

    /// Changes the record of an address space, and makes one for a new number.
    pub(super) fn change(&mut self, number: u32, change: impl FnOnce(&mut Life)) {
        let life = match self.lives.entry(number) {
            std::collections::hash_map::Entry::Occupied(known) => {
                self.estimate.remove(known.get());
                known.into_mut()
            }
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(Life { family: number, ..Life::default() })
            }
        };
        change(life);
        self.estimate.add(life);
    }

    /// The address space `child` is a copy of `parent`.
    ///
    /// # Errors
    /// [`ReplayError::TooLong`].
    pub(super) fn fork(&mut self, parent: Option<u32>, child: u32) -> Result<(), ReplayError> {
        let copy = parent.and_then(|parent| self.lives.get(&parent)).map(Life::forked);
        let copy = copy.unwrap_or(Life { family: child, ..Life::default() });
        self.estimate.work(copy.walk())?;
        if copy.inherited.len() > 0 {
            self.heirs.entry(copy.family).or_default().insert(child);
        }
        self.change(child, |life| *life = copy);
        Ok(())
    }

    /// The address space ends.
    ///
    /// # Errors
    /// [`ReplayError::TooLong`].
    pub(super) fn end(&mut self, number: u32) -> Result<(), ReplayError> {
        let Some(life) = self.lives.remove(&number) else { return Ok(()) };
        self.estimate.remove(&life);
        if let Some(heirs) = self.heirs.get_mut(&life.family) {
            heirs.remove(&number);
            if heirs.is_empty() {
                self.heirs.remove(&life.family);
            }
        }
        self.pass_on((life.family, number), life.written)
    }

    /// The program stores to the pages `first..end` of an address space.
    ///
    /// # Errors
    /// [`ReplayError::TooLong`].
    pub(super) fn store(&mut self, number: u32, first: u64, end: u64) -> Result<(), ReplayError> {
        self.give_up(number, first, end)?;
        self.change(number, |life| {
            life.inherited.remove_range(first, end);
            life.written.insert_range(first, end);
        });
        Ok(())
    }

    /// The verb empties and moves pages of an address space.
    ///
    /// # Errors
    /// [`ReplayError::TooLong`].
    pub(super) fn apply(&mut self, number: u32, verb: &Verb) -> Result<(), ReplayError> {
        for range in verb.empties() {
            self.give_up(number, range.start, range.end)?;
        }
        self.change(number, |life| {
            if let Some(from) = verb.moves() {
                // Those who share them find them by their address.
                let moved = life.inherited.within(from.start, from.end);
                life.inherited.remove_range(from.start, from.end);
                life.written.extend(&moved);
            }
            verb.empties().into_iter().for_each(|range| life.inherited.remove_range(range.start, range.end));
            verb.apply_to(&mut life.written);
            verb.apply_to(&mut life.used);
        });
        Ok(())
    }

    /// Others keep the frames of the written pages among `first..end`.
    fn give_up(&mut self, number: u32, first: u64, end: u64) -> Result<(), ReplayError> {
        let Some(life) = self.lives.get(&number) else { return Ok(()) };
        if !self.heirs.contains_key(&life.family) {
            return Ok(());
        }
        self.pass_on((life.family, number), life.written.within(first, end))
    }

    /// Of each page one address space that has inherited it has it written from here on.
    fn pass_on(&mut self, (family, from): (u32, u32), mut pages: PageSet) -> Result<(), ReplayError> {
        let Some(heirs) = self.heirs.get(&family) else { return Ok(()) };
        let mut looked_at = 0;
        // The youngest share most.
        for heir in heirs.iter().rev().filter(|heir| **heir != from) {
            if pages.len() == 0 {
                break;
            }
            let Some(life) = self.lives.get_mut(heir) else { continue };
            looked_at += 1 + pages.chunks().min(life.inherited.chunks());
            let taken = life.inherited.take_common(&mut pages);
            if taken.len() > 0 {
                self.estimate.remove(life);
                life.written.extend(&taken);
                self.estimate.add(life);
            }
        }
        self.estimate.work(looked_at / 16)
    }
}

#[cfg(test)]
mod tests {
    use super::super::need::Bounds;
    use super::*;

    /// The number of frames that are counted.
    fn written(families: &Families, numbers: &[u32]) -> u64 {
        numbers.iter().filter_map(|number| families.get(*number)).map(|life| life.written.len()).sum()
    }

    #[test]
    fn a_frame_is_counted_once_until_its_last_user_gives_it_up() {
        let mut families = Families::new(Estimate::new(Bounds::NONE));
        families.change(0, |_| {});
        families.store(0, 0, 1000).expect("no limit");
        (1..4).for_each(|child| families.fork(Some(0), child).expect("no limit"));
        let all = [0, 1, 2, 3];
        assert_eq!(written(&families, &all), 1000);
        families.store(0, 100, 200).expect("no limit");
        assert_eq!(written(&families, &all), 1100, "the old frames are one for all children");
        families.store(0, 100, 200).expect("no limit");
        assert!(written(&families, &all) <= 1200);
        families.end(3).expect("no limit");
        assert!(written(&families, &all) >= 1100, "the others have the old frames yet");
        let unmap = |len| Verb::Munmap { addr: 0, len };
        families.apply(0, &unmap(4_096_000)).expect("no limit");
        assert_eq!(written(&families, &[0]), 0);
        assert!(written(&families, &all) >= 1000);
        families.apply(1, &unmap(4_096_000)).expect("no limit");
        assert!(written(&families, &all) >= 1000);
        families.end(0).expect("no limit");
        families.end(2).expect("no limit");
        assert_eq!(written(&families, &all), 0);
    }

    #[test]
    fn pages_that_move_are_still_counted() {
        let mut families = Families::new(Estimate::new(Bounds::NONE));
        families.change(0, |_| {});
        families.store(0, 0, 10).expect("no limit");
        families.fork(Some(0), 1).expect("no limit");
        let to = quire::vm::Remap::Fixed(quire::addr::VirtAddr(1 << 30));
        families.apply(1, &Verb::Mremap { addr: 0, old: 10 << 12, new: 10 << 12, to }).expect("no limit");
        families.end(0).expect("no limit");
        assert_eq!(written(&families, &[1]), 10);
        assert!(families.get(1).is_some_and(|life| life.written.contains(1 << 18)));
    }
}
