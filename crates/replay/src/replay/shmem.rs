//! Shared memory without a file (shared anonymous mappings, memfd, System V) under other folio sizes. The library's page cache
//! has single pages, so this is a model of its own: which folios each file has, and which pages each address space maps.
//!
//! As Linux 6.18 does it: a fault on a page that the file lacks allocates the largest folio of the set that lies in the
//! mapping, at the same place in its size in file and addresses, with no page of it there; it maps all of a folio where none of
//! its pages is mapped, and a page alone otherwise. A read also maps the folios that are there in 64 KiB around it,
//! which begin at a multiple of 64 KiB or with the mapping.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use super::error::ReplayError;
use super::pages::{ORDERS, PageSet};
use super::plan::{Plan, cut, plan};
use super::policy::FolioSet;
use super::verb::PAGE;
use crate::trace::{self, Access, Event, EventKind, FileId, Layouts, MapCause, Mapping, TraceReader};

/// What a recording shows of shared memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shmem {
    /// Names of what was mapped, each once.
    pub(crate) names: Vec<String>,
    /// Mean nanoseconds of a recorded fault; 0 if the recording has none.
    pub(crate) recorded_ns: u64,
    /// For each set.
    pub(crate) sets: Vec<ShmemFigures>,
}

/// The figures of one set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShmemFigures {
    pub(crate) set: FolioSet,
    pub(crate) faults: u64,
    /// Folios that faults allocated, by order; the other faults found their page.
    pub(crate) folios: [u64; ORDERS],
    /// Bytes at the peak, and of these what was never touched.
    pub(crate) memory: u64,
    pub(crate) wasted: u64,
    /// The most bytes that each process maps of it, by its number; only those of its last program.
    pub(crate) mapped: BTreeMap<u32, u64>,
}

/// A file, by device and inode.
type File = (u64, u64);

/// A file's folios.
#[derive(Clone, Debug, Default)]
struct Cached {
    /// Order by first page.
    folios: BTreeMap<u64, u8>,
    touched: PageSet,
    pages: u64,
}

/// All files under one set.
#[derive(Debug, Default)]
struct Model {
    figures: ShmemFigures,
    files: HashMap<File, Cached>,
    /// The mapped pages of each address space.
    mapped: HashMap<u32, PageSet>,
    /// The last address space of each process.
    last: HashMap<u32, u32>,
    pages: u64,
    touched: u64,
}

/// An access to a mapping of shared memory.
struct Use<'a> {
    pid: u32,
    space: u32,
    mapping: &'a Mapping,
    file: File,
    /// Whether Linux chooses the address by the set: the recorded one says nothing of its alignment then.
    placed: bool,
    page: u64,
    reads: bool,
    /// Whether it is a fault of the program.
    faults: bool,
}

/// Pages that a read maps around a fault.
const AROUND: u64 = 16;
const BLOCK: u64 = 512;
const ANONYMOUS: &str = "/dev/zero";

impl Shmem {
    /// That of a trace under these sets; `None` if it maps no shared memory that is touched.
    ///
    /// # Errors
    /// As those of the reader.
    pub(super) fn of(path: &Path, sets: &[FolioSet], paths: &[String]) -> Result<Option<Self>, ReplayError> {
        let name = |file: &FileId| paths.get(file.path.0 as usize).map_or("", String::as_str);
        let is_shmem = |mapping: &Mapping| mapping.file.as_ref().is_some_and(|file| is_shmem(name(file)));
        let models = sets.iter().map(|set| Model {
            figures: ShmemFigures { set: *set, ..ShmemFigures::default() },
            ..Model::default()
        });
        let mut all = Pass { models: models.collect(), ..Pass::default() };
        let mut names: BTreeMap<File, String> = BTreeMap::new();
        for event in TraceReader::open(path)? {
            let event = event?;
            for (mapping, at) in all.touched(&event) {
                if let Some(file) = mapping.file.filter(|_| is_shmem(&mapping)) {
                    names.entry((file.device, file.inode)).or_insert_with(|| name(&file).to_owned());
                    all.access(
                        &event,
                        &mapping,
                        (file.device, file.inode),
                        at,
                        name(&file).starts_with(ANONYMOUS),
                    );
                }
            }
            all.apply(&event, &is_shmem);
        }
        let mut names: Vec<String> = names.into_values().collect();
        names.dedup();
        let recorded_ns = all.recorded_ns.checked_div(all.recorded).unwrap_or(0);
        let sets = all.models.into_iter().map(|model| model.figures).collect();
        Ok((!names.is_empty()).then_some(Self { names, recorded_ns, sets }))
    }
}

