//! Recorded faults, and the pages that the kernel mapped around them.

use quire::addr::{VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::error::FaultError;
use quire::vm::{Access, FaultKind, FaultOutcome};

use super::background;
use super::costs::Costs;
use super::error::ReplayError;
use super::pages::ORDERS;
use super::processes::Key;
use super::replayer::Replayer;
use super::verb::PAGE;
use crate::trace::{self, Event, EventKind};

/// A larger folio, fault-around or a fork had mapped the page already.
pub(super) const ABSORBED: &str = "absorbed";
pub(super) const SIGNAL: &str = "signal";

/// The kinds that Quire takes no fault for.
pub(super) const NOT_TAKEN: [&str; 2] = [ABSORBED, FaultKind::Spurious.name()];

/// The kinds of faults, in the order of the tables.
pub(super) fn kinds() -> impl Iterator<Item = &'static str> {
    FaultKind::NAMES.into_iter().chain([ABSORBED, SIGNAL])
}

impl Replayer<'_> {
    /// A recorded fault.
    pub(super) fn fault(&mut self, key: Key, event: &Event) -> Result<(), ReplayError> {
        let EventKind::Fault { addr, access, protection, major, duration_ns, .. } = event.kind else {
            return Ok(());
        };
        if event.kind.is_unresolved() {
            return self.unresolved(key, addr, access);
        }
        let (got, ns) = match self.huge_zero(key, addr, access) {
            Some(outcome) => (Ok(outcome), 0),
            None => self.access(key, addr, access)?,
        };
        let outcome = match got {
            Ok(outcome) => outcome,
            Err(error) => return self.differs(|| format!("{access:?} at {addr:#x} fails: {error}")),
        };
        let space = self.processes.get_mut(key);
        let page = addr / PAGE;
        let seen_before = !space.seen.insert(page);
        space.touched.insert(page);
        if !matches!(outcome.kind, FaultKind::AnonZero | FaultKind::Spurious) {
            space.forget_zeroes(page, outcome.order);
        }
        if self.background.is_some() && matches!(access, trace::Access::Write | trace::Access::Unknown) {
            background::mark(self.machine, addr);
        }
        let kind = match outcome.kind {
            // If Linux found no mapping either time, two threads faulted together, or it had unmapped the page
            // in between.
            FaultKind::Spurious if !seen_before || !self.tells_all || protection => ABSORBED,
            kind => kind.name(),
        };
        if matches!(outcome.kind, FaultKind::Anon | FaultKind::Cow) {
            let order = usize::from(outcome.order.get()).min(ORDERS - 1);
            self.counts.folios[order] += 1;
            self.recycled.taken(event.time_ns, order, outcome.kind == FaultKind::Anon);
        }
        let taken = outcome.kind != FaultKind::Spurious;
        if let Some(parts) = self.parts.as_mut().filter(|_| taken) {
            parts.fault(&mut self.processes.get_mut(key).parts, page, &outcome);
        }
        let add = if major { Costs::add_major } else { Costs::add };
        add(&mut self.faults, kind, taken.then_some(ns), duration_ns);
        if let Some(duration_ns) = duration_ns {
            self.gaps.fault(event.tid, event.time_ns, duration_ns, taken.then_some(outcome.kind));
        }
        Ok(())
    }

    /// A fault that was not resolved when it was recorded: the program got a signal, or the kernel tried again later.
    fn unresolved(&mut self, key: Key, addr: u64, access: trace::Access) -> Result<(), ReplayError> {
        // Below a stack Linux refused because of a limit, which the program may have set itself.
        if self.mapping_at(key, addr).is_some() || self.is_below_stack(key, addr) {
            self.counts.given_up += 1;
            return Ok(());
        }
        match self.access(key, addr, access)? {
            (Err(_), ns) => self.faults.add(SIGNAL, Some(ns), None),
            (Ok(_), _) => return self.differs(|| format!("{access:?} at {addr:#x} is resolved")),
        }
        Ok(())
    }

    /// Pages that Linux mapped around a fault. Those that Quire has not mapped are touched, since the program
    /// may have used them without a fault.
    pub(super) fn fault_around(&mut self, key: Key, start: u64, len: u64) -> Result<(), ReplayError> {
        let end = start.saturating_add(len);
        for addr in (start..end).step_by(PAGE as usize) {
            let (got, _) = self.access(key, addr, trace::Access::Read)?;
            // An upper bound: an unreadable page was not mapped.
            if got.is_ok_and(|outcome| outcome.kind != FaultKind::Spurious) {
                self.counts.around_touched += 1;
            }
        }
        Ok(())
    }

    /// Pages that were present before the recording: the program has brought them in, by faults that no figure
    /// contains, and maybe when their mapping permitted more.
    pub(super) fn bring_back(
        &mut self,
        key: Key,
        start: u64,
        len: u64,
        stores: bool,
    ) -> Result<(), ReplayError> {
        let end = start.saturating_add(len);
        let (access, needed) = match stores {
            true => (trace::Access::Write, Protection::READ | Protection::WRITE),
            false => (trace::Access::Read, Protection::READ),
        };
        let mut closed = Vec::new();
        self.processes.get(key).mm.vmas_in(VirtRange { start: VirtAddr(start), end: VirtAddr(end) }, |vma| {
            if !vma.protection.contains(needed) {
                closed.push((vma.range.start.0, vma.range.len(), vma.protection));
            }
        });
        for (addr, len, _) in &closed {
            self.protect(key, *addr, *len, needed)?;
        }
        for addr in (start..end).step_by(PAGE as usize) {
            let (got, _) = self.access(key, addr, access)?;
            match got {
                Ok(_) => self.counts.present_before += 1,
                Err(error) => self
                    .differs(|| format!("a page at {addr:#x} was present, and {access:?} fails: {error}"))?,
            }
        }
        for (addr, len, protection) in closed {
            self.protect(key, addr, len, protection)?;
        }
        Ok(())
    }

    /// An access by the program. When checking it goes through the software MMU and is compared with the model.
    fn access(
        &mut self,
        key: Key,
        addr: u64,
        access: trace::Access,
    ) -> Result<(Result<FaultOutcome, FaultError>, u64), ReplayError> {
        let tries: &[Access] = match access {
            trace::Access::Read => &[Access::Read],
            trace::Access::Write => &[Access::Write],
            trace::Access::Execute => &[Access::Exec],
            // The strongest access that the mapping allows.
            trace::Access::Unknown => &[Access::Write, Access::Exec, Access::Read],
        };
        let space = self.processes.get(key);
        let mut last = (Err(FaultError::NotMapped), 0);
        for access in tries {
            last = match (&mut self.check, space.model) {
                (Some(check), Some(id)) => {
                    match check.access(self.machine, &space.mm, id, (addr, *access), self.watch) {
                        Ok(accessed) => accessed,
                        Err(what) => return Err(self.diverged(what)),
                    }
                }
                _ => self.watch.time(|| space.mm.fault(VirtAddr(addr), *access)),
            };
            if last.0 != Err(FaultError::Protection) {
                break;
            }
        }
        if last.0 == Err(FaultError::OutOfMemory) {
            return Err(self.out_of_memory());
        }
        Ok(last)
    }
}
