//! Applies the events of a trace one by one.

use std::collections::{BTreeMap, HashMap};

use hosted::Hosted;
use quire::cpu::CpuId;
use quire::manager::MemoryManager;
use quire::vm::File;

use super::background::Background;
use super::check::Check;
use super::costs::{Costs, Stopwatch};
use super::each::Each;
use super::error::ReplayError;
use super::gaps::Gaps;
use super::memory::{Peak, Untouched};
use super::parts::Parts;
use super::policy::{FolioSet, exact_bytes};
use super::processes::{Key, Processes, Space};
use super::recycled::Recycled;
use super::survey::Survey;
use super::timeline::Timeline;
use super::verb::PAGE;
use crate::trace::{Event, EventKind, ForkKind, Placed, Tier};

/// Events between two comparisons of all mappings with the model's.
const COMPARE_EVERY: u64 = 2048;

/// The counts of applied events.
#[derive(Clone, Default)]
pub(super) struct Counts {
    /// Processes: programs started first, and forks.
    pub(super) processes: u64,
    /// Folios that faults brought in as private memory, by order.
    pub(super) folios: [u64; 10],
    /// Pages of recorded fault-around that Quire had not mapped, and that were touched one by one.
    pub(super) around_touched: u64,
    /// Faults that Linux did not resolve although they are in a mapping, because it retried later, or below a
    /// stack, because of a limit.
    pub(super) given_up: u64,
    /// The most resident pages that one process had.
    pub(super) peak_rss: u64,
    /// Pages that were present before the recording attached, and were brought in outside of all figures.
    pub(super) present_before: u64,
    /// Calls that were not replayed, by name.
    pub(super) skipped: BTreeMap<&'static str, u64>,
    /// Calls and faults that Quire answered differently from Linux.
    pub(super) differences: u64,
    /// The first of them.
    pub(super) first_difference: Option<String>,
    /// Calls and faults with another answer whose order was not recorded, so that it counts as no difference.
    pub(super) not_judged: u64,
}

/// Whether an event had its recorded effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// It had, as far as was compared.
    AsRecorded,
    /// It had not, and the order of events leaves open whether it should have.
    NotJudged,
}

/// A replay under way.
pub(super) struct Replayer<'m> {
    pub(super) machine: &'m Hosted,
    pub(super) manager: &'m MemoryManager<'m, Hosted>,
    pub(super) watch: &'m Stopwatch,
    pub(super) survey: &'m Survey,
    pub(super) files: Vec<File<'m, Hosted>>,
    pub(super) processes: Processes<'m>,
    pub(super) check: Option<Check>,
    pub(super) set: FolioSet,
    /// Events applied so far.
    pub(super) event: u64,
    pub(super) verbs: Costs,
    pub(super) faults: Costs,
    pub(super) gaps: Gaps,
    pub(super) recycled: Recycled,
    pub(super) counts: Counts,
    pub(super) peak: Peak,
    /// The cost of a fork, by the thread that has not returned from the call yet.
    pub(super) forked: HashMap<u32, u64>,
    /// The cost of an exec so far, by process.
    pub(super) starting: HashMap<u32, u64>,
    /// Whether the trace records the protection of faults.
    pub(super) tells_all: bool,
    /// The background.
    pub(super) background: Option<Background>,
    /// The faults and the memory of each mapping, if they are observed.
    pub(super) parts: Option<Parts>,
    /// Memory over time, if it is observed.
    pub(super) timeline: Option<Timeline>,
    /// The memory of each process, if it is observed.
    pub(super) each: Option<Each>,
    /// Of the current event: whether it rests on an unknown order, and its outcome.
    in_doubt: bool,
    agreement: Agreement,
}

impl<'m> Replayer<'m> {
    pub(super) fn new(
        machine: &'m Hosted,
        manager: &'m MemoryManager<'m, Hosted>,
        watch: &'m Stopwatch,
        survey: &'m Survey,
        files: Vec<File<'m, Hosted>>,
        check: bool,
        set: FolioSet,
    ) -> Self {
        Self {
            machine,
            manager,
            watch,
            survey,
            files,
            processes: Processes::new(machine),
            check: check.then(|| Check::new(&survey.files)),
            set,
            event: 0,
            verbs: Costs::default(),
            faults: Costs::default(),
            gaps: Gaps::new(),
            recycled: Recycled::default(),
            counts: Counts::default(),
            peak: Peak::default(),
            forked: HashMap::new(),
            starting: HashMap::new(),
            tells_all: survey.header.tier == Tier::Privileged,
            background: None,
            parts: None,
            timeline: None,
            each: None,
            in_doubt: false,
            agreement: Agreement::AsRecorded,
        }
    }

