//! Linux and the library side by side: every call is made to both, and what both answer and show is compared.

use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;
use oracle::machine::Quire;
use oracle::ops::{At, HEAP, MapOp, Op, Step, To, What};
use oracle::space::{
    Backing, Kind, Map, PAGE, PROBE_OFFSETS, Placement, Prot, Remap, SpaceId, Vma, normalise,
};
use oracle::subject::{Actor, Subject};
use quire::error::{FaultError, MmError};

use crate::known::{Before, LeftOut, left_out};
use crate::lazy::Lazy;
use crate::subject::{Linux, USER_END};

/// Address spaces at a time.
const MOST_SPACES: usize = 4;
/// Pages that are loaded from after each call.
const PROBED: usize = 2;

/// Why a call or an access was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    Verb(MmError),
    Access(FaultError),
}

pub(crate) type Answer = Result<u64, Refused>;
type Outcome = Result<(), String>;

/// What was done.
#[derive(Clone, Default, Debug)]
pub(crate) struct Counts {
    /// Calls and accesses made to both.
    pub(crate) made: u64,
    /// Those that both refused.
    pub(crate) refused: u64,
    /// Mappings that Linux put elsewhere, which the library was told to follow.
    pub(crate) elsewhere: u64,
    /// Calls left out, by reason.
    pub(crate) left_out: BTreeMap<LeftOut, u64>,
}

/// Selects operations.
pub(crate) type Which = fn(&Op) -> bool;

/// What is wrong with the library's side.
#[derive(Clone, Copy)]
pub(crate) enum Bug {
    None,
    /// These calls are kept from the library, as if it had done nothing and said otherwise: what a broken verb would do.
    Lost(Which),
    /// These mappings get the lowest free address.
    Misplaced(Which),
}

/// Both, with the same address spaces.
pub(crate) struct Pair<'p> {
    linux: Linux,
    pub(crate) quire: Quire<'p>,
    cpus: usize,
    live: Vec<SpaceId>,
    /// The mappings of each address space as Linux has them, not merged.
    pub(crate) shown: Vec<Vec<Vma>>,
    returned: Vec<u64>,
    /// Pages that were stored to.
    stored: Vec<u64>,
    lazy: Lazy,
    /// Bytes of memory and swap.
    memory: u64,
    locks: bool,
    bug: Bug,
    rng: Rng,
    word: u64,
    pub(crate) counts: Counts,
}

impl<'p> Pair<'p> {
    /// Both with one empty address space (number 0) and the same files.
    pub(crate) fn new(linux: Linux, mut quire: Quire<'p>, cpus: usize, seed: u64) -> Result<Self, MmError> {
        let first = Actor { cpu: 0, space: 0 };
        let mut from = 0;
        for ours in linux.ranges().into_iter().chain(std::iter::once(USER_END..USER_END)) {
            if from > 0 {
                quire.mmap(first, &Map::anonymous(from, ours.start - from, Prot::None))?;
            }
            from = ours.end;
        }
        // Below it stands this program's own heap, to which a stack keeps its distance.
        let below = linux.heap() - PAGE;
        quire.mmap(first, &Map::anonymous(below, PAGE, Prot::Rw))?;
        Ok(Self {
            linux,
            quire,
            cpus,
            live: vec![0],
            shown: vec![Vec::new()],
            returned: Vec::new(),
            stored: Vec::new(),
            lazy: Lazy::default(),
            memory: memory_bytes(),
            locks: false,
            bug: Bug::None,
            rng: Rng::with_seed(seed),
            word: 0,
            counts: Counts::default(),
        })
    }

    /// Makes the library's side wrong.
    pub(crate) fn break_by(&mut self, bug: Bug) {
        self.bug = bug;
    }

    /// The addresses that are the tests'.
    pub(crate) fn ours(&self) -> Vec<Range<u64>> {
        self.linux.ranges()
    }

