//! The contexts of all handlers: which tasks wait for them, and what they have not read yet.
//!
//! A context is a bounded number of places under one lock. A thread that faults takes a place and sleeps on
//! the place's word until the word changes; an answer gives the place up, changes the word and wakes. So a
//! place may have its next user before the last one has woken, which only sees that the word is another. A
//! change to an address space takes a place of its own kind until it is read.
//!
//! Every store to a word is made under the lock, and tasks are woken after it was given back: a task that
//! sleeps for a word has seen it under the lock, so no change is missed.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use super::event::{Ticket, UserfaultChanges, UserfaultEvent, UserfaultFault};
use super::registration::Registration;
use crate::addr::VirtRange;
use crate::error::{FaultError, TooManyHandlers};
use crate::limits::{MAX_USERFAULTS, USERFAULT_CHANGES, USERFAULT_SLOTS};
use crate::platform::Platform;
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

/// All of them.
pub(in crate::vm) struct Contexts([Context; MAX_USERFAULTS]);

pub(super) struct Context {
    state: SpinLock<State>,
    /// Changes that are under way or not read yet: answers wait for them. Changes under the lock.
    pub(super) changing: AtomicU32,
    /// Something new can be read.
    pub(super) arrivals: AtomicU32,
    /// A place was given up.
    room: AtomicU32,
    faults: [AtomicU32; USERFAULT_SLOTS],
    pub(super) changes: [AtomicU32; USERFAULT_CHANGES],
}

pub(super) struct State {
    open: bool,
    /// Contexts that have been closed here.
    generation: u32,
    pub(super) wants: UserfaultChanges,
    pub(super) faults: [Slot; USERFAULT_SLOTS],
    pub(super) changes: [Option<Change>; USERFAULT_CHANGES],
    /// Changes under way that are not to be read yet.
    pub(super) announced: u32,
    /// Counts what was put in.
    order: u64,
    /// Handlers that wait for something to read.
    pub(super) sleepers: u32,
    /// A task waits for a place.
    crowded: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Slot {
    Free,
    /// It was not read yet.
    Pending(u64, UserfaultFault),
    /// A handler has.
    Taken(u64, UserfaultFault),
}

/// A change that was not read yet.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) order: u64,
    pub(super) event: UserfaultEvent,
    pub(super) announced: bool,
}

/// What a task waits for: that this place's word is no longer this.
#[must_use = "a place at which no task waits is lost"]
pub(in crate::vm) struct Waiting {
    number: u8,
    place: Place,
    seen: u32,
    /// Handlers sleep that must be told first.
    rouse: bool,
    /// There is nothing to wait for any more: the place is to be given up.
    vain: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Place {
    Fault(usize),
    Change(usize),
    Room,
}

/// What became of a fault or a change.
pub(in crate::vm) enum Posted {
    /// It has a place.
    Placed(Waiting),
    /// It must wait for one.
    Full(Waiting),
    /// There is no handler any more.
    Dead,
}

/// What to wake once the lock is given back.
#[derive(Default)]
pub(super) struct Owed {
    faults: u64,
    pub(super) changes: u32,
    room: bool,
    arrivals: bool,
}

impl Waiting {
    fn at(number: u8, place: Place, seen: u32, rouse: bool) -> Self {
        Self { number, place, seen, rouse, vain: false }
    }

    /// What was waited for has come already.
    pub(super) fn in_vain(self) -> Self {
        Self { vain: true, ..self }
    }
}

impl Contexts {
    pub(in crate::vm) fn new() -> Self {
        Self(core::array::from_fn(|_| Context::new()))
    }

    /// The context that a mapping names, open or not.
    pub(super) fn of(&self, registration: Registration) -> &Context {
        &self.0[usize::from(registration.number)]
    }

    /// Opens one.
    pub(super) fn open<P: Platform>(
        &self,
        platform: &P,
        wants: UserfaultChanges,
    ) -> Result<Registration, TooManyHandlers> {
        for (number, context) in (0..).zip(&self.0) {
            if let Some(generation) = context.lock(platform).open(wants) {
                return Ok(Registration::new(number, generation));
            }
        }
        Err(TooManyHandlers)
    }

    /// Whether the handler is there.
    pub(super) fn is_open<P: Platform>(&self, platform: &P, registration: Registration) -> bool {
        self.of(registration).lock_open(platform, registration).is_some()
    }

