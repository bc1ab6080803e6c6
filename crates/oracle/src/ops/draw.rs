//! Drawing operation lists: swarm testing, so that a run does a few things often rather than all of them seldom.

use fastrand::Rng;

use super::{At, MapOp, Op, Step, To, What};
use crate::space::{Advice, Kind, PAGE, PROBES, Placement, Prot};

/// The shape of a run; all of it is drawn from the seed.
#[derive(Clone, Debug)]
pub struct Draw {
    /// Operations.
    pub steps: usize,
    /// CPUs that operations are spread over.
    pub cpus: u8,
    /// Pages on each side of the window's middle that addresses fall into.
    pub span: i32,
    /// The most pages that one operation covers.
    pub longest: u32,
    /// Files with their sizes in bytes.
    pub files: Vec<(u64, u64)>,
    /// How often each kind of operation is drawn, by its index in [`KINDS`].
    weights: [u32; KINDS],
    /// Whether file mappings are all private, all shared, or drawn.
    sharing: Option<bool>,
    /// Whether nearly all mappings are private anonymous memory.
    anonymous: bool,
    /// Whether addresses and lengths are of the order of folios of 1 GiB.
    gigantic: bool,
    /// Whether most mappings are of files and of shared memory, by 2 MiB at their alignment.
    blocks: bool,
    /// Odd arguments in a thousand.
    odd: u32,
}

/// Kinds of operations that are drawn.
const KINDS: usize = 20;

/// The last kind that every run may have.
const TRUNCATE: usize = 17;
/// The work of idle CPUs, which has an effect only where folios are cleared on demand.
const CLEAR_AHEAD: usize = 18;
/// Collapses, which change only the number of resident pages.
const COLLAPSE: usize = 19;

/// Pages of a folio of 1 GiB.
const GIGANTIC: i32 = 1 << 18;
const PIECE: i32 = 1 << 9;

/// Accesses, which no run goes without.
const ALWAYS: [usize; 3] = [0, 12, 13];

impl Draw {
    /// Draws the shape of a run of `steps` operations.
    pub fn new(rng: &mut Rng, steps: usize, cpus: u8) -> Self {
        let mut weights = [0; KINDS];
        for (kind, weight) in weights[..=TRUNCATE].iter_mut().enumerate() {
            if ALWAYS.contains(&kind) || rng.u32(..100) < 55 {
                *weight = 1 << rng.u32(0..4);
            }
        }
        weights[0] = weights[0].max(4);
        let span = *rng.choice(&[8, 64, 600, 3000]).expect("not empty");
        let longest = (span as u32 / 2).min(*rng.choice(&[4, 40, 700, 1600]).expect("not empty")).max(2);
        let files = (1..=3).map(|file| (file, rng.u64(1..2 * u64::from(longest)) * PAGE)).collect();
        Self {
            steps,
            cpus,
            span,
            longest,
            files,
            weights,
            sharing: None,
            anonymous: false,
            gigantic: false,
            blocks: false,
            odd: *rng.choice(&[0, 20, 100]).expect("not empty"),
        }
    }

    /// Leaves these kinds of operations out.
    pub fn without(&mut self, kinds: &[Left]) {
        for kind in kinds {
            match kind {
                Left::Fork => self.weights[10] = 0,
                Left::Heap => self.weights[5] = 0,
                Left::Locks => [6, 7, 8, 9].iter().for_each(|&kind| self.weights[kind] = 0),
            }
        }
    }

    /// Makes all file mappings private, or all shared, so that no store or truncation changes a file that a
    /// private mapping shows. When memory runs out, it is not known which private pages were copied ahead of
    /// a store.
    pub fn one_sharing(&mut self, rng: &mut Rng) {
        self.sharing = Some(rng.bool());
        if self.sharing == Some(false) {
            self.weights[TRUNCATE] = 0;
        }
    }

