//! Quire's verbs, on a hosted machine.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;

use hosted::{Bare, Hosted, HostedConfig, Translation};
use quire::addr::Order;
use quire::arch::Protection;
use quire::error::MmError;
use quire::manager::{Config, MemoryManager};
use quire::vm::{Access, Advice, FolioPolicy, MapRequest, Mm, Placement, Remap};

use super::life::{Life, half_of};
use super::{Aged, READ_ONLY, SPACES, TURN, Verb};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::memory::{Other, neighbours};
use crate::bench::ours::counted::Counted;
use crate::bench::ours::verbs::{DEFAULT, PER_PAGE, Way, ZAPS, at};
use crate::bench::ours::{self, START};

/// Memory beside the cases' own: page tables, marks, and what stays on lists.
const SLACK: u64 = 128 << 20;

/// Bytes by which memory moves up: a multiple of 1 GiB, beyond all that is mapped.
const DISTANCE: u64 = 64 << 30;

/// The library's default, and every entry by itself. They share a machine, so that both get the same frames.
pub(super) fn arms() -> Vec<Box<dyn Arm<Aged>>> {
    let machine = Kept::default();
    let chosen = ZAPS.iter().filter(|way| [DEFAULT.name, PER_PAGE].contains(&way.name));
    chosen
        .map(|way| -> Box<dyn Arm<Aged>> { Box::new(Ours { way: *way, machine: machine.clone() }) })
        .collect()
}

/// The machine of the last case, for all that need one of its kind.
type Kept = Rc<RefCell<Option<Rc<Hosted>>>>;

struct Ours {
    way: Way,
    machine: Kept,
}

impl Arm<Aged> for Ours {
    fn name(&self) -> &'static str {
        self.way.name
    }

    fn about(&self) -> &'static str {
        self.way.about.unwrap_or(
            "the call on a bare hosted machine: no trap, no system call, no LRU, no control group. Frames are cleared and \
             copied in `collapse` and `fault` only; else the memory is populated without touching it.",
        )
    }

    fn setup(&mut self, case: &Aged) -> Result<Box<dyn Prepared + '_>, Skip> {
        if self.way.name == PER_PAGE && !case.verb.unmaps() {
            return Err(Skip("as `quire`: nothing is unmapped".to_owned()));
        }
        let mut kept = self.machine.borrow_mut();
        let fits = |machine: &Rc<Hosted>| machine.config().clearing == case.verb.writes();
        // Drops a machine of the other kind before building one.
        let machine = match kept.take().filter(fits) {
            Some(machine) => machine,
            None => Rc::new(machine(case)?),
        };
        *kept = Some(machine.clone());
        let config = (self.way.choose)(Config { folios: FolioPolicy::FRAMES, ..Config::default() });
        let (life, other) = (Life::of(case), Other::for_case(&case.memory())?);
        Ok(Box::new(Ready {
            case: *case,
            machine,
            config,
            life,
            other,
            in_sequence: None,
            other_in_sequence: None,
        }))
    }
}

/// A machine for the case's memory twice and the other memory.
fn machine(case: &Aged) -> Result<Hosted, Skip> {
    let bytes = (2 * case.bytes + case.other_bytes) as u64 + SLACK;
    let machine = HostedConfig { clearing: case.verb.writes(), ..HostedConfig::bench(bytes) };
    let machine = machine.build().map_err(|error| Skip(error.to_string()))?;
    ours::keep_from_children(&machine)?;
    Ok(machine)
}

struct Ready {
    case: Aged,
    machine: Rc<Hosted>,
    config: Config,
    life: Life,
    other: Other,
    /// Pages whose frame follows that of the page before, once that was looked up.
    in_sequence: Option<u64>,
    /// The same of one of the other address spaces, before it freed any.
    other_in_sequence: Option<u64>,
}

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        let machine = self.machine.clone();
        // SAFETY: H3: no other machine is used, and no other thread.
        unsafe { ours::with_bare_manager_as(&machine, self.config, |manager| self.on(manager)) }
    }
}

