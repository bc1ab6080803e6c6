//! Which mapping each page belongs to, and what faults and memory it had: for `quire advise`.
//!
//! A part is what a program would call one mapping. All processes that run the same program share its parts: the
//! heap of every `cc1` is one.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use quire::vm::{FaultKind, FaultOutcome, Remap};

use super::pages::ORDERS;
use super::verb::{Mapping, PAGE, Verb};
use crate::trace::PathId;

/// The number of a part in its replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartId(usize);

/// The use of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum PartKind {
    /// What `brk` moves.
    Heap,
    /// The stack of the first thread.
    Stack,
    /// The stacks of other threads (`MAP_STACK`).
    ThreadStacks,
    /// The private anonymous mapping with this number, counted since the program was started. Writable mappings that touch
    /// each other are one, as in `/proc/PID/maps`.
    Anonymous(u32),
    /// Private and shared mappings of the file with this number, and the anonymous memory behind its data.
    File(u64),
    /// Shared anonymous memory.
    Shared,
    /// No mapping that the trace shows.
    Unknown,
}

/// A part in all processes that run its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PartKey {
    /// The program's name; `None` for a process whose start is missing.
    pub(crate) program: Option<PathId>,
    pub(crate) kind: PartKind,
}

/// The figures of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) key: PartKey,
    /// Its first address when it was first mapped.
    pub(crate) address: u64,
    /// The most bytes that were mapped in one piece.
    pub(crate) bytes: u64,
    /// Faults that were taken, by kind.
    pub(crate) kinds: [u64; FaultKind::NAMES.len()],
    /// Those that brought in a folio of zeroes, by order.
    pub(crate) folios: [u64; ORDERS],
    /// Bytes of private memory at the peak, and of these what was never touched.
    pub(crate) resident: u64,
    pub(crate) wasted: u64,
    /// At the peak too, but summed over all processes: bytes that are mapped, and of these what has a page of its own. A page
    /// that processes share after a fork counts for each.
    pub(crate) all_mapped: u64,
    pub(crate) all_present: u64,
    /// Steps of the recorded time in which it was mapped.
    pub(crate) steps: u64,
    /// The most bytes that one process had mapped at the start of a step.
    pub(crate) mapped: u64,
    /// Whether it could be written to from the start.
    writable: bool,
}

impl Part {
    /// Faults that were taken.
    pub(crate) fn faults(&self) -> u64 {
        self.kinds.iter().sum()
    }
}

/// All parts of a replay.
#[derive(Default)]
pub(super) struct Parts {
    by_key: HashMap<PartKey, PartId>,
    all: Vec<Part>,
}

/// What the mappings of a part have at a moment, in all processes.
#[derive(Clone, Copy, Default)]
pub(super) struct Mapped {
    pub(super) bytes: u64,
    pub(super) present: u64,
}

/// The same of all parts, by their numbers.
#[derive(Default)]
pub(super) struct MappedParts(Vec<Mapped>);

impl MappedParts {
    /// What the mappings of a part have.
    pub(super) fn of(&mut self, part: PartId) -> &mut Mapped {
        if part.0 >= self.0.len() {
            self.0.resize(part.0 + 1, Mapped::default());
        }
        &mut self.0[part.0]
    }
}

/// The mappings of one address space.
#[derive(Clone, Default)]
pub(super) struct PartMap {
    /// By first page: the page behind the last, and the part. Neighbours of one part are joined.
    ranges: BTreeMap<u64, (u64, PartId)>,
    pub(super) program: Option<PathId>,
    /// Anonymous mappings so far.
    anonymous: u32,
}

/// Looks for the parts of pages. It searches the tree once for the pages of a range.
pub(super) struct PartLookup<'m> {
    map: &'m PartMap,
    /// Pages of which all have this part.
    range: Range<u64>,
    part: Option<PartId>,
}

impl PartLookup<'_> {
    /// The part of a page.
    pub(super) fn find(&mut self, page: u64) -> Option<PartId> {
        if !self.range.contains(&page) {
            (self.range, self.part) = self.map.around(page);
        }
        self.part
    }
}

impl Parts {
    /// Notes a verb that succeeded.
    pub(super) fn apply(&mut self, map: &mut PartMap, verb: &Verb) {
        let end = |addr: u64, len: u64| addr.saturating_add(len).div_ceil(PAGE);
        match *verb {
            Verb::Mmap(ref mapping) => {
                let (first, end) = (mapping.addr / PAGE, end(mapping.addr, mapping.len));
                let part = self.mapped(map, mapping, first, end);
                self.put(map, first, end, part);
            }
            Verb::Munmap { addr, len } => drop(map.cut(addr / PAGE, end(addr, len))),
            Verb::Brk { from, to } if to > from => {
                let heap = self.part(map.program, PartKind::Heap, from, true);
                self.put(map, from.div_ceil(PAGE), to.div_ceil(PAGE), heap);
            }
            Verb::Brk { from, to } => drop(map.cut(to.div_ceil(PAGE), from.div_ceil(PAGE))),
            Verb::Mremap { addr, old, new, to } => self.moved(map, addr, (old, new), to),
            _ => {}
        }
    }

