//! `mmap` and `munmap`.

use quire::error::MmError;

use super::vma::{Backing, Huge, Locked, PAGE, Prot, Vma};
use super::{Family, Space, SpaceId};

/// File offsets end here, in pages.
const OFFSET_LIMIT: u64 = (i64::MAX as u64) / PAGE;

/// How `addr` is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Placement {
    /// This address if it is free, else any.
    Hint,
    /// This address, replacing older mappings (`MAP_FIXED`).
    Fixed,
    /// This address or none (`MAP_FIXED_NOREPLACE`).
    FixedNoReplace,
}

/// The arguments of `mmap`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Map {
    /// The address, as `placement` says.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// The allowed accesses.
    pub prot: Prot,
    /// How `addr` is used.
    pub placement: Placement,
    /// Whether stores reach the backing.
    pub shared: bool,
    /// The file and the page of it, or anonymous memory.
    pub file: Option<(u64, u64)>,
    /// `MAP_GROWSDOWN`.
    pub grows_down: bool,
    /// `MAP_POPULATE`.
    pub populate: bool,
    /// `MAP_LOCKED`.
    pub locked: bool,
}

impl Map {
    /// Private anonymous memory at a fixed address: the usual start of a test.
    pub fn anonymous(addr: u64, len: u64, prot: Prot) -> Self {
        Self {
            addr,
            len,
            prot,
            placement: Placement::Fixed,
            shared: false,
            file: None,
            grows_down: false,
            populate: false,
            locked: false,
        }
    }
}

/// The required place of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// This address.
    At(u64),
    /// Anywhere that [`Family::is_legal`].
    Anywhere,
}

fn round_up(len: u64) -> u64 {
    len.checked_next_multiple_of(PAGE).unwrap_or(0)
}

impl Family {
    /// Checks the arguments of `mmap`; returns the required place. Changes nothing.
    ///
    /// # Errors
    /// As Linux: `EINVAL`, `ENOMEM`, `EEXIST`, `EOVERFLOW`. It does not check for space for
    /// [`Place::Anywhere`] ([`Self::has_room`] does).
    pub fn place(&self, id: SpaceId, map: &Map) -> Result<Place, MmError> {
        if map.len == 0 {
            return Err(MmError::Invalid);
        }
        let len = round_up(map.len);
        if len == 0 {
            return Err(MmError::NoMemory);
        }
        let first = map.file.map_or(0, |(_, page)| page);
        if first.checked_add(len / PAGE).is_none() {
            return Err(MmError::Overflow);
        }
        if len > self.rules.user_end {
            return Err(MmError::NoMemory);
        }
        let at = self.place_checked(id, map, len)?;
        if map.file.is_some() && first + len / PAGE > OFFSET_LIMIT {
            return Err(MmError::Overflow);
        }
        if map.grows_down && (map.file.is_some() || map.shared) {
            return Err(MmError::Invalid);
        }
        Ok(at)
    }

    fn place_checked(&self, id: SpaceId, map: &Map, len: u64) -> Result<Place, MmError> {
        if map.placement == Placement::Hint {
            let hint = match map.addr & !(PAGE - 1) {
                0 => return Ok(Place::Anywhere),
                hint => hint.max(self.rules.user_start),
            };
            let fits = self.is_legal(id, hint, len);
            return Ok(if fits { Place::At(hint) } else { Place::Anywhere });
        }
        if map.addr > self.rules.user_end - len {
            return Err(MmError::NoMemory);
        }
        if !map.addr.is_multiple_of(PAGE) {
            return Err(MmError::Invalid);
        }
        if map.addr < self.rules.user_start {
            return Err(MmError::NotPermitted);
        }
        if map.placement == Placement::FixedNoReplace && self.space(id).any_in(map.addr, map.addr + len) {
            return Err(MmError::Exists);
        }
        Ok(Place::At(map.addr))
    }

