//! Quire's arms that call one verb on an address space with populated memory, in each of the library's ways.

use std::cell::OnceCell;
use std::marker::PhantomData;
use std::rc::Rc;

use hosted::{Bare, Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::manager::{Config, MemoryManager};
use quire::platform::Platform;
use quire::tlb::ZapStrategy;
use quire::vm::{Access, ForkStrategy, Mm};

use super::counted::Counted;
use super::counting::Counting;
use super::looked_up::LookedUp;
use super::{SLACK, START};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::memory::{Memory, Other};

/// A verb of Quire, called on an address space with populated memory.
pub trait Verb: 'static {
    /// The work of a case.
    type Case: Clone + 'static;

    /// The text of the arm `quire`.
    const ABOUT: &'static str;

    /// Whether the machine really clears and copies. Off where neither belongs to the verb.
    const CLEARING: bool = false;

    /// Whether small runs, too, watch its instructions. One verb shows that it works.
    const WATCHED_IN_SMALL_RUNS: bool = false;

    /// The memory of a case.
    fn memory(case: &Self::Case) -> Memory;

    /// The same case with less memory, to watch its instructions; `None` where they are not watched.
    fn with_memory(case: &Self::Case, memory: Memory) -> Option<Self::Case>;

    /// The CPUs that the machine of a case needs: 1 or 2.
    fn cpus(_case: &Self::Case) -> usize {
        1
    }

    /// Calls the verb once and times only the call. Other threads that take part are CPUs of the subject's
    /// machine meanwhile.
    ///
    /// # Errors
    /// [`Skip`] when it is impossible here.
    fn work<P: Platform>(case: &Self::Case, subject: Subject<'_, '_, P>) -> Result<Sample, Skip>;
}

/// An address space that CPU 0 runs at first.
pub struct Subject<'m, 'p, P: Platform> {
    /// The address space.
    pub mm: Mm<'m, P>,
    /// The manager of its memory.
    pub manager: &'m MemoryManager<'p, P>,
    /// The machine below.
    pub machine: &'m Hosted,
    /// Pages that are mapped.
    pub pages: u64,
    /// The counter of locks or instructions, in the repetitions that count.
    counting: Option<&'m Counting<'m>>,
}

impl<'m, 'p, P: Platform> Subject<'m, 'p, P> {
    /// The populated address space of `case`, whose folios are touched in the order of `touches`.
    pub(super) fn populated<V: Verb>(
        case: &V::Case,
        touches: &[u32],
        manager: &'m MemoryManager<'p, P>,
        machine: &'m Hosted,
        counting: Option<&'m Counting<'m>>,
    ) -> Result<Self, Skip> {
        let memory = V::memory(case);
        let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
        mm.switch_in();
        super::map(&mm, memory.bytes)?;
        let pages = touch(&mm, &memory, touches)?;
        Ok(Self { mm, manager, machine, pages, counting })
    }

    /// Starts counting.
    pub fn counted(&self) -> Counted<'m, 'p, P> {
        Counted::start(self.manager, self.machine, self.counting)
    }

    /// Checks that the address space maps `pages` pages.
    ///
    /// # Errors
    /// [`Skip`] if it does not.
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
    /// Text on how it differs from the default way; `None` for that way.
    pub about: Option<&'static str>,
    /// Selects it in a configuration.
    pub choose: fn(Config) -> Config,
}

/// The library's default.
pub const DEFAULT: Way = Way { name: "quire", about: None, choose: |config| config };

/// The ways to unmap entries.
pub const ZAPS: &[Way] = &[
    DEFAULT,
    Way {
        name: PER_PAGE,
        about: Some(
            "as `quire`, with every entry by itself: one exchange, one span, one count, under one hold of \
             the block's lock for each folio; tables are freed empty (ZapStrategy::PerPage; Linux up to 6.8).",
        ),
        choose: |config| Config { zap: ZapStrategy::PerPage, ..config },
    },
    Way {
        name: "runs",
        about: Some(
            "as `quire`, counting and freeing consecutive entries of one folio at once (ZapStrategy::Runs, \
             the published scheme of 2024); single frames as in `per-page`.",
        ),
        choose: |config| Config { zap: ZapStrategy::Runs, ..config },
    },
];

/// The name of the arm that handles every entry by itself.
pub const PER_PAGE: &str = "per-page";

