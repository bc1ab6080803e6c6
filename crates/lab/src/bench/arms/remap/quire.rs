//! Quire's `mremap`, on a hosted machine.

use quire::arch::Protection;
use quire::platform::Platform;
use quire::vm::{MapRequest, Placement, Remap};

use super::Move;
use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours::START;
use crate::bench::ours::verbs::{Subject, Verb};

/// Bytes by which the memory moves up: a multiple of 1 GiB, beyond the populated memory.
const DISTANCE: u64 = 8 << 30;

/// `Mm::mremap` of an address space that one CPU runs.
pub(super) struct Mremap;

impl Verb for Mremap {
    type Case = Move;

    const ABOUT: &'static str = "Mm::mremap(Fixed) over a mapping without access rights, on a bare hosted \
     machine: mappings, tables or entries, the flush of the modelled CPU. No system call.";

    fn memory(case: &Move) -> Memory {
        case.memory
    }

    fn with_memory(case: &Move, memory: Memory) -> Option<Move> {
        Some(Move { memory, ..*case })
    }

    fn work<P: Platform>(case: &Move, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let (bytes, to) = (case.memory.bytes as u64, START.add(DISTANCE + case.beyond as u64));
        let place = MapRequest {
            addr: to,
            len: bytes,
            prot: Protection::NONE,
            placement: Placement::Fixed,
            ..MapRequest::default()
        };
        subject.mm.mmap(&place).map_err(|error| Skip::because("mmap of the place to move to", error))?;
        let probe = |at| subject.machine.probe(subject.mm.root(), at).map(|leaf| (leaf.frame, leaf.write));
        let last = bytes - 4096;
        let before = [probe(START), probe(START.add(last))];
        let counted = subject.counted();
        let (moved, time) = counted.timed(|| subject.mm.mremap(START, bytes, bytes, Remap::Fixed(to)))?;
        let at = moved.map_err(|error| Skip::because("mremap", error))?;
        let sample = counted.sample(time, subject.pages);
        subject.expect_mapped(subject.pages)?;
        let after = [probe(to), probe(to.add(last))];
        // A leaf of 2 MiB is split when its offset in 2 MiB changes, and then its last frame stands alone.
        let whole = !case.memory.folio.pmd || case.beyond.is_multiple_of(2 << 20);
        let kept = before[0] == after[0] && (before[1] == after[1] || !whole && after[1].is_some());
        if at != to || !kept || probe(START).is_some() {
            return Err(Skip("the pages are not where they were moved to".to_owned()));
        }
        Ok(sample)
    }
}
