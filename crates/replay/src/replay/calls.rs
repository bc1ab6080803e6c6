//! Recorded calls and the mappings that no call made.

use super::error::ReplayError;
use super::plan::{self, Answer, EFAULT, EINVAL, ENOMEM, Plan, mapping, plan};
use super::processes::Key;
use super::replayer::Replayer;
use super::verb::{Mapping, PAGE, Verb};
use crate::trace::{Event, EventKind, FileId, MapCause, Syscall, protects_downwards};
use quire::arch::Protection;
use quire::error::MmError;
use quire::vm::Advice;

impl Replayer<'_> {
    /// A recorded call.
    pub(super) fn call(&mut self, key: Key, event: &Event, call: &Syscall) -> Result<(), ReplayError> {
        let name = call.call.name();
        if call.call.is_exec() && call.ok() {
            if let Some(ns) = self.starting.remove(&event.pid) {
                self.verbs.add("execve", Some(ns), Some(call.duration_ns));
            }
            return Ok(());
        }
        if call.call.makes_task()
            && let Some(ns) = self.forked.remove(&event.tid)
        {
            self.verbs.add("fork", Some(ns), Some(call.duration_ns));
            return Ok(());
        }
        // One that took no time stands for calls before the recording.
        let cost = (call.duration_ns > 0).then_some((name, call.duration_ns));
        let numbers = &self.survey.numbers;
        match self.downwards(key, call, plan(call, |file| number(numbers, file))) {
            Plan::Do(verb, Answer::Failure) if self.may_be_refused(key, &verb, call.result) => {
                *self.counts.skipped.entry(name).or_default() += 1;
                Ok(())
            }
            Plan::Do(verb, answer) => {
                self.verb(key, &verb, answer, cost)?;
                if call.ok() {
                    self.processes.get_mut(key).huge.apply(call, &verb);
                }
                match (answer, plan::is_stack(call), verb) {
                    (Answer::At(_), true, Verb::Mmap(Mapping { addr, len, .. })) => {
                        let small = Verb::Madvise { addr, len, advice: Advice::NoHugePage };
                        self.verb(key, &small, Answer::Done, None).map(drop)
                    }
                    (Answer::At(_), _, Verb::Mmap(Mapping { addr, len, .. })) if plan::is_droppable(call) => {
                        self.wipe_on_fork(key, addr, len)
                    }
                    _ => Ok(()),
                }
            }
            Plan::Heap { ask, got } => self.heap(key, ask, got, cost),
            Plan::Cut { file, first, end } => self.cut(file, (first, end)),
            Plan::Detach(addr) => self.detach(key, addr, (name, call.duration_ns)),
            Plan::FailedLock(verb) if self.refuses_lock(key, &verb) => {
                self.verb(key, &verb, Answer::Failure, None).map(drop)
            }
            Plan::FailedLock(_) | Plan::Skip => {
                *self.counts.skipped.entry(name).or_default() += 1;
                Ok(())
            }
            Plan::Told => Ok(()),
        }
    }

    /// The plan of a call that changes a stack from its start on.
    fn downwards(&self, key: Key, call: &Syscall, planned: Plan) -> Plan {
        match planned {
            Plan::Do(verb, answer) if protects_downwards(call) => {
                let stack = self.mapping_at(key, call.args[0]);
                Plan::Do(stack.map_or(verb, |(start, _)| plan::down_to(verb, start)), answer)
            }
            planned => planned,
        }
    }

    /// Lets children find these pages empty. The model learns of it at their fork.
    fn wipe_on_fork(&mut self, key: Key, addr: u64, len: u64) -> Result<(), ReplayError> {
        let mm = &self.processes.get(key).mm;
        match mm.madvise(quire::addr::VirtAddr(addr), len, Advice::WipeOnFork) {
            Ok(()) => Ok(()),
            Err(MmError::NoMemory) if self.is_full() => Err(self.out_of_memory()),
            Err(error) => self.differs(|| format!("droppable memory at {addr:#x} fails: {error}")),
        }
    }

    /// `shmdt`: unmaps every piece of the segment that was attached at an address.
    fn detach(
        &mut self,
        key: Key,
        addr: u64,
        (name, linux_ns): (&'static str, u64),
    ) -> Result<(), ReplayError> {
        let pieces = self.attached(key, addr);
        if pieces.is_empty() {
            return self.differs(|| format!("nothing is attached at {addr:#x}"));
        }
        let mut ns = 0;
        for (addr, len) in pieces {
            ns += self.verb(key, &Verb::Munmap { addr, len }, Answer::Done, None)?;
        }
        self.verbs.add(name, Some(ns), Some(linux_ns));
        Ok(())
    }

    /// The pieces of that segment, as `trace::Layouts` finds them: start and length.
    fn attached(&self, key: Key, addr: u64) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        let mut segment = None;
        self.processes.get(key).mm.vmas(|vma| {
            let start = vma.range.start.0;
            let in_place = start
                .checked_sub(addr)
                .is_some_and(|distance| vma.file.as_ref().is_some_and(|(_, page)| *page == distance / PAGE));
            if in_place && *segment.get_or_insert(vma.file_number) == vma.file_number {
                pieces.push((start, vma.range.len()));
            }
        });
        if pieces.is_empty() { self.mapping_at(key, addr).into_iter().collect() } else { pieces }
    }

    /// A mapping that no recorded call made. Those of an exec are part of its cost.
    pub(super) fn map(&mut self, key: Key, pid: u32, event: &EventKind) -> Result<(), ReplayError> {
        let EventKind::Map { cause, start, len, prot, flags, file, file_offset } = event else {
            return Ok(());
        };
        if *cause == MapCause::StackGrowth {
            // The following fault extends the stack, as it did in the recording.
            return Ok(());
        }
        let numbers = &self.survey.numbers;
        let file = file.as_ref().map(|file| (number(numbers, file), file_offset / PAGE));
        let mut mapping = mapping(u64::from(*prot), u64::from(*flags), file);
        (mapping.addr, mapping.len) = (*start, *len);
        let ns = self.verb(key, &Verb::Mmap(mapping), Answer::At(*start), None)?;
        self.processes.get_mut(key).huge.map(*start, *len, u64::from(*flags));
        if *cause == MapCause::Before {
            // The program made it before the recording, and has started long ago.
            self.starting.remove(&pid);
            return Ok(());
        }
        match self.starting.get_mut(&pid) {
            Some(sum) => *sum += ns,
            None => self.verbs.add("map", Some(ns), None),
        }
        Ok(())
    }

    /// `brk`. The first call of a program shows the start of its heap.
    fn heap(
        &mut self,
        key: Key,
        ask: u64,
        got: u64,
        cost: Option<(&'static str, u64)>,
    ) -> Result<(), ReplayError> {
        let space = self.processes.get_mut(key);
        let Some(from) = space.heap else {
            space.heap = Some(got);
            space.mm.set_brk_start(quire::addr::VirtAddr(got));
            if let (Some(check), Some(id)) = (&mut self.check, space.model) {
                check.set_brk_start(id, got);
            }
            return Ok(());
        };
        if ask != got || ask == from {
            // A query, or a refusal that may be due to a limit.
            return Ok(());
        }
        self.verb(key, &Verb::Brk { from, to: ask }, Answer::At(got), cost)?;
        self.processes.get_mut(key).heap = Some(got);
        Ok(())
    }

    /// Changes a protection at no cost.
    pub(super) fn protect(
        &mut self,
        key: Key,
        addr: u64,
        len: u64,
        prot: Protection,
    ) -> Result<(), ReplayError> {
        self.verb(key, &Verb::Mprotect { addr, len, prot }, Answer::Done, None).map(drop)
    }

    /// Calls a verb, compares the answer with the recorded one and the model's, and returns its nanoseconds.
    /// Adds the cost, and the recorded time, under the name `cost`.
    pub(super) fn verb(
        &mut self,
        key: Key,
        verb: &Verb,
        answer: Answer,
        cost: Option<(&'static str, u64)>,
    ) -> Result<u64, ReplayError> {
        if verb.may_release() {
            self.look_at_memory()?;
            self.processes.get_mut(key).look_at_rss();
        }
        let space = self.processes.get_mut(key);
        let (got, ns) = self.watch.time(|| verb.run(&space.mm, &self.files));
        if got == Err(MmError::NoMemory) && answer != Answer::Failure && self.is_full() {
            return Err(self.out_of_memory());
        }
        let space = self.processes.get_mut(key);
        if got.is_ok() {
            verb.apply_to(&mut space.touched);
            verb.apply_to(&mut space.seen);
            verb.apply_to(&mut space.zeroes);
            if let Some(parts) = &mut self.parts {
                parts.apply(&mut space.parts, verb);
            }
        }
        if let (Some(check), Some(id)) = (&mut self.check, space.model) {
            check.verb(id, verb, got).map_err(|what| self.diverged(what))?;
        }
        let as_recorded = match answer {
            Answer::At(addr) => got == Ok(addr),
            Answer::Done => got.is_ok(),
            Answer::Failure => got.is_err(),
        };
        if !as_recorded {
            self.differs(|| format!("{verb:x?} gives {got:x?}, recorded was {answer:x?}"))?;
        } else if let Some((name, linux_ns)) = cost
            && answer != Answer::Failure
        {
            self.verbs.add(name, Some(ns), Some(linux_ns));
        }
        Ok(ns)
    }

    /// Whether a recorded error may have a cause that a trace does not show, beyond arguments and mappings.
    fn may_be_refused(&self, key: Key, verb: &Verb, result: i64) -> bool {
        match (result, verb) {
            // Linux refuses to move or resize two mappings at once, and a trace does not show why it keeps
            // neighbours apart: by the origin of their pages.
            (EFAULT, &Verb::Mremap { addr, old, .. }) => self.has_no_hole(key, addr, old),
            (ENOMEM, _) => self.limits_explain(key, verb),
            // Linux changes only whole huge pages of a pool, which are ordinary memory here.
            (EINVAL, verb) => {
                verb.range().is_some_and(|(addr, len)| self.processes.get(key).huge.touch(addr, len))
            }
            _ => false,
        }
    }

    /// Whether all of a range is mapped.
    pub(super) fn has_no_hole(&self, key: Key, addr: u64, len: u64) -> bool {
        let (mut until, end) = (addr, addr.saturating_add(len));
        self.processes.get(key).mm.vmas(|vma| {
            if vma.range.contains(quire::addr::VirtAddr(until)) {
                until = vma.range.end.0;
            }
        });
        until >= end
    }

    /// Whether the range of a lock has a hole or memory that cannot be populated, so that the refusal needs
    /// no limit.
    fn refuses_lock(&self, key: Key, verb: &Verb) -> bool {
        let Verb::Mlock { addr, len, on_fault } = *verb else { return false };
        let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
        let (mut at, Some(end)) = (addr & !(PAGE - 1), end) else { return false };
        let mut refuses = false;
        self.processes.get(key).mm.vmas(|vma| {
            if vma.range.start.0 <= at && at < vma.range.end.0.min(end) {
                refuses |= vma.protection == Protection::NONE && !on_fault;
                at = vma.range.end.0;
            }
        });
        refuses || at < end
    }

    /// The mapping that holds an address: its start and length.
    pub(super) fn mapping_at(&self, key: Key, addr: u64) -> Option<(u64, u64)> {
        let mut found = None;
        self.processes.get(key).mm.vmas(|vma| {
            if vma.range.contains(quire::addr::VirtAddr(addr)) {
                found = Some((vma.range.start.0, vma.range.len()));
            }
        });
        found
    }
}

/// The survey's number of a file; an unused number for a trace that has changed since.
fn number(numbers: &super::survey::Numbers, file: &FileId) -> u64 {
    numbers.get(&(file.device, file.inode)).copied().unwrap_or(u64::MAX)
}
