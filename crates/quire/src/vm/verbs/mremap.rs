//! `mremap`: changes the size of a mapping, or moves it with everything it maps.
#![forbid(unsafe_code)]

use core::cmp::Ordering;

use crate::addr::{VirtAddr, VirtRange};
use crate::error::MmError;
use crate::limits::FRAME_SIZE;
use crate::platform::Platform;
use crate::vm::gigantic::cancel::Cancellation;
use crate::vm::gigantic::pool::PoolFaults;
use crate::vm::handle::handle;
use crate::vm::hugetlb::ends::check_ends;
use crate::vm::mapping::vma::{Vma, VmaAttributes, VmaFlags};
use crate::vm::space::address_space::AddressSpace;
use crate::vm::space::limits::is_data;
use crate::vm::space::state::Space;
use crate::vm::tree::layout::{Fit, Placement};
use crate::vm::tree::{VmaList, edit};
use crate::vm::userfault::Registration;
use crate::vm::userfault::changes::Notices;
use crate::vm::userfault::register::Registrations;
use crate::vm::verbs::munmap::Munmap;
use crate::vm::verbs::populate::Populate;

/// Where `mremap` may put a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remap {
    /// It stays in place (no flag).
    InPlace,
    /// It may move (`MREMAP_MAYMOVE`).
    MayMove,
    /// It moves there, and replaces what is mapped there (`MREMAP_MAYMOVE | MREMAP_FIXED`).
    Fixed(VirtAddr),
    /// It moves, there if nothing is mapped there, and leaves an empty mapping behind (`MREMAP_MAYMOVE |
    /// MREMAP_DONTUNMAP`). Address 0 is no wish; any other must be valid.
    DontUnmap(VirtAddr),
    /// It moves there, replaces what is mapped there, and leaves an empty mapping behind.
    FixedDontUnmap(VirtAddr),
}

impl Remap {
    const fn target(self) -> Option<VirtAddr> {
        match self {
            Self::Fixed(to) | Self::FixedDontUnmap(to) => Some(to),
            _ => None,
        }
    }

    /// The address that the caller gave, as a target or as a hint.
    const fn named(self) -> Option<VirtAddr> {
        match self {
            Self::Fixed(to) | Self::FixedDontUnmap(to) | Self::DontUnmap(to) => Some(to),
            _ => None,
        }
    }

    const fn leaves_mapping(self) -> bool {
        matches!(self, Self::DontUnmap(_) | Self::FixedDontUnmap(_))
    }
}

/// A checked request. Lengths are whole pages.
#[derive(Clone, Copy)]
struct Move {
    from: VirtAddr,
    old: u64,
    new: u64,
    to: Remap,
}

/// Pages of one mapping that move at once; `len` is larger than the source if it also grows.
#[derive(Clone, Copy)]
struct Part {
    source: VirtRange,
    len: u64,
    dest: VirtAddr,
}

/// What is left to do after a call: nodes to discard and pages to bring in.
#[derive(Default)]
struct Done {
    at: VirtAddr,
    gone: VmaList,
    /// The mappings that the old range had.
    moved: VmaList,
    populate: VirtRange,
}

handle! { Mremap of AddressSpace }

impl<P: Platform> Mremap<'_, '_, P> {
    pub(in crate::vm) fn mremap(
        self,
        addr: VirtAddr,
        old_len: u64,
        new_len: u64,
        to: Remap,
    ) -> Result<VirtAddr, MmError> {
        let mut done = Done::default();
        let moving = VirtRange { start: addr, end: VirtAddr(addr.0.saturating_add(old_len)) };
        let mut space = PoolFaults::of(self.0).lock_complete(moving);
        let outcome = check(&space, addr, old_len, new_len, to)
            .and_then(|request| check_huge(&space, request))
            .and_then(|request| self.remap_locked(&mut space, request, &mut done));
        Notices::of(self.0).announce_moved(&done.moved);
        Notices::of(self.0).announce_unmapped(&done.gone);
        drop(space);
        Notices::of(self.0).discard_moved(done.moved, done.at.0.wrapping_sub(addr.0));
        Notices::of(self.0).discard_unmapped(done.gone);
        outcome?;
        if !done.populate.is_empty() {
            let _stopped = Populate::of(self.0).populate(done.populate);
        }
        Ok(done.at)
    }

