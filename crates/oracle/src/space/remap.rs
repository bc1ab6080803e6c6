//! `mremap`.

use quire::error::MmError;

use super::map::Place;
use super::vma::{Backing, Locked, PAGE, Vma};
use super::{Family, SpaceId};

/// The target of `mremap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Remap {
    /// It stays (no flag).
    InPlace,
    /// It may move (`MREMAP_MAYMOVE`).
    MayMove,
    /// It moves to this address, replacing older mappings (`MREMAP_MAYMOVE | MREMAP_FIXED`).
    Fixed(u64),
    /// It moves, to this address if that is free, and leaves an empty mapping (`MREMAP_MAYMOVE |
    /// MREMAP_DONTUNMAP`).
    DontUnmap(u64),
    /// It moves to this address, replacing older mappings, and leaves an empty mapping.
    FixedDontUnmap(u64),
}

impl Remap {
    /// The required address, if there is one.
    pub fn target(self) -> Option<u64> {
        match self {
            Self::Fixed(to) | Self::FixedDontUnmap(to) => Some(to),
            _ => None,
        }
    }

    /// The given address, required or preferred.
    fn named(self) -> Option<u64> {
        match self {
            Self::Fixed(to) | Self::FixedDontUnmap(to) | Self::DontUnmap(to) => Some(to),
            _ => None,
        }
    }

    fn leaves_mapping(self) -> bool {
        matches!(self, Self::DontUnmap(_) | Self::FixedDontUnmap(_))
    }
}

fn round_up(len: u64) -> u64 {
    len.checked_next_multiple_of(PAGE).unwrap_or(0)
}

impl Family {
    /// Checks the arguments of `mremap`; returns the required place. Changes nothing.
    ///
    /// # Errors
    /// `EINVAL`, `EFAULT` (not one mapping), `ENOMEM` (cannot grow in place). A manager that did not merge
    /// mergeable mappings ([`Space::has_edge_inside`](super::Space::has_edge_inside)) may answer `EFAULT`
    /// instead of success.
    pub fn place_remap(
        &self,
        id: SpaceId,
        addr: u64,
        old_len: u64,
        new_len: u64,
        to: Remap,
    ) -> Result<Place, MmError> {
        let (old, new) = (round_up(old_len), round_up(new_len));
        self.check_remap(addr, old, new, to)?;
        let space = self.space(id);
        let vma = space.merged_at(addr).ok_or(MmError::Fault)?;
        if old == 0 && !vma.shared {
            return Err(MmError::Invalid);
        }
        let moves = to.target().is_some() || to.leaves_mapping();
        // What lies behind all addresses cannot be unmapped.
        let loses_beyond = old > new && addr.checked_add(old).is_none_or(|stop| stop > self.rules.user_end);
        let inside = old <= vma.end - addr;
        if let Some(to) = to.target() {
            let whole = self.may_move_several(id, addr, old, new);
            let shrinks_inside = old > new && new <= vma.end - addr;
            return match inside || whole || shrinks_inside {
                false => Err(MmError::Fault),
                true if loses_beyond => Err(MmError::Invalid),
                true if to < self.rules.user_start => Err(MmError::NotPermitted),
                true => Ok(Place::At(to)),
            };
        }
        if moves {
            return if inside { self.place_near(id, to.named(), new) } else { Err(MmError::Fault) };
        }
        if old >= new && old != 0 {
            return if loses_beyond { Err(MmError::Invalid) } else { Ok(Place::At(addr)) };
        }
        if !inside {
            return Err(MmError::Fault);
        }
        let grown = addr + new;
        let room = old != 0
            && addr + old == vma.end
            && grown <= self.rules.user_end
            && !space.any_in(vma.end, grown);
        match to {
            _ if room => Ok(Place::At(addr)),
            Remap::InPlace => Err(MmError::NoMemory),
            _ => Ok(Place::Anywhere),
        }
    }

    /// At the hint if that is free. The hint is not raised to the lowest address, as that of `mmap` is.
    fn place_near(&self, id: SpaceId, hint: Option<u64>, len: u64) -> Result<Place, MmError> {
        match hint {
            Some(hint)
                if hint != 0 && hint < self.rules.user_start && !self.space(id).any_in(hint, hint + len) =>
            {
                Err(MmError::NotPermitted)
            }
            Some(hint) if hint != 0 && self.is_legal(id, hint, len) => Ok(Place::At(hint)),
            _ => Ok(Place::Anywhere),
        }
    }

