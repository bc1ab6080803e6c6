//! A per-CPU list, whose owner takes and puts folios while another CPU empties it: each folio is taken once.

use loom::sync::Arc;
use loom::thread;

use crate::addr::Frame;
use crate::atomic::Orders::{NotTotal, Relaxed, Unfenced};
use crate::atomic::{AtomicU8, Ordering};
use crate::holds_but_not;
use crate::machine::Cpu;
use crate::memmap::BootSlice;
use crate::sync::Lease;
use list::{FrameList, ListEntry};
use quire::cpu::CpuSet;
use quire::platform::FramePlatform;

#[allow(dead_code)]
#[path = "../../src/page_alloc/pcp/list.rs"]
mod list;

const FRAMES: u64 = 2;

/// The slots of a list: a head, and three folios.
#[derive(Default)]
#[repr(align(512))]
struct Home([ListEntry; 4]);
const _: () = assert!(size_of::<Home>() == 512);

struct Level {
    lease: Lease,
    list: FrameList,
    /// By frame.
    states: Vec<AtomicU8>,
}

impl Level {
    /// An open list with two folios and a free slot, or a shut one with the first folio alone.
    fn new(open: bool) -> Arc<Self> {
        let slots = BootSlice(&Box::leak(Box::new(Home::default())).0);
        let states: Vec<_> = (0..=FRAMES).map(|_| AtomicU8::new(0)).collect();
        let level = Self { lease: Lease::new(false), list: FrameList::new(slots), states };
        assert!(level.lease.enter());
        (0..FRAMES).for_each(|frame| assert!(level.list.push(Frame(frame), &level.states[frame as usize])));
        if open {
            level.list.open(&level.lease);
        } else {
            level.list.pop();
            level.list.note_flow(1);
            level.list.shut();
        }
        level.lease.release();
        Arc::new(level)
    }

    /// As `PageAllocator::take_listed`.
    fn take(&self) -> Option<Frame> {
        if !self.lease.enter_open() {
            return None;
        }
        let popped = self.list.pop_open();
        self.lease.release();
        popped.map(|(frame, state)| {
            assert!(std::ptr::eq(state, &raw const self.states[frame.0 as usize]), "the slot is torn");
            frame
        })
    }

    /// As `PageAllocator::put_untouched`.
    fn put(&self, frame: Frame) -> bool {
        if !self.lease.enter_open() {
            return false;
        }
        let put = self.list.push_open(frame, &self.states[frame.0 as usize]);
        self.lease.release();
        put
    }

    /// As the slow path of a free, which opens a shut list.
    fn put_slowly(&self, frame: Frame) -> bool {
        if !self.lease.enter() {
            return false;
        }
        self.list.open(&self.lease);
        let put = self.list.push(frame, &self.states[frame.0 as usize]);
        self.lease.release();
        put
    }

    /// As `PageAllocator::drain_cpu`: takes everything on the list.
    fn drain(&self, cpu: &Cpu) -> Vec<Frame> {
        self.lease.revoke();
        self.list.shut();
        cpu.fence_cpus(&CpuSet::first(1));
        self.lease.wait_left(cpu);
        let frames: Vec<_> = std::iter::from_fn(|| self.list.pop()).map(|(frame, _)| frame).collect();
        self.list.note_flow(frames.len() as i64);
        self.lease.give_back();
        frames
    }
}

/// The owner does `own`, which returns what it has in the end, while another CPU empties the list.
fn each_comes_out_once(level: Arc<Level>, own: fn(&Level) -> Vec<Frame>) {
    let owner = {
        let level = level.clone();
        thread::spawn(move || own(&level))
    };
    let mut frames = level.drain(&Cpu(1));
    frames.extend(owner.join().unwrap());
    frames.extend(level.list.frames());
    frames.sort_unstable();
    assert_eq!(frames, [Frame(0), Frame(1)]);
    assert_eq!(level.list.allocated.load(Ordering::Relaxed), 0);
}

/// Invariants G1 and G3.
#[test]
fn a_list_that_is_emptied_gives_each_folio_once() {
    holds_but_not(&[Unfenced, NotTotal, Relaxed], || {
        each_comes_out_once(Level::new(true), |level| level.take().into_iter().chain(level.take()).collect());
    });
}

#[test]
fn a_list_that_is_emptied_loses_no_folio_that_comes_back() {
    holds_but_not(&[Unfenced, NotTotal, Relaxed], || {
        each_comes_out_once(Level::new(true), |level| {
            level.take().into_iter().filter(|&frame| !level.put(frame)).collect()
        });
    });
}

/// The list is shut, and its owner opens it while another CPU revokes the lease.
#[test]
fn a_list_that_is_opened_and_emptied_gives_each_folio_once() {
    holds_but_not(&[Unfenced, NotTotal, Relaxed], || {
        each_comes_out_once(Level::new(false), |level| {
            let kept = Some(Frame(1)).filter(|&frame| !level.put_slowly(frame));
            kept.into_iter().chain(level.take()).collect()
        });
    });
}