    /// Forks and exits often, stores to many consecutive pages, and maps mostly private anonymous memory, so
    /// that whole families share page tables.
    pub fn families(&mut self) {
        for (kind, weight) in [(10, 4), (11, 3), (12, 12), (14, 6)] {
            self.weights[kind] = self.weights[kind].max(weight);
        }
        self.anonymous = true;
    }

    /// Collapses often, between forks, moves and stores to many consecutive pages, most of them private
    /// anonymous memory.
    pub fn collapses(&mut self) {
        let often = [(0, 6), (3, 3), (4, 3), (10, 2), (11, 2), (12, 12), (13, 8), (14, 8), (COLLAPSE, 10)];
        for (kind, weight) in often {
            self.weights[kind] = self.weights[kind].max(weight);
        }
        (self.span, self.longest, self.anonymous) = (3000, 1600, true);
    }

    /// The same with files of some MiB, which are truncated and grow, and are mostly mapped at their
    /// alignment.
    pub fn file_collapses(&mut self, rng: &mut Rng) {
        self.collapses();
        self.weights[TRUNCATE] = 3;
        (self.anonymous, self.blocks) = (false, true);
        self.files = (1..=3).map(|file| (file, rng.u64(512..2000) * PAGE)).collect();
    }

    /// A mapping by 2 MiB.
    fn map_blocks(&self, rng: &mut Rng) -> MapOp {
        let (file, bytes) = *rng.choice(&self.files).expect("not empty");
        let page = rng.u64(..bytes.div_ceil(PAGE << 9)) << 9;
        let what = match rng.u32(..4) {
            0 => What::SharedAnonymous,
            _ => What::File { file, page, shared: self.sharing.unwrap_or_else(|| rng.bool()) },
        };
        MapOp {
            at: At::Window(rng.i32(-4..4) << 9, 0),
            len: (rng.u64(1..4) * PAGE) << 9,
            prot: *rng.choice(&[Prot::Rw, Prot::Rw, Prot::R, Prot::Rx]).expect("not empty"),
            placement: Placement::Fixed,
            what,
            grows_down: false,
            populate: rng.u32(..3) == 0,
            locked: self.weights[6] > 0 && rng.u32(..8) == 0,
        }
    }

    /// Maps anonymous memory by the GiB, stores to some pages, unmaps, moves and forks, while idle CPUs clear
    /// ahead. Nothing is populated by the GiB, since the model knows single pages.
    pub fn gigantic(&mut self) {
        self.weights = [0; KINDS];
        let often =
            [(0, 4), (1, 3), (2, 3), (3, 6), (4, 3), (10, 2), (11, 2), (12, 12), (13, 8), (14, 2), (15, 2)];
        often.into_iter().chain([(CLEAR_AHEAD, 8)]).for_each(|(kind, weight)| self.weights[kind] = weight);
        (self.anonymous, self.gigantic, self.longest) = (true, true, 8);
    }

    /// Keeps addresses and lengths to this many pages, for a subject that is slow or shares the machine.
    pub fn narrow(&mut self, pages: u32) {
        self.span = self.span.min(pages as i32);
        self.longest = self.longest.min(pages);
        self.files.iter_mut().for_each(|(_, bytes)| *bytes = (*bytes).min(u64::from(pages) * PAGE));
    }

    /// The first operation of a gigantic run: maps all of the window.
    fn gigantic_map() -> Op {
        Op::Mmap(MapOp {
            at: At::Window(-GIGANTIC, 0),
            len: 2 * GIGANTIC as u64 * PAGE,
            prot: Prot::Rw,
            placement: Placement::Fixed,
            what: What::Anonymous,
            grows_down: false,
            populate: false,
            locked: false,
        })
    }

    /// A page of one of two GiB: at its edge, at the edge of a piece, or anywhere.
    fn gigantic_page(rng: &mut Rng) -> i32 {
        let base = if rng.bool() { 0 } else { -GIGANTIC };
        base + match rng.u32(..4) {
            0 => 0,
            1 | 2 => rng.i32(0..GIGANTIC / PIECE) * PIECE,
            _ => rng.i32(0..GIGANTIC),
        }
    }