    /// Does all operations, then looks at everything, then ends every address space.
    ///
    /// # Errors
    /// The first difference, and the operation after which it showed.
    pub(crate) fn run(&mut self, steps: &[Step]) -> Outcome {
        self.locks = steps.iter().any(|step| match step.op {
            Op::Mmap(map) => map.locked,
            Op::Mlock(..) | Op::Mlockall(..) => true,
            _ => false,
        });
        for (n, step) in steps.iter().enumerate() {
            let actor = Actor {
                cpu: usize::from(step.cpu) % self.cpus,
                space: self.live[usize::from(step.space) % self.live.len()],
            };
            self.step(actor, &step.op)
                .map_err(|what| format!("after operation {n}, {:x?}: {what}", step.op))?;
            if n % 64 == 63 {
                self.quire.check(false)?;
            }
        }
        self.finish()
    }

    fn finish(&mut self) -> Outcome {
        for &space in &self.live.clone() {
            for page in self.stored.clone() {
                self.probe(Actor { cpu: 0, space }, page)?;
            }
        }
        self.quire.check(true)?;
        for &space in &self.live.clone() {
            self.linux.exit(Actor { cpu: 0, space });
            self.quire.exit(Actor { cpu: 0, space });
        }
        self.quire.violated().map_or(Ok(()), Err)
    }

