//! Loads, stores and fetches: which are allowed, and the words that they see.

use quire::error::FaultError;

use super::vma::PAGE;
use super::{Family, PROBES, Page, Space, SpaceId};

/// A kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
}

/// The words that a load may see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The last stored word, or the page's first contents.
    pub word: u64,
    /// Whether zero is right too, since the page was freed by `MADV_FREE` and this word was not written since.
    pub or_zero: bool,
}

impl Seen {
    /// Whether a load may have seen `word`.
    pub fn allows(self, word: u64) -> bool {
        word == self.word || self.or_zero && word == 0
    }
}

impl Family {
    /// A fault or access at `addr`: extends a mapping that grows down, brings the page in, makes it private for a
    /// store.
    ///
    /// # Errors
    /// The signal that Linux would send: [`FaultError::NotMapped`], [`FaultError::Protection`],
    /// [`FaultError::BeyondEnd`].
    pub fn fault(&mut self, id: SpaceId, addr: u64, kind: Kind) -> Result<(), FaultError> {
        if self.space(id).vma_at(addr).is_none() {
            self.grow_down(id, addr)?;
        }
        let vma = *self.space(id).vma_at(addr).ok_or(FaultError::NotMapped)?;
        let allowed = match kind {
            Kind::Read => vma.prot.reads(),
            Kind::Write => vma.prot.writes(),
            Kind::Exec => vma.prot.executes(),
        };
        if !allowed {
            return Err(FaultError::Protection);
        }
        self.bring_in(id, &vma, addr, kind == Kind::Write)?;
        if !self.rules.contents && kind == Kind::Write {
            // Without contents, only a store ends the effect of `MADV_FREE`.
            self.space_mut(id).pages.entry(addr / PAGE).and_modify(|page| page.lazy = None);
        }
        Ok(())
    }

    /// Stores a word at one of the probe offsets of the page at `addr`.
    ///
    /// # Errors
    /// As [`Self::fault`].
    pub fn write(&mut self, id: SpaceId, addr: u64, probe: usize, word: u64) -> Result<(), FaultError> {
        self.fault(id, addr, Kind::Write)?;
        if !self.rules.contents {
            return Ok(());
        }
        let vma = *self.space(id).vma_at(addr).expect("the access succeeded");
        if vma.is_private() {
            self.space_mut(id).pages.entry(addr / PAGE).and_modify(|page| page.store(probe, word));
        } else {
            let page = vma.backing_page(addr);
            let mut words = self.object_words(vma.backing, page);
            words[probe] = word;
            self.written.insert((vma.backing, page), words);
        }
        Ok(())
    }

    /// Loads the word at one of the probe offsets of the page at `addr`.
    ///
    /// # Errors
    /// As [`Self::fault`].
    pub fn read(&mut self, id: SpaceId, addr: u64, probe: usize) -> Result<Seen, FaultError> {
        self.fault(id, addr, Kind::Read)?;
        Ok(self.peek(id, addr, probe).expect("the access succeeded"))
    }

    /// A load from the page at `addr` has seen this word, which it may: of a page that was freed by `MADV_FREE`, more is
    /// known then.
    pub fn saw(&mut self, id: SpaceId, addr: u64, probe: usize, word: u64) {
        self.space_mut(id).pages.entry(addr / PAGE).and_modify(|page| page.saw(probe, word));
    }

    /// The words that a load would see, if `addr` is mapped and its page is present; changes nothing.
    pub fn peek(&self, id: SpaceId, addr: u64, probe: usize) -> Option<Seen> {
        self.peek_page(id, addr).map(|seen| seen[probe])
    }

    /// The same of every probe of the page at `addr`.
    pub fn peek_page(&self, id: SpaceId, addr: u64) -> Option<[Seen; PROBES]> {
        let space = self.space(id);
        let vma = space.vma_at(addr)?;
        if let Some(own) = space.pages.get(&(addr / PAGE)).and_then(Page::seen) {
            return Some(own);
        }
        let page = vma.backing_page(addr);
        let words = self.has_page(vma.backing, page).then(|| self.object_words(vma.backing, page))?;
        Some(words.map(|word| Seen { word, or_zero: false }))
    }

    /// Extends the mapping above `addr` down to it.
    pub(crate) fn grow_down(&mut self, id: SpaceId, addr: u64) -> Result<(), FaultError> {
        let rules = self.rules;
        let space = self.space_mut(id);
        let index = space.index_above(addr);
        let start = addr & !(PAGE - 1);
        let stack = *space.vmas.get(index).filter(|vma| vma.grows_down).ok_or(FaultError::NotMapped)?;
        let end = space.merged_at(stack.start).map_or(stack.end, |merged| merged.end);
        if start < rules.user_start || end - start > rules.stack_limit {
            return Err(FaultError::NotMapped);
        }
        if !space.gap_below(index, start, rules.stack_gap) {
            return Err(FaultError::NotMapped);
        }
        space.vmas[index].start = start;
        Ok(())
    }
}

impl Space {
    /// Whether a stack, mapping `index`, may start at `start`: the guard gap counts from what can be accessed below
    /// and is no stack itself.
    fn gap_below(&self, index: usize, start: u64, gap: u64) -> bool {
        let Some(below) = index.checked_sub(1).map(|index| self.vmas[index]) else { return true };
        below.grows_down || !below.prot.reads() || start - below.end >= gap
    }
}