    /// Applies one event, on the CPU of its thread.
    ///
    /// # Errors
    /// [`ReplayError::OutOfMemory`]; [`ReplayError::Divergence`] when checking.
    pub(super) fn step(&mut self, placed: &Placed) -> Result<Agreement, ReplayError> {
        let Placed { event, in_doubt, .. } = placed;
        (self.in_doubt, self.agreement) = (*in_doubt, Agreement::AsRecorded);
        let between =
            self.timeline.as_mut().map_or(0, |timeline| timeline.before(event.time_ns, self.manager));
        self.observe(between);
        let cpu = self.processes.cpu_of(event.tid);
        let machine = self.machine;
        machine.run_on(cpu, || {
            if let Some(background) = &mut self.background {
                background.before(event.time_ns, (machine, self.manager), self.watch, &self.processes);
            }
            let before = self.used_before(&event.kind);
            self.apply(event, cpu)?;
            if let Some(before) = before {
                let used = self.manager.pages().memory_info().used;
                self.recycled.freed(event.time_ns, before.saturating_sub(used));
            }
            if let Some(background) = &mut self.background {
                background.after(self.event, (machine, self.manager), self.watch, &self.processes);
            }
            Ok::<_, ReplayError>(())
        })?;
        let begins = self.timeline.as_mut().is_some_and(|timeline| timeline.after(self.manager));
        self.observe(u64::from(begins));
        self.event += 1;
        Ok(self.agreement)
    }

    /// Observes mappings and processes as they are at the start of so many steps.
    fn observe(&mut self, steps: u64) {
        if steps == 0 {
            return;
        }
        if let Some(parts) = &mut self.parts {
            parts.look(steps, self.processes.spaces().map(|space| &space.parts));
        }
        let untouched = Untouched::of(self.machine, self.manager, &self.processes);
        if let Some(timeline) = &mut self.timeline {
            timeline.wasted(steps, untouched.all);
        }
        if let Some(each) = &mut self.each {
            each.look(steps, self.machine, &self.processes, &untouched);
        }
    }

    /// Frames in use before an event that may free some, if memory is observed.
    fn used_before(&self, kind: &EventKind) -> Option<u64> {
        let may_free =
            matches!(kind, EventKind::Syscall(_) | EventKind::Exec { .. } | EventKind::ProcessExit { .. });
        (may_free && self.timeline.is_some()).then(|| self.manager.pages().memory_info().used)
    }

    fn apply(&mut self, event: &Event, cpu: CpuId) -> Result<(), ReplayError> {
        let pid = event.pid;
        match &event.kind {
            EventKind::Exec { name } => self.exec(pid, *name, cpu)?,
            EventKind::Fork { child_pid, kind, .. } => {
                let key = self.enter(pid, cpu)?;
                match kind {
                    ForkKind::Copy => self.fork(key, event.tid, *child_pid)?,
                    ForkKind::SharedMemory => self.share(key, *child_pid)?,
                }
                self.counts.processes += 1;
            }
            EventKind::ThreadExit => self.processes.end_thread(event.tid),
            EventKind::ProcessExit { .. } => {
                self.exit(pid)?;
                self.processes.end_thread(event.tid);
            }
            EventKind::Map { .. } => {
                let key = self.enter(pid, cpu)?;
                self.map(key, pid, &event.kind)?;
            }
            EventKind::Syscall(call) => {
                let key = self.enter(pid, cpu)?;
                self.call(key, event, call)?;
            }
            EventKind::Fault { .. } => {
                let key = self.enter(pid, cpu)?;
                self.fault(key, event)?;
            }
            EventKind::FaultAround { start, len } => {
                let key = self.enter(pid, cpu)?;
                self.fault_around(key, *start, *len)?;
            }
            EventKind::Populate { start, len, cause } => {
                if cause.is_before() {
                    let key = self.enter(pid, cpu)?;
                    self.bring_back(key, *start, *len, cause.stores())?;
                }
                // The verb has populated the pages; only the program's use of them is recorded here.
                let key = self.enter(pid, cpu)?;
                let space = self.processes.get_mut(key);
                let (first, end) = (start / PAGE, start.saturating_add(*len).div_ceil(PAGE));
                space.touched.insert_range(first, end);
                space.seen.insert_range(first, end);
            }
            EventKind::Lost { records } if self.check.is_some() => {
                return Err(ReplayError::Gap { event: self.event, records: *records });
            }
            _ => {}
        }
        self.watch_rules()
    }