    /// Gives the library's side back, for what is to be looked at when all is over.
    pub(crate) fn into_quire(self) -> Quire<'p> {
        self.quire
    }

    fn step(&mut self, actor: Actor, op: &Op) -> Outcome {
        let op = self.resolved(*op);
        match op {
            Op::Fork => self.fork(actor),
            Op::Exit => self.exit(actor),
            Op::Touch(at, pages) => {
                let start = at.resolve(&[]);
                (0..u64::from(pages).min(64)).try_for_each(|page| {
                    self.both(actor, &Op::Store(At::Absolute(start.wrapping_add(page * PAGE)), 0))
                })?;
                self.compare(actor)
            }
            _ => {
                self.both(actor, &op)?;
                self.compare(actor)
            }
        }
    }

    /// Makes a call to both.
    fn both(&mut self, actor: Actor, op: &Op) -> Outcome {
        if let Op::Access(_, Kind::Exec) = op {
            return Ok(());
        }
        let before = Before {
            vmas: &self.shown[actor.space],
            ours: &self.linux.ranges(),
            memory: self.memory,
            locks: self.locks,
        };
        if let Some(why) = left_out(op, &before) {
            *self.counts.left_out.entry(why).or_default() += 1;
            return Ok(());
        }
        self.word += 1;
        let want = obey(&mut self.linux, actor, op, self.word);
        let got = match self.bug {
            Bug::Lost(lost) if lost(op) => want,
            Bug::Misplaced(which) if which(op) => {
                let op = self.misplaced(actor, op);
                obey(&mut self.quire, actor, &op, self.word)
            }
            _ => obey(&mut self.quire, actor, op, self.word),
        };
        self.counts.made += 1;
        self.counts.refused += u64::from(want.is_err());
        if got != want && !self.follows(actor, op, want, got) && !self.is_lazy(actor, op, want, got) {
            return Err(format!("the library answers {got:x?}, Linux {want:x?}"));
        }
        self.note(actor, op, want);
        Ok(())
    }

    /// Whether one of the two has given up a page that both may.
    fn is_lazy(&self, actor: Actor, op: &Op, want: Answer, got: Answer) -> bool {
        let Op::Load(at, probe) = *op else { return false };
        let zero = want == Ok(0) || got == Ok(0);
        zero && want.is_ok() && got.is_ok() && self.lazy.may_differ(actor.space, at, probe)
    }

    /// Keeps what later calls refer to.
    fn note(&mut self, actor: Actor, op: &Op, answer: Answer) {
        let Ok(answer) = answer else { return };
        let heap_end = self.ours().last().map_or(0, |heap| heap.end);
        self.lazy.note(actor.space, op, answer, &self.stored, heap_end);
        match *op {
            Op::Mmap(MapOp { placement: Placement::Hint, .. }) | Op::Mremap(..) => self.returned.push(answer),
            Op::Store(at, _) => {
                let page = at.resolve(&[]) & !(PAGE - 1);
                if self.stored.len() >= 64 {
                    self.stored.swap_remove(self.rng.usize(..64));
                }
                self.stored.push(page);
            }
            _ => {}
        }
    }

    fn fork(&mut self, actor: Actor) -> Outcome {
        if self.live.len() >= MOST_SPACES {
            return Ok(());
        }
        let (want, got) = (self.linux.fork(actor), self.quire.fork(actor));
        if got != want {
            return Err(format!("the library answers {got:?}, Linux {want:?}"));
        }
        self.counts.made += 1;
        let child = self.shown.len();
        self.live.push(child);
        self.lazy.fork(actor.space, child);
        self.shown.push(Vec::new());
        self.compare(Actor { space: child, ..actor })
    }

    fn exit(&mut self, actor: Actor) -> Outcome {
        if self.live.len() > 1 {
            self.live.retain(|&space| space != actor.space);
            self.linux.exit(actor);
            self.quire.exit(actor);
            self.counts.made += 1;
        }
        Ok(())
    }

    /// Compares the mappings, and what some pages hold.
    fn compare(&mut self, actor: Actor) -> Outcome {
        let shown = self.linux.vmas(actor.space);
        let (want, got) = (comparable(&shown), self.library_shows(actor.space));
        self.shown[actor.space] = shown;
        if got != want {
            return Err(format!("mappings of space {} differ:\n{}", actor.space, differences(&got, &want)));
        }
        self.quire.violated().map_or(Ok(()), Err)?;
        for _ in 0..PROBED.min(self.stored.len()) {
            let (cpu, page) = (self.rng.usize(..self.cpus), self.stored[self.rng.usize(..self.stored.len())]);
            self.probe(Actor { cpu, ..actor }, page)?;
        }
        Ok(())
    }

    /// Loads from a page that is mapped.
    fn probe(&mut self, actor: Actor, page: u64) -> Outcome {
        if !self.shown[actor.space].iter().any(|vma| (vma.start..vma.end).contains(&page)) {
            return Ok(());
        }
        let probe = self.rng.usize(..PROBE_OFFSETS.len());
        self.both(actor, &Op::Load(At::Absolute(page), probe))
            .map_err(|what| format!("load from {:#x}: {what}", page + PROBE_OFFSETS[probe]))
    }

    fn library_shows(&mut self, space: SpaceId) -> Vec<Vma> {
        let ours = self.linux.ranges();
        let inside = |vma: &Vma| ours.iter().any(|range| vma.start < range.end && vma.end > range.start);
        let shown: Vec<Vma> = self.quire.vmas(space).into_iter().filter(inside).collect();
        comparable(&shown.iter().map(|vma| clipped(vma, &ours)).collect::<Vec<_>>())
    }

    /// The operation with the addresses that it means now.
    fn resolved(&self, mut op: Op) -> Op {
        let absolute = |at: &mut At| {
            let addr = at.resolve(&self.returned);
            let shift = if matches!(at, At::Heap(..)) { self.linux.heap().wrapping_sub(HEAP) } else { 0 };
            *at = At::Absolute(addr.wrapping_add(shift));
        };
        match &mut op {
            Op::Mmap(map) => absolute(&mut map.at),
            Op::Mremap(at, _, _, To::FixedTo(to) | To::FixedDontUnmap(to) | To::DontUnmap(to)) => {
                absolute(at);
                absolute(to);
            }
            Op::Munmap(at, _)
            | Op::Mprotect(at, ..)
            | Op::Mremap(at, ..)
            | Op::Madvise(at, ..)
            | Op::Brk(at)
            | Op::Mlock(at, ..)
            | Op::Munlock(at, _)
            | Op::Store(at, _)
            | Op::Load(at, _)
            | Op::Touch(at, _)
            | Op::Access(at, _)
            | Op::Collapse(at, ..) => absolute(at),
            Op::Mlockall(..)
            | Op::Munlockall
            | Op::Fork
            | Op::Exit
            | Op::Truncate(..)
            | Op::ClearAhead(_) => {}
        }
        op
    }
}

fn clipped(vma: &Vma, ours: &[Range<u64>]) -> Vma {
    let cut = ours.iter().find(|range| vma.start < range.end && vma.end > range.start);
    cut.map_or(*vma, |cut| Vma { start: vma.start.max(cut.start), end: vma.end.min(cut.end), ..*vma })
}

