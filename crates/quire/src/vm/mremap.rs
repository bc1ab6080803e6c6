//! `mremap`: changes the size of a mapping, or moves it with everything it maps.

use super::edit;
use super::layout::Placement;
use super::mm::{Mm, Space};
use super::tree::VmaList;
use super::vma::{Vma, VmaFlags};
use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::limits::{FRAME_SIZE, MAX_MAPPINGS};
use crate::platform::Platform;

/// Where `mremap` may put a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// It stays where it is (no flag).
    InPlace,
    /// It may move (`MREMAP_MAYMOVE`).
    MayMove,
    /// It moves there; what is there goes (`MREMAP_MAYMOVE | MREMAP_FIXED`).
    Fixed(VirtAddr),
    /// It moves, and an empty mapping stays behind (`MREMAP_MAYMOVE | MREMAP_DONTUNMAP`).
    DontUnmap,
    /// Both.
    FixedDontUnmap(VirtAddr),
}

impl Remap {
    const fn target(self) -> Option<VirtAddr> {
        match self {
            Self::Fixed(to) | Self::FixedDontUnmap(to) => Some(to),
            _ => None,
        }
    }

    const fn leaves_mapping(self) -> bool {
        matches!(self, Self::DontUnmap | Self::FixedDontUnmap(_))
    }
}

/// A checked request: all lengths in whole pages.
#[derive(Clone, Copy)]
struct Move {
    from: VirtAddr,
    old: u64,
    new: u64,
    to: Remap,
}

/// What a call did, beside moving: nodes to discard and pages to bring in.
#[derive(Default)]
struct Done {
    at: VirtAddr,
    gone: VmaList,
    populate: VirtRange,
}