    fn check_remap(&self, addr: u64, old: u64, new: u64, to: Remap) -> Result<(), MmError> {
        let end = self.rules.user_end;
        if !addr.is_multiple_of(PAGE) || new == 0 || new > end {
            return Err(MmError::Invalid);
        }
        if let Some(to) = to.named() {
            let overlap = addr.wrapping_add(old) > to && to.wrapping_add(new) > addr;
            if to > end - new || !to.is_multiple_of(PAGE) || overlap {
                return Err(MmError::Invalid);
            }
        }
        if to.leaves_mapping() && old != new {
            return Err(MmError::Invalid);
        }
        Ok(())
    }

    /// Several mappings may move together when none changes its size (since Linux 6.17).
    fn may_move_several(&self, id: SpaceId, addr: u64, old: u64, new: u64) -> bool {
        old == new && self.space(id).vma_at(addr).is_some()
    }

    /// Does the remap that [`Self::place_remap`] allowed, to the address that it or the manager chose.
    pub fn remap_at(&mut self, id: SpaceId, addr: u64, old_len: u64, new_len: u64, to: Remap, dest: u64) {
        let (old, new) = (round_up(old_len), round_up(new_len));
        if dest == addr {
            return self.resize(id, addr, old, new);
        }
        if new < old {
            self.space_mut(id).remove(addr + new, addr + old);
        }
        let kept = old.min(new);
        for part in self.sources(id, addr, kept, new) {
            self.move_part(id, part, (addr, addr + kept), dest, to);
        }
    }

    /// The parts that move, with their new attributes at their old places: all mappings of the range, or one
    /// that grows.
    fn sources(&self, id: SpaceId, addr: u64, kept: u64, new: u64) -> Vec<Vma> {
        let space = self.space(id);
        if kept == new {
            return space.clipped(addr, addr + kept);
        }
        let vma = space.merged_at(addr).expect("place_remap found it");
        let page_offset = match vma.backing {
            Backing::Anonymous => 0,
            _ => vma.backing_page(addr),
        };
        vec![Vma { start: addr, end: addr + new, page_offset, ..vma }]
    }

    /// Moves one part; `from` is the range that really moves, empty where a shared mapping is mapped a second time.
    fn move_part(&mut self, id: SpaceId, part: Vma, from: (u64, u64), dest: u64, to: Remap) {
        let shift = |at: u64| at - from.0 + dest;
        let (start, end) = (part.start, part.end.min(from.1));
        let space = self.space_mut(id);
        // Only memory under the parts is unmapped: where several mappings move, the holes between them leave
        // the target alone.
        space.remove(shift(start), shift(part.end));
        let pages = space.forget(start, end);
        if to.leaves_mapping() {
            space.inside(start, end).iter_mut().for_each(|vma| vma.locked = Locked::No);
        } else if start < end {
            space.remove(start, end);
        }
        space.insert(Vma { start: shift(start), end: shift(part.end), ..part });
        for (number, page) in pages {
            space.pages.insert(shift(number * PAGE) / PAGE, page);
        }
        if part.locked == Locked::Now && part.end > end {
            let _ = self.populate(id, shift(end), shift(part.end));
        }
    }

    fn resize(&mut self, id: SpaceId, addr: u64, old: u64, new: u64) {
        let space = self.space_mut(id);
        if new <= old {
            space.remove(addr + new, addr + old);
            return;
        }
        let index = space.index_above(addr + old - 1);
        space.vmas[index].end = addr + new;
        if space.vmas[index].locked == Locked::Now {
            let _ = self.populate(id, addr + old, addr + new);
        }
    }

    /// `mremap` in one step, for callers that know the address or take the lowest.
    ///
    /// # Errors
    /// As [`Self::place_remap`]; `ENOMEM` also when there is no room.
    pub fn mremap(
        &mut self,
        id: SpaceId,
        addr: u64,
        old_len: u64,
        new_len: u64,
        to: Remap,
    ) -> Result<u64, MmError> {
        let dest = match self.place_remap(id, addr, old_len, new_len, to)? {
            Place::At(dest) => dest,
            Place::Anywhere => self.lowest_room(id, new_len).ok_or(MmError::NoMemory)?,
        };
        self.remap_at(id, addr, old_len, new_len, to, dest);
        Ok(dest)
    }
}