impl Ready {
    fn on(&mut self, manager: &MemoryManager<'_, Bare>) -> Result<Sample, Skip> {
        let between = self.between(manager)?;
        let mm = self.lived(manager)?;
        let found = match self.in_sequence {
            Some(found) => found,
            None => *self.in_sequence.insert(self.look_up(&mm)?),
        };
        if self.case.verb == Verb::Fault {
            let dropped = mm.madvise(START, self.case.bytes as u64, Advice::DontNeed);
            dropped.map_err(|error| Skip::because("madvise of all pages", error))?;
        }
        self.other.fill_caches();
        let looked = self.life.looked_at().filter(|page| self.probe(&mm, *page)).count();
        if self.case.verb != Verb::Fault && looked != self.life.looked_at().count() {
            return Err(Skip("a page that was looked at is not there".to_owned()));
        }
        let counted = Counted::start(manager, &self.machine, None);
        let sample = self.work(mm, &counted)?;
        drop(between);
        let sample = sample.count("frames_in_sequence", found);
        Ok(sample.count("other_in_sequence", self.other_in_sequence.unwrap_or(0)))
    }

    /// An address space with its life behind it.
    fn lived<'m>(&self, manager: &'m MemoryManager<'_, Bare>) -> Result<Mm<'m, Bare>, Skip> {
        let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
        mm.switch_in();
        ours::map(&mm, self.case.bytes)?;
        let life = &self.life;
        for (folio, firsts) in &life.populated {
            let order = Order::new(folio.order).unwrap_or(Order::FRAME);
            manager.set_folio_policy(FolioPolicy::only(order));
            write(&mm, firsts)?;
        }
        manager.set_folio_policy(FolioPolicy::FRAMES);
        drop_pages(&mm, &life.dropped)?;
        write(&mm, &life.returned)?;
        let child = mm.fork().map_err(|error| Skip::because("fork", error))?;
        write(&mm, &life.copied)?;
        child.exit();
        match mm.rss().anon {
            mapped if mapped == life.pages() => Ok(mm),
            mapped => Err(Skip(format!("{mapped} pages are mapped where {} should be", life.pages()))),
        }
    }

    fn probe(&self, mm: &Mm<'_, Bare>, page: usize) -> bool {
        self.machine.probe(mm.root(), at(page * PAGE)).is_some()
    }

    /// Pages whose frame follows that of the page before.
    fn look_up(&self, mm: &Mm<'_, Bare>) -> Result<u64, Skip> {
        let leaves = self.machine.leaves(mm.root());
        if leaves.iter().map(|leaf| leaf.frames).sum::<u64>() != self.life.pages() {
            return Err(Skip("other pages are mapped than should be".to_owned()));
        }
        Ok(in_sequence(&leaves))
    }

    /// Other address spaces, populated by single frames by turns. A random half of the frames was freed in random order.
    fn between<'m>(&mut self, manager: &'m MemoryManager<'_, Bare>) -> Result<Vec<Mm<'m, Bare>>, Skip> {
        let pages = self.case.turns() * TURN;
        let space = |_| {
            let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
            mm.switch_in();
            ours::map(&mm, pages * PAGE)?;
            mm.switch_out();
            Ok::<_, Skip>(mm)
        };
        let spaces = (0..SPACES).map(space).collect::<Result<Vec<_>, _>>()?;
        let halves: Vec<Vec<u32>> = (0..SPACES).map(|space| half_of(space, pages)).collect();
        for first in (0..pages as u32).step_by(TURN) {
            for mm in &spaces {
                mm.switch_in();
                write(mm, &(first..first + TURN as u32).collect::<Vec<_>>())?;
                mm.switch_out();
            }
        }
        let found = || in_sequence(&self.machine.leaves(spaces[0].root()));
        self.other_in_sequence = Some(self.other_in_sequence.unwrap_or_else(found));
        for turn in 0..self.case.turns() {
            for (mm, half) in spaces.iter().zip(&halves) {
                mm.switch_in();
                drop_pages(mm, &half[turn * TURN / 2..(turn + 1) * TURN / 2])?;
                mm.switch_out();
            }
        }
        Ok(spaces)
    }

