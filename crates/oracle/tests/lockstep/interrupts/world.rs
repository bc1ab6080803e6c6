//! An allocator whose every frame has an owner in a ledger, and what a task or an interrupt does to it.
//!
//! All of it is atomics and arrays, so that interrupts may use it at any instruction.

use hosted::raw::RawMachine;
use hosted::raw::RawPages;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order};
use quire::arch::ReadyClear;
use quire::page_alloc::{AllocatorConfig, Gfp, ListGuard, MemoryInfo, MemoryRange, PageAllocator};

pub(crate) const FRAMES: u64 = 24 << 8;

/// Folios in one bulk request, at most.
const MOST: usize = 48;

pub(crate) const GUARDS: [ListGuard; 3] = [ListGuard::Reentry, ListGuard::IrqOff, ListGuard::TaskOnly];

/// The machine of these tests: 24 MiB, and no modelled TLBs, whose steps are not what is to be looked at.
pub(crate) fn machine(cpus: usize) -> Hosted {
    let config = HostedConfig { tlb_model: false, ..HostedConfig::new(FRAMES * 4096) };
    config.with_cpus(cpus).build().expect("the host has 24 MiB")
}

/// The owner of each frame, and the first thing that went wrong.
pub(crate) struct Ledger {
    owned: Box<[AtomicU64]>,
    broken: AtomicU64,
}

/// What can go wrong at once; the rest is for `validate` and the counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Broken {
    Nothing,
    HandedOutTwice,
    BadFree,
    FalseOutOfMemory,
}

const KINDS: [Broken; 4] =
    [Broken::Nothing, Broken::HandedOutTwice, Broken::BadFree, Broken::FalseOutOfMemory];

impl Ledger {
    pub(crate) fn new(frames: u64) -> Self {
        let owned = (0..frames.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { owned, broken: AtomicU64::new(0) }
    }

    fn blame(&self, what: Broken, frame: u64) {
        let _ = self.broken.compare_exchange(0, frame << 8 | what as u64, Relaxed, Relaxed);
    }

    /// Whether something went wrong, and at which frame.
    pub(crate) fn broken(&self) -> Option<(Broken, u64)> {
        let broken = self.broken.load(Relaxed);
        (broken != 0).then(|| (KINDS[(broken & 0xff) as usize], broken >> 8))
    }

    /// The words of a folio's frames, as far as each goes.
    fn words(&self, frame: u64, count: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        (frame / 64..(frame + count).div_ceil(64)).map(move |word| {
            let (from, to) = (frame.max(word * 64) % 64, (frame + count - word * 64).min(64));
            let mask = u64::MAX >> (64 - (to - from)) << from;
            (&self.owned[word as usize], mask)
        })
    }

    /// The frames have an owner from now on.
    pub(crate) fn take(&self, frame: u64, count: u64) {
        for (word, mask) in self.words(frame, count) {
            if word.fetch_or(mask, Relaxed) & mask != 0 {
                self.blame(Broken::HandedOutTwice, frame);
            }
        }
    }

    /// The frames have none.
    pub(crate) fn give(&self, frame: u64, count: u64) {
        self.words(frame, count).for_each(|(word, mask)| _ = word.fetch_and(!mask, Relaxed));
    }

    /// How many frames have an owner.
    pub(crate) fn count(&self) -> u64 {
        self.owned.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }
}

/// The folios of one owner.
pub(crate) struct Stash {
    len: AtomicU64,
    folios: [AtomicU64; 512],
}

impl Stash {
    pub(crate) fn new() -> Self {
        Self { len: AtomicU64::new(0), folios: [const { AtomicU64::new(0) }; 512] }
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed) as usize
    }

    /// Room for a bulk request is left.
    fn has_room(&self) -> bool {
        self.len() + MOST <= self.folios.len()
    }

    fn push(&self, frame: Frame, order: Order) {
        let len = self.len();
        self.folios[len].store(frame.0 << 8 | u64::from(order.get()), Relaxed);
        self.len.store(len as u64 + 1, Relaxed);
    }

    /// Takes out a folio of this order, an old one for an odd `which`.
    fn pop(&self, order: Order, which: u64) -> Option<Frame> {
        let len = self.len();
        let fits = |at: &usize| self.folios[*at].load(Relaxed) & 0xff == u64::from(order.get());
        let at = if which % 2 == 1 { (0..len).find(fits) } else { (0..len).rev().find(fits) }?;
        let folio = self.folios[at].swap(self.folios[len - 1].load(Relaxed), Relaxed);
        self.len.store(len as u64 - 1, Relaxed);
        Some(Frame(folio >> 8))
    }

    /// The order of the folio that came last.
    pub(crate) fn last_order(&self) -> Option<Order> {
        let last = self.len().checked_sub(1)?;
        Order::new((self.folios[last].load(Relaxed) & 0xff) as u8)
    }
}

/// What is done to the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Take,
    Give,
    TakeMany(usize),
    GiveMany(usize),
    Drain,
}

/// One call of the allocator: made ready first, so that the call alone is what gets interrupted, and booked afterwards.
pub(crate) struct Call {
    pub(crate) act: Act,
    pub(crate) order: Order,
    frames: [Frame; MOST],
    count: usize,
    refused: bool,
}

/// The order with this number.
pub(crate) fn order(number: u8) -> Order {
    Order::new(number).expect("no such order")
}

