//! Arms of our own library that do one verb to an address space whose memory is populated, in each of the ways that
//! the library offers.

use std::cell::OnceCell;
use std::rc::Rc;

use hosted::{Bare, Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::manager::{Config, MemoryManager};
use quire::tlb::ZapStrategy;
use quire::vm::{Access, Mm};

use super::counted::Counted;
use super::{SLACK, START};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::memory::{Memory, Other, neighbours};

/// What an arm of ours does to an address space whose memory is populated.
pub struct Verb<S> {
    /// What the time of the arm `quire` includes.
    pub about: &'static str,
    /// The memory of a case.
    pub memory: fn(&S) -> Memory,
    /// Whether the machine really clears and copies. Off where neither belongs to the verb.
    pub clearing: bool,
    /// Does the verb once and times that alone.
    pub work: fn(&S, Subject<'_, '_>) -> Result<Sample, Skip>,
}

/// An address space that CPU 0 runs.
pub struct Subject<'m, 'p> {
    /// The address space.
    pub mm: Mm<'m, Bare>,
    /// Who manages its memory.
    pub manager: &'m MemoryManager<'p, Bare>,
    /// The machine below.
    pub machine: &'m Hosted,
    /// Pages that are mapped.
    pub pages: u64,
}

impl<'m, 'p> Subject<'m, 'p> {
    /// Counts from now on.
    pub fn counted(&self) -> Counted<'m, 'p> {
        Counted::start(self.manager, self.machine)
    }

    /// Says so when the address space does not map `pages` pages.
    ///
    /// # Errors
    /// [`Skip`] then.
    pub fn expect_mapped(&self, pages: u64) -> Result<(), Skip> {
        match self.mm.rss().anon {
            mapped if mapped == pages => Ok(()),
            mapped => Err(Skip(format!("{mapped} pages are mapped where {pages} should be"))),
        }
    }
}

/// A way in which the library does its verbs.
#[derive(Clone, Copy)]
pub struct Way {
    /// Name of the arm.
    pub name: &'static str,
    /// What is to be said of it beyond the verb; `None` for the default way.
    pub about: Option<&'static str>,
    /// Chooses it.
    pub choose: fn(Config) -> Config,
}

/// As the library does it when nobody asks for anything else.
pub const DEFAULT: Way = Way { name: "quire", about: None, choose: |config| config };

/// The ways to take entries.
pub const ZAPS: &[Way] = &[
    DEFAULT,
    Way {
        name: PER_PAGE,
        about: Some(
            "the same verb of the same library with every entry on its own: one exchange, one span, one hold of a block's \
             lock to count down and free it; tables go empty (ZapStrategy::PerPage; Linux up to 6.8).",
        ),
        choose: |config| Config { zap: ZapStrategy::PerPage, ..config },
    },
    Way {
        name: "runs",
        about: Some(
            "the same with runs of consecutive entries of one folio, which are counted and freed at once \
             (ZapStrategy::Runs, the published scheme of 2024); single frames go as with per-page.",
        ),
        choose: |config| Config { zap: ZapStrategy::Runs, ..config },
    },
];

/// The name of the arm that takes every entry on its own.
pub const PER_PAGE: &str = "per-page";

/// The ways to give a child its pages.
pub const FORKS: &[Way] = &[DEFAULT];

/// An arm for each of `ways`. They share one machine, so that all of them get the same frames.
pub fn arms<S: Clone + 'static>(verb: &'static Verb<S>, ways: &[Way]) -> Vec<Box<dyn Arm<S>>> {
    let machine = Rc::new(OnceCell::new());
    let arm = |way: &Way| -> Box<dyn Arm<S>> { Box::new(Ours { verb, way: *way, machine: machine.clone() }) };
    ways.iter().map(arm).collect()
}

struct Ours<S: 'static> {
    verb: &'static Verb<S>,
    way: Way,
    machine: Rc<OnceCell<Hosted>>,
}