/// A list of mappings without what the two need not have in common: numbers of shared memory, and where they merged.
fn comparable(vmas: &[Vma]) -> Vec<Vma> {
    let mut vmas = vmas.to_vec();
    for vma in &mut vmas {
        if let Backing::Shared(number) = &mut vma.backing {
            *number = 0;
        }
    }
    normalise(vmas)
}

fn differences(got: &[Vma], want: &[Vma]) -> String {
    let line = |whose: &str, vma: &Vma| format!("  {whose} {:#x}..{:#x} {vma:?}\n", vma.start, vma.end);
    let extra = got.iter().filter(|vma| !want.contains(vma)).map(|vma| line("library", vma));
    let missing = want.iter().filter(|vma| !got.contains(vma)).map(|vma| line("Linux  ", vma));
    extra.chain(missing).collect()
}

/// Bytes of memory and swap, which Linux lets no single mapping exceed.
fn memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux");
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("is always there");
        line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
    };
    (kib("MemTotal:") + kib("SwapTotal:")) << 10
}

/// Does an operation, whose addresses are absolute, to one of the two.
fn obey<S: Subject>(subject: &mut S, actor: Actor, op: &Op, word: u64) -> Answer {
    let at = |at: At| at.resolve(&[]);
    let done = |result: Result<(), MmError>| result.map(|()| 0).map_err(Refused::Verb);
    let place = |at: At, probe: usize| (at.resolve(&[]) & !(PAGE - 1)).wrapping_add(PROBE_OFFSETS[probe]);
    match *op {
        Op::Mmap(map) => subject.mmap(actor, &map_of(&map)).map_err(Refused::Verb),
        Op::Munmap(addr, len) => done(subject.munmap(actor, at(addr), len)),
        Op::Mprotect(addr, len, prot) => done(subject.mprotect(actor, at(addr), len, prot)),
        Op::Mremap(addr, old, new, to) => {
            subject.mremap(actor, at(addr), old, new, remap_of(to)).map_err(Refused::Verb)
        }
        Op::Madvise(addr, len, advice) => done(subject.madvise(actor, at(addr), len, advice)),
        Op::Brk(addr) => Ok(subject.brk(actor, at(addr))),
        Op::Mlock(addr, len, on_fault) => done(subject.mlock(actor, at(addr), len, on_fault)),
        Op::Munlock(addr, len) => done(subject.munlock(actor, at(addr), len)),
        Op::Mlockall(current, future, on_fault) => done(subject.mlockall(actor, current, future, on_fault)),
        Op::Munlockall => done(subject.munlockall(actor)),
        Op::Truncate(file, bytes) => done(subject.truncate(actor, file, bytes)),
        Op::Store(addr, probe) => {
            subject.store(actor, place(addr, probe), word).map(|()| 0).map_err(Refused::Access)
        }
        Op::Load(addr, probe) => subject.load(actor, place(addr, probe)).map_err(Refused::Access),
        Op::Access(addr, kind) => subject.fault(actor, at(addr), kind).map(|()| 0).map_err(Refused::Access),
        Op::ClearAhead(pieces) => {
            subject.clear_ahead(actor, pieces);
            Ok(0)
        }
        Op::Collapse(addr, len, behind) => {
            subject.collapse(actor, at(addr), len, behind);
            Ok(0)
        }
        Op::Fork | Op::Exit | Op::Touch(..) => unreachable!("made up of others"),
    }
}

fn map_of(op: &MapOp) -> Map {
    let (file, shared) = match op.what {
        What::Anonymous => (None, false),
        What::SharedAnonymous => (None, true),
        What::File { file, page, shared } => (Some((file, page)), shared),
    };
    let MapOp { len, prot, placement, grows_down, populate, locked, .. } = *op;
    Map { addr: op.at.resolve(&[]), len, prot, placement, shared, file, grows_down, populate, locked }
}

fn remap_of(to: To) -> Remap {
    match to {
        To::InPlace => Remap::InPlace,
        To::MayMove => Remap::MayMove,
        To::DontUnmap(hint) => Remap::DontUnmap(hint.resolve(&[])),
        To::FixedTo(to) => Remap::Fixed(to.resolve(&[])),
        To::FixedDontUnmap(to) => Remap::FixedDontUnmap(to.resolve(&[])),
    }
}
