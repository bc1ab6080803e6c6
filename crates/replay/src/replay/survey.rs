//! A first pass over a whole trace: whether it is readable to its end, which files it maps, how much of them
//! it uses, and the needs of a replay. Nothing runs before this has succeeded.

use std::collections::HashMap;
use std::path::Path;

use quire::limits::MAX_MAPPINGS;
use quire::vm::{Advice, Remap};

use super::error::ReplayError;
use super::families::Families;
use super::need::{Bounds, Estimate, Life};
use super::pages::PageSet;
use super::plan::{Answer, Plan, down_to, mapping, plan};
use super::policy::FolioSet;
use super::progress::Progress;
use super::shmem::is_shmem;
use super::verb::{Mapping, PAGE, Verb};
use crate::trace::{
    self, Access, Call, Event, EventKind, FileId, ForkKind, Header, Layouts, MapCause, PathId, Syscall,
    TraceReader, huge_bits,
};

/// The number of each file, by device and inode.
pub(super) type Numbers = HashMap<(u64, u64), u64>;

/// A file that the trace maps.
#[derive(Clone, Debug, Default)]
pub(super) struct SurveyedFile {
    /// The largest end of its mappings.
    pub(super) bytes: u64,
    /// How often it was mapped.
    mapped: u64,
    /// Pages that were in the page cache at their first use.
    pub(super) warm: PageSet,
    /// Pages that were not in the page cache at their first use.
    cold: PageSet,
    /// Memory that programs share and no path leads to: it is empty at first.
    pub(super) shmem: bool,
    /// Its name when it was first mapped.
    pub(super) path: Option<PathId>,
}

/// The result of surveying a trace.
pub(super) struct Survey {
    pub(super) header: Header,
    pub(super) files: Vec<SurveyedFile>,
    pub(super) numbers: Numbers,
    /// Kernel records that were lost while it was recorded.
    pub(super) lost: u64,
    /// The times of the first and of the last event.
    pub(super) span_ns: (u64, u64),
    /// Whether the program asks for large folios (`MADV_HUGEPAGE`).
    pub(super) asks: bool,
    /// Mappings of huge pages of pools (`MAP_HUGETLB`) that Linux refused.
    pub(super) huge_refused: u64,
    /// The names of programs and files, by number.
    pub(super) paths: Vec<String>,
    estimate: Estimate,
}

struct Walk {
    layouts: Layouts,
    files: Vec<SurveyedFile>,
    numbers: Numbers,
    spaces: Families,
    events: u64,
    lost: u64,
    /// Mappings that an address space may have.
    mapping_limit: u64,
    asks: bool,
    huge_refused: u64,
}

impl Survey {
    /// Reads the trace to its end, or until it needs more than `bounds` allow.
    ///
    /// # Errors
    /// [`ReplayError::Trace`] for a file that is damaged anywhere, [`ReplayError::PageSize`], [`ReplayError::TooLarge`],
    /// [`ReplayError::TooLong`], [`ReplayError::Impossible`].
    pub(super) fn of(path: &Path, bounds: Bounds, progress: &mut Progress) -> Result<Self, ReplayError> {
        let mut reader = TraceReader::open(path)?;
        let header = reader.header().clone();
        if u64::from(header.page_size) != PAGE {
            return Err(ReplayError::PageSize(header.page_size));
        }
        progress.expect(header.events);
        let mut walk = Walk {
            layouts: Layouts::default(),
            files: Vec::new(),
            numbers: Numbers::new(),
            spaces: Families::new(Estimate::new(bounds)),
            events: 0,
            lost: 0,
            mapping_limit: header.limits.map_or(MAX_MAPPINGS as u64, |limits| limits.mappings),
            asks: false,
            huge_refused: 0,
        };
        let mut span_ns = None;
        for event in reader.by_ref() {
            let event = event?;
            let (first_ns, _) = *span_ns.get_or_insert((event.time_ns, event.time_ns));
            span_ns = Some((first_ns, event.time_ns.max(first_ns)));
            walk.event(&event)?;
            walk.spaces.estimate.next()?;
            walk.events += 1;
            progress.advance();
        }
        let name = |path: PathId| reader.paths().get(path.0 as usize);
        for file in &mut walk.files {
            file.shmem |= file.path.and_then(name).is_some_and(|name| is_shmem(name));
            if file.shmem {
                // Its pages start as zeroes, so none is read in.
                file.warm = PageSet::default();
            }
        }
        let Walk { files, numbers, lost, asks, huge_refused, spaces: Families { estimate, .. }, .. } = walk;
        let (span_ns, paths) = (span_ns.unwrap_or_default(), reader.paths().to_vec());
        Ok(Self { header, files, numbers, lost, span_ns, asks, huge_refused, paths, estimate })
    }