/// Whether the memory of this name has no file that a path leads to: the program has made it, and Linux gives
/// it the folios of `shmem_enabled`.
pub(super) fn is_shmem(name: &str) -> bool {
    let gone = name.strip_suffix(" (deleted)");
    gone.is_some_and(|name| {
        [ANONYMOUS, "/memfd:", "/SYSV", "/dev/shm/"].iter().any(|start| name.starts_with(start))
    })
}

/// The trace, as far as it was read.
#[derive(Default)]
struct Pass {
    models: Vec<Model>,
    layouts: Layouts,
    pids: HashSet<u32>,
    recorded: u64,
    recorded_ns: u64,
}

impl Pass {
    /// The mappings that an event touches, each with the touched addresses.
    fn touched(&self, event: &Event) -> Vec<(Mapping, (u64, u64))> {
        let (start, len) = match event.kind {
            _ if event.kind.is_unresolved() => return Vec::new(),
            EventKind::Fault { addr, .. } => (addr / PAGE * PAGE, PAGE),
            EventKind::Populate { start, len, .. } => (start, len),
            // What Linux mapped around a fault was there, and the model maps around its own faults.
            _ => return Vec::new(),
        };
        let parts = self.layouts.mapped_in(event.pid, start, start.saturating_add(len));
        let whole = |part: Mapping| Some((self.layouts.find(event.pid, part.start)?, (part.start, part.end)));
        parts.into_iter().filter_map(whole).collect()
    }

    fn access(&mut self, event: &Event, mapping: &Mapping, file: File, at: (u64, u64), placed: bool) {
        let Some(space) = self.layouts.number_of(event.pid) else { return };
        let (reads, faults) = match event.kind {
            EventKind::Fault { access, duration_ns, .. } => {
                self.recorded += u64::from(duration_ns.is_some());
                self.recorded_ns = self.recorded_ns.saturating_add(duration_ns.unwrap_or(0));
                (access == Access::Read, true)
            }
            EventKind::Populate { cause, .. } => (!cause.stores(), false),
            _ => (true, false),
        };
        for page in (at.0..at.1).step_by(PAGE as usize).map(|addr| addr / PAGE) {
            let used = Use { pid: event.pid, space, mapping, file, placed, page, reads, faults };
            self.models.iter_mut().for_each(|model| model.access(&used));
        }
    }

    /// Follows what the event maps and unmaps.
    fn apply(&mut self, event: &Event, is_shmem: &dyn Fn(&Mapping) -> bool) {
        self.pids.insert(event.pid);
        let verb = match &event.kind {
            EventKind::Syscall(call) if call.ok() => match plan(call, |_| 0) {
                Plan::Do(verb, _) => Some(verb),
                _ => None,
            },
            _ => None,
        };
        let may_unmap = match &event.kind {
            EventKind::Exec { .. } | EventKind::ProcessExit { .. } => true,
            EventKind::Syscall(call) => {
                call.call == trace::Call::Shmdt || verb.is_some_and(|verb| verb.may_release())
            }
            _ => false,
        };
        let number = self.layouts.number_of(event.pid);
        let before: HashSet<File> = match may_unmap {
            true => self.files(&mut std::iter::once(event.pid), is_shmem),
            false => HashSet::new(),
        };
        if let EventKind::Syscall(call) = &event.kind
            && let (Some(pages), Some(file)) = (cut(call), call.file)
        {
            self.cut((file.device, file.inode), pages);
        }
        if let Some(number) = number {
            self.forget(number, event);
        }
        self.layouts.apply(event);
        if let (Some(number), Some(verb)) = (number, verb) {
            let mapped = self.models.iter_mut().filter_map(|model| model.mapped.get_mut(&number));
            mapped.for_each(|mapped| verb.apply_to(mapped));
        }
        if let Some(number) = number.filter(|number| !self.layouts.is_alive(*number)) {
            self.models.iter_mut().for_each(|model| drop(model.mapped.remove(&number)));
        }
        match event.kind {
            EventKind::ProcessExit { .. } => _ = self.pids.remove(&event.pid),
            // What the next program maps counts alone, if it maps any.
            EventKind::Exec { .. } => {
                self.models.iter_mut().for_each(|model| _ = model.figures.mapped.remove(&event.pid));
            }
            _ => {}
        }
        if !before.is_empty() {
            let now = self.files(&mut self.pids.iter().copied(), is_shmem);
            for file in before.difference(&now) {
                self.models.iter_mut().for_each(|model| model.drop_file(*file));
            }
        }
    }

