//! The running kernel's verbs.

#![allow(unsafe_code)]

use std::time::Instant;

use rustix::mm::{Advice, ProtFlags};

use super::life::{Life, half_of};
use super::{Aged, READ_ONLY, SPACES, TURN, Verb};
use crate::bench::arms::collapse::bring_in;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::bench::linux::census;
use crate::bench::linux::child::{Child, moment};
use crate::bench::linux::region::Region;
use crate::bench::memory::{Other, neighbours};
use crate::settings::{Places, Settings};

/// Regions start at a multiple of this, so that `mremap` may move whole tables.
const GIB: usize = 1 << 30;

/// The least difference of two times, in nanoseconds: those of little memory are within chance.
const LEAST: f64 = 1.0;

#[derive(Default)]
pub(super) struct Linux {
    settings: Option<Settings>,
    /// Other processes, for all cases of one size.
    between: Option<Between>,
}

impl Arm<Aged> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "the system call on one thread, with its reverse map, LRU and control group. Folio sizes are set in /sys while the \
         memory is populated. `exit` is that of a forked child whose parent has unmapped the memory, until waitpid \
         returns; `fork` is the C library's. The time of the same without the memory is subtracted from both."
    }

    fn setup(&mut self, case: &Aged) -> Result<Box<dyn Prepared + '_>, Skip> {
        let settings = match self.settings.take() {
            Some(settings) => settings,
            None => Settings::acquire(&Places::of_this_machine())?,
        };
        let settings = self.settings.insert(settings);
        settings.hold_khugepaged()?;
        settings.always(&[])?;
        let kept = self.between.take().filter(|between| between.bytes == case.other_bytes);
        self.between = Some(kept.map_or_else(|| Between::of(case), Ok)?);
        let (life, other) = (Life::of(case), Other::for_case(&case.memory())?);
        Ok(Box::new(Ready { case: *case, settings, life, other, in_sequence: None }))
    }
}

/// Other processes, which populated memory by single frames by turns and freed a random half of them in random order.
struct Between {
    bytes: usize,
    /// They hold the rest until they are dropped.
    processes: Vec<Child>,
}

impl Drop for Between {
    fn drop(&mut self) {
        // The last first: it has the parent's ends of the pipes of those before it, too.
        while self.processes.pop().is_some() {}
    }
}

impl Between {
    fn of(case: &Aged) -> Result<Self, Skip> {
        let mut between = Self { bytes: case.other_bytes, processes: Vec::new() };
        for space in 0..SPACES {
            between.processes.push(process(space, case.turns())?);
        }
        for _ in 0..2 * case.turns() {
            for process in &mut between.processes {
                process.tell()?;
                process.hear()?;
            }
        }
        Ok(between)
    }
}

/// One of them: when it is told, it writes to the pages of its next turn, and after all turns drops as many.
fn process(space: usize, turns: usize) -> Result<Child, Skip> {
    let (region, half) = (region(turns * TURN * PAGE)?, half_of(space, turns * TURN));
    let advised = region.advise(Advice::LinuxNoHugepage);
    advised.map_err(|error| Skip::because("madvise of the other memory", error))?;
    let write = |turn: usize| (turn * TURN..(turn + 1) * TURN).for_each(|page| region.touch(page));
    let dropped = |turn: usize| {
        let mut pages = half[turn * TURN / 2..(turn + 1) * TURN / 2].iter();
        pages.all(|page| region.advise_pages(*page as usize, 1, Advice::LinuxDontNeed).is_ok())
    };
    // SAFETY: C2: the child writes to memory of its own, calls madvise and uses its pipes.
    unsafe {
        Child::start(|line| {
            let written = (0..turns).all(|turn| {
                line.wait() && {
                    write(turn);
                    line.say(0)
                }
            });
            // The last wait ends when the parent closes the pipe.
            written && (0..turns).all(|turn| line.wait() && dropped(turn) && line.say(0)) && !line.wait()
        })
    }
}

fn region(bytes: usize) -> Result<Region, Skip> {
    Region::map_beyond(bytes, GIB, 0).map_err(|error| Skip::because("cannot map memory", error))
}

fn drop_page(region: &Region, page: usize) -> Result<(), Skip> {
    let dropped = region.advise_pages(page, 1, Advice::LinuxDontNeed);
    dropped.map_err(|error| Skip::because("MADV_DONTNEED of a page", error))
}

struct Ready<'a> {
    case: Aged,
    settings: &'a Settings,
    life: Life,
    other: Other,
    /// Pages whose frame follows that of the page before, once that was looked up.
    in_sequence: Option<u64>,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let region = self.lived()?;
        let found = match self.in_sequence {
            Some(found) => found,
            None => *self.in_sequence.insert(self.look_up(&region)?),
        };
        match self.case.verb {
            Verb::Collapse => self.bring_in()?,
            Verb::Fault => region
                .advise(Advice::LinuxDontNeed)
                .map_err(|error| Skip::because("MADV_DONTNEED of all pages", error))?,
            _ => {}
        }
        self.other.fill_caches();
        if self.case.verb != Verb::Fault && !self.life.looked_at().all(|page| region.is_marked(page)) {
            return Err(Skip("a page lacks what was written".to_owned()));
        }
        Ok(self.work(region)?.count("frames_in_sequence", found))
    }
}

