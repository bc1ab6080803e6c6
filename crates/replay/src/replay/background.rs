//! A replay with collapsing and splitting in the background, to show the effect of a policy on a recorded
//! program over time: for the experiment `khugepaged`, and for `advise`.
//!
//! A recording shows the pages to which a program stored first, not the stored contents. Here each page with
//! a store fault has contents from then on, and all others are zero; so a folio is as full as the program has
//! touched it.

use std::path::{Path, PathBuf};

use hosted::Hosted;
use quire::addr::{Order, VirtAddr};
use quire::manager::MemoryManager;
use quire::vm::policy::OrderPolicy;
use quire::vm::{CollapseLimits, Collapser, FolioPolicy, Splitter};

use super::costs::Stopwatch;
use super::error::ReplayError;
use super::need::Bounds;
use super::policy::FolioSet;
use super::processes::{Processes, Space};
use super::progress::Progress;
use super::run::{Purpose, World};
use super::survey::Survey;
use super::verb::PAGE;

/// Turns of the background in one replay.
const TURNS: u64 = 256;
/// Samples of memory in one replay.
const MOMENTS: u64 = 32;
/// Folios that one turn examines.
const FOLIOS: u64 = 32;

/// The background work of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// The folio sizes of faults.
    pub set: FolioSet,
    /// The limits within which small pages are collapsed.
    pub collapse: Option<CollapseLimits>,
    /// The number of zero pages above which folios are split.
    pub split: Option<usize>,
    /// When it has a turn.
    pub pace: Pace,
}

/// When the background has a turn, and when memory is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// 256 turns and 32 samples, equally many events apart.
    Events,
    /// A turn after each sleep of recorded time, the first after half of one; a sample in the middle of each step.
    Time {
        /// Nanoseconds between two turns.
        sleep_ns: u64,
        /// Pages that one turn scans.
        pages: u64,
        /// Steps of the recorded time.
        steps: u64,
    },
}

/// A sample of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Resident pages of private memory, each where it is mapped.
    pub resident: u64,
    /// Those of the process that has the most.
    pub largest: u64,
    /// Those among them that the program has touched.
    pub touched: u64,
    /// Touched ones in leaves of 2 MiB.
    pub large: u64,
    /// All pages in leaves of 2 MiB.
    pub huge: u64,
}

/// The result of a replay with a background.
#[derive(Clone, Debug, Default)]
pub struct BackgroundResult {
    /// Samples, equally far apart.
    pub moments: Vec<Moment>,
    /// Turns.
    pub turns: u64,
    /// Nanoseconds from the start of the recording to the first turn that changed memory, if time paces turns.
    pub first_ns: Option<u64>,
    /// Ranges of 2 MiB that were collapsed.
    pub collapsed: u64,
    /// Folios that were split.
    pub split: u64,
    /// Frames that the splits freed.
    pub freed: u64,
    /// Nanoseconds of collapsing and splitting.
    pub background_ns: u64,
    /// Nanoseconds of the program's own faults and calls.
    pub program_ns: u64,
    /// Events of the recording.
    pub events: u64,
}

/// The background of one replay.
pub(super) struct Background {
    plan: Plan,
    collapser: Collapser,
    splitter: Splitter,
    events: u64,
    /// The times of the first and of the last event.
    span_ns: (u64, u64),
    behind: BackgroundResult,
}

impl Background {
    /// Of a recording with so many events, the first and the last at these times.
    pub(super) fn new(plan: Plan, events: u64, span_ns: (u64, u64)) -> Self {
        let mut collapser = plan.collapse.map_or_else(Collapser::default, Collapser::within);
        if let Pace::Time { pages, .. } = plan.pace {
            collapser.pages_to_scan = pages;
        }
        let splitter = Splitter::new(plan.split.unwrap_or(0));
        let behind = BackgroundResult { events, ..BackgroundResult::default() };
        Self { plan, collapser, splitter, events, span_ns, behind }
    }