impl<P: Platform> Mm<'_, P> {
    /// Gives the `old_len` bytes mapped at `addr` the size `new_len`, as `to` says at another address, and says where
    /// they are. With `old_len` 0 a shared mapping is mapped a second time. Several mappings can move at once if their
    /// size stays.
    ///
    /// # Errors
    /// [`MmError::Invalid`] (unaligned, empty, overlapping, a size that changes with an empty mapping left behind),
    /// [`MmError::Fault`] (not mapped, or not by one mapping), [`MmError::NoMemory`] (no memory, no room, too many
    /// mappings). Nothing has changed then, save that a fixed target may have been unmapped.
    pub fn mremap(&self, addr: VirtAddr, old_len: u64, new_len: u64, to: Remap) -> Result<VirtAddr, MmError> {
        let mut done = Done::default();
        let mut space = self.lock();
        let outcome = check(&space, addr, old_len, new_len, to)
            .and_then(|request| self.remap_locked(&mut space, request, &mut done));
        drop(space);
        self.memory.discard_list(done.gone);
        outcome?;
        if !done.populate.is_empty() {
            let _stopped = self.populate(done.populate);
        }
        Ok(done.at)
    }

    fn remap_locked(&self, space: &mut Space, request: Move, done: &mut Done) -> Result<(), MmError> {
        let Move { from, old, new, to } = request;
        let vma = space.tree.find(from).ok_or(MmError::Fault)?;
        if old == 0 && vma.attributes.is_private() {
            return Err(MmError::Invalid);
        }
        let (mapping, inside) = (vma.range, old <= vma.range.end.0 - from.0);
        let locked = vma.attributes.flags.contains(VmaFlags::LOCKED)
            && !vma.attributes.flags.contains(VmaFlags::LOCK_ON_FAULT);
        done.at = from;
        let moves = to.target().is_some() || to.leaves_mapping();
        if !moves && old >= new && old != 0 {
            done.gone = self.unmap_range(space, VirtRange::new(from.add(new), from.add(old)))?;
            return Ok(());
        }
        let several = to.target().is_some() && old == new;
        if !inside && !several {
            return Err(MmError::Fault);
        }
        if !moves && old != 0 && from.add(old) == mapping.end && has_room(space, mapping.end, from.0 + new) {
            let grown = VirtRange::new(mapping.end, from.add(new));
            space.tree.resize(mapping.start, VirtRange::new(mapping.start, grown.end));
            edit::merge(&mut space.tree, VirtRange::new(mapping.start, grown.end), &mut done.gone);
            done.populate = if locked { grown } else { VirtRange::default() };
            return Ok(());
        }
        if to == Remap::InPlace {
            return Err(MmError::NoMemory);
        }
        self.move_mapping(space, request, done)?;
        if locked && new > old {
            done.populate = VirtRange::new(done.at.add(old), done.at.add(new));
        }
        Ok(())
    }

    fn move_mapping(&self, space: &mut Space, request: Move, done: &mut Done) -> Result<(), MmError> {
        let Move { from, old, new, to } = request;
        // At most: both ends of source and target, and the moved part itself, for a few mappings.
        if space.tree.len() + 6 > MAX_MAPPINGS {
            return Err(MmError::NoMemory);
        }
        let dest = match to.target() {
            Some(dest) => dest,
            None => {
                let large = space.tree.find(from).is_some_and(|vma| vma.attributes.is_anonymous());
                space.layout.place(&space.tree, VirtAddr(0), new, Placement::Hint, large)?.start
            }
        };
        let kept = old.min(new);
        let mut parts = self.moved_parts(space, request, dest)?;
        let prepared = self.clear_target(space, request, dest, &mut done.gone);
        let moved = prepared.and_then(|()| self.move_leaves(from, dest, kept));
        if moved.is_err() {
            done.gone.append(parts);
            return moved;
        }
        let source = VirtRange::from_len(from, kept);
        if to.leaves_mapping() {
            // The ends are borders already, so no spare is needed.
            let locks = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT);
            let unlock = |vma: &mut super::vma::VmaAttributes| vma.flags = vma.flags.without(locks);
            edit::change(&mut space.tree, source, &mut edit::Spares::new(), &mut done.gone, unlock);
        } else if let Some(list) = edit::carve(&mut space.tree, source, &mut edit::Spares::new()) {
            done.gone.append(list);
        }
        while let Some(part) = parts.pop() {
            if let Err(part) = edit::insert(&mut space.tree, part, &mut done.gone) {
                debug_assert!(false, "the target was cleared");
                done.gone.push(part);
            }
        }
        done.at = dest;
        Ok(())
    }

    /// Nodes for what will stand at the target: each mapping of the source, or the one that changes its size.
    fn moved_parts(&self, space: &Space, request: Move, dest: VirtAddr) -> Result<VmaList, MmError> {
        let Move { from, old, new, .. } = request;
        let mut parts = VmaList::new();
        let span = VirtRange::from_len(from, if old == new { old } else { FRAME_SIZE });
        for vma in space.tree.overlapping(span) {
            let mut node = match self.memory.blank() {
                Ok(node) => node,
                Err(error) => {
                    self.memory.discard_list(parts);
                    return Err(error.into());
                }
            };
            let source = if old == new { vma.range.intersect(span) } else { VirtRange::from_len(from, new) };
            let skipped = (source.start.0 - vma.range.start.0) / FRAME_SIZE;
            let range = VirtRange::from_len(dest.add(source.start.0 - from.0), source.len());
            *node = Vma::new(range, vma.attributes.again(skipped));
            parts.push(node);
        }
        Ok(parts)
    }

    /// Makes the target free and both ends of the source borders between mappings, and unmaps what the source loses.
    fn clear_target(
        &self,
        space: &mut Space,
        request: Move,
        dest: VirtAddr,
        gone: &mut VmaList,
    ) -> Result<(), MmError> {
        let Move { from, old, new, .. } = request;
        let source = VirtRange::from_len(from, old.min(new));
        let mut spares = self.memory.spares(edit::splits(&space.tree, source))?;
        let cut = self.cut(source).is_ok() && self.cut(VirtRange::from_len(dest, new)).is_ok();
        let done = cut && edit::split_ends(&mut space.tree, source, &mut spares);
        self.memory.discard_spares(spares);
        if !done {
            return Err(MmError::NoMemory);
        }
        for range in
            [VirtRange::from_len(dest, new), VirtRange::new(source.end, from.add(old).max(source.end))]
        {
            gone.append(self.unmap_range(space, range)?);
        }
        Ok(())
    }
}

fn check(space: &Space, from: VirtAddr, old: u64, new: u64, to: Remap) -> Result<Move, MmError> {
    let page_up = |len: u64| VirtAddr(len).align_up(FRAME_SIZE).map_or(0, |len| len.0);
    let (old, new, end) = (page_up(old), page_up(new), space.layout.user.end.0);
    if !from.is_aligned(FRAME_SIZE) || new == 0 || new > end || to.leaves_mapping() && old != new {
        return Err(MmError::Invalid);
    }
    if let Some(dest) = to.target() {
        let overlap = from.0.wrapping_add(old) > dest.0 && dest.0.wrapping_add(new) > from.0;
        if dest.0 > end - new || !dest.is_aligned(FRAME_SIZE) || overlap {
            return Err(MmError::Invalid);
        }
        if dest < space.layout.lowest {
            return Err(MmError::NotPermitted);
        }
    }
    if from.0.checked_add(old).is_none_or(|stop| stop > end) {
        return Err(MmError::Fault);
    }
    Ok(Move { from, old, new, to })
}

/// Whether nothing is mapped from a mapping's end to `grown`.
fn has_room(space: &Space, end: VirtAddr, grown: u64) -> bool {
    grown <= space.layout.user.end.0
        && space.tree.first_in(VirtRange { start: end, end: VirtAddr(grown) }).is_none()
}
