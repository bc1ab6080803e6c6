//! A trace under several sets of folio sizes, with the figures of each mapping and no tables: for `quire advise`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use quire::vm::FaultKind;

use super::background::{self, BackgroundResult, Plan};
use super::code::Code;
use super::costs::{Pair, Stopwatch};
use super::each::Process;
use super::error::ReplayError;
use super::faults::{ABSORBED, SIGNAL};
use super::fragments::Fragments;
use super::gaps::GapFigures;
use super::heat::Heat;
use super::host;
use super::memory::Usage;
use super::need::{self, Bounds};
use super::pages::ORDERS;
use super::parts::Part;
use super::policy::FolioSet;
use super::progress::Progress;
use super::run::{Outcome, Purpose, World};
use super::shmem::Shmem;
use super::survey::Survey;
use super::timeline::Sample;
use super::verb::PAGE;
use crate::output::quoted;
use crate::trace::Header;

/// A trace that can be replayed.
pub(crate) struct Trial {
    path: PathBuf,
    survey: Survey,
    bounds: Bounds,
    fragments: Option<Fragments>,
}

/// The figures of one replay.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    pub(crate) set: FolioSet,
    /// Faults that were taken, by kind; none of them ended in a signal.
    pub(crate) kinds: [u64; FaultKind::NAMES.len()],
    /// Those that brought in a folio of zeroes, by order.
    pub(crate) folios: [u64; ORDERS],
    /// Faults that ended in a signal.
    pub(crate) signals: u64,
    /// Recorded faults that were not taken.
    pub(crate) absorbed: u64,
    /// Nanoseconds of a recorded fault that was not interrupted, by kind; the mean.
    pub(crate) recorded_ns: BTreeMap<&'static str, u64>,
    pub(crate) gaps: GapFigures,
    /// Frames of such folios that were freed only a moment before, by order.
    pub(crate) recycled: [u64; ORDERS],
    pub(crate) peak: Usage,
    pub(crate) parts: Vec<Part>,
    pub(crate) timeline: Vec<Sample>,
    /// The most resident memory of one process.
    pub(crate) peak_rss: u64,
    /// Every process, in the order in which they were first seen.
    pub(crate) processes: Vec<Process>,
    /// Calls and faults that Quire answered differently from Linux.
    pub(crate) differences: u64,
    /// Requests for larger folios that found none free.
    pub(crate) fell_back: u64,
}

impl Figures {
    fn of(outcome: Outcome) -> Self {
        let faults = &outcome.faults;
        let sum = |of: fn(&Part, usize) -> u64, at| outcome.parts.iter().map(|part| of(part, at)).sum();
        let count = |kind| faults.get(kind).map_or(0, Pair::count);
        // A replay takes a fault for a wait for a disk where the recorded one was such a wait.
        let usual = |kind, pair: &Pair| match kind == FaultKind::FileMajor.name() {
            true => pair.major.usual().or_else(|| pair.linux.usual()),
            false => pair.linux.usual(),
        };
        let recorded = faults.iter().filter_map(|(kind, pair)| Some((kind, usual(kind, pair)?)));
        let recorded_ns: BTreeMap<_, _> = recorded.collect();
        Self {
            set: outcome.set,
            kinds: std::array::from_fn(|kind| sum(|part, kind| part.kinds[kind], kind)),
            folios: std::array::from_fn(|order| sum(|part, order| part.folios[order], order)),
            signals: count(SIGNAL),
            absorbed: count(ABSORBED),
            gaps: outcome.gaps.figures(recorded_ns.get(FaultKind::Anon.name()).copied()),
            recorded_ns,
            recycled: outcome.recycled.by_order(),
            peak: outcome.peak,
            peak_rss: outcome.counts.peak_rss * PAGE,
            differences: outcome.counts.differences,
            fell_back: outcome.fell_back,
            parts: outcome.parts,
            timeline: outcome.timeline,
            processes: outcome.each,
        }
    }

    /// Nanoseconds of a recorded fault that Quire took none for; `None` without one that has a time.
    pub(crate) fn absorbed_ns(&self) -> Option<u64> {
        self.recorded_ns.get(ABSORBED).copied()
    }

    /// Faults that were taken, as `faults_taken` of `quire replay`.
    pub(crate) fn faults(&self) -> u64 {
        self.kinds.iter().sum::<u64>() + self.signals
    }
}

impl Trial {
    /// Reads the trace to its end. `memory_limit` is the host's memory that replays may take; `None` for what is available.
    ///
    /// # Errors
    /// As [`Survey::of`].
    pub(crate) fn open(path: &Path, memory_limit: Option<u64>) -> Result<Self, ReplayError> {
        let memory = memory_limit.unwrap_or_else(host::available);
        let bounds = Bounds { memory, work: memory / PAGE * 4 };
        let survey = Survey::of(path, bounds, &mut Progress::new(format!("reading {}", quoted(path))))?;
        Ok(Self { path: path.to_owned(), survey, bounds, fragments: None })
    }

    /// The same on a machine whose free memory is in these pieces, as much as the largest folio size needs.
    pub(crate) fn on(self, fragments: Option<Fragments>) -> Self {
        Self { fragments, ..self }
    }

    /// The pieces of free memory at the start.
    pub(crate) const fn fragments(&self) -> Option<&Fragments> {
        self.fragments.as_ref()
    }

    /// Bytes of a machine with so many free ones.
    fn machine(&self, free: u64) -> u64 {
        self.fragments.map_or(free, |fragments| fragments.machine(free))
    }

    /// The header of the trace.
    pub(crate) const fn header(&self) -> &Header {
        &self.survey.header
    }

