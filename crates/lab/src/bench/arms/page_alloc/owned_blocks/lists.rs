//! Lists of free pieces by order, linked through arrays with a place for each frame.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

/// The order of a block.
pub(super) const TOP: u8 = 9;

/// Where a free piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// On the lists of the CPU that owns its block.
    Owned,
    /// On those of another CPU, which puts it together with nothing.
    Cached,
    /// In the store.
    Stored,
    /// On its way to the owner: another CPU has freed it.
    Sent,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Owned, Self::Cached, Self::Stored, Self::Sent];

    const fn state(self, order: u8) -> u8 {
        (self as u8) << 4 | (order + 1)
    }
}

/// Links and states of all frames. The links of a free piece change only by the CPU that has the lists that
/// hold it, or under the store's lock. Other CPUs read its state alone.
pub(super) struct Links {
    next: Box<[AtomicU32]>,
    before: Box<[AtomicU32]>,
    /// Of the first frame of a free piece [`Kind::state`], of any other zero.
    states: Box<[AtomicU8]>,
}

impl Links {
    pub(super) fn new(frames: usize) -> Self {
        let words = || (0..frames).map(|_| AtomicU32::new(0)).collect();
        Self { next: words(), before: words(), states: (0..frames).map(|_| AtomicU8::new(0)).collect() }
    }

    /// The order of the free piece that starts at a frame, if it is one of this kind.
    pub(super) fn order_of(&self, frame: u32, kind: Kind) -> Option<u8> {
        let state = self.states.get(frame as usize)?.load(Relaxed);
        if state >> 4 == kind as u8 { (state & 15).checked_sub(1) } else { None }
    }

    /// Links a piece that is sent to its owner before one that was sent earlier, which is stored plus one.
    pub(super) fn send(&self, frame: u32, order: u8, earlier: u32) {
        self.next[frame as usize].store(earlier, Relaxed);
        self.states[frame as usize].store(Kind::Sent.state(order), Relaxed);
    }

    /// The order of a piece that was sent, and the one behind it plus one.
    pub(super) fn sent(&self, frame: u32) -> (u8, u32) {
        let order = self.order_of(frame, Kind::Sent).unwrap_or_default();
        (order, self.next[frame as usize].load(Relaxed))
    }
}

/// Free pieces, the newest first. Frames are stored plus one, so that zero is none.
#[derive(Default)]
pub(super) struct Lists {
    first: [u32; TOP as usize + 1],
    frames: u32,
}

impl Lists {
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    #[inline]
    pub(super) fn push(&mut self, links: &Links, frame: u32, order: u8, kind: Kind) {
        let first = &mut self.first[usize::from(order)];
        links.next[frame as usize].store(*first, Relaxed);
        links.before[frame as usize].store(0, Relaxed);
        if let Some(behind) = first.checked_sub(1) {
            links.before[behind as usize].store(frame + 1, Relaxed);
        }
        *first = frame + 1;
        links.states[frame as usize].store(kind.state(order), Relaxed);
        self.frames += 1 << order;
    }

    pub(super) fn remove(&mut self, links: &Links, frame: u32, order: u8) {
        let [next, before] = [&links.next, &links.before].map(|link| link[frame as usize].load(Relaxed));
        match before.checked_sub(1) {
            Some(front) => links.next[front as usize].store(next, Relaxed),
            None => self.first[usize::from(order)] = next,
        }
        if let Some(behind) = next.checked_sub(1) {
            links.before[behind as usize].store(before, Relaxed);
        }
        links.states[frame as usize].store(0, Relaxed);
        self.frames -= 1 << order;
    }

    /// Takes the newest piece of the smallest of these orders that has one; returns its order and kind too.
    #[inline]
    pub(super) fn pop(&mut self, links: &Links, orders: RangeInclusive<u8>) -> Option<(u32, u8, Kind)> {
        for order in orders {
            if let Some(frame) = self.first[usize::from(order)].checked_sub(1) {
                let kind = usize::from(links.states[frame as usize].load(Relaxed) >> 4);
                self.remove(links, frame, order);
                return Some((frame, order, Kind::ALL[kind]));
            }
        }
        None
    }

    /// Puts the owned pieces of an order together with their buddies, where both are free and here.
    pub(super) fn merge(&mut self, links: &Links, order: u8) {
        let mut next = self.first[usize::from(order)];
        while let Some(frame) = next.checked_sub(1) {
            next = links.next[frame as usize].load(Relaxed);
            let buddy = frame ^ (1 << order);
            let owned = |frame| links.order_of(frame, Kind::Owned) == Some(order);
            if owned(frame) && owned(buddy) {
                if next == buddy + 1 {
                    next = links.next[buddy as usize].load(Relaxed);
                }
                [frame, buddy].iter().for_each(|&half| self.remove(links, half, order));
                self.push(links, frame.min(buddy), order + 1, Kind::Owned);
            }
        }
    }

    /// Takes the buddies of a piece out of the store, as far as they are there; returns the larger piece.
    pub(super) fn join(&mut self, links: &Links, mut frame: u32, mut order: u8) -> (u32, u8) {
        while order < TOP && links.order_of(frame ^ (1 << order), Kind::Stored) == Some(order) {
            self.remove(links, frame ^ (1 << order), order);
            frame &= !(1 << order);
            order += 1;
        }
        (frame, order)
    }
}
