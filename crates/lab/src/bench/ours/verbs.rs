//! Arms of our own library that do one verb to an address space whose memory is populated, in each of the ways that
//! the library offers.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::rc::Rc;

use hosted::{Bare, Hosted, HostedConfig};
use quire::addr::{Frame, VirtAddr};
use quire::manager::{Config, MemoryManager};
use quire::platform::Platform;
use quire::tlb::ZapStrategy;
use quire::vm::{Access, ForkStrategy, Mm};

use super::counted::Counted;
use super::counting::Counting;
use super::{SLACK, START};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::memory::{Memory, Other, neighbours};

/// What an arm of ours does to an address space whose memory is populated.
pub trait Verb: 'static {
    /// What the arm is asked to do.
    type Case: Clone + 'static;

    /// What the time of the arm `quire` includes.
    const ABOUT: &'static str;

    /// Whether the machine really clears and copies. Off where neither belongs to the verb.
    const CLEARING: bool = false;

    /// The memory of a case.
    fn memory(case: &Self::Case) -> Memory;

    /// Does the verb once and times that alone.
    ///
    /// # Errors
    /// [`Skip`] when it turned out to be impossible.
    fn work<P: Platform>(case: &Self::Case, subject: Subject<'_, '_, P>) -> Result<Sample, Skip>;
}

/// An address space that CPU 0 runs.
pub struct Subject<'m, 'p, P: Platform> {
    /// The address space.
    pub mm: Mm<'m, P>,
    /// Who manages its memory.
    pub manager: &'m MemoryManager<'p, P>,
    /// The machine below.
    pub machine: &'m Hosted,
    /// Pages that are mapped.
    pub pages: u64,
    /// Who counts locks, in the repetition that does.
    locks: Option<&'m Counting<'m>>,
}

impl<'m, 'p, P: Platform> Subject<'m, 'p, P> {
    /// Counts from now on.
    pub fn counted(&self) -> Counted<'m, 'p, P> {
        Counted::start(self.manager, self.machine, self.locks)
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

/// The name of the arm that copies every leaf at the fork.
pub const COPIED: &str = "copied";

/// The ways to give a child its pages.
pub const FORKS: &[Way] = &[
    Way { name: COPIED, about: None, choose: |config| Config { fork: ForkStrategy::Copy, ..config } },
    Way {
        name: "shared",
        about: Some(
            "the same, but parent and child share the page tables until either side changes something in them \
             (ForkStrategy::Share): the first write below a table copies it.",
        ),
        choose: |config| Config { fork: ForkStrategy::Share, ..config },
    },
];

/// An arm for each of `ways`. They share one machine, so that all of them get the same frames.
pub fn arms<V: Verb>(ways: &[Way]) -> Vec<Box<dyn Arm<V::Case>>> {
    let machine = Rc::new(OnceCell::new());
    let arm = |way: &Way| -> Box<dyn Arm<V::Case>> {
        Box::new(Ours::<V> { way: *way, machine: machine.clone(), verb: PhantomData })
    };
    ways.iter().map(arm).collect()
}

struct Ours<V> {
    way: Way,
    machine: Rc<OnceCell<Hosted>>,
    verb: PhantomData<V>,
}

impl<V: Verb> Arm<V::Case> for Ours<V> {
    fn name(&self) -> &'static str {
        self.way.name
    }

    fn about(&self) -> &'static str {
        self.way.about.unwrap_or(V::ABOUT)
    }

    fn setup(&mut self, case: &V::Case) -> Result<Box<dyn Prepared + '_>, Skip> {
        let memory = V::memory(case);
        let machine = match self.machine.get() {
            Some(machine) => machine,
            None => {
                let built = machine(memory.bytes as u64, V::CLEARING)?;
                self.machine.get_or_init(|| built)
            }
        };
        let ready = Ready::<V> {
            case: case.clone(),
            memory,
            touches: memory.touches(),
            config: super::with_folios((self.way.choose)(Config::default()), memory.folio)?,
            machine,
            other: Other::for_case(&memory),
            looked_up: None,
        };
        Ok(Box::new(ready))
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

struct Ready<'a, V: Verb> {
    case: V::Case,
    memory: Memory,
    touches: Vec<u32>,
    config: Config,
    machine: &'a Hosted,
    other: Other,
    /// What is looked up once, before the first warm-up.
    looked_up: Option<LookedUp>,
}

/// What the timed repetitions are too hurried to count.
#[derive(Clone, Copy)]
struct LookedUp {
    /// Pages whose frame follows that of the page before.
    in_sequence: u64,
    /// Locks that the verb takes, of every kind.
    locks: u64,
}

impl<V: Verb> Prepared for Ready<'_, V> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (machine, config) = (self.machine, self.config);
        let found = match self.looked_up {
            Some(found) => found,
            None => *self.looked_up.insert(self.look_up()?),
        };
        let work = |manager: &MemoryManager<'_, Bare>| {
            let subject = self.subject(manager, None)?;
            self.other.fill_caches();
            V::work(&self.case, subject)
        };
        // SAFETY: no verb knows another machine or hands the manager to another thread.
        let sample = unsafe { super::with_bare_manager_as(machine, config, work) }?;
        Ok(sample.count("frames_in_sequence", found.in_sequence).count("locks", found.locks))
    }
}

impl<V: Verb> Ready<'_, V> {
    /// The populated address space of the case.
    fn subject<'m, 'p, P: Platform>(
        &self,
        manager: &'m MemoryManager<'p, P>,
        locks: Option<&'m Counting<'m>>,
    ) -> Result<Subject<'m, 'p, P>, Skip>
    where
        Self: 'm,
    {
        let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
        mm.switch_in();
        super::map(&mm, self.memory.bytes)?;
        let pages = touch(&mm, &self.memory, &self.touches)?;
        Ok(Subject { mm, manager, machine: self.machine, pages, locks })
    }

    /// A repetition on a platform that counts.
    fn look_up(&self) -> Result<LookedUp, Skip> {
        // SAFETY: `with_manager_of` makes, uses and drops the manager inside `run_on` of this machine; no verb knows
        // another or hands the manager to another thread.
        let counting = Counting::new(unsafe { self.machine.bare() });
        super::with_manager_of(self.machine, &counting, &self.config, |manager| {
            let subject = self.subject(manager, Some(&counting))?;
            let in_sequence = scatter(self.machine, subject.mm.root(), &self.memory)?;
            let sample = V::work(&self.case, subject)?;
            let locks = sample.counters.get("locks").copied().unwrap_or_default();
            Ok(LookedUp { in_sequence, locks })
        })
    }
}

/// Takes one write fault for each folio in the order given; the pages now mapped.
fn touch<P: Platform>(mm: &Mm<'_, P>, memory: &Memory, touches: &[u32]) -> Result<u64, Skip> {
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
fn scatter(machine: &Hosted, root: Frame, memory: &Memory) -> Result<u64, Skip> {
    let leaves = machine.leaves(root).into_iter();
    let frames = leaves.flat_map(|leaf| leaf.frame.0..leaf.frame.0 + leaf.frames);
    let found = neighbours(frames);
    if memory.shuffled && found > memory.pages() as u64 / 20 {
        return Err(Skip(format!("{found} of {} frames are in sequence: not shuffled", memory.pages())));
    }
    Ok(found)
}