    /// Notes a fault that was taken.
    pub(super) fn fault(&mut self, map: &mut PartMap, page: u64, outcome: &FaultOutcome) {
        let part = self.at(map, page);
        let part = &mut self.all[part.0];
        part.kinds[outcome.kind as usize] += 1;
        if outcome.kind == FaultKind::Anon {
            part.folios[usize::from(outcome.order.get()).min(ORDERS - 1)] += 1;
        }
    }

    /// Sets what each part has at the peak: for each private frame its part, and whether it was touched; and what the mappings
    /// of all processes have.
    pub(super) fn peak(
        &mut self,
        frames: impl Iterator<Item = (Option<PartId>, bool)>,
        mapped: &MappedParts,
    ) {
        let unknown = self.part(None, PartKind::Unknown, 0, false);
        for (at, part) in self.all.iter_mut().enumerate() {
            (part.resident, part.wasted) = (0, 0);
            let mapped = mapped.0.get(at).copied().unwrap_or_default();
            (part.all_mapped, part.all_present) = (mapped.bytes, mapped.present);
        }
        for (part, touched) in frames {
            let part = &mut self.all[part.unwrap_or(unknown).0];
            part.resident += PAGE;
            part.wasted += if touched { 0 } else { PAGE };
        }
    }

    /// Looks which are mapped, at the start of so many steps.
    pub(super) fn look<'s>(&mut self, steps: u64, maps: impl Iterator<Item = &'s PartMap>) {
        let mut mapped: HashMap<PartId, u64> = HashMap::new();
        for map in maps {
            let mut of_one: HashMap<PartId, u64> = HashMap::new();
            map.bytes().for_each(|(part, bytes)| *of_one.entry(part).or_default() += bytes);
            for (part, bytes) in of_one {
                let most = mapped.entry(part).or_default();
                *most = bytes.max(*most);
            }
        }
        for (part, bytes) in mapped {
            let part = &mut self.all[part.0];
            part.steps += steps;
            part.mapped = part.mapped.max(bytes);
        }
    }

    /// The parts that had memory or faults.
    pub(super) fn end(self) -> Vec<Part> {
        self.all.into_iter().filter(|part| part.faults() + part.resident > 0).collect()
    }

    /// The part of a page. A stack has grown to a page below it.
    fn at(&mut self, map: &mut PartMap, page: u64) -> PartId {
        if let Some(part) = map.find(page) {
            return part;
        }
        let above = map.ranges.range(page..).next().map(|(first, (_, part))| (*first, *part));
        match above {
            Some((first, part)) if self.all[part.0].key.kind == PartKind::Stack => {
                self.put(map, page, first, part);
                part
            }
            _ => self.part(map.program, PartKind::Unknown, 0, false),
        }
    }

    fn mapped(&mut self, map: &mut PartMap, mapping: &Mapping, first: u64, end: u64) -> PartId {
        let writable = mapping.prot.contains(quire::arch::Protection::WRITE);
        let kind = match mapping.file {
            Some((number, _)) => PartKind::File(number),
            None if mapping.shared => PartKind::Shared,
            None if mapping.grows_down => PartKind::Stack,
            None if mapping.thread_stack => PartKind::ThreadStacks,
            None => match self.joined(map, first, end, writable) {
                Some(part) => return part,
                None => {
                    map.anonymous += 1;
                    PartKind::Anonymous(map.anonymous)
                }
            },
        };
        self.part(map.program, kind, mapping.addr, writable)
    }

    /// The part that a new anonymous mapping belongs to already: the one in which it lies, the file whose data it
    /// continues, a writable neighbour.
    fn joined(&self, map: &PartMap, first: u64, end: u64, writable: bool) -> Option<PartId> {
        let is = |part: &PartId, anonymous: fn(&Part) -> bool| anonymous(&self.all[part.0]);
        let anonymous = |part: &Part| matches!(part.key.kind, PartKind::Anonymous(_));
        let of_file = |part: &Part| matches!(part.key.kind, PartKind::File(_));
        let before = first.checked_sub(1).and_then(|page| map.find(page));
        map.find(first).filter(|part| is(part, anonymous)).or_else(|| {
            let neighbour = |part: &PartId| is(part, anonymous) && self.all[part.0].writable;
            before
                .filter(|part| is(part, of_file) || neighbour(part))
                .or_else(|| map.find(end).filter(neighbour))
                .filter(|_| writable)
        })
    }

    fn part(&mut self, program: Option<PathId>, kind: PartKind, address: u64, writable: bool) -> PartId {
        let key = PartKey { program, kind };
        let all = &mut self.all;
        *self.by_key.entry(key).or_insert_with(|| {
            let (kinds, folios) = ([0; FaultKind::NAMES.len()], [0; ORDERS]);
            all.push(Part {
                key,
                address,
                bytes: 0,
                kinds,
                folios,
                resident: 0,
                wasted: 0,
                all_mapped: 0,
                all_present: 0,
                steps: 0,
                mapped: 0,
                writable,
            });
            PartId(all.len() - 1)
        })
    }

    fn put(&mut self, map: &mut PartMap, first: u64, end: u64, part: PartId) {
        if first >= end {
            return;
        }
        let (first, end) = map.put(first, end, part);
        let part = &mut self.all[part.0];
        part.bytes = part.bytes.max((end - first) * PAGE);
    }

    fn moved(&mut self, map: &mut PartMap, addr: u64, (old, new): (u64, u64), to: Remap) {
        let first = addr / PAGE;
        let (old, new) = (old.div_ceil(PAGE), new.div_ceil(PAGE));
        let (target, stays) = match to {
            Remap::Fixed(to) => (to.page(), false),
            Remap::FixedDontUnmap(to) => (to.page(), true),
            _ => (first, false),
        };
        let at_start = map.find(first);
        let mut pieces = map.cut(first, first.saturating_add(old));
        if stays {
            pieces.iter().for_each(|&(first, end, part)| _ = map.put(first, end, part));
        }
        drop(map.cut(target, target.saturating_add(new)));
        match pieces.last_mut() {
            Some(last) if new > old => last.1 = first.saturating_add(new),
            // A second mapping of shared pages.
            None => pieces.extend(at_start.map(|part| (first, first.saturating_add(new), part))),
            _ => {}
        }
        for (start, end, part) in pieces {
            let place = |page: u64| target + (page - first).min(new);
            self.put(map, place(start), place(end), part);
        }
    }
}