    /// Kernel records that were lost while it was recorded.
    pub(crate) fn lost(&self) -> u64 {
        self.survey.header.totals.lost.max(self.survey.lost)
    }

    /// The names of programs, by number.
    pub(crate) fn names(&self) -> &[String] {
        &self.survey.paths
    }

    /// The names of the mapped files, by number.
    pub(crate) fn files(&self) -> Vec<&str> {
        let name = |path: crate::trace::PathId| self.survey.paths.get(path.0 as usize);
        let files = self.survey.files.iter();
        files.map(|file| file.path.and_then(name).map_or("", String::as_str)).collect()
    }

    /// Whether the program asks for large folios (`MADV_HUGEPAGE`).
    pub(crate) const fn asks(&self) -> bool {
        self.survey.asks
    }

    /// Huge pages of pools that the program maps itself: the most at once of 2 MiB and of 1 GiB, and mappings refused.
    pub(crate) const fn huge(&self) -> ([u64; 2], u64) {
        (self.survey.huge(), self.survey.huge_refused)
    }

    /// Nanoseconds from the first event to the last.
    pub(crate) const fn span_ns(&self) -> u64 {
        self.survey.span_ns.1 - self.survey.span_ns.0
    }

    /// Nanoseconds that the program ran.
    pub(crate) const fn wall_ns(&self) -> u64 {
        match self.survey.header.totals.wall_ns {
            0 => self.survey.span_ns.1 - self.survey.span_ns.0,
            wall_ns => wall_ns,
        }
    }

    /// Replays the trace under each set, one after the other. Sets that need more memory than there is are left out;
    /// the errors say so.
    ///
    /// # Errors
    /// [`ReplayError`], of the first replay that fails.
    pub(crate) fn replay(&self, sets: &[FolioSet]) -> Result<(Vec<Figures>, Vec<ReplayError>), ReplayError> {
        self.replay_on(sets, self.fragments)
    }

    /// The same on a machine whose free memory is in one piece.
    ///
    /// # Errors
    /// As [`Self::replay`].
    pub(crate) fn replay_whole(
        &self,
        sets: &[FolioSet],
    ) -> Result<(Vec<Figures>, Vec<ReplayError>), ReplayError> {
        self.replay_on(sets, None)
    }

    fn replay_on(
        &self,
        sets: &[FolioSet],
        fragments: Option<Fragments>,
    ) -> Result<(Vec<Figures>, Vec<ReplayError>), ReplayError> {
        let taken = |set: FolioSet| need::taken(self.machine(self.survey.needed(set)));
        let (fit, rest): (Vec<_>, Vec<_>) =
            sets.iter().copied().partition(|&set| taken(set) <= self.bounds.memory);
        let left_out = |set: FolioSet| {
            let (needed, allowed) = (need::shown(taken(set)), need::shown(self.bounds.memory));
            ReplayError::NoRoom { folio: set.name(), needed, allowed }
        };
        let memory = fit.iter().map(|&set| self.survey.needed(set)).max().unwrap_or(0);
        let mut progress = Progress::new(quoted(&self.path).to_string());
        progress.expect(self.survey.header.events * fit.len() as u64);
        let watch = Stopwatch::new();
        let mut world = World::new(self.machine(memory), self.cpus(), Purpose::Counts)?;
        (world.observes, world.fragments) = (true, fragments);
        let mut replay = |set: FolioSet| {
            progress.show(set.name());
            world.replay(&self.path, &self.survey, set, &watch, &mut progress).map(Figures::of)
        };
        let figures = fit.into_iter().map(&mut replay).collect::<Result<Vec<_>, _>>()?;
        Ok((figures, rest.into_iter().map(left_out).collect()))
    }

    /// Replays the trace beside a background.
    ///
    /// # Errors
    /// [`ReplayError`]; [`ReplayError::NoRoom`] where that needs more memory than there is.
    pub(crate) fn beside(&self, plan: Plan) -> Result<BackgroundResult, ReplayError> {
        let memory = self.machine(background::needed(&self.survey));
        if need::taken(memory) > self.bounds.memory {
            let (needed, allowed) = (need::shown(need::taken(memory)), need::shown(self.bounds.memory));
            return Err(ReplayError::NoRoom { folio: plan.set.name(), needed, allowed });
        }
        let mut progress = Progress::new(quoted(&self.path).to_string());
        progress.expect(self.survey.header.events);
        progress.show("khugepaged".to_owned());
        let mut world = World::new(memory, self.cpus(), Purpose::Contents)?;
        world.fragments = self.fragments;
        background::beside(&self.path, &self.survey, (&mut world, plan), &Stopwatch::new(), &mut progress)
    }

    /// Accesses by address and time, or first touches.
    ///
    /// # Errors
    /// A trace that has changed meanwhile.
    pub(crate) fn heat(&self) -> Result<Option<Heat>, ReplayError> {
        Heat::of(&self.path, self.survey.span_ns)
    }

    /// The pages of its code that the program uses.
    ///
    /// # Errors
    /// A trace that has changed meanwhile.
    pub(crate) fn code(&self) -> Result<Option<Code>, ReplayError> {
        Code::of(&self.path)
    }

    /// Shared memory under each of these sets; `None` if the program touches none.
    ///
    /// # Errors
    /// A trace that has changed meanwhile.
    pub(crate) fn shmem(&self, sets: &[FolioSet]) -> Result<Option<Shmem>, ReplayError> {
        Shmem::of(&self.path, sets, &self.survey.paths)
    }

    /// CPUs of the machine that replays.
    fn cpus(&self) -> usize {
        self.survey.header.cpus.clamp(1, quire::limits::MAX_CPUS as u32) as usize
    }
}
