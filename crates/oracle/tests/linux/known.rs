//! Calls that the library answers otherwise than Linux, and says so in `docs/linux-differences.md`; and calls that would
//! reach what is not the tests'.

use std::ops::Range;

use oracle::ops::{At, MapOp, Op, To, What};
use oracle::space::{Advice, Locked, PAGE, Placement, Prot, Vma, normalise};

use crate::subject::{TOP, USER_END};

/// The lowest address that the library maps; Linux's is `vm.mmap_min_addr`.
pub(crate) const LOWEST: u64 = 0x1_0000;
/// Pages that one call may bring in.
const MOST_PAGES: u64 = 4096;

/// Why a call is left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LeftOut {
    /// It may reach mappings of this program.
    Foreign,
    /// It would bring in more memory than tests should.
    Large,
    /// The row "the lowest address".
    LowAddress,
    /// The row "an address that reads as an error".
    ErrorAddress,
    /// The row "more memory than there is".
    Overcommit,
    /// The row "edges that Linux keeps".
    KeptEdge,
    /// The row "a locked mapping of which a part moves".
    LockedPart,
    /// The row "a second view in place of the first".
    OwnPlace,
}

/// What is known before a call.
pub(crate) struct Before<'a> {
    /// The mappings as Linux has them.
    pub(crate) vmas: &'a [Vma],
    /// Addresses that are the tests'.
    pub(crate) ours: &'a [Range<u64>],
    /// Bytes of memory and swap.
    pub(crate) memory: u64,
    /// Something may be locked, so that whatever is mapped may be brought in.
    pub(crate) locks: bool,
}

/// Bytes as the kernel rounds them up; zero for those that are too many.
fn round_up(len: u64) -> u64 {
    len.wrapping_add(PAGE - 1) & !(PAGE - 1)
}

fn absolute(at: At) -> u64 {
    at.resolve(&[])
}

/// The range that an operation names, rounded to pages; none when it has none.
fn named(op: &Op) -> Option<(u64, u64)> {
    match *op {
        Op::Mmap(MapOp { at, len, .. })
        | Op::Munmap(at, len)
        | Op::Mprotect(at, len, _)
        | Op::Madvise(at, len, _)
        | Op::Mlock(at, len, _)
        | Op::Munlock(at, len)
        | Op::Mremap(at, len, ..) => Some((absolute(at), round_up(len))),
        Op::Touch(at, pages) => Some((absolute(at), u64::from(pages) * PAGE)),
        Op::Store(at, _) | Op::Load(at, _) | Op::Access(at, _) => Some((absolute(at), PAGE)),
        _ => None,
    }
}

/// Why `op`, whose addresses are absolute, is left out.
pub(crate) fn left_out(op: &Op, before: &Before<'_>) -> Option<LeftOut> {
    let reasons = [
        (before.is_foreign(op), LeftOut::Foreign),
        (before.is_large(op), LeftOut::Large),
        (is_low(op), LeftOut::LowAddress),
        (is_error_address(op), LeftOut::ErrorAddress),
        (before.overcommits(op), LeftOut::Overcommit),
        (is_own_place(op), LeftOut::OwnPlace),
        (before.crosses_kept_edge(op), LeftOut::KeptEdge),
        (before.leaves_part_locked(op), LeftOut::LockedPart),
    ];
    reasons.into_iter().find(|(is, _)| *is).map(|(_, why)| why)
}