    /// What is due before an event at this time, on the caller's CPU.
    pub(super) fn before(
        &mut self,
        time_ns: u64,
        (machine, manager): (&Hosted, &MemoryManager<'_, Hosted>),
        watch: &Stopwatch,
        processes: &Processes<'_>,
    ) {
        let Pace::Time { sleep_ns, steps, .. } = self.plan.pace else { return };
        let (span, passed) = (self.span_ns.1 - self.span_ns.0, time_ns.saturating_sub(self.span_ns.0));
        // Scans of all memory that changed nothing. After a whole one, nothing will change until the event.
        let mut idle = 0;
        loop {
            let sampled = self.behind.moments.len() as u64;
            let sample = share(span, 2 * sampled + 1, 2 * steps);
            let turn = (sleep_ns / 2).saturating_add(sleep_ns.saturating_mul(self.behind.turns));
            if sampled < steps && sample < passed && sample <= turn {
                self.behind.moments.push(look(machine, manager, processes.spaces()));
            } else if turn < passed && idle < 2 {
                let (done, ns) = watch.time(|| self.work(manager));
                self.behind.background_ns += ns;
                self.behind.turns += 1;
                if done.changed {
                    self.behind.first_ns.get_or_insert(turn);
                    idle = 0;
                } else {
                    idle += u32::from(done.whole);
                }
            } else if turn < passed {
                // None of the turns up to the next sample or the event does anything.
                let next = if sampled < steps { sample.min(passed) } else { passed };
                self.behind.turns = next.saturating_sub(sleep_ns / 2).div_ceil(sleep_ns);
            } else {
                return;
            }
        }
    }

    /// What is due after an event, on the caller's CPU.
    pub(super) fn after(
        &mut self,
        event: u64,
        (machine, manager): (&Hosted, &MemoryManager<'_, Hosted>),
        watch: &Stopwatch,
        processes: &Processes<'_>,
    ) {
        if self.plan.pace != Pace::Events {
            return;
        }
        if due(event, self.events, TURNS) {
            let (_, ns) = watch.time(|| self.work(manager));
            self.behind.background_ns += ns;
            self.behind.turns += 1;
        }
        if due(event, self.events, MOMENTS) {
            self.behind.moments.push(look(machine, manager, processes.spaces()));
        }
    }

    fn work(&mut self, manager: &MemoryManager<'_, Hosted>) -> Turn {
        let mut turn = Turn { changed: false, whole: true };
        if self.plan.collapse.is_some() {
            // Faults keep their sizes, as if no folio of 2 MiB had been free then.
            let faults = manager.folio_policy();
            manager.set_folio_policy(scanned_policy(self.plan.set));
            let scanned = manager.collapse_ahead(&mut self.collapser);
            manager.set_folio_policy(faults);
            let collapsed = scanned.collapsed.collapsed();
            self.behind.collapsed += collapsed;
            turn = Turn { changed: collapsed > 0, whole: scanned.full_scan };
        }
        if self.plan.split.is_some() {
            let done = manager.split_underused(&mut self.splitter, FOLIOS);
            self.behind.split += done.split;
            self.behind.freed += done.freed;
            turn.changed |= done.split > 0;
            turn.whole &= done.full_scan;
        }
        turn
    }

    pub(super) fn end(self, program_ns: u64) -> BackgroundResult {
        BackgroundResult { program_ns, ..self.behind }
    }
}

/// Which memory is scanned: all of it, or where folios of 2 MiB are for memory that asks alone, that memory.
fn scanned_policy(set: FolioSet) -> FolioPolicy {
    let [without, asking] = [false, true].map(|asks| set.gives(Order::BLOCK, asks));
    match asking && !without {
        true => FolioPolicy::FRAMES.with(Order::BLOCK, OrderPolicy::Madvise),
        false => FolioPolicy::only(Order::BLOCK),
    }
}

/// The outcome of one turn.
struct Turn {
    changed: bool,
    /// Whether it came to the end of all address spaces.
    whole: bool,
}

/// Whether one of `turns` equally spaced turns is due at this event.
fn due(event: u64, events: u64, turns: u64) -> bool {
    let turn = |event: u64| event * turns / events.max(1);
    turn(event + 1) > turn(event)
}

/// So many parts of `of` parts of a span.
fn share(span: u64, parts: u64, of: u64) -> u64 {
    (u128::from(span) * u128::from(parts) / u128::from(of.max(1))) as u64
}

/// Reads all page tables.
fn look<'s, 'm: 's>(
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    spaces: impl Iterator<Item = &'s Space<'m>>,
) -> Moment {
    let mut moment = Moment::default();
    for space in spaces {
        let before = moment.resident;
        let mut pages = space.touched.lookup();
        for leaf in machine.leaves(space.mm.root()) {
            // The page cache and the manager hold their frames (the zero page too) besides mappings.
            if manager.pages().frames().is_held(leaf.frame) {
                continue;
            }
            let touched = (0..leaf.frames).filter(|page| pages.contains(leaf.addr.page() + page)).count();
            moment.resident += leaf.frames;
            moment.touched += touched as u64;
            moment.huge += if leaf.frames > 1 { leaf.frames } else { 0 };
            moment.large += if leaf.frames > 1 { touched as u64 } else { 0 };
        }
        moment.largest = moment.largest.max(moment.resident - before);
    }
    moment
}

/// Stores something to a page, as its program did.
pub(super) fn mark(machine: &Hosted, addr: u64) {
    // A refused store means that the access was a load, as far as the recording shows.
    let _ = machine.write(VirtAddr(addr / PAGE * PAGE), &addr.to_le_bytes());
}

/// A bundled recording, ready to be replayed.
pub struct Recording {
    path: PathBuf,
    survey: Survey,
    world: World,
    watch: Stopwatch,
}

impl Recording {
    /// Opens the recording, with a machine large enough for it.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn open(path: &Path) -> Result<Self, ReplayError> {
        let survey = Survey::of(path, Bounds::NONE, &mut Progress::new(String::new()))?;
        let world = World::new(needed(&survey), survey.header.cpus as usize, Purpose::Time)?;
        Ok(Self { path: path.to_owned(), survey, world, watch: Stopwatch::new() })
    }