    /// The address space of a process, run by `cpu`.
    fn enter(&mut self, pid: u32, cpu: CpuId) -> Result<Key, ReplayError> {
        let key = match self.processes.key(pid) {
            Some(key) => key,
            // A complete trace has an exec or a fork before; one that lost records may not.
            None => self.start(pid)?,
        };
        self.processes.switch_to(cpu, key);
        Ok(key)
    }

    /// Gives a process an empty address space.
    pub(super) fn start(&mut self, pid: u32) -> Result<Key, ReplayError> {
        let mm = self.manager.new_mm().map_err(|_| self.out_of_memory())?;
        self.limit(&mm);
        let model = self.check.as_mut().map(Check::create);
        Ok(self.processes.adopt(pid, Space::new(mm, model)))
    }

    /// When checking: reports the machine's violations since the last event, and now and then compares all
    /// mappings and looks for the owner of each frame.
    fn watch_rules(&mut self) -> Result<(), ReplayError> {
        if self.check.is_none() {
            return Ok(());
        }
        if self.machine.violation_count() > 0
            && let Some(violation) = self.machine.violations().first()
        {
            return Err(self.diverged(violation.to_string()));
        }
        if !self.event.is_multiple_of(COMPARE_EVERY) {
            return Ok(());
        }
        self.processes.spaces().try_for_each(|space| self.compare(space))?;
        self.look_at_owners(true)
    }

    /// When checking: compares an address space with its model.
    pub(super) fn compare(&self, space: &Space<'_>) -> Result<(), ReplayError> {
        match (&self.check, space.model) {
            (Some(check), Some(id)) => {
                check.compare(id, &space.mm, self.set.largest()).map_err(|what| self.diverged(what))
            }
            _ => Ok(()),
        }
    }

    /// Counts a call that Quire answered differently from Linux.
    pub(super) fn differs(&mut self, what: impl FnOnce() -> String) -> Result<(), ReplayError> {
        if self.in_doubt {
            self.counts.not_judged += 1;
            self.agreement = Agreement::NotJudged;
            return Ok(());
        }
        self.counts.differences += 1;
        if self.check.is_some() {
            return Err(self.diverged(what()));
        }
        if self.counts.first_difference.is_none() {
            self.counts.first_difference = Some(format!("event {}: {}", self.event, what()));
        }
        Ok(())
    }

    /// Samples memory before some of it is freed.
    pub(super) fn look_at_memory(&mut self) -> Result<(), ReplayError> {
        if let Some(timeline) = &mut self.timeline {
            timeline.before_release(self.manager);
        }
        self.look_at_owners(false)
    }

    /// Takes a sample of memory at a new peak. When checking, every frame must have an owner then, and always
    /// if asked.
    fn look_at_owners(&mut self, always: bool) -> Result<(), ReplayError> {
        let (spaces, parts) = (self.processes.spaces(), self.parts.as_mut());
        let looked = self.peak.look((self.event, always), self.machine, self.manager, spaces, parts);
        match looked {
            Err(what) if self.check.is_some() => Err(self.diverged(what)),
            _ => Ok(()),
        }
    }

    pub(super) const fn diverged(&self, what: String) -> ReplayError {
        ReplayError::Divergence { event: self.event, what }
    }

    pub(super) fn out_of_memory(&self) -> ReplayError {
        let bytes = self.machine.ranges().iter().map(|range| range.bytes).sum();
        ReplayError::OutOfMemory { event: self.event, memory: exact_bytes(bytes) }
    }

    /// Whether hardly a frame is left, so that a failure for lack of memory is for lack of frames.
    pub(super) fn is_full(&self) -> bool {
        let frames = self.manager.pages().memory_info();
        frames.free + frames.cached < frames.total / 32
    }
}