impl Before<'_> {
    /// Whether the whole range belongs to the tests.
    fn is_ours(&self, start: u64, len: u64) -> bool {
        let end = start.saturating_add(len);
        let all = |range: &Range<u64>| start >= range.start && end <= range.end;
        start >= USER_END || self.ours.iter().any(all)
    }

    /// Whether a call that stops at the first hole stops before it reaches this program's own mappings.
    fn stops(&self, start: u64, len: u64) -> bool {
        self.is_ours(start, len) || start < TOP && self.mapped_up_to(start, TOP) < TOP
    }

    /// The first address from `start` on that is not mapped, or `end`.
    fn mapped_up_to(&self, start: u64, end: u64) -> u64 {
        let above = self.vmas.iter().filter(|vma| vma.end > start);
        let mut at = start;
        for vma in above.take_while(|vma| vma.start < end) {
            if vma.start > at {
                break;
            }
            at = vma.end;
        }
        at.min(end)
    }

    fn is_foreign(&self, op: &Op) -> bool {
        let Some((start, len)) = named(op) else { return false };
        let refused = start.checked_add(len).is_none_or(|end| end > USER_END);
        !match *op {
            Op::Mmap(map) => map.placement == Placement::Hint || refused || self.is_ours(start, len),
            Op::Munmap(..) => refused || self.is_ours(start, len),
            Op::Mprotect(..)
            | Op::Mlock(..)
            | Op::Munlock(..)
            | Op::Madvise(_, _, Advice::PopulateRead | Advice::PopulateWrite) => {
                start.checked_add(len).is_none() || self.stops(start, len)
            }
            Op::Madvise(..) => start.checked_add(len).is_none() || self.is_ours(start, len),
            Op::Mremap(_, _, new, to) => {
                let new = round_up(new);
                let target = match to {
                    To::FixedTo(to) | To::FixedDontUnmap(to) => absolute(to),
                    _ => 0,
                };
                let goes =
                    target.checked_add(new).is_none_or(|end| end > USER_END) || self.is_ours(target, new);
                new == 0 || new > USER_END || goes && self.is_ours(start, len)
            }
            // Beyond is no address of a program's, and for some of them the processor has a signal of its own.
            _ => start.saturating_add(len) <= 1 << 47 && self.is_ours(start, len),
        }
    }

    fn is_large(&self, op: &Op) -> bool {
        let most = MOST_PAGES * PAGE;
        let heap = self.ours.iter().find(|range| range.start > TOP);
        match *op {
            Op::Mmap(map) => {
                let brings = map.populate || map.locked || self.locks;
                brings && map.len > most && map.len <= USER_END
            }
            Op::Mremap(_, _, new, _) => self.locks && new > most && new <= USER_END,
            Op::Mlock(at, len, false)
            | Op::Madvise(at, len, Advice::PopulateRead | Advice::PopulateWrite) => {
                let start = absolute(at) & !(PAGE - 1);
                let end = start.saturating_add(round_up(len));
                start < USER_END && self.mapped_up_to(start, end) - start > most
            }
            Op::Mlockall(..) => {
                let touchable = self.vmas.iter().filter(|vma| vma.prot != Prot::None);
                touchable.map(Vma::len).sum::<u64>() > 4 * most
            }
            Op::Brk(at) => {
                self.locks
                    && heap
                        .is_some_and(|heap| absolute(at) > heap.start + most && heap.contains(&absolute(at)))
            }
            _ => false,
        }
    }

    fn overcommits(&self, op: &Op) -> bool {
        let counts = match *op {
            Op::Mmap(map) => match map.what {
                What::SharedAnonymous => map.len,
                What::File { shared: true, .. } => 0,
                _ if map.prot.writes() => map.len,
                _ => 0,
            },
            // At most all that is mapped from there on without a hole.
            Op::Mprotect(at, len, prot) if prot.writes() => {
                let start = absolute(at);
                self.mapped_up_to(start, start.saturating_add(round_up(len))).saturating_sub(start)
            }
            Op::Mremap(_, old, new, _) => new.saturating_sub(old),
            _ => 0,
        };
        counts > self.memory && counts <= USER_END
    }

    fn sources(&self, op: &Op) -> impl Iterator<Item = &Vma> {
        let (start, len) = named(op).unwrap_or((0, 0));
        let end = start.saturating_add(len.max(1));
        self.vmas.iter().filter(move |vma| vma.start < end && vma.end > start)
    }

    fn crosses_kept_edge(&self, op: &Op) -> bool {
        let Op::Mremap(_, old, new, to) = *op else { return false };
        if round_up(old) == round_up(new) && matches!(to, To::FixedTo(_) | To::FixedDontUnmap(_)) {
            return false;
        }
        let sources: Vec<Vma> = self.sources(op).copied().collect();
        let kept_apart = sources.len();
        normalise(sources).len() < kept_apart
    }

    fn leaves_part_locked(&self, op: &Op) -> bool {
        let Op::Mremap(at, old, _, To::DontUnmap(_) | To::FixedDontUnmap(_)) = *op else { return false };
        let (start, end) = (absolute(at), absolute(at).saturating_add(round_up(old)));
        self.sources(op).any(|vma| vma.locked != Locked::No && (vma.start < start || vma.end > end))
    }
}

fn is_low(op: &Op) -> bool {
    let low = |at: At| absolute(at) < LOWEST;
    match *op {
        Op::Mmap(map) => map.placement != Placement::Hint && low(map.at),
        Op::Mremap(_, _, _, To::FixedTo(to) | To::FixedDontUnmap(to)) => low(to),
        Op::Mremap(_, _, _, To::DontUnmap(to)) => absolute(to) != 0 && low(to),
        _ => false,
    }
}

fn is_error_address(op: &Op) -> bool {
    let error = |at: At| absolute(at) > u64::MAX - PAGE;
    matches!(*op, Op::Mmap(map) if map.placement != Placement::Hint && error(map.at))
}

fn is_own_place(op: &Op) -> bool {
    match *op {
        Op::Mremap(at, old, _, To::FixedTo(to) | To::FixedDontUnmap(to)) => {
            round_up(old) == 0 && absolute(at) == absolute(to)
        }
        _ => false,
    }
}