    fn gigantic_len(rng: &mut Rng) -> u64 {
        let pages = match rng.u32(..8) {
            0 | 1 => GIGANTIC,
            2 | 3 => rng.i32(1..=GIGANTIC / PIECE) * PIECE,
            4 | 5 => rng.i32(1..8) * PIECE,
            _ => rng.i32(1..5),
        };
        pages as u64 * PAGE
    }

    fn page(&self, rng: &mut Rng) -> i32 {
        if self.gigantic {
            return Self::gigantic_page(rng);
        }
        // Half of the addresses lie on coarse boundaries, so that operations meet at their edges.
        match rng.u32(..4) {
            0 => rng.i32(-self.span..self.span),
            1 => rng.i32(-self.span..self.span) & !15,
            2 => (rng.i32(-self.span..self.span) & !511).max(-self.span),
            _ => rng.i32(-self.span / 4..self.span / 4 + 1),
        }
    }

    fn odd(&self, rng: &mut Rng) -> bool {
        rng.u32(..1000) < self.odd
    }

    fn at(&self, rng: &mut Rng, aligned: bool) -> At {
        let byte = if !aligned && self.odd(rng) { rng.u16(1..4096) } else { 0 };
        match rng.u32(..10) {
            0 | 1 => At::Returned(rng.u8(..8), rng.i32(0..self.longest as i32), byte),
            2 if self.weights[5] > 0 => At::Heap(rng.i32(0..self.longest as i32), byte),
            _ => At::Window(self.page(rng), byte),
        }
    }

    fn len(&self, rng: &mut Rng) -> u64 {
        if self.odd(rng) {
            return *rng.choice(&[0, 1, 4095, 4097, u64::MAX, 1 << 47, u64::MAX - 4095]).expect("not empty");
        }
        if self.gigantic {
            return Self::gigantic_len(rng);
        }
        let pages = match rng.u32(..3) {
            0 => rng.u32(1..5),
            1 => 1 << rng.u32(0..=self.longest.ilog2()),
            _ => rng.u32(1..=self.longest),
        };
        u64::from(pages) * PAGE
    }

    fn prot(&self, rng: &mut Rng) -> Prot {
        if rng.u32(..10) < 6 { Prot::Rw } else { *rng.choice(&Prot::ALL).expect("not empty") }
    }

    fn map(&self, rng: &mut Rng) -> MapOp {
        if self.blocks && rng.u32(..4) > 0 {
            return self.map_blocks(rng);
        }
        let placement = match rng.u32(..10) {
            0..=5 => Placement::Fixed,
            6 => Placement::FixedNoReplace,
            _ => Placement::Hint,
        };
        let what = match rng.u32(..10) {
            0..=5 => What::Anonymous,
            _ if self.anonymous && rng.u32(..16) > 0 => What::Anonymous,
            6 => What::SharedAnonymous,
            _ => {
                let (file, bytes) = *rng.choice(&self.files).expect("not empty");
                What::File {
                    file,
                    page: rng.u64(..bytes / PAGE),
                    shared: self.sharing.unwrap_or_else(|| rng.bool()),
                }
            }
        };
        let nowhere = placement == Placement::Hint && rng.bool();
        let at = if nowhere { At::Null } else { self.at(rng, false) };
        MapOp {
            at,
            len: self.len(rng),
            prot: self.prot(rng),
            placement,
            what,
            grows_down: rng.u32(..12) == 0,
            populate: rng.u32(..12) == 0 && !self.gigantic,
            locked: self.weights[6] > 0 && rng.u32(..16) == 0,
        }
    }

    fn to(&self, rng: &mut Rng) -> To {
        match rng.u32(..5) {
            0 => To::InPlace,
            1 | 2 => To::MayMove,
            3 => To::FixedTo(self.at(rng, false)),
            _ if rng.bool() => To::DontUnmap(if rng.bool() { At::Null } else { self.at(rng, false) }),
            _ => To::FixedDontUnmap(self.at(rng, false)),
        }
    }