pub(crate) struct World<'m> {
    pub(crate) allocator: PageAllocator<'m, Hosted>,
    pub(crate) ledger: Ledger,
    before: MemoryInfo,
}

impl<'m> World<'m> {
    pub(crate) fn new(machine: &'m Hosted, lists: ListGuard) -> Self {
        // What a world before this one left there, so that the promise holds.
        machine.clear_raw(FrameRange::new(Frame(0), FRAMES), ReadyClear::PLAIN);
        let ranges = [MemoryRange { frames: FrameRange::new(Frame(0), FRAMES), node: 0, zeroed: true }];
        let config = AllocatorConfig { lists, ..AllocatorConfig::default() };
        let allocator = hosted::raw::page_allocator(machine, &ranges, config).expect("24 MiB are enough");
        let before = allocator.memory_info();
        Self { allocator, ledger: Ledger::new(FRAMES), before }
    }

    /// Makes a call ready: folios to be given leave the stash and the ledger. Without any, or without room, it is the
    /// opposite that is done, or a request for nothing.
    pub(crate) fn prepare(&self, stash: &Stash, act: Act, order: Order, which: u64) -> Call {
        let mut call = Call { act, order, frames: [Frame(0); MOST], count: 0, refused: false };
        let wanted = match act {
            Act::Take | Act::TakeMany(_) if !stash.has_room() => {
                call.act = Act::GiveMany(MOST);
                MOST
            }
            Act::Give => 1,
            Act::GiveMany(count) => count,
            Act::Take | Act::TakeMany(_) | Act::Drain => return call,
        };
        while let Some(frame) = (call.count < wanted).then(|| stash.pop(order, which)).flatten() {
            self.ledger.give(frame.0, order.frames());
            call.frames[call.count] = frame;
            call.count += 1;
        }
        if call.count == 0 {
            call.act = if stash.has_room() { Act::Take } else { Act::GiveMany(0) };
        }
        call
    }

    /// Makes the call: nothing but the library.
    pub(crate) fn make(&self, call: &mut Call, gfp: Gfp) {
        match call.act {
            Act::Take => {
                if let Ok(frame) = self.allocator.alloc_raw(gfp, call.order) {
                    (call.frames[0], call.count) = (frame, 1);
                }
            }
            Act::Give => call.refused = self.allocator.free_raw(call.frames[0], call.order).is_err(),
            Act::TakeMany(count) => {
                call.count = self.allocator.alloc_bulk_raw(gfp, call.order, &mut call.frames[..count]);
            }
            Act::GiveMany(_) => {
                call.refused = self.allocator.free_bulk_raw(call.order, &call.frames[..call.count]).is_err();
            }
            Act::Drain => self.allocator.lists().drain_local(),
        }
    }

    /// Books what came of a call. A task must get small folios while there is plenty; an interrupt may be refused what is locked below it.
    pub(crate) fn book(&self, stash: &Stash, call: &Call, is_task: bool) {
        match call.act {
            Act::Take | Act::TakeMany(_) => {
                for &frame in &call.frames[..call.count] {
                    self.ledger.take(frame.0, call.order.frames());
                    stash.push(frame, call.order);
                }
                if call.count == 0 && is_task && call.order <= order(3) && self.has_plenty() {
                    self.ledger.blame(Broken::FalseOutOfMemory, 0);
                }
            }
            _ if call.refused => self.ledger.blame(Broken::BadFree, call.frames[0].0),
            _ => {}
        }
    }

    /// More than enough is free for any small folio.
    fn has_plenty(&self) -> bool {
        let info = self.allocator.memory_info();
        info.free > FRAMES / 2
    }

    /// The three in a row, uninterrupted as far as this code goes.
    pub(crate) fn act(&self, stash: &Stash, act: Act, order: Order, which: u64, is_task: bool) {
        let mut call = self.prepare(stash, act, order, which);
        self.make(&mut call, if is_task { Gfp::USER } else { Gfp::ATOMIC });
        self.book(stash, &call, is_task);
    }

    /// Gives everything back.
    pub(crate) fn give_all(&self, stash: &Stash) {
        while let Some(order) = stash.last_order() {
            self.act(stash, Act::Give, order, 0, true);
        }
    }

    /// Checks the state at rest: nothing handed out twice, nothing lost, nothing inconsistent.
    pub(crate) fn check(&self) -> Result<(), String> {
        if let Some((what, frame)) = self.ledger.broken() {
            return Err(format!("{what:?} at frame {frame:#x}"));
        }
        self.allocator.validate().map_err(|violation| format!("{violation:?}"))?;
        let (mut info, owned) = (self.allocator.memory_info(), self.ledger.count());
        if info.used != owned {
            // What interrupts gave back may wait for the next undisturbed call.
            self.allocator.lists().drain_local();
            info = self.allocator.memory_info();
        }
        let sum = info.free + info.cached + info.used + info.metadata;
        if (info.used, sum) == (owned, info.total) {
            Ok(())
        } else {
            Err(format!("{owned} frames have owners, but {info:?}"))
        }
    }

    /// Checks that all memory is free and whole again, after everything was given back.
    pub(crate) fn check_end(&self) -> Result<(), String> {
        self.allocator.lists().drain_local();
        self.check()?;
        let info = self.allocator.memory_info();
        if info == self.before { Ok(()) } else { Err(format!("{info:?} at the end, not {:?}", self.before)) }
    }
}