    /// Whether a change to an address space is under way that the handler has asked to read and has not read.
    /// Under the lock of an address space that it concerns.
    pub(super) fn is_changing(&self, registration: Registration) -> bool {
        self.of(registration).changing.load(Ordering::Relaxed) != 0
    }

    /// Puts in that a thread waits; its ticket is set here. Under the lock of its address space.
    pub(super) fn post<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        fault: UserfaultFault,
    ) -> Posted {
        let context = self.of(registration);
        let Some(mut state) = context.lock_open(platform, registration) else { return Posted::Dead };
        let number = registration.number;
        let Some(slot) = state.faults.iter().position(|slot| matches!(slot, Slot::Free)) else {
            return Posted::Full(context.wait_for_room(&mut state, number));
        };
        let seen = context.faults[slot].load(Ordering::Relaxed);
        let ticket = Ticket { slot: slot as u32, round: seen };
        state.faults[slot] = Slot::Pending(state.next(), UserfaultFault { ticket, ..fault });
        let rouse = context.arrive(&state);
        Posted::Placed(Waiting::at(number, Place::Fault(slot), seen, rouse))
    }

    /// Gives the place of a thread up that need not wait after all. The caller holds no lock.
    fn retract<P: Platform>(&self, platform: &P, waiting: &Waiting) {
        let context = &self.0[usize::from(waiting.number)];
        let Place::Fault(slot) = waiting.place else { return };
        let mut owed = Owed::default();
        let mut state = context.lock(platform);
        if context.faults[slot].load(Ordering::Relaxed) == waiting.seen {
            context.give_up(&mut state, slot, &mut owed);
        }
        drop(state);
        context.settle(platform, &owed);
    }

    /// Waits until the place was given up, or there is room; gives it up if there is nothing to wait for. The
    /// caller holds no lock.
    ///
    /// # Errors
    /// [`FaultError::Dying`].
    pub(in crate::vm) fn wait<P: Platform>(&self, platform: &P, waiting: Waiting) -> Result<(), FaultError> {
        let context = &self.0[usize::from(waiting.number)];
        if waiting.vain {
            self.retract(platform, &waiting);
            return Ok(());
        }
        if waiting.rouse {
            platform.wake(&context.arrivals);
        }
        let word = context.word(waiting.place);
        while word.load(Ordering::Acquire) == waiting.seen {
            if platform.is_dying() {
                self.retract(platform, &waiting);
                return Err(FaultError::Dying);
            }
            platform.wait(word, waiting.seen);
        }
        Ok(())
    }

    /// Lets every thread go on that waits for a page of this range of an address space. The caller holds no
    /// lock.
    pub(super) fn answer<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        space: u64,
        range: VirtRange,
    ) {
        let context = self.of(registration);
        let Some(mut state) = context.lock_open(platform, registration) else { return };
        let mut owed = Owed::default();
        for slot in 0..USERFAULT_SLOTS {
            if let Slot::Pending(_, fault) | Slot::Taken(_, fault) = state.faults[slot]
                && fault.space == space
                && range.contains(fault.addr)
            {
                context.give_up(&mut state, slot, &mut owed);
            }
        }
        drop(state);
        context.settle(platform, &owed);
    }
}

impl Context {
    fn new() -> Self {
        Self {
            state: SpinLock::new(Rank::Userfault, State::new()),
            changing: AtomicU32::new(0),
            arrivals: AtomicU32::new(0),
            room: AtomicU32::new(0),
            faults: [const { AtomicU32::new(0) }; USERFAULT_SLOTS],
            changes: [const { AtomicU32::new(0) }; USERFAULT_CHANGES],
        }
    }

    fn lock<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, State, P> {
        self.state.lock(platform)
    }

