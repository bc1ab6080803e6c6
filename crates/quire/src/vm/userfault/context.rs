//! The contexts of all handlers: which tasks wait for them, and which events they have not read yet.
//!
//! A context is a bounded number of places under one lock. A thread that faults takes a place and sleeps on
//! the place's word until the word changes; an answer frees the place, changes the word and wakes. So the
//! next thread may take the place before the last one wakes: the last one only sees that the word has
//! changed. A change to an address space takes a place of its own kind until a handler thread has read it.
//!
//! Words are changed under the lock, and tasks are woken after it was given back. A task that sleeps on a
//! word has read it under the lock, so it misses no change.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use super::event::{Ticket, UserfaultChanges, UserfaultEvent, UserfaultFault};
use super::registration::Registration;
use crate::addr::VirtRange;
use crate::error::{FaultError, InitError, TooManyHandlers};
use crate::limits::{MAX_USERFAULTS, USERFAULT_CHANGES, USERFAULT_SLOTS};
use crate::memmap::BootTable;
use crate::page_alloc::TableFrames;
use crate::platform::Platform;
use crate::rank::Rank;
use crate::sync::{SpinGuard, SpinLock};

pub(in crate::vm) struct Contexts(BootTable<Context>);

pub(super) struct Context {
    state: SpinLock<State>,
    /// How many changes are under way or unread: answers are refused meanwhile. Stored to under the lock.
    pub(super) changing: AtomicU32,
    /// The word that changes when there is something new to read.
    pub(super) arrivals: AtomicU32,
    /// The word that changes when a place becomes free.
    room: AtomicU32,
    faults: BootTable<AtomicU32>,
    pub(super) changes: [AtomicU32; USERFAULT_CHANGES],
}

pub(super) struct State {
    open: bool,
    /// How many handlers with this number have closed.
    generation: u32,
    pub(super) wants: UserfaultChanges,
    pub(super) faults: BootTable<FaultState>,
    pub(super) changes: BootTable<Option<Change>>,
    /// Changes under way that cannot be read yet.
    pub(super) announced: u32,
    /// The number of the last event entered.
    order: u64,
    /// Handler threads that wait for something to read.
    pub(super) sleepers: u32,
    /// Whether a task waits for a place.
    crowded: bool,
}

#[derive(Clone, Copy)]
pub(super) enum FaultState {
    Free,
    /// A fault that no handler thread has read yet, and its order.
    Pending(u64, UserfaultFault),
    /// One that a handler thread has read.
    Taken(u64, UserfaultFault),
}

/// A change that no handler thread has read yet.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) order: u64,
    pub(super) event: UserfaultEvent,
    pub(super) announced: bool,
}

/// A task waits until the word of this place differs from `seen`.
#[must_use = "a place at which no task waits is lost"]
pub(in crate::vm) struct Waiting {
    number: u8,
    place: WaitWord,
    seen: u32,
    /// The task must wake handler threads first.
    rouse: bool,
    /// The task need not wait any more: it frees the place.
    vain: bool,
}

#[derive(Clone, Copy)]
pub(super) enum WaitWord {
    Fault(usize),
    Change(usize),
    Room,
}

/// The outcome of entering a fault or a change.
pub(in crate::vm) enum Posted {
    Placed(Waiting),
    /// All places are taken: wait for one.
    Full(Waiting),
    /// The handler has closed.
    Dead,
}

/// The words whose sleepers are to be woken once the lock is given back.
#[derive(Default)]
pub(super) struct Owed {
    faults: u64,
    pub(super) changes: u32,
    room: bool,
    arrivals: bool,
}

impl Waiting {
    fn at(number: u8, place: WaitWord, seen: u32, rouse: bool) -> Self {
        Self { number, place, seen, rouse, vain: false }
    }

    /// The page has come already.
    pub(super) fn in_vain(self) -> Self {
        Self { vain: true, ..self }
    }
}

impl Contexts {
    pub(in crate::vm) fn new<P: Platform>(tables: &mut TableFrames<'_, '_, P>) -> Result<Self, InitError> {
        tables.table(MAX_USERFAULTS, |tables, _| Context::new(tables)).map(Self)
    }

    /// The context that a mapping names, open or not.
    pub(super) fn of(&self, registration: Registration) -> &Context {
        &self.0[usize::from(registration.number)]
    }

    pub(super) fn open<P: Platform>(
        &self,
        platform: &P,
        wants: UserfaultChanges,
    ) -> Result<Registration, TooManyHandlers> {
        for (number, context) in (0..).zip(self.0.iter()) {
            if let Some(generation) = context.lock(platform).open(wants) {
                return Ok(Registration::new(number, generation));
            }
        }
        Err(TooManyHandlers)
    }

    pub(super) fn is_open<P: Platform>(&self, platform: &P, registration: Registration) -> bool {
        self.of(registration).lock_open(platform, registration).is_some()
    }

    /// Whether a change that the handler has asked to read is under way or unread. The caller holds the lock
    /// of an address space that is registered with it.
    pub(super) fn is_changing(&self, registration: Registration) -> bool {
        self.of(registration).changing.load(Ordering::Relaxed) != 0
    }