    fn remap_locked(self, space: &mut Space, request: Move, done: &mut Done) -> Result<(), MmError> {
        let Move { from, old, new, to } = request;
        let vma = space.tree.find(from).ok_or(MmError::Fault)?;
        if old == 0 && vma.attributes.is_private() {
            return Err(MmError::Invalid);
        }
        let (mapping, inside) = (vma.range, old <= vma.range.end.0 - from.0);
        let data = is_data(&vma.attributes);
        let locked = vma.attributes.flags.contains(VmaFlags::LOCKED)
            && !vma.attributes.flags.contains(VmaFlags::LOCK_ON_FAULT);
        done.at = from;
        let moves = to.target().is_some() || to.leaves_mapping();
        if !moves && old >= new && old != 0 {
            done.gone =
                Munmap::of(self.0).unmap_range(space, VirtRange::new(from.add(new), from.add(old)))?;
            return Ok(());
        }
        let fixed = to.target().is_some();
        let loses_outside = old > new && new <= mapping.end.0 - from.0;
        if !inside && !(fixed && (old == new || loses_outside)) {
            return Err(MmError::Fault);
        }
        if to.target().is_some_and(|dest| dest < space.layout.lowest) {
            return Err(MmError::NotPermitted);
        }
        // What stays behind of a mapping that moves counts as new.
        let more = if to.leaves_mapping() || old == 0 { new } else { new.saturating_sub(old) };
        if more != 0 {
            space.check_limits(more, data, VirtRange::default())?;
        }
        if !moves && old != 0 && from.add(old) == mapping.end && has_room(space, mapping.end, from.0 + new) {
            let grown = VirtRange::new(mapping.end, from.add(new));
            space.tree.resize(mapping.start, VirtRange::new(mapping.start, grown.end));
            edit::merge(&mut space.tree, VirtRange::new(mapping.start, grown.end), &mut done.gone);
            Registrations::of(self.0).tell_files(space, grown);
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

    /// Moves what is mapped in the old range, a mapping at a time; a single mapping may also grow.
    fn move_mapping(self, space: &mut Space, request: Move, done: &mut Done) -> Result<(), MmError> {
        let Move { from, old, new, to } = request;
        done.at = match to.target() {
            Some(dest) => dest,
            None => find_place(space, from, new, to.named().unwrap_or(VirtAddr(0)))?,
        };
        // Borders first, so that unmapping the lost part at the end needs no memory.
        let lost = VirtRange::new(from.add(old.min(new)), from.add(old));
        let moved = self.make_borders(space, lost).and_then(|()| self.move_parts(space, request, done));
        if moved.is_ok() {
            // The file may have pages in the grown part that its handler was not told of.
            Registrations::of(self.0).tell_files(space, VirtRange::from_len(done.at, new));
            done.gone.append(Munmap::of(self.0).unmap_range(space, lost)?);
        } else {
            edit::merge(&mut space.tree, VirtRange::from_len(from, old), &mut done.gone);
        }
        moved
    }

    fn move_parts(self, space: &mut Space, request: Move, done: &mut Done) -> Result<(), MmError> {
        let Move { from, old, new, to } = request;
        let kept = old.min(new);
        if old < new {
            let part = Part { source: VirtRange::from_len(from, kept), len: new, dest: done.at };
            return self.move_part(space, part, to, done);
        }
        let mut rest = VirtRange::from_len(from, kept);
        while let Some(source) = space.tree.first_in(rest).map(|vma| vma.range.intersect(rest)) {
            let dest = done.at.add(source.start.0 - from.0);
            self.move_part(space, Part { source, len: source.len(), dest }, to, done)?;
            rest = VirtRange::new(source.end, rest.end);
        }
        Ok(())
    }

    /// Moves a part of one mapping after unmapping its target. On an error the target may have been unmapped.
    fn move_part(self, space: &mut Space, part: Part, to: Remap, done: &mut Done) -> Result<(), MmError> {
        let target = VirtRange::from_len(part.dest, part.len);
        // At most four new mappings: both ends of the source, the middle of the target, and the part itself.
        if space.tree.len() + 4 > space.mapping_limit {
            return Err(MmError::NoMemory);
        }
        let mut node = self.memory.blank()?;
        // Before the target is cleared, which may be the source itself if a shared mapping is mapped again.
        let found = space.tree.find(part.source.start).map(|vma| {
            let skipped = (part.source.start.0 - vma.range.start.0) / FRAME_SIZE;
            *node = Vma::new(target, vma.attributes.again(skipped));
            // Private pages keep their origin; the mapping tells the reverse map how far they moved.
            node.attributes.moved = vma.attributes.moved.further(part.source.start, part.dest);
        });
        space.moved = true;
        let cleared = self
            .make_borders(space, part.source)
            .and_then(|()| Munmap::of(self.0).unmap_range(space, target))
            .map(|list| done.gone.append(list));
        let prepared =
            found.ok_or(MmError::Fault).and(cleared).and_then(|()| self.note_of_move(space, part, to));
        let moved = prepared.and_then(|note| {
            let moved = self.move_leaves(space, part.source, part.dest, !to.leaves_mapping());
            if moved.is_err() {
                self.memory.discard_list(note);
                return moved;
            }
            done.moved.append(note);
            Ok(())
        });
        if let Err(error) = moved {
            node.attributes.handler = Registration::NONE;
            done.gone.push(node);
            edit::merge(&mut space.tree, part.source, &mut done.gone);
            return Err(error);
        }
        // A gigantic folio that is being cleared for the source is wanted there no more.
        Cancellation::of(self.memory).cancel(self.mapper.number(), part.source);
        if to.leaves_mapping() {
            // The ends are borders already, so no spare is needed.
            let locks = VmaFlags::LOCKED.union(VmaFlags::LOCK_ON_FAULT);
            let unlock = |vma: &mut VmaAttributes| vma.flags = vma.flags.without(locks);
            edit::change(&mut space.tree, part.source, &mut edit::Spares::new(), &mut done.gone, unlock);
        } else if let Some(list) = edit::carve(&mut space.tree, part.source, &mut edit::Spares::new()) {
            done.moved.append(list);
        }
        if let Err(node) = edit::insert(&mut space.tree, node, &mut done.gone) {
            debug_assert!(false, "the target was cleared");
            done.gone.push(node);
        }
        Ok(())
    }

    /// A node from which the handler is told of the move, if the part's own mapping stays behind.
    fn note_of_move(self, space: &Space, part: Part, to: Remap) -> Result<VmaList, MmError> {
        let mut note = VmaList::new();
        let handler =
            space.tree.find(part.source.start).map_or(Registration::NONE, |vma| vma.attributes.handler);
        if to.leaves_mapping() && handler.is_some() && !part.source.is_empty() {
            let mut node = self.memory.blank()?;
            node.range = part.source;
            node.attributes.handler = handler;
            note.push(node);
        }
        Ok(note)
    }

    /// Makes both ends of a range borders between mappings and between leaves.
    fn make_borders(self, space: &mut Space, range: VirtRange) -> Result<(), MmError> {
        let mut spares = self.memory.spares(edit::splits(&space.tree, range))?;
        let split = self.cut(range).is_ok() && edit::split_ends(&mut space.tree, range, &mut spares);
        self.memory.discard_spares(spares);
        if split { Ok(()) } else { Err(MmError::NoMemory) }
    }
}

fn check(space: &Space, from: VirtAddr, old: u64, new: u64, to: Remap) -> Result<Move, MmError> {
    let page_up = |len: u64| VirtAddr(len).align_up(FRAME_SIZE).map_or(0, |len| len.0);
    let (old, new, end) = (page_up(old), page_up(new), space.layout.user.end.0);
    if !from.is_aligned(FRAME_SIZE) || new == 0 || new > end || to.leaves_mapping() && old != new {
        return Err(MmError::Invalid);
    }
    if let Some(dest) = to.named() {
        let overlap = from.0.wrapping_add(old) > dest.0 && dest.0.wrapping_add(new) > from.0;
        if dest.0 > end - new || !dest.is_aligned(FRAME_SIZE) || overlap {
            return Err(MmError::Invalid);
        }
    }
    if from.0.checked_add(old).is_some_and(|stop| stop <= end) {
        return Ok(Move { from, old, new, to });
    }
    // The old range ends behind all addresses. Nothing is mapped there that would stay or move, but it cannot be unmapped.
    let mapped = space.tree.find(from).map_or(0, |vma| vma.range.end.0 - from.0);
    match old.cmp(&new) {
        _ if mapped == 0 => Err(MmError::Fault),
        Ordering::Greater if to.target().is_none() || new <= mapped => Err(MmError::Invalid),
        Ordering::Equal if !matches!(to, Remap::DontUnmap(_)) => {
            let here = end - from.0;
            Ok(Move { from, old: here, new: here, to })
        }
        _ => Err(MmError::Fault),
    }
}

/// As in Linux, huge pages move whole, lengths are rounded up to them, and a mapping of them cannot grow.
fn check_huge(space: &Space, request: Move) -> Result<Move, MmError> {
    let Move { from, mut old, mut new, to } = request;
    if let Some(size) = space.tree.find(from).and_then(|vma| vma.attributes.huge_size()) {
        let up = |len: u64| len.checked_next_multiple_of(size.bytes()).ok_or(MmError::Invalid);
        (old, new) = (up(old)?, up(new)?);
        if new > old || to.leaves_mapping() {
            return Err(MmError::Invalid);
        }
    }
    let range = VirtRange::from_len(from, old);
    check_ends(space, range)?;
    let sizes = || space.tree.overlapping(range).filter_map(|vma| vma.attributes.huge_size());
    let far = to.target().map_or(0, |dest| dest.0.abs_diff(from.0));
    if sizes().any(|size| !far.is_multiple_of(size.bytes())) {
        return Err(MmError::Invalid);
    }
    Ok(Move { from, old, new, to })
}

/// Finds a place for `len` bytes of the mapping at `from`, at `hint` if it is free. Unlike `mmap`, this does
/// not raise the hint to the lowest address.
fn find_place(space: &Space, from: VirtAddr, len: u64, hint: VirtAddr) -> Result<VirtAddr, MmError> {
    let vma = space.tree.find(from);
    let fit = match vma.and_then(|vma| vma.attributes.huge_size()) {
        Some(size) => Fit::Must(size.bytes()),
        None => Fit::large_if(vma.is_some_and(|vma| vma.attributes.is_anonymous())),
    };
    let low = hint.0 != 0 && hint < space.layout.lowest;
    if low && space.tree.find_from(hint).is_none_or(|next| hint.add(len) <= next.guarded_start()) {
        return Err(MmError::NotPermitted);
    }
    let hint = if low { VirtAddr(0) } else { hint };
    Ok(space.layout.place(&space.tree, hint, len, Placement::Hint, fit)?.start)
}

/// Whether nothing is mapped from a mapping's end to `grown`.
fn has_room(space: &Space, end: VirtAddr, grown: u64) -> bool {
    grown <= space.layout.user.end.0
        && space.tree.first_in(VirtRange { start: end, end: VirtAddr(grown) }).is_none()
}
