//! Decides whether an event fits an address space, and which addresses decide it.
//!
//! Only outcomes that mappings decide are judged. An event that depends on limits, on a file or on kernel
//! internals always fits.

use std::ops::Range;

use super::{ENOMEM, Mapping, Space, mmap_length, protects_downwards, round_up};
use crate::trace::{Access, Call, EventKind, Syscall};

const EFAULT: i64 = -14;
const EEXIST: i64 = -17;

const MAP_FIXED: u64 = 0x10;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;

const PROT_READ: u32 = 1;
const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;

/// All addresses.
const EVERYWHERE: Range<u64> = 0..u64::MAX;

/// The addresses that an event changes, or that decide its result; none for an event that fits anywhere.
pub(in crate::trace) fn reach(event: &EventKind) -> Vec<Range<u64>> {
    match event {
        EventKind::Fault { addr, .. } => vec![range(*addr, 1)],
        EventKind::Map { start, len, .. } => vec![range(*start, *len)],
        EventKind::Syscall(call) => reach_of_call(call),
        EventKind::Exec { .. } | EventKind::Fork { .. } | EventKind::ProcessExit { .. } => vec![EVERYWHERE],
        _ => Vec::new(),
    }
}

fn reach_of_call(call: &Syscall) -> Vec<Range<u64>> {
    let [first, second, third, flags, fifth, _] = call.args;
    match call.call {
        Call::Mmap if call.ok() => vec![range(call.result as u64, mmap_length(call))],
        Call::Mmap => vec![range(first, mmap_length(call))],
        Call::Mremap => {
            let to = match (call.ok(), flags & MREMAP_FIXED != 0) {
                (true, _) => call.result as u64,
                (false, true) => fifth,
                (false, false) => first,
            };
            vec![range(first, second.max(1)), range(to, third)]
        }
        // It begins where its mapping does.
        Call::Mprotect | Call::PkeyMprotect if protects_downwards(call) => vec![EVERYWHERE],
        Call::Munmap
        | Call::Mprotect
        | Call::PkeyMprotect
        | Call::Madvise
        | Call::Mlock
        | Call::Mlock2
        | Call::Munlock => vec![range(first, second)],
        // The heap's other end is known only if the calls before are; a mapping may end anywhere.
        Call::Brk | Call::Shmdt => vec![EVERYWHERE],
        _ => Vec::new(),
    }
}

fn range(start: u64, len: u64) -> Range<u64> {
    let first = start & !(super::PAGE - 1);
    first..start.saturating_add(len).checked_next_multiple_of(super::PAGE).unwrap_or(u64::MAX)
}

impl Space {
    /// Whether the event can have happened in this space.
    pub(in crate::trace) fn fits(&self, event: &EventKind) -> bool {
        match event {
            _ if event.is_unresolved() => true,
            EventKind::Fault { addr, access, .. } => {
                self.find(*addr).is_some_and(|mapping| allows(mapping.prot, *access))
            }
            EventKind::Syscall(call) if call.ok() => self.fits_success(call),
            EventKind::Syscall(call) => self.fits_failure(call),
            _ => true,
        }
    }

    fn fits_success(&self, call: &Syscall) -> bool {
        let [first, second, third, flags, ..] = call.args;
        let result = call.result as u64;
        match call.call {
            Call::Mmap => flags & MAP_FIXED != 0 || self.is_free(range(result, mmap_length(call))),
            Call::Mremap => {
                let (old, new) = (round_up(second), round_up(third));
                let given = match result == first {
                    true => first.saturating_add(old)..first.saturating_add(new),
                    false => range(result, new),
                };
                // Since Linux 6.17 a range that moves may have holes after its first page.
                self.find(first).is_some()
                    && (new == old || self.is_mapped(range(first, second)))
                    && (flags & MREMAP_FIXED != 0 || self.is_free(given))
            }
            Call::Mprotect
            | Call::PkeyMprotect
            | Call::Madvise
            | Call::Mlock
            | Call::Mlock2
            | Call::Munlock => self.is_mapped(range(first, second)),
            Call::Brk => match self.brk {
                Some(from) if result == first && from < result => {
                    self.is_free(round_up(from)..round_up(result))
                }
                _ => true,
            },
            Call::Shmdt => !self.attached(first).is_empty(),
            _ => true,
        }
    }

