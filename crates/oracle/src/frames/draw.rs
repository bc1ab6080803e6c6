//! Operations on a page allocator, drawn from a seed. Their `Debug` form is Rust source under
//! `use oracle::frames::{Class::*, FrameOp::*, Place::*};`.

use fastrand::Rng;
use quire::addr::{Frame, FrameRange};
use quire::page_alloc::{ListGuard, MemoryRange};

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// `Gfp::KERNEL`.
    Kernel,
    /// `Gfp::USER`.
    User,
    /// `Gfp::ATOMIC`.
    Atomic,
    /// `Gfp::DMA32`.
    Dma32,
    /// `Gfp::RECLAIMABLE`.
    Reclaimable,
    /// User memory, which may use the reserve.
    Reserve,
    /// As `Kernel`, which may use the reserve.
    KernelReserve,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 7] = [
        Self::Kernel,
        Self::User,
        Self::Atomic,
        Self::Dma32,
        Self::Reclaimable,
        Self::Reserve,
        Self::KernelReserve,
    ];
}

/// The node policy of a request. Sets are a bit for each node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// `NodePolicy::Local`.
    Here,
    /// `NodePolicy::Preferred`.
    At(u8),
    /// `NodePolicy::PreferredMany`.
    First(u8),
    /// `NodePolicy::Bind`.
    Only(u8),
    /// `NodePolicy::Interleave`.
    InTurn(u8),
}

/// An operation. Numbers that name a folio are indices into the lockstep's list of allocated ones, modulo its
/// length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameOp {
    /// Allocate a folio of this order.
    Take(Class, Place, u8),
    /// Free the folio.
    Give(usize),
    /// Free a folio of another order at the folio's start.
    GiveWrong(usize, u8),
    /// Free a frame so many frames after the folio's start.
    GiveInside(usize, u64),
    /// Free the last freed folio again.
    GiveTwice,
    /// Free a frame that the machine does not have.
    GiveForeign(u64, u8),
    /// Allocate so many folios of an order in one call.
    TakeMany(Class, Place, u8, usize),
    /// Fill the empty ones of so many slots with folios of an order in one call; slot `n` is full where bit `n % 64` of the
    /// last number is set.
    FillHoles(Class, Place, u8, usize, u64),
    /// Free so many consecutive frames in one call, from this folio's first one on.
    GiveFrames(usize, u64),
    /// Allocate folios of this order, one by one, until a request is refused.
    TakeAll(Class, Place, u8),
    /// Allocate so many consecutive blocks, aligned to two to this power.
    TakeRange(Class, Place, u32, u8),
    /// Free so many consecutive blocks in one call, from the folio's block on.
    GiveRange(usize, u32),
    /// Free so many folios of this one's order in one call.
    GiveMany(usize, usize),
    /// Map all frames of the folio, so many times.
    Map(usize, u8),
    /// Unmap so many frames from so many after the folio's start, as far as they are mapped.
    Unmap(usize, u64, u64),
    /// Drain this CPU's lists.
    Drain,
    /// Take exactly so many frames in a row.
    TakeExact(Class, Place, u64),
    /// Take so many frames, from the so-manieth on of one of the machine's ranges.
    TakeAt(usize, u64, u64),
    /// Add one of the ranges that come after start-up.
    Add(usize),
    /// Remove one of them.
    Remove(usize),
}

/// The shape of a run.
#[derive(Clone, Debug)]
pub struct FrameShape {
    /// The machine's memory.
    pub ranges: Vec<MemoryRange>,
    /// Which of the ranges come after start-up, if at all: a bit for each. They begin and end with a block.
    pub later: u64,
    /// Percent set aside as Movable zone.
    pub movable_percent: u8,
    /// CPUs.
    pub cpus: usize,
    /// The node of each CPU.
    pub cpu_nodes: Vec<u8>,
    /// The guard of the per-CPU lists.
    pub lists: ListGuard,
    /// Whether frames of one mobility group share blocks.
    pub grouped: bool,
    /// Whether requests for frames by number, and for exact numbers of them, cut blocks. The descriptors of a block that
    /// is cut stand elsewhere, which the model does not know: it believes each refusal then.
    pub cuts: bool,
    highest: u8,
    weights: [u32; KINDS],
}

const KINDS: usize = 20;
const FOUR_GIB: u64 = 1 << 20;

impl FrameShape {
    /// Draws a machine of at most 64 MiB and its operations.
    pub fn new(rng: &mut Rng) -> Self {
        let mut weights = [0; KINDS];
        for weight in &mut weights {
            *weight = if rng.u32(..100) < 60 { 1 << rng.u32(0..4) } else { 0 };
        }
        weights[0] = weights[0].max(2);
        weights[1] = weights[1].max(1);
        let mut ranges = Vec::new();
        // Some machines lie around 4 GiB, where a zone ends.
        let mut at = rng.u64(0..1024) + if rng.u32(..4) == 0 { FOUR_GIB - rng.u64(1024..6000) } else { 0 };
        // Small machines are full sooner.
        let size = if rng.bool() { 4 } else { 1 };
        for number in 0..rng.u64(1..4) {
            let count =
                if rng.bool() { rng.u64(300..6000) / size } else { rng.u64(1..12).div_ceil(size) * 512 };
            ranges.push(MemoryRange {
                frames: FrameRange::new(Frame(at), count),
                node: (number % 2) as u8 & rng.u8(..2),
                zeroed: rng.bool(),
            });
            at += count + rng.u64(0..3) * rng.u64(0..2000);
            if rng.bool() {
                at = at.next_multiple_of(512);
            }
        }
        let mut later = 0;
        while ranges.len() < 5 && rng.u32(..3) == 0 {
            at = at.next_multiple_of(512) + 512 * rng.u64(..3);
            let frames = FrameRange::new(Frame(at), 512 * rng.u64(1..5));
            later |= 1 << ranges.len();
            ranges.push(MemoryRange { frames, node: rng.u8(..2), zeroed: rng.bool() });
            at = frames.end().0 + rng.u64(..2) * 512;
        }
        let movable_percent = *rng.choice(&[0, 0, 30, 50]).expect("not empty");
        let cpus = rng.usize(1..4);
        let cpu_nodes = (0..cpus).map(|_| rng.u8(..3) & rng.u8(..3)).collect();
        let guards = [ListGuard::Reentry, ListGuard::Reentry, ListGuard::IrqOff, ListGuard::TaskOnly];
        let lists = *rng.choice(&guards).expect("not empty");
        let (grouped, highest) = (rng.u32(..4) > 0, rng.u8(0..11));
        let cuts = rng.bool();
        Self { ranges, later, movable_percent, cpus, cpu_nodes, lists, grouped, cuts, highest, weights }
    }

