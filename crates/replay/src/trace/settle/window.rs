//! The possible states of one address space while some calls are not placed.

use std::ops::Range;

use super::doubts::overlap;
use crate::trace::layout::{Space, reach};
use crate::trace::{Event, EventKind};

/// The most states that are followed. Of more states the first ones are kept, and all changes of the others
/// are in doubt.
const MOST_STATES: usize = 512;

/// The most mappings of all these states together, so that their memory is bounded: about 50 MB. One state is
/// always kept.
pub(super) const MOST_MAPPINGS: usize = 1 << 19;

/// The most unplaced calls that are followed.
const MOST_LOOSE: usize = 64;

/// Events after which several remaining states count as equally good.
const LONGEST: u64 = 4096;

/// The time from the first unplaced call until one state is left.
pub(super) struct Window {
    /// Unplaced calls by number; a placed call frees its number.
    loose: Vec<Loose>,
    states: Vec<State>,
    /// All calls before the event of this number are placed.
    start: u64,
    doubts: Vec<Range<u64>>,
    /// The true state may be missing, because states were dropped or the first was a guess. Then no event can
    /// show the order of calls, and all their changes are in doubt.
    incomplete: bool,
    /// The window's part of [`MOST_MAPPINGS`].
    most_mappings: usize,
}

/// An unplaced call.
struct Loose {
    /// The call and the ranges that it populated; empty once it is placed.
    events: Vec<Event>,
    tid: u32,
    exit_ns: u64,
    reach: Vec<Range<u64>>,
    /// It reads mappings and changes none.
    only_looks: bool,
}

/// One possible state.
#[derive(Clone)]
struct State {
    space: Space,
    /// Calls that have not taken effect yet, by bit.
    left: u64,
    /// Calls that have taken effect, each with the number of the event after it.
    done: Vec<(usize, u64)>,
}

/// The result of a window.
pub(super) struct Found {
    /// The places of calls: before the event of this number.
    pub(super) places: Vec<(u64, Vec<Event>)>,
    /// Addresses that are in doubt from the event of this number on.
    pub(super) doubts: (u64, Vec<Range<u64>>),
}