    fn fits_failure(&self, call: &Syscall) -> bool {
        const DISCARDS: [u64; 2] = [4, 8];
        let [first, second, third, flags, ..] = call.args;
        let has_hole = || !self.is_mapped(range(first, second));
        match (call.call, call.result) {
            (Call::Mprotect | Call::PkeyMprotect | Call::Munlock, ENOMEM) => has_hole(),
            (Call::Madvise, ENOMEM) if DISCARDS.contains(&third) => has_hole(),
            (Call::Mmap, EEXIST) if flags & MAP_FIXED_NOREPLACE != 0 => {
                !self.is_free(range(first, mmap_length(call)))
            }
            (Call::Mremap, ENOMEM) if flags & MREMAP_MAYMOVE == 0 => {
                !self.is_free(first.saturating_add(round_up(second))..first.saturating_add(round_up(third)))
            }
            // The whole range must be one VMA, and only the kernel knows where two meet.
            (Call::Mremap, EFAULT) => has_hole() || self.pieces(range(first, second)).count() > 1,
            _ => true,
        }
    }

    /// The mappings that overlap these addresses.
    fn pieces(&self, addresses: Range<u64>) -> impl Iterator<Item = &Mapping> {
        let before = self.mappings.range(..addresses.start).next_back();
        let before = before.map(|(_, mapping)| mapping).filter(|mapping| mapping.end > addresses.start);
        let inside = addresses.start..addresses.end.max(addresses.start);
        before.into_iter().chain(self.mappings.range(inside).map(|(_, mapping)| mapping))
    }

    fn is_free(&self, addresses: Range<u64>) -> bool {
        addresses.is_empty() || self.pieces(addresses).next().is_none()
    }

    fn is_mapped(&self, addresses: Range<u64>) -> bool {
        addresses.is_empty() || self.mapped_until(addresses.start) >= addresses.end
    }

    /// The first address from this one on that is not mapped.
    pub(super) fn mapped_until(&self, start: u64) -> u64 {
        let mut end = start;
        for mapping in self.pieces(start..u64::MAX) {
            if mapping.start > end {
                break;
            }
            end = mapping.end;
        }
        end
    }

    /// Whether another space has the same mappings.
    pub(in crate::trace) fn same(&self, other: &Space) -> bool {
        let rest = (self.brk, self.lock_future) == (other.brk, other.lock_future);
        rest && (self.mappings == other.mappings || self.differences(other).is_empty())
    }

    /// The addresses at which another space differs from this one.
    pub(in crate::trace) fn differences(&self, other: &Space) -> Vec<Range<u64>> {
        let mut bounds: Vec<u64> = [self, other]
            .iter()
            .flat_map(|space| space.mappings.values().flat_map(|mapping| [mapping.start, mapping.end]))
            .collect();
        bounds.sort_unstable();
        bounds.dedup();
        let at = |space: &Space, addr: u64| {
            let mapping = space.find(addr)?;
            Some((
                mapping.prot,
                mapping.file,
                mapping.offset + mapping.file.map_or(0, |_| addr - mapping.start),
            ))
        };
        let differs = |pair: &&[u64]| at(self, pair[0]) != at(other, pair[0]);
        let mut found: Vec<Range<u64>> = Vec::new();
        for pair in bounds.windows(2).filter(differs) {
            found.push(pair[0]..pair[1]);
        }
        if self.brk != other.brk {
            let (from, to) = (self.brk.unwrap_or(0), other.brk.unwrap_or(0));
            found.push(range(from.min(to), from.abs_diff(to)));
        }
        found
    }
}

/// Whether this protection allows the access. On the processor a page that can be stored to can be loaded
/// too.
fn allows(prot: u32, access: Access) -> bool {
    match access {
        Access::Read => prot & (PROT_READ | PROT_WRITE | PROT_EXEC) != 0,
        Access::Write => prot & PROT_WRITE != 0,
        Access::Execute => prot & PROT_EXEC != 0,
        Access::Unknown => prot & (PROT_READ | PROT_WRITE | PROT_EXEC) != 0,
    }
}