    /// Replays it with this background.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn replay(&mut self, plan: Plan) -> Result<BackgroundResult, ReplayError> {
        let mut progress = Progress::new(String::new());
        beside(&self.path, &self.survey, (&mut self.world, plan), &self.watch, &mut progress)
    }
}

/// Replays a trace beside a background, on a machine with [`needed`] memory.
pub(super) fn beside(
    path: &Path,
    survey: &Survey,
    (world, plan): (&mut World, Plan),
    watch: &Stopwatch,
    progress: &mut Progress,
) -> Result<BackgroundResult, ReplayError> {
    world.background = Some(plan);
    let outcome = world.replay(path, survey, plan.set, watch, progress)?;
    let program_ns = outcome.quire_ns();
    Ok(outcome.background.map_or_else(BackgroundResult::default, |background| background.end(program_ns)))
}

/// Bytes of a machine for a replay with a background.
pub(super) fn needed(survey: &Survey) -> u64 {
    let needed = survey.needed(FolioSet::FRAMES.and(Order::BLOCK.get()));
    // A folio is allocated before the pages that it replaces are freed.
    needed.saturating_add(needed / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_one_process_is_counted_beside_that_of_all() {
        let moments = |name: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name);
            let plan = Plan { set: FolioSet::FRAMES, collapse: None, split: None, pace: Pace::Events };
            Recording::open(&path).unwrap().replay(plan).unwrap().moments
        };
        let alone = moments("sqlite.qtrace");
        assert!(alone.iter().all(|moment| moment.largest == moment.resident), "{alone:?}");
        let several = moments("gcc.qtrace");
        assert!(several.iter().all(|moment| moment.largest <= moment.resident), "{several:?}");
        assert!(
            several.iter().any(|moment| 0 < moment.largest && moment.largest < moment.resident),
            "{several:?}"
        );
    }
}