impl Window {
    /// `start` is the number of the next event; `is_sure` if the address space was surely like this. `others`
    /// windows are open.
    pub(super) fn new(space: Space, start: u64, is_sure: bool, others: usize) -> Window {
        let states = vec![State { space, left: 0, done: Vec::new() }];
        let (loose, doubts, most_mappings) = (Vec::new(), Vec::new(), MOST_MAPPINGS / (others + 1));
        Window { loose, states, start, doubts, incomplete: !is_sure, most_mappings }
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Whether it can follow one more call.
    pub(super) fn has_room(&self) -> bool {
        self.loose.len() < MOST_LOOSE || self.loose.iter().any(|loose| loose.events.is_empty())
    }

    /// Adds an unplaced call, entered before the event of this number. Calls that have returned by then were
    /// before it.
    pub(super) fn open(&mut self, event: Event, next: u64) {
        let EventKind::Syscall(call) = &event.kind else { return };
        let due = self.due(&event);
        if self.states.iter().any(|state| state.left & due != 0) {
            self.explain(None, due, self.concerned(due, &[]), next);
        }
        let exit_ns = call.enter_ns.saturating_add(call.duration_ns);
        let (tid, reach, only_looks) = (event.tid, reach(&event.kind), !call.call.changes_mappings());
        let loose = Loose { events: vec![event], tid, exit_ns, reach, only_looks };
        let number = self.loose.iter().position(|loose| loose.events.is_empty()).unwrap_or(self.loose.len());
        match self.loose.get_mut(number) {
            Some(free) => *free = loose,
            None => self.loose.push(loose),
        }
        if self.incomplete {
            let changed = self.changed_by(1 << number);
            self.doubts.extend(changed);
        }
        self.states.iter_mut().for_each(|state| state.left |= 1 << number);
        self.look(next);
    }

    /// Takes the ranges that the thread's last call populated: they get the call's place.
    pub(super) fn take_populated(&mut self, event: &Event) -> bool {
        let of_thread = |loose: &&mut Loose| loose.tid == event.tid && !loose.events.is_empty();
        match self.loose.iter_mut().filter(of_thread).max_by_key(|loose| loose.events[0].time_ns) {
            Some(loose) if matches!(event.kind, EventKind::Populate { .. }) => {
                loose.events.push(event.clone());
                true
            }
            _ => false,
        }
    }

    /// Applies an event: all returned calls have taken effect before it, and any others may have.
    pub(super) fn advance(&mut self, event: &Event, number: u64) {
        let due = self.due(event);
        let concerned = self.concerned(due, &reach(&event.kind));
        if self.states.iter().any(|state| state.left & concerned != 0) {
            self.explain(Some(event), due, concerned, number);
        } else if self.states.iter().any(|state| state.space.fits(&event.kind)) {
            self.states.retain(|state| state.space.fits(&event.kind));
        } else if !self.incomplete {
            // No order explains it: as in `explain`.
            self.states.truncate(1);
        }
        self.states.iter_mut().for_each(|state| state.space.apply(&event.kind));
        self.look(number + 1);
        if self.states.len() > 1 && !matches!(event.kind, EventKind::Fault { .. }) {
            let states = std::mem::take(&mut self.states);
            self.states = self.distinct(states);
        }
    }

    /// Keeps the states in which the event is possible after all calls that are due. If no order explains it,
    /// the first state is as good as any; a replay shows whether the recording is wrong.
    fn explain(&mut self, event: Option<&Event>, due: u64, concerned: u64, number: u64) {
        let before = self.states.clone();
        self.states = self.explained(event, due, concerned, number);
        if self.states.is_empty() {
            self.states = before;
            self.states.truncate(1);
            if self.incomplete {
                self.doubts.extend(event.into_iter().flat_map(|event| reach(&event.kind)));
                let forced = bits(due & self.states[0].left).flat_map(|call| self.loose[call].reach.clone());
                self.doubts.extend(forced);
            }
            self.do_calls(due, number);
        }
        let states = std::mem::take(&mut self.states);
        self.states = self.distinct(states);
    }

    /// The calls that have returned before an event.
    fn due(&self, event: &Event) -> u64 {
        self.mask(|loose| loose.exit_ns < event.time_ns || loose.tid == event.tid)
    }

    /// The states in which the event is possible, reached by making calls take effect before it.
    fn explained(&mut self, event: Option<&Event>, due: u64, concerned: u64, number: u64) -> Vec<State> {
        let mut explained = Distinct::new(self.most_mappings);
        let mut frontier = std::mem::take(&mut self.states);
        while !frontier.is_empty() {
            let mut further = Distinct::new(self.most_mappings);
            for state in frontier {
                let all_due_done = state.left & due == 0;
                if all_due_done && event.is_none() {
                    // Further calls are tried when an event needs them.
                    explained.add(state);
                    continue;
                }
                for call in bits(state.left & concerned) {
                    let loose = &self.loose[call];
                    if !further.overflows && state.space.fits(&loose.events[0].kind) {
                        further.add(state.clone().with(call, loose, number).looked(&self.loose, number));
                    }
                }
                if all_due_done && event.is_none_or(|event| state.space.fits(&event.kind)) {
                    explained.add(state);
                }
            }
            frontier = self.taken(further);
        }
        self.taken(explained)
    }

    /// The calls that affect the event, or affect such a call or one that has returned.
    fn concerned(&self, due: u64, event: &[Range<u64>]) -> u64 {
        let touches = |one: &[Range<u64>], other: &[Range<u64>]| {
            one.iter().any(|one| other.iter().any(|other| overlap(one, other)))
        };
        let mut concerned = due | self.mask(|loose| touches(&loose.reach, event));
        loop {
            let next =
                |loose: &Loose| bits(concerned).any(|call| touches(&self.loose[call].reach, &loose.reach));
            let more = concerned | self.mask(next);
            if more == concerned {
                return concerned;
            }
            concerned = more;
        }
    }

    fn mask(&self, wanted: impl Fn(&Loose) -> bool) -> u64 {
        self.loose.iter().enumerate().filter(|(_, loose)| wanted(loose)).map(|(call, _)| 1 << call).sum()
    }

    /// Removes duplicate states and limits their number.
    fn distinct(&mut self, states: Vec<State>) -> Vec<State> {
        let mut distinct = Distinct::new(self.most_mappings);
        states.into_iter().for_each(|state| distinct.add(state));
        self.taken(distinct)
    }

    fn taken(&mut self, Distinct { states, overflows, .. }: Distinct) -> Vec<State> {
        if overflows {
            self.give_up();
        }
        states
    }

    /// Gives up following all states. They differ only in changes by unplaced calls.
    fn give_up(&mut self) {
        self.incomplete = true;
        let changed = self.changed_by(self.mask(|loose| !loose.events.is_empty()));
        self.doubts.extend(changed);
    }

    /// Frees numbers: calls that took effect in all states get their place in the first state, before the
    /// event of this number. Differences of other states are in doubt. The states are followed further.
    pub(super) fn place(&mut self, next: u64) -> Found {
        let undone = self.states.iter().fold(0, |undone, state| undone | state.left);
        self.doubt_all_but_first(undone);
        let is_done = |(call, _): &(usize, u64)| undone & 1 << call == 0;
        let placed: Vec<(usize, u64)> = self.states[0].done.iter().copied().filter(is_done).collect();
        for state in &mut self.states {
            state.done.retain(|done| !is_done(done));
            // Earlier events are released now, so an unplaced call comes after them.
            state.done.iter_mut().for_each(|(_, place)| *place = next);
        }
        let doubts = (self.start, std::mem::take(&mut self.doubts));
        self.start = next;
        Found { places: self.take_events(placed), doubts }
    }

    /// Marks as in doubt where other states differ from the first, and the changes of calls that took effect
    /// in some states only.
    fn doubt_all_but_first(&mut self, undone: u64) {
        let (first, others) = self.states.split_first().expect("there is always a state");
        let differ = others.iter().flat_map(|other| first.space.differences(&other.space));
        let doubts: Vec<Range<u64>> = differ.chain(self.changed_by(undone)).collect();
        self.doubts.extend(doubts);
    }

    /// Removes the events of calls.
    fn take_events(&mut self, calls: Vec<(usize, u64)>) -> Vec<(u64, Vec<Event>)> {
        let mut taken = Vec::new();
        for (call, place) in calls {
            taken.push((place, std::mem::take(&mut self.loose[call].events)));
            self.loose[call].reach.clear();
        }
        taken
    }

    /// The final results before the event of this number.
    pub(super) fn found(&mut self, next: u64) -> Found {
        let doubts = (self.start, std::mem::take(&mut self.doubts));
        let mut places = Vec::new();
        if let [state] = &mut self.states[..] {
            let done = std::mem::take(&mut state.done);
            places = self.take_events(done);
            self.start = next;
        }
        Found { places, doubts }
    }

    /// The mappings of all states.
    #[cfg(test)]
    pub(super) fn mappings(&self) -> usize {
        self.states.iter().map(|state| state.space.len()).sum()
    }

    /// Whether nothing is left to find out.
    pub(super) fn is_settled(&self, number: u64) -> bool {
        let all_done = self.states.iter().all(|state| state.left == 0);
        all_done && (self.states.len() == 1 || number - self.start > LONGEST)
    }

    /// The addresses of calls that change mappings.
    fn changed_by(&self, calls: u64) -> Vec<Range<u64>> {
        let changes = bits(calls).map(|call| &self.loose[call]).filter(|loose| !loose.only_looks);
        changes.flat_map(|loose| loose.reach.clone()).collect()
    }

    /// Places calls that change no mapping as early as possible: nothing else depends on their time.
    fn look(&mut self, number: u64) {
        for state in &mut self.states {
            let left = state.left;
            if bits(left).any(|call| self.loose[call].only_looks) {
                *state = state.clone().looked(&self.loose, number);
            }
        }
    }

    fn do_calls(&mut self, calls: u64, number: u64) {
        for state in &mut self.states {
            for call in bits(calls & state.left) {
                *state = state.clone().with(call, &self.loose[call], number);
            }
        }
    }

    /// Takes the first state, and returns whether it is surely the true one. Unplaced calls go before the
    /// event of this number; if that is `early`, they may have come after it as well.
    pub(super) fn close(mut self, number: u64, early: bool) -> (Space, bool, Found) {
        let mut undone = self.states.iter().fold(0, |undone, state| undone | state.left);
        if !early {
            let all = self.mask(|loose| !loose.events.is_empty());
            self.explain(None, all, all, number);
            undone = 0;
        }
        self.doubt_all_but_first(undone);
        let forced = bits(self.states[0].left).flat_map(|call| self.loose[call].reach.clone());
        self.doubts.extend(forced);
        let is_sure = !self.incomplete && self.states.len() == 1 && undone == 0;
        self.states.truncate(1);
        self.do_calls(undone, number);
        let found = self.found(number);
        (self.states.swap_remove(0).space, is_sure, found)
    }
}

/// Different states, up to their limits.
struct Distinct {
    states: Vec<State>,
    /// How many mappings may be added.
    mappings: usize,
    /// More states were given than are kept.
    overflows: bool,
}

impl Distinct {
    fn new(mappings: usize) -> Distinct {
        Distinct { states: Vec::new(), mappings, overflows: false }
    }

    fn add(&mut self, state: State) {
        let same = |other: &State| other.left == state.left && other.space.same(&state.space);
        if self.overflows || self.states.iter().any(same) {
            return;
        }
        let left = self.mappings.checked_sub(state.space.len());
        self.overflows = !self.states.is_empty() && (left.is_none() || self.states.len() == MOST_STATES);
        if !self.overflows {
            self.mappings = left.unwrap_or(0);
            self.states.push(state);
        }
    }
}

impl State {
    /// Makes all calls take effect that change no mapping and fit.
    fn looked(mut self, all: &[Loose], number: u64) -> State {
        for call in bits(self.left) {
            let loose = &all[call];
            if loose.only_looks && self.space.fits(&loose.events[0].kind) {
                self = self.with(call, loose, number);
            }
        }
        self
    }

    fn with(mut self, call: usize, loose: &Loose, number: u64) -> State {
        self.space.apply(&loose.events[0].kind);
        self.left &= !(1 << call);
        self.done.push((call, number));
        self
    }
}

/// The numbers of the bits that are set.
fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| mask.trailing_zeros() as usize)?;
        mask &= mask - 1;
        Some(bit)
    })
}