impl PartMap {
    /// The bytes of each range.
    pub(super) fn bytes(&self) -> impl Iterator<Item = (PartId, u64)> {
        self.ranges.iter().map(|(first, (end, part))| (*part, (end - first) * PAGE))
    }

    /// The part of a page.
    pub(super) fn find(&self, page: u64) -> Option<PartId> {
        let (_, (end, part)) = self.ranges.range(..=page).next_back()?;
        (page < *end).then_some(*part)
    }

    /// Looks for the parts of many pages.
    pub(super) const fn lookup(&self) -> PartLookup<'_> {
        PartLookup { map: self, range: 0..0, part: None }
    }

    /// The part of a page, and the pages around it that have the same, or none.
    fn around(&self, page: u64) -> (Range<u64>, Option<PartId>) {
        let below = self.ranges.range(..=page).next_back().map(|(first, (end, part))| (*first..*end, *part));
        match below {
            Some((range, part)) if range.contains(&page) => (range, Some(part)),
            _ => {
                let first = below.map_or(0, |(range, _)| range.end);
                let end = self.ranges.range(page..).next().map_or(u64::MAX, |(next, _)| *next);
                (first..end, None)
            }
        }
    }

    /// Gives the pages to a part; returns the range that they form with their neighbours.
    fn put(&mut self, mut first: u64, mut end: u64, part: PartId) -> (u64, u64) {
        drop(self.cut(first, end));
        if let Some((&before, &(until, of))) = self.ranges.range(..first).next_back()
            && (until, of) == (first, part)
        {
            first = before;
        }
        if let Some((until, of)) = self.ranges.get(&end).copied()
            && of == part
        {
            self.ranges.remove(&end);
            end = until;
        }
        self.ranges.insert(first, (end, part));
        (first, end)
    }

    /// Removes the pages; returns the ranges that they formed.
    fn cut(&mut self, first: u64, end: u64) -> Vec<(u64, u64, PartId)> {
        if first >= end {
            return Vec::new();
        }
        let mut start = first;
        if let Some((&before, &(until, _))) = self.ranges.range(..first).next_back()
            && until > first
        {
            start = before;
        }
        let touched: Vec<(u64, (u64, PartId))> =
            self.ranges.range(start..end).map(|(first, range)| (*first, *range)).collect();
        let mut cut = Vec::new();
        for (start, (until, part)) in touched {
            self.ranges.remove(&start);
            if start < first {
                self.ranges.insert(start, (first, part));
            }
            if until > end {
                self.ranges.insert(end, (until, part));
            }
            cut.push((start.max(first), until.min(end), part));
        }
        cut
    }
}

#[cfg(test)]
mod tests;
