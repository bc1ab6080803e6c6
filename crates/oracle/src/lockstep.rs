//! Steps a [`Subject`] and the model together; results and observable state are compared after each operation.

mod compare;
mod partial;
mod run;
mod shrink;
mod tally;
mod touched;

pub use run::{
    Report, budget, check_list, check_seed, check_steps, given_seed, in_time, long, seeds, within,
};
pub use shrink::shrink;
pub use tally::{Answer, Tally};
use touched::Extent;

use fastrand::Rng;
use quire::error::MmError;

use crate::ops::{At, HEAP, MapOp, Op, Step, To, What};
use crate::space::{Advice, Family, Kind, Map, PAGE, PROBE_OFFSETS, Place, Remap, Rules, SpaceId};
use crate::subject::{Actor, Subject};

/// The most live address spaces: `fork` is skipped beyond them.
const MOST_SPACES: usize = 6;

/// The depth of the comparison after an operation. Its answer is always compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// The mappings and counts of the whole address space and words of two of its pages; the subject's invariants now and
    /// then.
    All,
    /// The mappings of the address space, and the contents of the pages that the operation touched. All
    /// mappings and contents of every address space after every so many operations, and the subject's
    /// invariants at the end.
    Touched {
        /// Everything is compared after this many operations.
        all_every: usize,
    },
}

/// A difference of a subject from the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// The operation after which it was found; the number of operations for the checks at the end.
    pub step: usize,
    /// The difference.
    pub what: String,
}

/// A model and a subject, stepped together.
pub struct Lockstep<S> {
    /// The model.
    pub model: Family,
    /// The subject.
    pub subject: S,
    cpus: usize,
    returned: Vec<u64>,
    rng: Rng,
    word: u64,
    depth: Depth,
    /// The operations so far.
    pub tally: Tally,
    /// The answer to the current operation.
    answer: Answer,
}

type Outcome = Result<(), String>;

impl<S: Subject> Lockstep<S> {
    /// Model and subject with one empty address space (number 0) and these files. The subject has both already.
    pub fn new(subject: S, rules: Rules, cpus: usize, files: &[(u64, u64)], seed: u64) -> Self {
        let mut model = Family::new(rules);
        files.iter().for_each(|&(file, bytes)| model.set_file(file, bytes));
        let first = model.create();
        model.set_brk_start(first, HEAP);
        Self {
            model,
            subject,
            cpus,
            returned: Vec::new(),
            rng: Rng::with_seed(seed),
            word: 1,
            depth: Depth::All,
            tally: Tally::default(),
            answer: Answer::Done,
        }
    }

    /// The same lockstep that compares as much as this after each operation.
    #[must_use]
    pub fn comparing(self, depth: Depth) -> Self {
        Self { depth, ..self }
    }

    /// Does all operations, then compares everything, then exits every address space.
    ///
    /// # Errors
    /// The first [`Divergence`].
    pub fn run(&mut self, steps: &[Step]) -> Result<(), Divergence> {
        for (n, step) in steps.iter().enumerate() {
            let done = match self.depth {
                Depth::All => self.step_and_compare_all(n, step),
                Depth::Touched { all_every } => self.step_and_compare_touched(n, step, all_every),
            };
            done.map_err(|what| Divergence { step: n, what })?;
        }
        self.finish().map_err(|what| Divergence { step: steps.len(), what })
    }

    fn step_and_compare_all(&mut self, n: usize, step: &Step) -> Outcome {
        let actor = self.actor(step);
        self.step(actor, &step.op)?;
        self.unviolated()?;
        if self.model.is_live(actor.space) {
            self.compare_space(actor.space)?;
            self.probe_some(actor)?;
        }
        if n % 32 == 31 { self.subject.check(n % 128 == 127) } else { Ok(()) }
    }