    /// Segments that are detached, and what a mapping that no call made replaces, are not mapped any longer.
    fn forget(&mut self, number: u32, event: &Event) {
        let gone = match &event.kind {
            EventKind::Syscall(call) if call.ok() && call.call == trace::Call::Shmdt => {
                self.layouts.attached(event.pid, call.args[0])
            }
            EventKind::Map { cause, start, len, .. } if *cause != MapCause::StackGrowth => {
                std::iter::once(*start..start.saturating_add(*len)).collect()
            }
            _ => return,
        };
        for mapped in self.models.iter_mut().filter_map(|model| model.mapped.get_mut(&number)) {
            gone.iter().for_each(|gone| mapped.remove_range(gone.start / PAGE, gone.end.div_ceil(PAGE)));
        }
    }

    /// Pages of a file are gone, and every process has lost them.
    fn cut(&mut self, file: File, (first, end): (u64, u64)) {
        for pid in &self.pids {
            let Some(number) = self.layouts.number_of(*pid) else { continue };
            let own = |mapping: &Mapping| mapping.file.is_some_and(|own| (own.device, own.inode) == file);
            for mapping in self.layouts.mappings(*pid).filter(own) {
                let (start, offset) = (mapping.start / PAGE, mapping.offset / PAGE);
                let from = first.max(offset);
                let until = end.min(offset + mapping.end / PAGE - start);
                let mapped = self.models.iter_mut().filter_map(|model| model.mapped.get_mut(&number));
                if from < until {
                    mapped.for_each(|mapped| {
                        mapped.remove_range(start + from - offset, start + until - offset)
                    });
                }
            }
        }
        self.models.iter_mut().for_each(|model| model.cut(file, (first, end)));
    }

    /// The files that processes map.
    fn files(
        &self,
        pids: &mut dyn Iterator<Item = u32>,
        is_shmem: &dyn Fn(&Mapping) -> bool,
    ) -> HashSet<File> {
        let mappings = pids.flat_map(|pid| self.layouts.mappings(pid)).filter(|mapping| is_shmem(mapping));
        mappings.filter_map(|mapping| mapping.file.map(|file| (file.device, file.inode))).collect()
    }
}

