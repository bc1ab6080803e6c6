//! Mappings without a fixed address: where Linux may put one elsewhere, as `docs/linux-differences.md` says, the library's
//! follows.

use oracle::ops::{At, MapOp, Op, To, What};
use oracle::space::{Backing, Map, PAGE, Placement, Prot, Remap, Vma};
use oracle::subject::{Actor, Subject};
use quire::error::MmError;

use crate::known::LOWEST;
use crate::pair::{Answer, Pair};
use crate::subject::TOP;

/// An address between the window and this program, where nothing of the tests' is.
const BETWEEN: u64 = TOP + (1 << 44);

/// Bytes that stay free below a stack.
const STACK_GAP: u64 = 256 * PAGE;

/// What a file, or shared memory, may ask to be aligned to.
const LARGE: u64 = 2 << 20;

impl Pair<'_> {
    /// Whether Linux put a mapping elsewhere, as it may, and the library's could be moved there.
    pub(crate) fn follows(&mut self, actor: Actor, op: &Op, want: Answer, got: Answer) -> bool {
        let (Ok(there), Ok(here)) = (want, got) else { return false };
        let (hint, len) = match *op {
            Op::Mmap(map) if map.placement == Placement::Hint => (map.at, map.len),
            Op::Mremap(_, _, new, To::MayMove) => (At::Null, new),
            Op::Mremap(_, _, new, To::DontUnmap(hint)) => (hint, new),
            _ => return false,
        };
        let hint = hint.resolve(&[]) & !(PAGE - 1);
        let heeded = hint != 0 && [there, here].contains(&hint);
        let aligned = !heeded && self.is_aligned_object(actor, here, there);
        if !(aligned || there < here && self.is_below_stack(actor, here, len)) {
            return false;
        }
        self.counts.elsewhere += 1;
        self.move_library(actor, here, len, there).is_ok()
    }

    /// Moves a mapping of the library's, by way of addresses that are not the tests', since the two places may overlap.
    fn move_library(&mut self, actor: Actor, from: u64, len: u64, to: u64) -> Result<(), MmError> {
        self.quire.mremap(actor, from, len, len, Remap::Fixed(BETWEEN))?;
        self.quire.mremap(actor, BETWEEN, len, len, Remap::Fixed(to))?;
        let filler = Map::anonymous(BETWEEN, len, Prot::None);
        self.quire.mmap(actor, &filler).map(drop)
    }

    /// Whether the library shows a mapping of a file or of shared memory at an address, which Linux has where a large page
    /// of the file could be mapped.
    fn is_aligned_object(&mut self, actor: Actor, here: u64, there: u64) -> bool {
        let shown = self.quire.vmas(actor.space);
        let object = shown.iter().find(|vma| (vma.start..vma.end).contains(&here));
        object.filter(|vma| vma.backing != Backing::Anonymous).is_some_and(|vma| {
            let offset = vma.page_offset * PAGE + (here - vma.start);
            there.wrapping_sub(offset).is_multiple_of(LARGE)
        })
    }

    /// Whether a range is so near to a stack that Linux may not have looked for room there.
    fn is_below_stack(&self, actor: Actor, addr: u64, len: u64) -> bool {
        let stacks = self.shown[actor.space].iter().filter(|vma| vma.grows_down);
        let near =
            |vma: &Vma| addr < vma.start && addr.saturating_add(len) > vma.start.saturating_sub(STACK_GAP);
        stacks.into_iter().any(near)
    }

    /// The operation as a library would do it that puts the mapping at the lowest free address instead of the highest.
    pub(crate) fn misplaced(&self, actor: Actor, op: &Op) -> Op {
        let Op::Mmap(map) = *op else { return *op };
        if map.placement != Placement::Hint {
            return *op;
        }
        let ends = self.shown[actor.space].iter().map(|vma| vma.end);
        let free = |&start: &u64| {
            let end = start.saturating_add(map.len);
            end <= TOP && !self.shown[actor.space].iter().any(|vma| vma.start < end && vma.end > start)
        };
        let lowest = self.ours().first().map_or(LOWEST, |range| range.start.max(LOWEST));
        match std::iter::once(lowest).chain(ends).find(free) {
            Some(start) => {
                Op::Mmap(MapOp { at: At::Absolute(start), placement: Placement::FixedNoReplace, ..map })
            }
            None => *op,
        }
    }
}

/// Whether an operation maps a file where there is room.
pub(crate) fn places_file(op: &Op) -> bool {
    matches!(op, Op::Mmap(map) if map.placement == Placement::Hint && matches!(map.what, What::File { .. }))
}
