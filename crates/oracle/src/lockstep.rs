//! Steps a [`Subject`] and the model together; results and observable state are compared after each operation.

mod compare;
mod partial;
mod run;
mod shrink;
mod tally;
mod touched;

pub use run::{Report, budget, check_list, check_seed, check_steps, in_time, long, seeds, within};
pub use shrink::shrink;
pub use tally::{Answer, Tally};
use touched::Extent;

use fastrand::Rng;
use quire::error::MmError;

use crate::ops::{At, HEAP, MapOp, Op, Step, To, What};
use crate::space::{Advice, Family, Kind, Map, PAGE, PROBE_OFFSETS, Place, Remap, Rules, SpaceId};
use crate::subject::{Subject, Who};

/// Live address spaces beyond which `fork` is not done.
const MOST_SPACES: usize = 6;

/// How much is compared after an operation. Its answer always is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// The mappings and counts of the whole address space and words of two of its pages; the subject's invariants now and
    /// then.
    All,
    /// The mappings of the address space, and what the pages hold that the operation worked on; everything that every address
    /// space maps and holds after every so many operations, and the subject's invariants at the end.
    Touched {
        /// After how many operations everything is compared.
        all_every: usize,
    },
}

/// How a subject differed from the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// The operation after which it showed; the number of operations for the checks at the end.
    pub step: usize,
    /// What differed.
    pub what: String,
}