impl Model {
    fn access(&mut self, used: &Use<'_>) {
        let Use { mapping, page, .. } = *used;
        let (first, end) = (mapping.start / PAGE, mapping.end / PAGE);
        let offset = mapping.offset / PAGE;
        let index = offset + (page - first);
        let cached = self.files.entry(used.file).or_default();
        if cached.touched.insert(index) {
            self.touched += 1;
        }
        let mapped = self.mapped.entry(used.space).or_default();
        // No call of a program leaves a page mapped that its file lacks.
        if mapped.contains(page) && cached.folio(index).is_some() {
            return self.look();
        }
        self.figures.faults += u64::from(used.faults);
        // How far addresses are ahead of places in the file, in pages. Linux aligns what it places itself to the largest folio.
        let placed = used.placed && self.figures.set.orders().next().is_some();
        let skew = if placed { 0 } else { first.wrapping_sub(offset) };
        let is_in = |start: u64, pages: u64| offset <= start && start + pages <= offset + (end - first);
        let at = |index: u64| index - offset + first;
        if used.reads {
            // The pages of the window, and of folios that reach beyond it, in this table and mapping.
            let within = |size: u64, from: u64, until: u64| {
                let start = (index.wrapping_add(skew) / size * size).wrapping_sub(skew);
                let start = if start > index { 0 } else { start };
                let beyond = (index.wrapping_add(skew) / size * size + size).wrapping_sub(skew);
                (from.max(start).max(offset), until.min(beyond).min(offset + (end - first)))
            };
            let (from, _) = within(AROUND, 0, u64::MAX);
            let (mut next, until) = within(BLOCK, from, from + AROUND);
            while next < until {
                let Some((start, order)) = cached.folio(next) else {
                    next += 1;
                    continue;
                };
                let (from, to) = within(BLOCK, start, start + (1 << order));
                mapped.insert_range(at(from), at(to));
                next = start + (1 << order);
            }
        }
        let (start, order) = cached.folio(index).unwrap_or_else(|| {
            let fits = |order: &u8| {
                let pages = 1 << order;
                let start = index / pages * pages;
                skew.is_multiple_of(pages) && is_in(start, pages) && cached.is_free(start, pages)
            };
            let order = self.figures.set.orders().filter(fits).last().unwrap_or(0);
            let start = index >> order << order;
            cached.folios.insert(start, order);
            cached.pages += 1 << order;
            self.pages += 1 << order;
            self.figures.folios[usize::from(order)] += 1;
            (start, order)
        });
        let pages = 1u64 << order;
        let table = |index: u64| index.wrapping_add(skew) / BLOCK;
        let whole = is_in(start, pages) && table(start) == table(start + pages - 1);
        match whole && mapped.pages_in(at(start), at(start) + pages).next().is_none() {
            true => mapped.insert_range(at(start), at(start) + pages),
            false => mapped.insert_range(page, page + 1),
        }
        let bytes = mapped.len() * PAGE;
        let most = self.figures.mapped.entry(used.pid).or_default();
        let of_this_program = self.last.insert(used.pid, used.space) == Some(used.space);
        *most = if of_this_program { bytes.max(*most) } else { bytes };
        self.look();
    }

    /// Notes the memory that there is.
    fn look(&mut self) {
        if self.pages * PAGE >= self.figures.memory {
            self.figures.memory = self.pages * PAGE;
            self.figures.wasted = (self.pages - self.touched) * PAGE;
        }
    }

    /// Pages `first..end` of the file are gone. A folio that loses some is split to single pages.
    fn cut(&mut self, file: File, (first, end): (u64, u64)) {
        let Some(cached) = self.files.get_mut(&file) else { return };
        let from = cached.folio(first).map_or(first, |(start, _)| start);
        let folios: Vec<(u64, u8)> =
            cached.folios.range(from..end).map(|(start, order)| (*start, *order)).collect();
        for (start, order) in folios {
            cached.folios.remove(&start);
            let (pages, kept) = (start..start + (1 << order), |page: &u64| *page < first || *page >= end);
            self.pages -= pages.clone().filter(|page| !kept(page)).count() as u64;
            cached.pages -= pages.clone().filter(|page| !kept(page)).count() as u64;
            cached.folios.extend(pages.filter(kept).map(|page| (page, 0)));
        }
        let touched = cached.touched.len();
        cached.touched.remove_range(first, end);
        self.touched -= touched - cached.touched.len();
    }

    /// The file is gone, with its memory.
    fn drop_file(&mut self, file: File) {
        if let Some(cached) = self.files.remove(&file) {
            self.pages -= cached.pages;
            self.touched -= cached.touched.len();
        }
    }
}

impl Cached {
    /// The folio around a page.
    fn folio(&self, index: u64) -> Option<(u64, u8)> {
        let (start, order) = self.folios.range(..=index).next_back()?;
        (index < start + (1 << order)).then_some((*start, *order))
    }

    /// Whether none of these pages is there.
    fn is_free(&self, start: u64, pages: u64) -> bool {
        self.folio(start).is_none() && self.folios.range(start..start + pages).next().is_none()
    }
}