impl Ready<'_> {
    /// Memory with its life behind it.
    fn lived(&self) -> Result<Region, Skip> {
        let (region, life) = (region(self.case.bytes)?, &self.life);
        for (folio, firsts) in &life.populated {
            let kib = folio.bytes() / 1024;
            self.settings.always(if folio.order > 0 { std::slice::from_ref(&kib) } else { &[] })?;
            let pages = 1 << folio.order;
            firsts
                .iter()
                .flat_map(|first| *first as usize..*first as usize + pages)
                .for_each(|page| region.touch(page));
        }
        for page in &life.dropped {
            drop_page(&region, *page as usize)?;
        }
        life.returned.iter().for_each(|page| region.touch(*page as usize));
        // SAFETY: C2: the child waits for a word on its pipe.
        let mut child = unsafe { Child::start(|line| line.wait()) }?;
        life.copied.iter().for_each(|page| region.touch(*page as usize));
        child.tell()?;
        child.end()?;
        Ok(region)
    }

    /// Checks which pages are there; how many have the frame that follows that of the page before.
    fn look_up(&self, region: &Region) -> Result<u64, Skip> {
        let frames = census::frames("self", region)?;
        let there = frames.iter().enumerate().filter_map(|(page, frame)| frame.map(|_| page));
        if !there.eq(self.life.mapped()) {
            return Err(Skip("other pages are mapped than should be".to_owned()));
        }
        Ok(neighbours(frames.into_iter().flatten()))
    }

    /// Calls the verb.
    fn work(&mut self, mut region: Region) -> Result<Sample, Skip> {
        let pages = self.life.pages();
        let start = Instant::now();
        let done = match self.case.verb {
            Verb::Unmap => region.unmap(),
            Verb::DontNeed => region.advise(Advice::LinuxDontNeed),
            Verb::Protect => return self.protect(&region),
            Verb::Exit => return self.exit(region),
            Verb::Fork => return self.fork(region),
            Verb::Move => return self.move_away(region),
            Verb::Collapse => return self.collapse(&region),
            Verb::Fault => {
                region.touch_all();
                Ok(())
            }
        };
        let time = start.elapsed().as_nanos() as f64;
        done.map_err(|error| Skip::because("the verb", error))?;
        if self.case.verb == Verb::Fault && region.marked() != region.pages() as u64 {
            return Err(Skip("a page lacks what was written".to_owned()));
        }
        Ok(Sample::new(time, pages))
    }

    /// The memory that a collapse takes, as the experiment `collapse-thp` brings it in.
    fn bring_in(&self) -> Result<(), Skip> {
        self.settings.always(&[2048])?;
        bring_in(self.case.bytes)?;
        Ok(self.settings.always(&[])?)
    }

    fn collapse(&self, region: &Region) -> Result<Sample, Skip> {
        let start = Instant::now();
        let done = region.collapse();
        let time = start.elapsed().as_nanos() as f64;
        done.map_err(|error| Skip::because("MADV_COLLAPSE", error))?;
        let (mapped, _) = census::pmd_mapped("self", region)?;
        if mapped != region.bytes() as u64 {
            return Err(Skip(format!(
                "{mapped} bytes are mapped by PMDs where {} should be",
                region.bytes()
            )));
        }
        if !self.life.mapped().all(|page| region.is_marked(page)) {
            return Err(Skip("the pages are not what they were".to_owned()));
        }
        Ok(Sample::new(time, self.life.pages()))
    }

    fn protect(&self, region: &Region) -> Result<Sample, Skip> {
        let call = |rights| {
            let start = Instant::now();
            let done = region.protect(rights);
            let time = start.elapsed().as_nanos() as f64;
            done.map(|()| time).map_err(|error| Skip::because("mprotect", error))
        };
        let read_only = call(ProtFlags::READ)?;
        let back = call(ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Sample::new(read_only + back, self.life.pages()).metric(READ_ONLY, read_only))
    }

    fn move_away(&self, mut region: Region) -> Result<Sample, Skip> {
        let mut target = self::region(self.case.bytes)?;
        let start = Instant::now();
        let done = region.move_to(&mut target);
        let time = start.elapsed().as_nanos() as f64;
        done.map_err(|error| Skip::because("mremap", error))?;
        if !self.life.mapped().all(|page| target.is_marked(page)) {
            return Err(Skip("the pages are not where they were moved to".to_owned()));
        }
        Ok(Sample::new(time, self.life.pages()))
    }

    /// A fork, less one without the memory.
    fn fork(&self, mut region: Region) -> Result<Sample, Skip> {
        let forked = || -> Result<f64, Skip> {
            // SAFETY: C2: the child does nothing.
            let mut child = unsafe { Child::start(|_| true) }?;
            child.end()?;
            Ok(child.forked)
        };
        let whole = forked()?;
        region.unmap().map_err(|error| Skip::because("munmap", error))?;
        Ok(Sample::new((whole - forked()?).max(LEAST), self.life.pages()))
    }

    /// The end of a process, less that of one without the memory.
    fn exit(&mut self, region: Region) -> Result<Sample, Skip> {
        let whole = self.exit_of(Some(region))?;
        let empty = self.exit_of(None)?;
        Ok(Sample::new((whole - empty).max(LEAST), self.life.pages()))
    }

    /// The end of a child that is alone with the memory, if there is any.
    fn exit_of(&mut self, mut region: Option<Region>) -> Result<f64, Skip> {
        let life = &self.life;
        let look = |region: &Region| life.looked_at().all(|page| region.is_marked(page));
        // SAFETY: C2: the child reads memory of its own, uses its pipes and reads the clock.
        let mut child = unsafe {
            Child::start(|line| {
                line.say(0) && line.wait() && region.as_ref().is_none_or(look) && line.say(moment())
            })
        }?;
        child.hear()?;
        let unmapped = region.as_mut().map_or(Ok(()), Region::unmap);
        unmapped.map_err(|error| Skip::because("munmap in the parent", error))?;
        self.other.fill_caches();
        child.tell()?;
        let end = child.end()?;
        let start = child.hear()?;
        Ok(end.saturating_sub(start) as f64)
    }
}