    /// Enters the fault of a thread that will wait, and sets its ticket. Under its address space's lock.
    pub(super) fn post<P: Platform>(
        &self,
        platform: &P,
        registration: Registration,
        fault: UserfaultFault,
    ) -> Posted {
        let context = self.of(registration);
        let Some(mut state) = context.lock_open(platform, registration) else { return Posted::Dead };
        if state.wants.contains(UserfaultChanges::FAIL) {
            return Posted::Dead;
        }
        let number = registration.number;
        let Some(slot) = state.faults.iter().position(|slot| matches!(slot, FaultState::Free)) else {
            return Posted::Full(context.wait_for_room(&mut state, number));
        };
        let seen = context.faults[slot].load(Ordering::Relaxed);
        let ticket = Ticket { slot: slot as u32, round: seen };
        state.faults[slot] = FaultState::Pending(state.next(), UserfaultFault { ticket, ..fault });
        let rouse = context.arrive(&state);
        Posted::Placed(Waiting::at(number, WaitWord::Fault(slot), seen, rouse))
    }

    /// Frees the place of a fault whose thread does not wait after all. The caller holds no lock.
    fn retract<P: Platform>(&self, platform: &P, waiting: &Waiting) {
        let context = &self.0[usize::from(waiting.number)];
        let WaitWord::Fault(slot) = waiting.place else { return };
        let mut owed = Owed::default();
        let mut state = context.lock(platform);
        if context.faults[slot].load(Ordering::Relaxed) == waiting.seen {
            context.give_up(&mut state, slot, &mut owed);
        }
        drop(state);
        context.settle(platform, &owed);
    }

    /// Waits until the place is free, or there is room; frees a place held in vain. The caller holds no lock.
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

    /// Wakes all threads that wait for a page of this range of an address space. The caller holds no lock.
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
            if let FaultState::Pending(_, fault) | FaultState::Taken(_, fault) = state.faults[slot]
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
    fn new<P: Platform>(tables: &mut TableFrames<'_, '_, P>) -> Result<Self, InitError> {
        let faults = tables.table(USERFAULT_SLOTS, |_, _| Ok(FaultState::Free))?;
        let changes = tables.table(USERFAULT_CHANGES, |_, _| Ok(None))?;
        Ok(Self {
            state: SpinLock::new(Rank::Userfault, State::new(faults, changes)),
            changing: AtomicU32::new(0),
            arrivals: AtomicU32::new(0),
            room: AtomicU32::new(0),
            faults: tables.table(USERFAULT_SLOTS, |_, _| Ok(AtomicU32::new(0)))?,
            changes: [const { AtomicU32::new(0) }; USERFAULT_CHANGES],
        })
    }

    fn lock<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, State, P> {
        self.state.lock(platform)
    }

    /// Locks the context if it is still the one of this registration.
    pub(super) fn lock_open<'a, P: Platform>(
        &'a self,
        platform: &'a P,
        registration: Registration,
    ) -> Option<SpinGuard<'a, State, P>> {
        let state = self.lock(platform);
        (state.open && state.generation == registration.generation).then_some(state)
    }

    fn word(&self, place: WaitWord) -> &AtomicU32 {
        match place {
            WaitWord::Fault(slot) => &self.faults[slot],
            WaitWord::Change(slot) => &self.changes[slot],
            WaitWord::Room => &self.room,
        }
    }

    pub(super) fn changed(&self, word: &AtomicU32) {
        word.fetch_add(1, Ordering::Release);
    }

    /// Something can be read. Returns whether the caller must [`Self::rouse`] a handler thread.
    pub(super) fn arrive(&self, state: &State) -> bool {
        self.changed(&self.arrivals);
        state.sleepers > 0
    }

    pub(super) fn wait_for_room(&self, state: &mut State, number: u8) -> Waiting {
        state.crowded = true;
        Waiting::at(number, WaitWord::Room, self.room.load(Ordering::Relaxed), false)
    }

    /// For the verb that entered a change.
    pub(super) fn wait_for_reader(&self, number: u8, slot: usize, rouse: bool) -> Waiting {
        Waiting::at(number, WaitWord::Change(slot), self.changes[slot].load(Ordering::Relaxed), rouse)
    }

    /// Frees a place, and lets the task that waits at it go on.
    fn give_up(&self, state: &mut State, slot: usize, owed: &mut Owed) {
        state.faults[slot] = FaultState::Free;
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

    /// The caller holds no lock.
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

    /// A change is under way: no answer is given until it was read.
    pub(super) fn announce(&self, state: &mut State) {
        state.announced += 1;
        self.changing.fetch_add(1, Ordering::Relaxed);
    }

    /// An announced change does not happen, so it will not be read.
    pub(super) fn call_off(&self, state: &mut State) {
        state.announced -= 1;
        self.changing.fetch_sub(1, Ordering::Relaxed);
    }

    /// Closes the handler: all tasks go on, and find that it has closed. The caller holds no lock.
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
    const fn new(faults: BootTable<FaultState>, changes: BootTable<Option<Change>>) -> Self {
        Self {
            open: false,
            generation: 0,
            wants: UserfaultChanges::NONE,
            faults,
            changes,
            announced: 0,
            order: 0,
            sleepers: 0,
            crowded: false,
        }
    }

    /// Opens the context if it is closed; returns its generation. The last generation is never opened: none
    /// could follow, and a generation that came again would adopt the mappings of an earlier handler.
    fn open(&mut self, wants: UserfaultChanges) -> Option<u32> {
        if self.open || self.generation == u32::MAX {
            return None;
        }
        (self.open, self.wants) = (true, wants);
        Some(self.generation)
    }

    /// The number of the event that is entered now.
    pub(super) fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

#[cfg(test)]
mod tests;