    fn finish(&mut self) -> Outcome {
        for space in self.model.live().collect::<Vec<_>>() {
            self.compare_space(space)?;
            self.compare_pages(space, Extent::ALL)?;
            self.probe_all(space)?;
        }
        self.subject.check(true)?;
        for space in self.model.live().collect::<Vec<_>>() {
            self.model.exit(space);
            self.subject.exit(Actor { cpu: space % self.cpus, space });
        }
        self.unviolated().and_then(|()| self.subject.check(true))
    }

    fn unviolated(&mut self) -> Outcome {
        self.subject.violated().map_or(Ok(()), Err)
    }

    fn actor(&self, step: &Step) -> Actor {
        let nth = usize::from(step.space) % self.model.live().count();
        let space = self.model.live().nth(nth).expect("one address space is always left");
        Actor { cpu: usize::from(step.cpu) % self.cpus, space }
    }

    fn at(&self, at: At) -> u64 {
        at.resolve(&self.returned)
    }

    fn step(&mut self, actor: Actor, op: &Op) -> Outcome {
        self.answer = Answer::Done;
        self.act(actor, op)?;
        self.tally.note(op, self.answer);
        Ok(())
    }

    fn act(&mut self, actor: Actor, op: &Op) -> Outcome {
        let id = actor.space;
        match *op {
            Op::Mmap(map) => self.mmap(actor, &map),
            Op::Mremap(at, old, new, to) => self.mremap(actor, at, old, new, to),
            Op::Munmap(at, len) => {
                let addr = self.at(at);
                self.verb(actor, |m| m.munmap(id, addr, len), |s| s.munmap(actor, addr, len))
            }
            Op::Mprotect(at, len, prot) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.mprotect(id, addr, end - addr, prot);
                let got = self.subject.mprotect(actor, addr, len, prot);
                self.in_parts(id, (addr, len), got, |m| m.mprotect(id, addr, len, prot), part)
            }
            Op::Madvise(at, len, advice) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.madvise(id, addr, end - addr, advice);
                let got = self.subject.madvise(actor, addr, len, advice);
                if matches!(advice, Advice::PopulateRead | Advice::PopulateWrite) {
                    return self.in_advance(got, |m| m.madvise(id, addr, len, advice));
                }
                self.in_parts(id, (addr, len), got, |m| m.madvise(id, addr, len, advice), part)
            }
            Op::Mlock(at, len, on_fault) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.mlock(id, addr, end - addr, on_fault);
                let got = self.subject.mlock(actor, addr, len, on_fault);
                self.in_parts(id, (addr, len), got, |m| m.mlock(id, addr, len, on_fault), part)
            }
            Op::Munlock(at, len) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.munlock(id, addr, end - addr);
                let got = self.subject.munlock(actor, addr, len);
                self.in_parts(id, (addr, len), got, |m| m.munlock(id, addr, len), part)
            }
            Op::Mlockall(current, future, on_fault) => self.verb(
                actor,
                |m| m.mlockall(id, current, future, on_fault),
                |s| s.mlockall(actor, current, future, on_fault),
            ),
            Op::Munlockall => self.munlockall(actor),
            Op::Brk(at) => self.brk(actor, self.at(at)),
            Op::Fork => self.fork(actor),
            Op::Exit => self.exit(actor),
            Op::Store(at, probe) => self.store(actor, self.at(at), probe),
            Op::Load(at, probe) => self.load(actor, self.at(at), probe),
            Op::Touch(at, pages) => {
                let addr = self.at(at);
                (0..u64::from(pages))
                    .try_for_each(|page| self.store(actor, addr.wrapping_add(page * PAGE), 0))
            }
            Op::Access(at, kind) => self.access(actor, self.at(at), kind),
            Op::ClearAhead(pieces) => self.clear_ahead(actor, pieces),
            Op::Collapse(at, len, behind) => self.collapse(actor, self.at(at), len, behind),
            Op::Truncate(file, bytes) => self.verb(
                actor,
                |m| {
                    m.truncate(file, bytes);
                    Ok(())
                },
                |s| s.truncate(actor, file, bytes),
            ),
        }
    }

    fn munlockall(&mut self, actor: Actor) -> Outcome {
        let model = |m: &mut Family| {
            m.munlockall(actor.space);
            Ok(())
        };
        self.verb(actor, model, |s| s.munlockall(actor))
    }

    /// Clearing ahead changes nothing that the model knows.
    fn clear_ahead(&mut self, actor: Actor, pieces: u16) -> Outcome {
        self.subject.clear_ahead(actor, pieces);
        Ok(())
    }

    /// The model does not know frames either.
    fn collapse(&mut self, actor: Actor, addr: u64, len: u64, behind: bool) -> Outcome {
        self.subject.collapse(actor, addr, len, behind);
        Ok(())
    }

    /// A verb that succeeds as a whole or changes nothing.
    fn verb(
        &mut self,
        _actor: Actor,
        model: impl FnOnce(&mut Family) -> Result<(), MmError>,
        subject: impl FnOnce(&mut S) -> Result<(), MmError>,
    ) -> Outcome {
        let got = subject(&mut self.subject);
        if self.lacked_memory(got) {
            return Ok(());
        }
        let want = model(&mut self.model);
        if got == want { Ok(()) } else { Err(format!("answer {got:?}, want {want:?}")) }
    }

    /// Whether the subject ran out of memory, where it may.
    fn lacked_memory<T>(&mut self, got: Result<T, MmError>) -> bool {
        got.as_ref().err().into_iter().for_each(|&error| self.answer = Answer::Failed(error));
        matches!(got, Err(MmError::NoMemory | MmError::Again)) && self.subject.may_lack_memory()
    }

    fn mmap(&mut self, actor: Actor, op: &MapOp) -> Outcome {
        let (file, shared) = match op.what {
            What::Anonymous => (None, false),
            What::SharedAnonymous => (None, true),
            What::File { file, page, shared } => (Some((file, page)), shared),
        };
        let MapOp { len, prot, placement, grows_down, populate, locked, .. } = *op;
        let addr = self.at(op.at);
        let map = Map { addr, len, prot, placement, shared, file, grows_down, populate, locked };
        let want = self.model.place(actor.space, &map);
        let got = self.subject.mmap(actor, &map);
        self.placed(actor.space, want, got, len)?.map_or(Ok(()), |addr| {
            self.model.map_at(actor.space, &map, addr);
            Ok(())
        })
    }

    fn mremap(&mut self, actor: Actor, at: At, old: u64, new: u64, to: To) -> Outcome {
        let addr = self.at(at);
        let to = match to {
            To::InPlace => Remap::InPlace,
            To::MayMove => Remap::MayMove,
            To::DontUnmap(hint) => Remap::DontUnmap(self.at(hint)),
            To::FixedTo(at) => Remap::Fixed(self.at(at)),
            To::FixedDontUnmap(at) => Remap::FixedDontUnmap(self.at(at)),
        };
        if old.wrapping_add(PAGE - 1) < PAGE && to.target() == Some(addr) {
            // A second mapping over the first: Linux unmaps the first, looks for it and fails. Not worth
            // imitating.
            return Ok(());
        }
        let want = self.model.place_remap(actor.space, addr, old, new, to);
        let got = self.subject.mremap(actor, addr, old, new, to);
        if got == Err(MmError::Fault) && want.is_ok() && self.keeps_edge_inside(actor.space, addr, old) {
            return Ok(());
        }
        if want.is_ok() && self.lacked_memory(got) {
            return self.remap_in_parts(actor.space, addr, old, new, to);
        }
        self.placed(actor.space, want, got, new)?.map_or(Ok(()), |dest| {
            self.model.remap_at(actor.space, addr, old, new, to, dest);
            Ok(())
        })
    }

    /// Whether the subject may have two mappings in a range that are one for the model.
    fn keeps_edge_inside(&self, id: SpaceId, addr: u64, len: u64) -> bool {
        self.subject.keeps_edges() && self.model.space(id).has_edge_inside(addr, addr.saturating_add(len))
    }

    /// Compares the place of a mapping with the required one; returns the address, if it was made.
    fn placed(
        &mut self,
        id: SpaceId,
        want: Result<Place, MmError>,
        got: Result<u64, MmError>,
        len: u64,
    ) -> Result<Option<u64>, String> {
        let lacked = self.lacked_memory(got);
        match (want, got) {
            (Ok(Place::At(at)), Ok(addr)) if at == addr => {}
            (Ok(Place::Anywhere), Ok(addr)) => {
                if !self.model.is_legal(id, addr, len) {
                    return Err(format!("placed at {addr:#x}, where it may not be"));
                }
            }
            (Err(want), Err(got)) if want == got => return Ok(None),
            (Ok(Place::Anywhere), Err(MmError::NoMemory)) if !self.model.has_room(id, len) => {
                return Ok(None);
            }
            _ if lacked => return Ok(None),
            _ => return Err(format!("answer {got:x?}, want {want:x?}")),
        }
        self.returned.extend(got);
        Ok(got.ok())
    }

    fn brk(&mut self, actor: Actor, addr: u64) -> Outcome {
        let got = self.subject.brk(actor, addr);
        if got == self.model.space(actor.space).brk_end() && self.subject.may_lack_memory() {
            return Ok(());
        }
        let want = self.model.brk(actor.space, addr);
        if got == want { Ok(()) } else { Err(format!("answer {got:#x}, want {want:#x}")) }
    }

    fn fork(&mut self, actor: Actor) -> Outcome {
        if self.model.live().count() >= MOST_SPACES {
            return Ok(());
        }
        match self.subject.fork(actor) {
            Ok(()) if !self.subject.keeps_children() => Ok(()),
            Ok(()) => {
                let child = self.model.fork(actor.space);
                self.compare_space(child)
            }
            Err(error) if self.lacked_memory::<()>(Err(error)) => Ok(()),
            Err(error) => Err(format!("fork: {error:?}")),
        }
    }

    fn exit(&mut self, actor: Actor) -> Outcome {
        if self.model.live().count() > 1 {
            self.model.exit(actor.space);
            self.subject.exit(actor);
        }
        Ok(())
    }

    fn store(&mut self, actor: Actor, addr: u64, probe: usize) -> Outcome {
        let at = (addr & !(PAGE - 1)).wrapping_add(PROBE_OFFSETS[probe]);
        self.word += 1;
        let word = self.word;
        let got = self.subject.store(actor, at, word);
        if self.out_of_memory(actor.space, addr, got) {
            return Ok(());
        }
        let want = self.model.write(actor.space, at, probe, word);
        self.same_fault(got, want).map_err(|what| format!("store to {at:#x}: {what}"))
    }

    pub(crate) fn load(&mut self, actor: Actor, addr: u64, probe: usize) -> Outcome {
        let at = (addr & !(PAGE - 1)).wrapping_add(PROBE_OFFSETS[probe]);
        let got = self.subject.load(actor, at);
        if self.out_of_memory(actor.space, addr, got) {
            return Ok(());
        }
        let want = self.model.read(actor.space, at, probe);
        match (got, want) {
            (Ok(word), Ok(seen)) if seen.allows(word) => {
                self.model.saw(actor.space, at, probe, word);
                Ok(())
            }
            (Ok(word), Ok(seen)) => Err(format!(
                "load on CPU {} from {at:#x} of space {}: {word:#x}, want {seen:x?}",
                actor.cpu, actor.space
            )),
            _ => self
                .same_fault(got.map(drop), want.map(drop))
                .map_err(|what| format!("load from {at:#x}: {what}")),
        }
    }

    fn access(&mut self, actor: Actor, addr: u64, kind: Kind) -> Outcome {
        let got = self.subject.fault(actor, addr, kind);
        if self.out_of_memory(actor.space, addr, got) {
            return Ok(());
        }
        let want = self.model.fault(actor.space, addr, kind);
        self.same_fault(got, want).map_err(|what| format!("{kind:?} fault at {addr:#x}: {what}"))
    }
}