    /// The most huge pages of pools that were mapped at once, of 2 MiB and of 1 GiB.
    pub(super) const fn huge(&self) -> [u64; 2] {
        self.estimate.huge
    }

    /// Bytes of a machine that is large enough under these folio sizes.
    pub(super) fn needed(&self, set: FolioSet) -> u64 {
        self.estimate.needed(usize::from(set.largest().get()))
    }
}

impl Walk {
    fn event(&mut self, event: &Event) -> Result<(), ReplayError> {
        let pid = event.pid;
        let replaced = match &event.kind {
            EventKind::Exec { .. } | EventKind::ProcessExit { .. } => self.layouts.number_of(pid),
            EventKind::Fork { child_pid, .. } => self.layouts.number_of(*child_pid),
            _ => None,
        };
        if let Some(walk) = replaced.and_then(|number| self.spaces.get(number)).map(Life::walk) {
            self.spaces.estimate.work(walk)?;
        }
        let heap = self.layouts.program_break(pid);
        self.layouts.apply(event);
        if let Some(number) = replaced.filter(|number| !self.layouts.is_alive(*number)) {
            self.spaces.end(number)?;
        }
        match &event.kind {
            EventKind::Fault { addr, .. } if !are_canonical(*addr, 1) => {
                self.impossible("faults at an address that no processor translates")
            }
            EventKind::FaultAround { start, len } | EventKind::Populate { start, len, .. }
                if !are_canonical(*start, *len) =>
            {
                self.impossible("has pages at an address that no processor translates")
            }
            EventKind::Fork { child_pid, kind: ForkKind::Copy, .. } => self.fork(pid, *child_pid),
            EventKind::Map { cause, start, len, prot, flags, file, file_offset } => {
                let mapping = mapping(u64::from(*prot), u64::from(*flags), None);
                self.life(pid, |life| {
                    life.mappings += 1;
                    life.locks |= mapping.locked;
                    life.huge.map(*start, *len, u64::from(*flags));
                });
                if *cause == MapCause::StackGrowth {
                    return self.grow(pid, *start, *len);
                }
                self.map(pid, *start, *len, file.as_ref().map(|file| (file, *file_offset)))?;
                // A mapping that no call made may be locked or populated too.
                self.bring_in(pid, &Verb::Mmap(Mapping { addr: *start, len: *len, ..mapping }))
            }
            EventKind::Syscall(call) => self.call(pid, call, heap),
            kind if kind.is_unresolved() => self.work_of(pid, |life| life.mappings / 16),
            EventKind::Fault { addr, access, major, .. } => {
                let stores = matches!(access, Access::Write | Access::Unknown);
                self.use_page(pid, *addr, *major, stores)
            }
            EventKind::FaultAround { start, len } => self.use_range(pid, *start, *len, false),
            EventKind::Populate { start, len, cause } => self.use_range(pid, *start, *len, cause.stores()),
            EventKind::Lost { records } => {
                self.lost = self.lost.saturating_add(*records);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fork(&mut self, pid: u32, child: u32) -> Result<(), ReplayError> {
        let Some(child) = self.layouts.number_of(child) else { return Ok(()) };
        self.spaces.fork(self.layouts.number_of(pid), child)
    }

    /// Adds a mapping.
    fn map(
        &mut self,
        pid: u32,
        start: u64,
        len: u64,
        file: Option<(&FileId, u64)>,
    ) -> Result<(), ReplayError> {
        if let Some((file, offset)) = file {
            // Offsets are signed, and Linux refuses a mapping that leaves them.
            if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
                return self.impossible("maps a file beyond its largest offset");
            }
            let number = self.number(file);
            self.files[number as usize].mapped += 1;
            self.note_extent(pid, start);
        }
        Ok(())
    }

    fn call(&mut self, pid: u32, call: &Syscall, heap: Option<u64>) -> Result<(), ReplayError> {
        if call.call == Call::Mmap && !call.ok() && huge_bits(call.args[3]).is_some() {
            self.huge_refused += 1;
        }
        let planned = plan(call, |file| number(&mut self.numbers, &mut self.files, file));
        let (verb, answer) = match planned {
            Plan::Do(verb, answer) => (verb, answer),
            Plan::FailedLock(verb) => (verb, Answer::Failure),
            Plan::Heap { got, .. } => {
                let from = heap.unwrap_or(got);
                return self.grow(pid, from, got.saturating_sub(from));
            }
            Plan::Detach(_) => return self.work_of(pid, |life| life.mappings / 4),
            Plan::Cut { file, .. } => return self.spaces.cut(self.files[file as usize].mapped),
            Plan::Skip | Plan::Told => return Ok(()),
        };
        let stack =
            trace::protects_downwards(call).then(|| self.layouts.start_of(pid, call.args[0])).flatten();
        let verb = stack.map_or(verb, |start| down_to(verb, start));
        if answer == Answer::Failure {
            // Its reason is searched in all mappings.
            self.work_of(pid, |life| life.mappings / 16)?;
        }
        if let (Verb::Mmap(mapping), Some(file)) = (&verb, &call.file) {
            if call.ok() {
                self.map(
                    pid,
                    mapping.addr,
                    mapping.len,
                    Some((file, mapping.file.map_or(0, |at| at.1 * PAGE))),
                )?;
            }
            if mapping.file.is_none() {
                let number = self.number(file);
                self.files[number as usize].shmem = true;
            }
        }
        self.verb(pid, call, &verb)?;
        // A failed call may have populated a part.
        let tried = answer == Answer::Failure && !matches!(verb, Verb::Mmap(_) | Verb::Munmap { .. });
        if call.ok() || tried { self.bring_in(pid, &verb) } else { Ok(()) }
    }

    /// The verb's changes of the address space, and the work of walking it.
    fn verb(&mut self, pid: u32, call: &Syscall, verb: &Verb) -> Result<(), ReplayError> {
        let len = match *verb {
            Verb::Mmap(Mapping { len, .. })
            | Verb::Munmap { len, .. }
            | Verb::Mprotect { len, .. }
            | Verb::Madvise { len, .. }
            | Verb::Mlock { len, .. }
            | Verb::Munlock { len, .. } => len,
            Verb::Mremap { old, new, .. } => old.max(new),
            Verb::Brk { .. } | Verb::Mlockall { .. } | Verb::Munlockall => u64::MAX,
        };
        self.work_of(pid, |life| life.sweep(len))?;
        self.work_of(pid, |life| life.huge.mappings() as u64 / 16)?;
        let moves = matches!(verb, Verb::Mmap(_) | Verb::Mremap { .. } | Verb::Munmap { .. }) && call.ok();
        if moves {
            self.note_extent(pid, call.result as u64);
        }
        self.asks |= matches!(verb, Verb::Madvise { advice: Advice::HugePage, .. });
        let most = self.mapping_limit;
        if moves && let Some(number) = self.layouts.number_of(pid) {
            self.spaces.apply(number, verb)?;
        }
        self.life(pid, |life| {
            if moves {
                life.huge.apply(call, verb);
            }
            // Both ends may cut a mapping.
            life.mappings = (life.mappings + 2).min(most);
            match *verb {
                Verb::Mlockall { future, .. } => (life.locks, life.locks_future) = (true, future),
                Verb::Munlockall => (life.locks, life.locks_future) = (false, false),
                Verb::Mlock { .. } | Verb::Mmap(Mapping { locked: true, .. }) => life.locks = true,
                _ => {}
            }
        });
        Ok(())
    }

    /// The pages that a verb populates by itself.
    fn bring_in(&mut self, pid: u32, verb: &Verb) -> Result<(), ReplayError> {
        let (locks, locks_future) =
            self.with_life(pid, |life| (life.locks, life.locks_future)).unwrap_or_default();
        match *verb {
            Verb::Mmap(Mapping { addr, len, populate, locked, .. }) if populate || locked || locks_future => {
                self.use_range(pid, addr, len, true)
            }
            Verb::Mremap { addr, new, to, .. } if locks => {
                let to = match to {
                    Remap::Fixed(to) | Remap::FixedDontUnmap(to) => to.0,
                    _ => addr,
                };
                self.use_range(pid, to, new, true)
            }
            Verb::Mprotect { addr, len, .. } if locks => self.use_mapped(pid, addr, len, true),
            Verb::Mlock { addr, len, on_fault: false } => self.use_mapped(pid, addr, len, true),
            Verb::Mlockall { current: true, on_fault: false, .. } => self.use_mapped(pid, 0, u64::MAX, true),
            Verb::Madvise { addr, len, advice } => match advice {
                Advice::PopulateWrite => self.use_mapped(pid, addr, len, true),
                Advice::PopulateRead | Advice::WillNeed => self.use_mapped(pid, addr, len, false),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The heap or a stack has grown; locked memory is populated.
    fn grow(&mut self, pid: u32, start: u64, len: u64) -> Result<(), ReplayError> {
        match self.with_life(pid, |life| life.locks || life.locks_future) {
            Some(true) => self.use_mapped(pid, start, len, true),
            _ => Ok(()),
        }
    }

    fn number(&mut self, file: &FileId) -> u64 {
        number(&mut self.numbers, &mut self.files, file)
    }

    /// Extends the file behind the mapping at `addr` to the mapping's end.
    fn note_extent(&mut self, pid: u32, addr: u64) {
        if let Some(mapping) = self.layouts.find(pid, addr)
            && let Some(file) = &mapping.file
        {
            let number = self.number(file);
            let bytes = &mut self.files[number as usize].bytes;
            *bytes = (*bytes).max(mapping.offset.saturating_add(mapping.end - mapping.start));
        }
    }

    /// Counts every page of a range as work, mapped or not.
    fn use_range(&mut self, pid: u32, start: u64, len: u64, stores: bool) -> Result<(), ReplayError> {
        self.spaces.estimate.work(len.div_ceil(PAGE))?;
        self.use_parts(pid, start, len, stores)
    }

    /// Counts the mapped pages of a range as work.
    fn use_mapped(&mut self, pid: u32, start: u64, len: u64, stores: bool) -> Result<(), ReplayError> {
        let mapped: u64 = self.parts(pid, start, len).iter().map(|part| part.end - part.start).sum();
        self.spaces.estimate.work(mapped.div_ceil(PAGE))?;
        self.use_parts(pid, start, len, stores)
    }

    fn parts(&self, pid: u32, start: u64, len: u64) -> Vec<trace::Mapping> {
        self.layouts.mapped_in(pid, start, start.saturating_add(len))
    }

    fn use_parts(&mut self, pid: u32, start: u64, len: u64, stores: bool) -> Result<(), ReplayError> {
        for part in self.parts(pid, start, len) {
            let (first, end) = (part.start / PAGE, part.end.div_ceil(PAGE));
            if let Some(file) = &part.file {
                self.use_file(file, part.offset / PAGE, end - first, false);
            }
            self.use_pages(pid, first, end, stores)?;
        }
        Ok(())
    }

    fn use_pages(&mut self, pid: u32, first: u64, end: u64, stores: bool) -> Result<(), ReplayError> {
        self.life(pid, |life| life.used.insert_range(first, end));
        match self.layouts.number_of(pid).filter(|_| stores) {
            Some(number) => self.spaces.store(number, first, end),
            None => Ok(()),
        }
    }

    fn use_page(&mut self, pid: u32, addr: u64, major: bool, stores: bool) -> Result<(), ReplayError> {
        let Some(mapping) = self.layouts.find(pid, addr) else {
            // It may be a stack that grows, which is populated where it is locked.
            let above = self.layouts.next_above(pid, addr).map_or(0, |mapping| mapping.start - addr);
            return self.work_of(pid, |life| if life.locks { above / PAGE } else { 0 });
        };
        if let Some(file) = &mapping.file {
            let page = mapping.offset.saturating_add(addr - mapping.start) / PAGE;
            self.use_file(file, page, 1, major);
        }
        self.use_pages(pid, addr / PAGE, addr / PAGE + 1, stores)
    }

    /// Counts the use of pages of a file, with a wait for the device or without.
    fn use_file(&mut self, file: &FileId, first: u64, count: u64, major: bool) {
        let number = self.number(file);
        let SurveyedFile { warm, cold, .. } = &mut self.files[number as usize];
        // Besides the pages, count nodes, which sparse pages do not share.
        let frames = |warm: &PageSet, cold: &PageSet| warm.len() + cold.len() + warm.chunks() + cold.chunks();
        let before = frames(warm, cold);
        if major && !warm.contains(first) {
            cold.insert(first);
        } else {
            let end = first.saturating_add(count);
            let waited: Vec<u64> = cold.pages_in(first, end).filter(|page| !warm.contains(*page)).collect();
            warm.insert_range(first, end);
            waited.into_iter().for_each(|page| warm.remove_range(page, page + 1));
        }
        self.spaces.estimate.cache(frames(warm, cold).saturating_sub(before));
    }

    const fn impossible(&self, what: &'static str) -> Result<(), ReplayError> {
        Err(ReplayError::Impossible { event: self.events, what })
    }

    fn with_life<R>(&self, pid: u32, look: impl FnOnce(&Life) -> R) -> Option<R> {
        self.layouts.number_of(pid).and_then(|number| self.spaces.get(number)).map(look)
    }

    fn work_of(&mut self, pid: u32, pages: impl FnOnce(&Life) -> u64) -> Result<(), ReplayError> {
        let pages = self.with_life(pid, pages).unwrap_or(0);
        self.spaces.estimate.work(pages)
    }

    /// Changes the record of the process's address space.
    fn life(&mut self, pid: u32, change: impl FnOnce(&mut Life)) {
        if let Some(number) = self.layouts.number_of(pid) {
            self.spaces.change(number, change);
        }
    }
}

/// Whether four levels of page tables can translate all of it.
fn are_canonical(start: u64, len: u64) -> bool {
    let last = start.saturating_add(len.saturating_sub(1));
    (start as i64) << 16 >> 16 == start as i64 && (start ^ last) >> 47 == 0
}

fn number(numbers: &mut Numbers, files: &mut Vec<SurveyedFile>, file: &FileId) -> u64 {
    *numbers.entry((file.device, file.inode)).or_insert_with(|| {
        files.push(SurveyedFile { path: Some(file.path), ..SurveyedFile::default() });
        files.len() as u64 - 1
    })
}