/// The name of the arm that copies every leaf at the fork.
pub const COPIED: &str = "copied";

/// The ways to give a child its pages.
pub const FORKS: &[Way] = &[
    Way { name: COPIED, about: None, choose: |config| Config { fork: ForkStrategy::Copy, ..config } },
    Way {
        name: "shared",
        about: Some(
            "as `copied`, but parent and child share page tables until one of them changes something in a \
             table (ForkStrategy::Share): the first write below a table copies it.",
        ),
        choose: |config| Config { fork: ForkStrategy::Share, ..config },
    },
];

/// The machines of an experiment, each built at its first use.
#[derive(Default)]
pub(super) struct Machines {
    /// By the number of CPUs: one and two.
    whole: [OnceCell<Hosted>; 2],
    small: OnceCell<Hosted>,
}

impl Machines {
    /// The machine for memory of the whole size, with one or two CPUs.
    fn whole(&self, bytes: usize, clearing: bool, cpus: usize) -> Result<&Hosted, Skip> {
        Self::built(&self.whole[cpus - 1], bytes, clearing, cpus)
    }

    /// The machine for watched instructions.
    pub(super) fn small(&self, bytes: usize, clearing: bool) -> Result<&Hosted, Skip> {
        Self::built(&self.small, bytes, clearing, 1)
    }

    fn built(cell: &OnceCell<Hosted>, bytes: usize, clearing: bool, cpus: usize) -> Result<&Hosted, Skip> {
        if let Some(machine) = cell.get() {
            return Ok(machine);
        }
        let built = machine(bytes as u64, clearing, cpus)?;
        Ok(cell.get_or_init(|| built))
    }
}

/// Twice the memory of the case as everywhere, and once more for a child that copies all of it.
fn machine(bytes: u64, clearing: bool, cpus: usize) -> Result<Hosted, Skip> {
    let bytes = if clearing { 3 * bytes } else { 2 * bytes };
    let machine = HostedConfig { clearing, ..HostedConfig::bench(bytes + SLACK) }
        .with_cpus(cpus)
        .build()
        .map_err(|error| Skip(error.to_string()))?;
    super::keep_from_children(&machine)?;
    Ok(machine)
}

/// An arm for each of `ways`. They share machines, so that all get the same frames.
pub fn arms<V: Verb>(ways: &[Way]) -> Vec<Box<dyn Arm<V::Case>>> {
    let machines = Rc::new(Machines::default());
    let arm = |way: &Way| -> Box<dyn Arm<V::Case>> {
        Box::new(Ours::<V> { way: *way, machines: machines.clone(), verb: PhantomData })
    };
    ways.iter().map(arm).collect()
}

struct Ours<V> {
    way: Way,
    machines: Rc<Machines>,
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
        let ready = Ready::<V> {
            case: case.clone(),
            touches: memory.touches(),
            config: super::with_folios((self.way.choose)(Config::default()), memory.folio)?,
            machine: self.machines.whole(memory.bytes, V::CLEARING, V::cpus(case))?,
            machines: &self.machines,
            other: Other::for_case(&memory)?,
            looked_up: None,
        };
        Ok(Box::new(ready))
    }
}

struct Ready<'a, V: Verb> {
    case: V::Case,
    touches: Vec<u32>,
    config: Config,
    machine: &'a Hosted,
    machines: &'a Machines,
    other: Other,
    /// Counts that are taken once, before the first warm-up.
    looked_up: Option<LookedUp>,
}

impl<V: Verb> Prepared for Ready<'_, V> {
    fn run(&mut self) -> Result<Sample, Skip> {
        if self.looked_up.is_none() {
            let found =
                LookedUp::of::<V>(&self.case, &self.touches, &self.config, self.machine, self.machines)?;
            self.looked_up = Some(found);
        }
        let work = |manager: &MemoryManager<'_, Bare>| {
            let subject = Subject::populated::<V>(&self.case, &self.touches, manager, self.machine, None)?;
            self.other.fill_caches();
            V::work(&self.case, subject)
        };
        // SAFETY: H3: no verb uses another machine, and threads that take part in one are CPUs of this machine
        // meanwhile.
        let sample = unsafe { super::with_bare_manager_as(self.machine, self.config, work) }?;
        Ok(self.looked_up.iter().fold(sample, |sample, found| found.add_to(sample)))
    }
}

/// Takes one write fault for each folio in the given order; returns the pages mapped.
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
