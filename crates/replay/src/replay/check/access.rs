//! Accesses memory: through the software MMU on Quire, by value in the model.

use hosted::{FaultCause, Hosted, PageFault};
use oracle::space::{Kind, PROBE_OFFSETS, PROBES, Seen, SpaceId};
use quire::addr::VirtAddr;
use quire::error::FaultError;
use quire::vm::{Access, FaultKind, FaultOutcome, Mm};

use super::Check;
use crate::replay::costs::Stopwatch;
use crate::replay::verb::PAGE;

/// Faults of one access after which it counts as never ending.
const TRIES: usize = 64;

/// The outcome of an access and the nanoseconds in the fault handler.
pub(in crate::replay) type Accessed = (Result<FaultOutcome, FaultError>, u64);

impl Check {
    /// One access of the running CPU to the page of `addr`, with as many faults as needed. Returns the
    /// outcome of the first fault, or spurious if there was none.
    ///
    /// # Errors
    /// The difference from the model.
    pub(in crate::replay) fn access(
        &mut self,
        machine: &Hosted,
        mm: &Mm<'_, Hosted>,
        id: SpaceId,
        (addr, access): (u64, Access),
        watch: &Stopwatch,
    ) -> Result<Accessed, String> {
        self.word += 1;
        let (probe, word) = (self.word as usize % PROBES, self.word);
        let mut first = None;
        let mut spent = 0;
        let loaded = loop {
            if first.as_ref().is_some_and(|(tries, _)| *tries == TRIES) {
                return Err(format!("{access:?} at {addr:#x} faults for ever"));
            }
            let fault = match touch(machine, addr, access, probe, word) {
                Ok(loaded) => break Ok(loaded),
                Err(fault) => fault,
            };
            if !matches!(fault.cause, FaultCause::NotPresent | FaultCause::Protection) {
                return Err(format!("{access:?} at {addr:#x}: {:?}", fault.cause));
            }
            let (outcome, ns) = watch.time(|| mm.fault(VirtAddr(addr), access));
            spent += ns;
            if let Err(error) = outcome {
                break Err(error);
            }
            let (tries, _) = first.get_or_insert((0, outcome));
            *tries += 1;
        };
        let got = match (&loaded, first) {
            (Err(error), _) => Err(*error),
            (Ok(_), Some((_, outcome))) => outcome,
            (Ok(_), None) => Ok(no_fault()),
        };
        if got != Err(FaultError::OutOfMemory) {
            self.same_as_model(id, (addr, access), (probe, word), loaded)?;
        }
        Ok((got, spent))
    }

    /// Makes the access in the model and compares the loaded word, or the failure.
    fn same_as_model(
        &mut self,
        id: SpaceId,
        (addr, access): (u64, Access),
        (probe, word): (usize, u64),
        got: Result<u64, FaultError>,
    ) -> Result<(), String> {
        let want = match access {
            Access::Read => self.family.read(id, addr, probe).map(Some),
            Access::Write => self.family.write(id, addr, probe, word).map(|()| None),
            Access::Exec => self.family.fault(id, addr, Kind::Exec).map(|()| None),
        };
        let same = match (got, want) {
            (Ok(word), Ok(seen)) => seen.is_none_or(|seen: Seen| seen.allows(word)),
            (Err(got), Err(want)) => got == want,
            _ => false,
        };
        if same {
            Ok(())
        } else {
            Err(format!("{access:?} at {addr:#x} gives {got:x?}, the model says {want:x?}"))
        }
    }
}

/// The access itself; returns the loaded word, or 0.
fn touch(machine: &Hosted, addr: u64, access: Access, probe: usize, word: u64) -> Result<u64, PageFault> {
    let at = VirtAddr(addr / PAGE * PAGE + PROBE_OFFSETS[probe]);
    match access {
        Access::Read => {
            let mut bytes = [0; 8];
            machine.read(at, &mut bytes).map(|()| u64::from_le_bytes(bytes))
        }
        Access::Write => machine.write(at, &word.to_le_bytes()).map(|()| 0),
        Access::Exec => machine.fetch(at).map(|_| 0),
    }
}

/// The outcome of an access without a fault, which did not look up its folio.
const fn no_fault() -> FaultOutcome {
    FaultOutcome { order: quire::addr::Order::FRAME, kind: FaultKind::Spurious }
}