    /// The same if it is still the context of this registration.
    pub(super) fn lock_open<'a, P: Platform>(
        &'a self,
        platform: &'a P,
        registration: Registration,
    ) -> Option<SpinGuard<'a, State, P>> {
        let state = self.lock(platform);
        (state.open && state.generation == registration.generation).then_some(state)
    }

    fn word(&self, place: Place) -> &AtomicU32 {
        match place {
            Place::Fault(slot) => &self.faults[slot],
            Place::Change(slot) => &self.changes[slot],
            Place::Room => &self.room,
        }
    }

    pub(super) fn changed(&self, word: &AtomicU32) {
        word.fetch_add(1, Ordering::Release);
    }

    /// Something can be read; whether a thread sleeps that must be woken for it.
    pub(super) fn arrive(&self, state: &State) -> bool {
        self.changed(&self.arrivals);
        state.sleepers > 0
    }

    /// There is no place: what to wait for.
    pub(super) fn wait_for_room(&self, state: &mut State, number: u8) -> Waiting {
        state.crowded = true;
        Waiting::at(number, Place::Room, self.room.load(Ordering::Relaxed), false)
    }

    /// What the verb waits for that put a change in.
    pub(super) fn wait_for_reader(&self, number: u8, slot: usize, rouse: bool) -> Waiting {
        Waiting::at(number, Place::Change(slot), self.changes[slot].load(Ordering::Relaxed), rouse)
    }

    /// A place is free again, and the task that waits at it may go on.
    fn give_up(&self, state: &mut State, slot: usize, owed: &mut Owed) {
        state.faults[slot] = Slot::Free;
        self.changed(&self.faults[slot]);
        owed.faults |= 1 << slot;
        self.admit_waiting(state, owed);
    }

    pub(super) fn admit_waiting(&self, state: &mut State, owed: &mut Owed) {
        if core::mem::take(&mut state.crowded) {
            self.changed(&self.room);
            owed.room = true;
        }
    }

    /// Wakes the tasks that are owed it. The caller holds no lock.
    pub(super) fn settle<P: Platform>(&self, platform: &P, owed: &Owed) {
        let mut faults = owed.faults;
        while faults != 0 {
            platform.wake(&self.faults[faults.trailing_zeros() as usize]);
            faults &= faults - 1;
        }
        for (slot, word) in self.changes.iter().enumerate() {
            if owed.changes >> slot & 1 == 1 {
                platform.wake(word);
            }
        }
        if owed.room {
            platform.wake(&self.room);
        }
        if owed.arrivals {
            platform.wake(&self.arrivals);
        }
    }

    /// A change is under way; answers wait until it was read.
    pub(super) fn announce(&self, state: &mut State) {
        state.announced += 1;
        self.changing.fetch_add(1, Ordering::Relaxed);
    }

    /// It will not be read, after all.
    pub(super) fn call_off(&self, state: &mut State) {
        state.announced -= 1;
        self.changing.fetch_sub(1, Ordering::Relaxed);
    }

    /// The handler reads no more: all tasks go on, and find that it is gone. The caller holds no lock.
    pub(super) fn close<P: Platform>(&self, platform: &P, registration: Registration) {
        let Some(mut state) = self.lock_open(platform, registration) else { return };
        let mut owed = Owed { room: true, arrivals: true, ..Owed::default() };
        for slot in 0..USERFAULT_SLOTS {
            self.give_up(&mut state, slot, &mut owed);
        }
        for (slot, change) in state.changes.iter_mut().enumerate() {
            *change = None;
            self.changed(&self.changes[slot]);
            owed.changes |= 1 << slot;
        }
        self.changed(&self.room);
        self.changed(&self.arrivals);
        self.changing.store(0, Ordering::Relaxed);
        (state.open, state.announced, state.sleepers) = (false, 0, 0);
        state.generation += 1;
        drop(state);
        self.settle(platform, &owed);
    }
}

impl State {
    const fn new() -> Self {
        Self {
            open: false,
            generation: 0,
            wants: UserfaultChanges::NONE,
            faults: [Slot::Free; USERFAULT_SLOTS],
            changes: [None; USERFAULT_CHANGES],
            announced: 0,
            order: 0,
            sleepers: 0,
            crowded: false,
        }
    }

    /// Opens the context if it is closed; returns its generation. The last generation is never opened: none
    /// could follow it, and a generation that came again would answer for mappings of an earlier handler.
    fn open(&mut self, wants: UserfaultChanges) -> Option<u32> {
        if self.open || self.generation == u32::MAX {
            return None;
        }
        (self.open, self.wants) = (true, wants);
        Some(self.generation)
    }

    /// The number of what is put in now.
    pub(super) fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

#[cfg(test)]
mod tests;