    /// Calls the verb, and checks what is mapped then.
    fn work(&self, mm: Mm<'_, Bare>, counted: &Counted<'_, '_, Bare>) -> Result<Sample, Skip> {
        let (pages, bytes) = (self.life.pages(), self.case.bytes as u64);
        let (time, read_only) = match self.case.verb {
            Verb::Unmap => (timed(counted, || mm.munmap(START, bytes))?, None),
            Verb::DontNeed => (timed(counted, || mm.madvise(START, bytes, Advice::DontNeed))?, None),
            Verb::Exit => {
                let ((), time) = counted.timed(|| mm.exit())?;
                return Ok(counted.sample(time, pages));
            }
            Verb::Fork => {
                let (child, time) = counted.timed(|| mm.fork())?;
                child.map_err(|error| Skip::because("fork", error))?.exit();
                (time, None)
            }
            Verb::Protect => {
                let read_only = timed(counted, || mm.mprotect(START, bytes, Protection::READ))?;
                let both = Protection::READ | Protection::WRITE;
                (read_only + timed(counted, || mm.mprotect(START, bytes, both))?, Some(read_only))
            }
            Verb::Move => (self.move_up(&mm, counted)?, None),
            Verb::Collapse => (self.collapse(&mm, counted)?, None),
            Verb::Fault => {
                let all: Vec<u32> = (0..self.case.pages() as u32).collect();
                let (done, time) = counted.timed(|| write(&mm, &all))?;
                done?;
                (time, None)
            }
        };
        let left = match self.case.verb {
            verb if verb.unmaps() => 0,
            verb if verb.writes() => self.case.pages() as u64,
            _ => pages,
        };
        if mm.rss().anon != left {
            return Err(Skip(format!("{} pages are left where {left} should be", mm.rss().anon)));
        }
        let sample = counted.sample(time, pages);
        Ok(read_only.into_iter().fold(sample, |sample, time| sample.metric(READ_ONLY, time)))
    }

    /// Blocks that have their leaf already stay as they are.
    fn collapse(&self, mm: &Mm<'_, Bare>, counted: &Counted<'_, '_, Bare>) -> Result<f64, Skip> {
        let (report, time) = counted.timed(|| mm.collapse(START, self.case.bytes as u64))?;
        let report = report.map_err(|error| Skip::because("collapse", error))?;
        let leaves = self.machine.leaves(mm.root());
        if leaves.iter().any(|leaf| leaf.frames < Order::BLOCK.frames()) {
            return Err(Skip(format!("some memory was not collapsed: {report:?}")));
        }
        Ok(time)
    }

    fn move_up(&self, mm: &Mm<'_, Bare>, counted: &Counted<'_, '_, Bare>) -> Result<f64, Skip> {
        let (bytes, to) = (self.case.bytes as u64, START.add(DISTANCE));
        let place = MapRequest {
            addr: to,
            len: bytes,
            prot: Protection::NONE,
            placement: Placement::Fixed,
            ..MapRequest::default()
        };
        mm.mmap(&place).map_err(|error| Skip::because("mmap of the place to move to", error))?;
        timed(counted, || mm.mremap(START, bytes, bytes, Remap::Fixed(to)))
    }
}

/// The nanoseconds of a call.
fn timed<T>(counted: &Counted<'_, '_, Bare>, call: impl FnOnce() -> Result<T, MmError>) -> Result<f64, Skip> {
    let (done, time) = counted.timed(call)?;
    done.map(|_| time).map_err(|error| Skip::because("the verb", error))
}

/// Pages whose frame follows that of the page before.
fn in_sequence(leaves: &[Translation]) -> u64 {
    neighbours(leaves.iter().flat_map(|leaf| leaf.frame.0..leaf.frame.0 + leaf.frames))
}

/// A write fault in each of these pages.
fn write(mm: &Mm<'_, Bare>, pages: &[u32]) -> Result<(), Skip> {
    pages.iter().try_for_each(|page| {
        let fault = mm.fault(at(*page as usize * PAGE), Access::Write);
        fault.map(drop).map_err(|error| Skip::because("a fault", error))
    })
}

fn drop_pages(mm: &Mm<'_, Bare>, pages: &[u32]) -> Result<(), Skip> {
    pages.iter().try_for_each(|page| {
        let dropped = mm.madvise(at(*page as usize * PAGE), PAGE as u64, Advice::DontNeed);
        dropped.map_err(|error| Skip::because("madvise of a page", error))
    })
}
