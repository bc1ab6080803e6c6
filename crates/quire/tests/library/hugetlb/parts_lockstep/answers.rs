//! A handler's answers for parts that are missing: the file's page, zeroes, other contents, or that the page
//! is lost.

use std::ops::Range;

use fastrand::Rng;
use quire::addr::VirtAddr;
use quire::error::{FaultError, UserfaultError};
use quire::vm::{Answer, AnswerMode, UserfaultChanges, UserfaultModes};

use super::PAGE;
use super::model::{Cell, Place, Slot, cells_of};
use super::verbs::{Both, Piece, WORD};

impl Both<'_, '_, '_> {
    /// Answers for a part of a place that is mapped in parts.
    pub(super) fn answer(&mut self, random: &mut Rng) {
        let (task, slot, at) = self.draw(random);
        if self.model.spaces[task].get(&slot).is_some_and(|place| place.split) {
            if random.u32(0..3) == 0 {
                self.give_up(task, slot);
            }
            self.answer_in(random, task, slot, at);
        }
    }

    /// Drops a page with bad memory, and the markers of that memory, wherever it is mapped in parts, and
    /// answers for it.
    pub(super) fn answer_around(&mut self, random: &mut Rng, size: usize, index: u64, at: usize) {
        for task in 0..self.spaces.len() {
            let shows = |(slot, place): (&Slot, &Place)| {
                (slot.0 == size && place.index == index && place.split).then_some(*slot)
            };
            let slots: Vec<Slot> = self.model.spaces[task].iter().filter_map(shows).collect();
            for slot in slots {
                self.give_up(task, slot);
                let from = at.saturating_sub(random.usize(0..20));
                self.answer_in(random, task, slot, from);
            }
        }
    }

    fn give_up(&mut self, task: usize, slot: Slot) {
        let len = cells_of(slot.0);
        let first = slot.1 as usize * len;
        self.dont_need(&Piece { task, size: slot.0, cells: first..first + len });
    }

    /// Marks parts of an address space as lost where single pages may be missing.
    pub(super) fn poison_some(&mut self, random: &mut Rng, task: usize) {
        let split = |(slot, place): (&Slot, &Place)| place.split.then_some(*slot);
        let slots: Vec<Slot> = self.model.spaces[task].iter().filter_map(split).collect();
        for slot in slots {
            let (first, at) = (slot.1 as usize * cells_of(slot.0), random.usize(0..cells_of(slot.0)));
            self.dont_need(&Piece { task, size: slot.0, cells: first + at..first + at + 1 });
            self.registered(task, slot, |both| both.poison(task, slot, at..at + 1, AnswerMode::WAKE));
        }
    }

    /// Registers a place, answers for a part of it, and unregisters the place.
    fn answer_in(&mut self, random: &mut Rng, task: usize, slot: Slot, at: usize) {
        let len = cells_of(slot.0);
        let mode = if random.bool() { AnswerMode::QUIET } else { AnswerMode::PROTECTED };
        let end = match random.u32(0..4) {
            0 => len,
            1 => (at + 512).min(len),
            _ => at + 1,
        };
        println!("answer {task} {slot:?} {at}..{end} {mode:?}");
        self.registered(task, slot, |both| match random.u32(0..10) {
            0..4 => both.resume(task, slot, at..end, mode),
            4..6 => both.zero(task, slot, at..end.min(at + 4), mode),
            6..8 => both.poison(task, slot, at..end.min(at + 4), mode),
            _ => both.copy(task, slot, at, random.u64(1..), mode),
        });
    }

    fn registered(&mut self, task: usize, slot: Slot, act: impl FnOnce(&mut Self)) {
        let len = cells_of(slot.0);
        let modes = UserfaultModes::MISSING | UserfaultModes::MINOR | UserfaultModes::WRITE_PROTECT;
        let handler = self.manager.userfault(UserfaultChanges::NONE).expect("few handlers");
        let (start, bytes) = (VirtAddr(Self::addr(slot, 0)), len as u64 * PAGE);
        self.on(task, |mm| mm.userfault_register(&handler, start, bytes, modes)).expect("shared huge pages");
        act(self);
        self.on(task, |mm| mm.userfault_unregister(start, bytes)).expect("it was registered");
        // Unregistering drops the marks, since no handler is left.
        self.model.spaces[task].get_mut(&slot).expect("seen").each(0..len, |leaf| leaf.marked = false);
    }

    fn stopped(answer: Answer, done: usize, why: Option<UserfaultError>) {
        assert_eq!((answer.bytes, answer.stopped), (done as u64 * PAGE, why));
    }

    /// Continues over the missing pages of a range, up to the first mapped one, without bad memory.
    fn resume(&mut self, task: usize, slot: Slot, range: Range<usize>, mode: AnswerMode) {
        let (addr, len) = (VirtAddr(Self::addr(slot, range.start)), range.len() as u64 * PAGE);
        let answer = self.on(task, |mm| mm.userfault_continue(addr, len, mode));
        let (place, file) = (&self.model.spaces[task][&slot], &self.model.files[slot.0]);
        let occupied = range.clone().find(|&at| place.cells[at] != Cell::Empty);
        let end = occupied.unwrap_or(range.end);
        let bad = match file.pages.get(&place.index) {
            _ if end == range.start => return Self::stopped(answer, 0, Some(UserfaultError::Exists)),
            _ if place.index >= file.size => {
                return Self::stopped(answer, 0, Some(UserfaultError::BeyondEnd));
            }
            Some(Some(page)) => page.bad.contains(&range.start),
            _ => return Self::stopped(answer, 0, Some(UserfaultError::NotThere)),
        };
        if bad {
            return Self::stopped(answer, 0, Some(UserfaultError::Poisoned));
        }
        Self::stopped(answer, end - range.start, occupied.map(|_| UserfaultError::Exists));
        self.adopt(task, slot, range.start..end, mode.write_protected);
    }

    /// Why a cell cannot be filled; or whether the file, which has the page now, had it before.
    fn prepare(&mut self, task: usize, slot: Slot, at: usize) -> Result<bool, UserfaultError> {
        let place = &self.model.spaces[task][&slot];
        if place.cells[at] != Cell::Empty {
            return Err(UserfaultError::Exists);
        }
        let (index, file) = (place.index, &self.model.files[slot.0]);
        let before = file.pages.get(&index).and_then(Option::as_ref);
        if before.is_some_and(|page| page.bad.contains(&at)) {
            return Err(UserfaultError::Poisoned);
        }
        let there = before.is_some();
        self.model.bring(slot.0, index).map(|()| there).map_err(|error| match error {
            FaultError::BeyondEnd => UserfaultError::BeyondEnd,
            _ => UserfaultError::NoHugePage,
        })
    }

    fn zero(&mut self, task: usize, slot: Slot, range: Range<usize>, mode: AnswerMode) {
        let (addr, len) = (VirtAddr(Self::addr(slot, range.start)), range.len() as u64 * PAGE);
        let answer = self.on(task, |mm| mm.userfault_zeropage(addr, len, mode));
        let mut why = None;
        let mut end = range.end;
        for at in range.clone() {
            match self.prepare(task, slot, at) {
                Ok(_) => {
                    let index = self.model.spaces[task][&slot].index;
                    self.model.files[slot.0].page(index).words.remove(&at);
                }
                Err(error) => {
                    (why, end) = (Some(error), at);
                    break;
                }
            }
        }
        Self::stopped(answer, end - range.start, why);
        if end > range.start {
            self.adopt(task, slot, range.start..end, mode.write_protected);
        }
    }

    /// Marks pages as lost up to the first that is mapped or marked, whatever the file has.
    fn poison(&mut self, task: usize, slot: Slot, range: Range<usize>, mode: AnswerMode) {
        let (addr, len) = (VirtAddr(Self::addr(slot, range.start)), range.len() as u64 * PAGE);
        let answer = self.on(task, |mm| mm.userfault_poison(addr, len, mode));
        if mode.write_protected {
            return Self::stopped(answer, 0, Some(UserfaultError::Invalid));
        }
        let place = self.model.spaces[task].get_mut(&slot).expect("mapped");
        let occupied = range.clone().find(|&at| place.cells[at] != Cell::Empty);
        let end = occupied.unwrap_or(range.end);
        Self::stopped(answer, end - range.start, occupied.map(|_| UserfaultError::Exists));
        place.lose(range.start..end);
        range.for_each(|at| self.look(task, slot, at));
    }

    fn copy(&mut self, task: usize, slot: Slot, at: usize, word: u64, mode: AnswerMode) {
        let addr = VirtAddr(Self::addr(slot, at));
        let fill = |_: u64, bytes: &mut [u8; PAGE as usize]| {
            bytes.fill(0);
            bytes[WORD as usize..WORD as usize + 8].copy_from_slice(&word.to_le_bytes());
        };
        let answer = self.on(task, |mm| mm.userfault_copy(addr, PAGE, mode, fill));
        match self.prepare(task, slot, at) {
            Ok(_) => {
                Self::stopped(answer, 1, None);
                self.adopt(task, slot, at..at + 1, mode.write_protected);
                let index = self.model.spaces[task][&slot].index;
                self.model.files[slot.0].page(index).words.insert(at, word);
            }
            Err(why) => Self::stopped(answer, 0, Some(why)),
        }
    }
}