    /// Whether a mapping of `len` bytes may be placed at `addr` by the manager's own choice: in the user range, over
    /// no other mapping, and in no stack's guard gap.
    pub fn is_legal(&self, id: SpaceId, addr: u64, len: u64) -> bool {
        let space = self.space(id);
        let len = round_up(len);
        let Some(end) = addr.checked_add(len) else { return false };
        let inside = addr >= self.rules.user_start && end <= self.rules.user_end;
        let above = space.vmas.get(space.index_above(addr));
        let free = above.is_none_or(|vma| end <= vma.start_with_gap(self.rules.stack_gap));
        addr.is_multiple_of(PAGE) && inside && free
    }

    /// Whether some address is legal for `len` bytes.
    pub fn has_room(&self, id: SpaceId, len: u64) -> bool {
        let len = round_up(len);
        let mut from = self.rules.user_start;
        for vma in &self.space(id).vmas {
            if vma.start_with_gap(self.rules.stack_gap) >= from.saturating_add(len) {
                return true;
            }
            from = from.max(vma.end);
        }
        from.saturating_add(len) <= self.rules.user_end
    }

    /// Maps at `addr`, which [`Self::place`] allowed, replacing older mappings.
    pub fn map_at(&mut self, id: SpaceId, map: &Map, addr: u64) {
        let len = round_up(map.len);
        let backing = match map.file {
            Some((file, _)) => Backing::File(file),
            None if map.shared => self.new_shared(len),
            None => Backing::Anonymous,
        };
        let future = self.space(id).lock_future;
        let locked = if map.locked && future == Locked::No { Locked::Now } else { future };
        let mut vma = Vma {
            start: addr,
            end: addr + len,
            prot: map.prot,
            shared: map.shared,
            backing,
            page_offset: map.file.map_or(0, |(_, page)| page),
            grows_down: map.grows_down,
            locked,
            huge: Huge::Default,
            accounted: false,
        };
        vma.protect(map.prot);
        let space = self.space_mut(id);
        space.remove(addr, addr + len);
        space.insert(vma);
        if map.populate || locked == Locked::Now {
            // As Linux: a mapping that cannot be populated is still made.
            let _ = self.populate(id, addr, addr + len);
        }
    }

    /// `mmap` in one step, for callers that know the address: the recorded one, a fixed one. Without, the lowest
    /// legal address is taken.
    ///
    /// # Errors
    /// As [`Self::place`]; `ENOMEM` also when there is no room.
    pub fn mmap(&mut self, id: SpaceId, map: &Map) -> Result<u64, MmError> {
        let addr = match self.place(id, map)? {
            Place::At(addr) => addr,
            Place::Anywhere => self.lowest_room(id, map.len).ok_or(MmError::NoMemory)?,
        };
        self.map_at(id, map, addr);
        Ok(addr)
    }

    pub(super) fn lowest_room(&self, id: SpaceId, len: u64) -> Option<u64> {
        let ends = self.space(id).vmas.iter().map(|vma| vma.end);
        std::iter::once(self.rules.user_start).chain(ends).find(|&addr| self.is_legal(id, addr, len))
    }

    /// `munmap`; holes are fine.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn munmap(&mut self, id: SpaceId, addr: u64, len: u64) -> Result<(), MmError> {
        let room = self.rules.user_end.checked_sub(addr).ok_or(MmError::Invalid)?;
        if !addr.is_multiple_of(PAGE) || len > room || round_up(len) == 0 {
            return Err(MmError::Invalid);
        }
        self.space_mut(id).remove(addr, addr + round_up(len));
        Ok(())
    }
}

impl Vma {
    /// The first byte that placement keeps free below the mapping.
    fn start_with_gap(&self, gap: u64) -> u64 {
        if self.grows_down { self.start.saturating_sub(gap) } else { self.start }
    }
}

impl Space {
    /// Whether every byte of `start..end` is mapped.
    pub(super) fn is_covered(&self, start: u64, end: u64) -> bool {
        self.first_hole(start, end).is_none()
    }

    /// The first byte of `start..end` that is not mapped.
    pub(super) fn first_hole(&self, start: u64, end: u64) -> Option<u64> {
        let mut at = start;
        for vma in &self.vmas[self.index_above(start)..] {
            if vma.start > at || at >= end {
                break;
            }
            at = vma.end;
        }
        (at < end).then_some(at)
    }
}
