//! A replay with collapsing and splitting in the background, to show the effect of a policy on a recorded
//! program over time.
//!
//! A recording shows the pages to which a program stored first, not the stored contents. Here each page with
//! a store fault has contents from then on, and all others are zero; so a folio is as full as the program has
//! touched it.

use std::path::{Path, PathBuf};

use hosted::Hosted;
use quire::addr::{Order, VirtAddr};
use quire::manager::MemoryManager;
use quire::vm::{CollapseLimits, Collapser, FolioPolicy, Splitter};

use super::costs::Stopwatch;
use super::error::ReplayError;
use super::need::Bounds;
use super::policy::FolioSet;
use super::processes::Space;
use super::progress::Progress;
use super::run::World;
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
pub(crate) struct Plan {
    /// Whether faults bring folios of 2 MiB, rather than single frames.
    pub(crate) large_faults: bool,
    /// The limits within which small pages are collapsed.
    pub(crate) collapse: Option<CollapseLimits>,
    /// The number of zero pages above which folios are split.
    pub(crate) split: Option<usize>,
}

/// A sample of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moment {
    /// Resident pages of private memory, each where it is mapped.
    pub(crate) resident: u64,
    /// Those among them that the program has touched.
    pub(crate) touched: u64,
    /// Touched ones in leaves of 2 MiB.
    pub(crate) large: u64,
}

/// The result of a replay with a background.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behind {
    /// Samples, equally many events apart.
    pub(crate) moments: Vec<Moment>,
    /// Ranges of 2 MiB that were collapsed.
    pub(crate) collapsed: u64,
    /// Folios that were split.
    pub(crate) split: u64,
    /// Frames that the splits freed.
    pub(crate) freed: u64,
    /// Nanoseconds of collapsing and splitting.
    pub(crate) background_ns: u64,
    /// Nanoseconds of the program's own faults and calls.
    pub(crate) program_ns: u64,
    /// Events of the recording.
    pub(crate) events: u64,
}

/// The background of one replay.
pub(super) struct Background {
    plan: Plan,
    collapser: Collapser,
    splitter: Splitter,
    events: u64,
    behind: Behind,
}

impl Background {
    pub(super) fn new(plan: Plan, events: u64) -> Self {
        let collapser = plan.collapse.map_or_else(Collapser::default, Collapser::within);
        let splitter = Splitter::new(plan.split.unwrap_or(0));
        Self { plan, collapser, splitter, events, behind: Behind { events, ..Behind::default() } }
    }

    /// The background's turn after an event, if it is due, on the caller's CPU.
    pub(super) fn turn<'s, 'm: 's>(
        &mut self,
        event: u64,
        (machine, manager): (&Hosted, &MemoryManager<'_, Hosted>),
        watch: &Stopwatch,
        spaces: impl Iterator<Item = &'s Space<'m>>,
    ) {
        if due(event, self.events, TURNS) {
            let ((), ns) = watch.time(|| self.work(manager));
            self.behind.background_ns += ns;
        }
        if due(event, self.events, MOMENTS) {
            self.behind.moments.push(look(machine, manager, spaces));
        }
    }

    fn work(&mut self, manager: &MemoryManager<'_, Hosted>) {
        if self.plan.collapse.is_some() {
            // Faults keep single frames, as if no folio of 2 MiB had been free then.
            let faults = manager.folio_policy();
            manager.set_folio_policy(FolioPolicy::only(Order::BLOCK));
            self.behind.collapsed += manager.collapse_ahead(&mut self.collapser).collapsed.collapsed();
            manager.set_folio_policy(faults);
        }
        if self.plan.split.is_some() {
            let done = manager.split_underused(&mut self.splitter, FOLIOS);
            self.behind.split += done.split;
            self.behind.freed += done.freed;
        }
    }

    pub(super) fn end(self, program_ns: u64) -> Behind {
        Behind { program_ns, ..self.behind }
    }
}

/// Whether one of `turns` equally spaced turns is due at this event.
fn due(event: u64, events: u64, turns: u64) -> bool {
    let turn = |event: u64| event * turns / events.max(1);
    turn(event + 1) > turn(event)
}

/// Reads all page tables.
fn look<'s, 'm: 's>(
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    spaces: impl Iterator<Item = &'s Space<'m>>,
) -> Moment {
    let mut moment = Moment::default();
    for space in spaces {
        for leaf in machine.leaves(space.mm.root()) {
            // The page cache and the manager hold their frames (the zero page too) besides mappings.
            if manager.pages().frames().is_held(leaf.frame) {
                continue;
            }
            let touched =
                (0..leaf.frames).filter(|page| space.touched.contains(leaf.addr.page() + page)).count();
            moment.resident += leaf.frames;
            moment.touched += touched as u64;
            moment.large += if leaf.frames > 1 { touched as u64 } else { 0 };
        }
    }
    moment
}

/// Stores something to a page, as its program did.
pub(super) fn mark(machine: &Hosted, addr: u64) {
    // A refused store means that the access was a load, as far as the recording shows.
    let _ = machine.write(VirtAddr(addr / PAGE * PAGE), &addr.to_le_bytes());
}

/// A bundled recording, ready to be replayed.
pub(crate) struct Recording {
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
    pub(crate) fn open(path: &Path) -> Result<Self, ReplayError> {
        let survey = Survey::of(path, Bounds::NONE, &mut Progress::new(String::new()))?;
        let largest = FolioSet::FRAMES.and(Order::BLOCK.get());
        let needed = survey.needed(largest);
        // A folio is allocated before the pages that it replaces are freed.
        let world = World::new(needed + needed / 2, survey.header.cpus as usize, false)?;
        Ok(Self { path: path.to_owned(), survey, world, watch: Stopwatch::new() })
    }

    /// Replays it with this background.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub(crate) fn replay(&mut self, plan: Plan) -> Result<Behind, ReplayError> {
        self.world.background = Some(plan);
        let order = if plan.large_faults { Order::BLOCK } else { Order::FRAME };
        let set = FolioSet::FRAMES.and(order.get());
        let mut progress = Progress::new(String::new());
        let outcome = self.world.replay(&self.path, &self.survey, set, &self.watch, &mut progress)?;
        let program_ns = outcome.quire_ns();
        Ok(outcome.background.map_or_else(Behind::default, |background| background.end(program_ns)))
    }
}