/// Model and subject, and what connects them.
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
    /// What was done so far.
    pub tally: Tally,
    /// What the operation under way was answered.
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
        let who = self.who(step);
        self.step(who, &step.op)?;
        self.unviolated()?;
        if self.model.is_live(who.space) {
            self.compare_space(who.space)?;
            self.probe_some(who)?;
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
            self.subject.exit(Who { cpu: space % self.cpus, space });
        }
        self.unviolated().and_then(|()| self.subject.check(true))
    }

    fn unviolated(&mut self) -> Outcome {
        self.subject.violated().map_or(Ok(()), Err)
    }

    fn who(&self, step: &Step) -> Who {
        let nth = usize::from(step.space) % self.model.live().count();
        let space = self.model.live().nth(nth).expect("one address space is always left");
        Who { cpu: usize::from(step.cpu) % self.cpus, space }
    }

    fn at(&self, at: At) -> u64 {
        at.resolve(&self.returned)
    }

    fn step(&mut self, who: Who, op: &Op) -> Outcome {
        self.answer = Answer::Done;
        self.act(who, op)?;
        self.tally.note(op, self.answer);
        Ok(())
    }

    fn act(&mut self, who: Who, op: &Op) -> Outcome {
        let id = who.space;
        match *op {
            Op::Mmap(map) => self.mmap(who, &map),
            Op::Mremap(at, old, new, to) => self.mremap(who, at, old, new, to),
            Op::Munmap(at, len) => {
                let addr = self.at(at);
                self.verb(who, |m| m.munmap(id, addr, len), |s| s.munmap(who, addr, len))
            }
            Op::Mprotect(at, len, prot) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.mprotect(id, addr, end - addr, prot);
                let got = self.subject.mprotect(who, addr, len, prot);
                self.in_parts(id, (addr, len), got, |m| m.mprotect(id, addr, len, prot), part)
            }
            Op::Madvise(at, len, advice) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.madvise(id, addr, end - addr, advice);
                let got = self.subject.madvise(who, addr, len, advice);
                if matches!(advice, Advice::PopulateRead | Advice::PopulateWrite) {
                    return self.in_advance(got, |m| m.madvise(id, addr, len, advice));
                }
                self.in_parts(id, (addr, len), got, |m| m.madvise(id, addr, len, advice), part)
            }
            Op::Mlock(at, len, on_fault) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.mlock(id, addr, end - addr, on_fault);
                let got = self.subject.mlock(who, addr, len, on_fault);
                self.in_parts(id, (addr, len), got, |m| m.mlock(id, addr, len, on_fault), part)
            }
            Op::Munlock(at, len) => {
                let addr = self.at(at);
                let part = |m: &mut Family, end| m.munlock(id, addr, end - addr);
                let got = self.subject.munlock(who, addr, len);
                self.in_parts(id, (addr, len), got, |m| m.munlock(id, addr, len), part)
            }
            Op::Mlockall(current, future, on_fault) => self.verb(
                who,
                |m| m.mlockall(id, current, future, on_fault),
                |s| s.mlockall(who, current, future, on_fault),
            ),
            Op::Munlockall => self.munlockall(who),
            Op::Brk(at) => self.brk(who, self.at(at)),
            Op::Fork => self.fork(who),
            Op::Exit => self.exit(who),
            Op::Store(at, probe) => self.store(who, self.at(at), probe),
            Op::Load(at, probe) => self.load(who, self.at(at), probe),
            Op::Touch(at, pages) => {
                let addr = self.at(at);
                (0..u64::from(pages)).try_for_each(|page| self.store(who, addr.wrapping_add(page * PAGE), 0))
            }
            Op::Access(at, kind) => self.access(who, self.at(at), kind),
            Op::ClearAhead(pieces) => self.clear_ahead(who, pieces),
            Op::Collapse(at, len, behind) => self.collapse(who, self.at(at), len, behind),
            Op::Truncate(file, bytes) => self.verb(
                who,
                |m| {
                    m.truncate(file, bytes);
                    Ok(())
                },
                |s| s.truncate(who, file, bytes),
            ),
        }
    }

    fn munlockall(&mut self, who: Who) -> Outcome {
        let model = |m: &mut Family| {
            m.munlockall(who.space);
            Ok(())
        };
        self.verb(who, model, |s| s.munlockall(who))
    }

    /// What is done before anybody asks for it changes nothing that the model knows.
    fn clear_ahead(&mut self, who: Who, pieces: u16) -> Outcome {
        self.subject.clear_ahead(who, pieces);
        Ok(())
    }

    /// What stands in which frames is not the model's business either.
    fn collapse(&mut self, who: Who, addr: u64, len: u64, behind: bool) -> Outcome {
        self.subject.collapse(who, addr, len, behind);
        Ok(())
    }

    /// A verb that is done wholly or not at all.
    fn verb(
        &mut self,
        _who: Who,
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

    /// Whether the subject failed for want of memory, where it may.
    fn lacked_memory<T>(&mut self, got: Result<T, MmError>) -> bool {
        got.as_ref().err().into_iter().for_each(|&error| self.answer = Answer::Failed(error));
        matches!(got, Err(MmError::NoMemory | MmError::Again)) && self.subject.may_lack_memory()
    }

    fn mmap(&mut self, who: Who, op: &MapOp) -> Outcome {
        let (file, shared) = match op.what {
            What::Anonymous => (None, false),
            What::SharedAnonymous => (None, true),
            What::File { file, page, shared } => (Some((file, page)), shared),
        };
        let MapOp { len, prot, placement, grows_down, populate, locked, .. } = *op;
        let addr = self.at(op.at);
        let map = Map { addr, len, prot, placement, shared, file, grows_down, populate, locked };
        let want = self.model.place(who.space, &map);
        let got = self.subject.mmap(who, &map);
        self.placed(who.space, want, got, len)?.map_or(Ok(()), |addr| {
            self.model.map_at(who.space, &map, addr);
            Ok(())
        })
    }

    fn mremap(&mut self, who: Who, at: At, old: u64, new: u64, to: To) -> Outcome {
        let addr = self.at(at);
        let to = match to {
            To::InPlace => Remap::InPlace,
            To::MayMove => Remap::MayMove,
            To::DontUnmap(hint) => Remap::DontUnmap(self.at(hint)),
            To::FixedTo(at) => Remap::Fixed(self.at(at)),
            To::FixedDontUnmap(at) => Remap::FixedDontUnmap(self.at(at)),
        };
        if old.wrapping_add(PAGE - 1) < PAGE && to.target() == Some(addr) {
            // A second mapping on top of the first: Linux unmaps it, looks for it and fails. Not worth imitating.
            return Ok(());
        }
        let want = self.model.place_remap(who.space, addr, old, new, to);
        let got = self.subject.mremap(who, addr, old, new, to);
        let edge = self.model.space(who.space).has_edge_inside(addr, addr.saturating_add(old));
        if got == Err(MmError::Fault) && edge {
            return Ok(());
        }
        if want.is_ok() && self.lacked_memory(got) {
            return self.remap_in_parts(who.space, addr, old, new, to);
        }
        self.placed(who.space, want, got, new)?.map_or(Ok(()), |dest| {
            self.model.remap_at(who.space, addr, old, new, to, dest);
            Ok(())
        })
    }

    /// Compares where a mapping went with where it had to go; the address, if it was made.
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

    fn brk(&mut self, who: Who, addr: u64) -> Outcome {
        let got = self.subject.brk(who, addr);
        if got == self.model.space(who.space).brk_end() && self.subject.may_lack_memory() {
            return Ok(());
        }
        let want = self.model.brk(who.space, addr);
        if got == want { Ok(()) } else { Err(format!("answer {got:#x}, want {want:#x}")) }
    }

    fn fork(&mut self, who: Who) -> Outcome {
        if self.model.live().count() >= MOST_SPACES {
            return Ok(());
        }
        match self.subject.fork(who) {
            Ok(()) if !self.subject.keeps_children() => Ok(()),
            Ok(()) => {
                let child = self.model.fork(who.space);
                self.compare_space(child)
            }
            Err(error) if self.lacked_memory::<()>(Err(error)) => Ok(()),
            Err(error) => Err(format!("fork: {error:?}")),
        }
    }

    fn exit(&mut self, who: Who) -> Outcome {
        if self.model.live().count() > 1 {
            self.model.exit(who.space);
            self.subject.exit(who);
        }
        Ok(())
    }

    fn store(&mut self, who: Who, addr: u64, probe: usize) -> Outcome {
        let at = (addr & !(PAGE - 1)).wrapping_add(PROBE_OFFSETS[probe]);
        self.word += 1;
        let word = self.word;
        let got = self.subject.store(who, at, word);
        if self.out_of_memory(who.space, addr, got) {
            return Ok(());
        }
        let want = self.model.write(who.space, at, probe, word);
        self.same_fault(got, want).map_err(|what| format!("store to {at:#x}: {what}"))
    }

    pub(crate) fn load(&mut self, who: Who, addr: u64, probe: usize) -> Outcome {
        let at = (addr & !(PAGE - 1)).wrapping_add(PROBE_OFFSETS[probe]);
        let got = self.subject.load(who, at);
        if self.out_of_memory(who.space, addr, got) {
            return Ok(());
        }
        let want = self.model.read(who.space, at, probe);
        match (got, want) {
            (Ok(word), Ok(seen)) if seen.allows(word) => Ok(()),
            (Ok(word), Ok(seen)) => Err(format!(
                "load on CPU {} from {at:#x} of space {}: {word:#x}, want {seen:x?}",
                who.cpu, who.space
            )),
            _ => self
                .same_fault(got.map(drop), want.map(drop))
                .map_err(|what| format!("load from {at:#x}: {what}")),
        }
    }

    fn access(&mut self, who: Who, addr: u64, kind: Kind) -> Outcome {
        let got = self.subject.fault(who, addr, kind);
        if self.out_of_memory(who.space, addr, got) {
            return Ok(());
        }
        let want = self.model.fault(who.space, addr, kind);
        self.same_fault(got, want).map_err(|what| format!("{kind:?} fault at {addr:#x}: {what}"))
    }
}