impl<S: Clone> Arm<S> for Ours<S> {
    fn name(&self) -> &'static str {
        self.way.name
    }

    fn about(&self) -> &'static str {
        self.way.about.unwrap_or(self.verb.about)
    }

    fn setup(&mut self, case: &S) -> Result<Box<dyn Prepared + '_>, Skip> {
        let memory = (self.verb.memory)(case);
        let machine = match self.machine.get() {
            Some(machine) => machine,
            None => {
                let built = machine(memory.bytes as u64, self.verb.clearing)?;
                self.machine.get_or_init(|| built)
            }
        };
        let config = super::with_folios((self.way.choose)(Config::default()), memory.folio)?;
        let touches = memory.touches();
        Ok(Box::new(Ready {
            verb: self.verb,
            case: case.clone(),
            memory,
            touches,
            config,
            machine,
            other: Other::for_case(&memory),
            scatter: None,
        }))
    }
}

/// Twice the memory of the case as everywhere, and once more for a child that copies all of it.
fn machine(bytes: u64, clearing: bool) -> Result<Hosted, Skip> {
    let bytes = if clearing { 3 * bytes } else { 2 * bytes };
    let machine = HostedConfig { clearing, ..HostedConfig::bench(bytes + SLACK) }
        .build()
        .map_err(|error| Skip(error.to_string()))?;
    super::keep_from_children(&machine)?;
    Ok(machine)
}

struct Ready<'a, S: 'static> {
    verb: &'static Verb<S>,
    case: S,
    memory: Memory,
    touches: Vec<u32>,
    config: Config,
    machine: &'a Hosted,
    other: Other,
    /// Pages whose frame follows that of the page before: looked up once, in the first warm-up.
    scatter: Option<u64>,
}

impl<S> Prepared for Ready<'_, S> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (machine, config) = (self.machine, self.config);
        let work = |manager: &MemoryManager<'_, Bare>| {
            let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
            mm.switch_in();
            super::map(&mm, self.memory.bytes)?;
            let pages = touch(&mm, &self.memory, &self.touches)?;
            let found = match self.scatter {
                Some(found) => found,
                None => *self.scatter.insert(scatter(machine, &mm, &self.memory)?),
            };
            self.other.fill_caches();
            let subject = Subject { mm, manager, machine, pages };
            Ok((self.verb.work)(&self.case, subject)?.count("frames_in_sequence", found))
        };
        // SAFETY: no verb knows another machine or hands the manager to another thread.
        unsafe { super::with_bare_manager_as(machine, config, work) }
    }
}

/// Takes one write fault for each folio in the order given; the pages now mapped.
fn touch(mm: &Mm<'_, Bare>, memory: &Memory, touches: &[u32]) -> Result<u64, Skip> {
    let mut pages = 0;
    for &folio in touches {
        let at = at(folio as usize * memory.folio.bytes());
        let outcome =
            mm.fault(at, Access::Write).map_err(|error| Skip(format!("fault at {:#x}: {error}", at.0)))?;
        pages += outcome.order.frames();
    }
    Ok(pages)
}

/// The address `offset` bytes into the populated memory.
pub fn at(offset: usize) -> VirtAddr {
    START.add(offset as u64)
}

/// Pages whose frame follows that of the page before, by the machine's reading of the page table.
///
/// # Errors
/// [`Skip`] when shuffled memory has frames in sequence after all.
fn scatter(machine: &Hosted, mm: &Mm<'_, Bare>, memory: &Memory) -> Result<u64, Skip> {
    let leaves = machine.leaves(mm.root()).into_iter();
    let frames = leaves.flat_map(|leaf| leaf.frame.0..leaf.frame.0 + leaf.frames);
    let found = neighbours(frames);
    if memory.shuffled && found > memory.pages() as u64 / 20 {
        return Err(Skip(format!("{found} of {} frames are in sequence: not shuffled", memory.pages())));
    }
    Ok(found)
}