    fn remap(&self, rng: &mut Rng) -> Op {
        let (at, old, to) = (self.at(rng, false), self.len(rng), self.to(rng));
        let same = matches!(to, To::DontUnmap(_) | To::FixedDontUnmap(_)) || rng.u32(..3) == 0;
        Op::Mremap(at, old, if same { old } else { self.len(rng) }, to)
    }

    fn op(&self, rng: &mut Rng, kind: usize) -> Op {
        match kind {
            0 => Op::Mmap(self.map(rng)),
            1 => Op::Munmap(self.at(rng, false), self.len(rng)),
            2 => Op::Mprotect(self.at(rng, false), self.len(rng), self.prot(rng)),
            3 => self.remap(rng),
            4 => {
                let (at, len) = (self.at(rng, false), self.len(rng));
                let advice = *rng.choice(&Advice::ALL).expect("not empty");
                let brings = matches!(advice, Advice::PopulateRead | Advice::PopulateWrite);
                let some = brings && self.gigantic;
                Op::Madvise(at, if some { len.min(2 * PIECE as u64 * PAGE) } else { len }, advice)
            }
            5 => Op::Brk(At::Heap(rng.i32(-1..self.longest as i32), rng.u16(..4096))),
            6 => Op::Mlock(self.at(rng, false), self.len(rng), rng.bool()),
            7 => Op::Munlock(self.at(rng, false), self.len(rng)),
            8 => Op::Mlockall(rng.u32(..4) != 0, rng.u32(..3) == 0, rng.bool()),
            9 => Op::Munlockall,
            10 => Op::Fork,
            11 => Op::Exit,
            12 => Op::Store(self.at(rng, true), rng.usize(..PROBES)),
            13 => Op::Load(self.at(rng, true), rng.usize(..PROBES)),
            14 => Op::Touch(self.at(rng, true), rng.u32(1..=self.longest)),
            15 => Op::Access(self.at(rng, true), *rng.choice(&[Kind::Read, Kind::Write]).expect("not empty")),
            16 => Op::Access(self.at(rng, true), Kind::Exec),
            // Mostly the whole window, since mappings are seldom 2 MiB at their alignment.
            COLLAPSE if rng.u32(..4) > 0 => {
                Op::Collapse(At::Window(-self.span, 0), 2 * self.span as u64 * PAGE, rng.u32(..4) == 0)
            }
            COLLAPSE => Op::Collapse(self.at(rng, false), self.len(rng), false),
            CLEAR_AHEAD => Op::ClearAhead(*rng.choice(&[3, 40, 512, 512]).expect("not empty")),
            _ => {
                let (file, bytes) = *rng.choice(&self.files).expect("not empty");
                let within = *rng.choice(&[0, 0, 8, 1032, 4088]).expect("not empty");
                Op::Truncate(file, rng.u64(..=bytes / PAGE) * PAGE + within)
            }
        }
    }
}

/// Kinds of operations that a subject cannot do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// `fork`.
    Fork,
    /// `brk`.
    Heap,
    /// `mlock` and its relatives.
    Locks,
}

/// The operations of a run.
pub fn draw(rng: &mut Rng, shape: &Draw) -> Vec<Step> {
    let total: u32 = shape.weights.iter().sum();
    let first = shape.gigantic.then(|| Step { cpu: 0, space: 0, op: Draw::gigantic_map() });
    let drawn = (0..shape.steps).map(|_| {
        let mut rest = rng.u32(..total);
        let kind = shape.weights.iter().position(|&weight| {
            let here = rest < weight;
            rest = rest.wrapping_sub(weight);
            here
        });
        let (cpu, space) = (rng.u8(..shape.cpus.max(1)), rng.u8(..8));
        Step { cpu, space, op: shape.op(rng, kind.expect("weights add up")) }
    });
    first.into_iter().chain(drawn).collect()
}