    /// A machine for a given list of operations.
    pub fn of(ranges: &[(u64, u64)], movable_percent: u8, cpus: usize) -> Self {
        let range = |&(start, count): &(u64, u64)| MemoryRange {
            frames: FrameRange::new(Frame(start), count),
            node: 0,
            zeroed: false,
        };
        let ranges = ranges.iter().map(range).collect();
        Self {
            ranges,
            later: 0,
            movable_percent,
            cpus,
            cpu_nodes: vec![0; cpus],
            lists: ListGuard::Reentry,
            grouped: true,
            cuts: true,
            highest: 10,
            weights: [1; KINDS],
        }
    }

    /// The ranges that are there at start-up, or those that come later.
    pub fn ranges_of(&self, later: bool) -> Vec<MemoryRange> {
        let of = |&(at, _): &(usize, &MemoryRange)| (self.later >> at & 1 == 1) == later;
        self.ranges.iter().enumerate().filter(of).map(|(_, range)| *range).collect()
    }

    /// How many nodes the machine has.
    pub fn nodes(&self) -> u8 {
        self.ranges.iter().map(|range| range.node).chain(self.cpu_nodes.iter().copied()).max().unwrap_or(0)
            + 1
    }

    /// The node that a frame lies on.
    pub fn node_of(&self, frame: Frame) -> Option<u8> {
        self.ranges.iter().find(|range| range.frames.contains(frame)).map(|range| range.node)
    }

    fn place(rng: &mut Rng) -> Place {
        match rng.u32(..9) {
            0..4 => Place::Here,
            8 => Place::First(rng.u8(..16) & rng.u8(..16)),
            4 => Place::At(rng.u8(..4) & rng.u8(..4)),
            5 => Place::InTurn(rng.u8(..16) & rng.u8(..16)),
            // Most sets are of the two nodes that most machines have.
            _ => Place::Only(if rng.u32(..8) == 0 { rng.u8(..=255) } else { rng.u8(1..4) }),
        }
    }

    fn order(&self, rng: &mut Rng) -> u8 {
        if rng.u32(..4) == 0 { rng.u8(..=self.highest) } else { rng.u8(..=self.highest.min(3)) }
    }

    fn op(&self, rng: &mut Rng, kind: usize) -> FrameOp {
        let (class, place) = (*rng.choice(&Class::ALL).expect("not empty"), Self::place(rng));
        let which = rng.usize(..1 << 20);
        match kind {
            0 => FrameOp::Take(class, place, self.order(rng)),
            1 => FrameOp::Give(which),
            2 => FrameOp::GiveWrong(which, rng.u8(..11)),
            3 => FrameOp::GiveInside(which, rng.u64(1..600)),
            4 => FrameOp::GiveTwice,
            5 => FrameOp::GiveForeign(rng.u64(..40_000), rng.u8(..4)),
            6 => FrameOp::TakeMany(class, place, self.order(rng), rng.usize(..700)),
            7 => FrameOp::GiveMany(which, rng.usize(..700)),
            8 => FrameOp::Map(which, rng.u8(1..4)),
            9 => FrameOp::Unmap(which, rng.u64(..20), rng.u64(1..600)),
            10 => FrameOp::TakeRange(class, place, rng.u32(..4) + rng.u32(..4), rng.u8(..3)),
            11 => FrameOp::GiveRange(which, rng.u32(..5)),
            12 => FrameOp::TakeAll(class, place, self.order(rng)),
            13 => {
                FrameOp::FillHoles(class, place, self.order(rng), rng.usize(..300), rng.u64(..) & rng.u64(..))
            }
            14 => FrameOp::GiveFrames(which, rng.u64(..200)),
            15 => {
                let frames = rng.u64(..700);
                let whole = !self.cuts && frames > 256;
                FrameOp::TakeExact(class, place, if whole { frames.next_multiple_of(512) } else { frames })
            }
            16 => FrameOp::TakeAt(which, rng.u64(..6000), rng.u64(..700)),
            17 => FrameOp::Add(which),
            18 => FrameOp::Remove(which),
            _ => FrameOp::Drain,
        }
    }
}

/// The operations of a run, each with the CPU that does it.
pub fn draw_frames(rng: &mut Rng, shape: &FrameShape, count: usize) -> Vec<(usize, FrameOp)> {
    let total: u32 = shape.weights.iter().sum();
    (0..count)
        .map(|_| {
            let mut rest = rng.u32(..total);
            let kind = shape.weights.iter().position(|&weight| {
                let here = rest < weight;
                rest = rest.wrapping_sub(weight);
                here
            });
            (rng.usize(..shape.cpus), shape.op(rng, kind.expect("weights add up")))
        })
        .collect()
}
