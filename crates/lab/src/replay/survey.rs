//! A first look through a whole trace: whether it can be read to its end, which files it maps and how much of them it
//! uses, and how much memory a replay may need. Nothing runs before this has succeeded.

use std::collections::HashMap;
use std::path::Path;

use super::error::ReplayError;
use super::pages::PageSet;
use super::plan::{Plan, plan};
use super::progress::Progress;
use super::verb::{PAGE, Verb};
use crate::trace::{Access, Event, EventKind, FileId, Header, Layouts, Tier, TraceReader};

/// The number of each file, by device and inode.
pub(super) type Numbers = HashMap<(u64, u64), u64>;

/// More than a machine brings in for one call; whatever a file says, its ranges are cut there.
pub(super) const LONGEST_RANGE: u64 = 1 << 40;

/// A file that the trace maps.
#[derive(Clone, Debug, Default)]
pub(super) struct SurveyedFile {
    /// As large as what is mapped of it.
    pub(super) bytes: u64,
    /// Pages that were in the page cache when they were first used.
    pub(super) warm: PageSet,
    /// Pages that were not.
    cold: PageSet,
    /// Nameless shared memory: the mappings make it, nobody opens it.
    nameless: bool,
}

/// What is known of a trace before it is replayed.
pub(super) struct Survey {
    pub(super) header: Header,
    pub(super) files: Vec<SurveyedFile>,
    pub(super) numbers: Numbers,
    /// Bytes of a machine that holds all of it under any folio size.
    pub(super) needed: u64,
    /// Kernel records that were lost while it was recorded.
    pub(super) lost: u64,
}

struct Walk {
    layouts: Layouts,
    files: Vec<SurveyedFile>,
    numbers: Numbers,
    /// Private pages that are stored to, by process; the aligned 2 MiB around each may be resident.
    written: HashMap<u32, PageSet>,
    chunks: u64,
    most_chunks: u64,
    lost: u64,
    privileged: bool,
}

impl Survey {
    /// Reads the trace to its end.
    ///
    /// # Errors
    /// [`ReplayError::Trace`] for a file that is damaged anywhere, [`ReplayError::PageSize`].
    pub(super) fn of(path: &Path, progress: &mut Progress) -> Result<Self, ReplayError> {
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
            written: HashMap::new(),
            chunks: 0,
            most_chunks: 0,
            lost: 0,
            privileged: header.tier == Tier::Privileged,
        };
        for event in reader.by_ref() {
            walk.event(&event?);
            progress.advance();
        }
        let needed = walk.needed();
        Ok(Self { header, files: walk.files, numbers: walk.numbers, needed, lost: walk.lost })
    }
}

impl Walk {
    fn event(&mut self, event: &Event) {
        self.layouts.apply(event);
        let pid = event.pid;
        match &event.kind {
            EventKind::Exec { .. } | EventKind::ProcessExit { .. } => {
                let gone = self.written.remove(&pid).map_or(0, |pages| pages.chunks());
                self.chunks -= gone;
            }
            EventKind::Map { start, file: Some(file), .. } => {
                self.number(file);
                self.note_extent(pid, *start);
            }
            EventKind::Syscall(call) => {
                let planned = plan(call, |file| number(&mut self.numbers, &mut self.files, file));
                if let (Plan::Do(Verb::Mmap(mapping), _), Some(file)) = (planned, &call.file)
                    && mapping.file.is_none()
                {
                    let number = self.number(file);
                    self.files[number as usize].nameless = true;
                }
                if let Plan::Do(verb @ (Verb::Mmap(_) | Verb::Mremap { .. } | Verb::Munmap { .. }), _) =
                    planned
                    && call.ok()
                {
                    self.note_extent(pid, call.result as u64);
                    self.change_written(pid, |pages| verb.apply_to(pages));
                }
            }
            EventKind::Fault { addr, access, major, duration_ns, .. }
                if duration_ns.is_some() || !self.privileged =>
            {
                let stores = matches!(access, Access::Write | Access::Unknown);
                self.use_page(pid, *addr, *major, stores);
            }
            EventKind::FaultAround { start, len } => self.use_range(pid, *start, *len, false),
            EventKind::Populate { start, len, .. } => self.use_range(pid, *start, *len, true),
            EventKind::Lost { records } => self.lost += records,
            _ => {}
        }
    }

    fn number(&mut self, file: &FileId) -> u64 {
        number(&mut self.numbers, &mut self.files, file)
    }

    /// Makes the file behind the mapping at `addr` as large as the mapping shows of it.
    fn note_extent(&mut self, pid: u32, addr: u64) {
        if let Some(mapping) = self.layouts.find(pid, addr)
            && let Some(file) = &mapping.file
        {
            let number = self.number(file);
            let bytes = &mut self.files[number as usize].bytes;
            *bytes = (*bytes).max(mapping.offset.saturating_add(mapping.end - mapping.start));
        }
    }

    fn use_range(&mut self, pid: u32, start: u64, len: u64, stores: bool) {
        (start..start.saturating_add(len.min(LONGEST_RANGE)))
            .step_by(PAGE as usize)
            .for_each(|addr| self.use_page(pid, addr, false, stores));
    }

    fn use_page(&mut self, pid: u32, addr: u64, major: bool, stores: bool) {
        let Some(mapping) = self.layouts.find(pid, addr) else { return };
        if let Some(file) = &mapping.file {
            let page = (mapping.offset + (addr - mapping.start)) / PAGE;
            let number = self.number(file);
            let file = &mut self.files[number as usize];
            if major && !file.warm.contains(page) {
                file.cold.insert(page);
            } else if !file.cold.contains(page) {
                file.warm.insert(page);
            }
        }
        if stores {
            self.change_written(pid, |pages| {
                pages.insert(addr / PAGE);
            });
        }
    }

    fn change_written(&mut self, pid: u32, change: impl FnOnce(&mut PageSet)) {
        let pages = self.written.entry(pid).or_default();
        let before = pages.chunks();
        change(pages);
        self.chunks = self.chunks - before + pages.chunks();
        self.most_chunks = self.most_chunks.max(self.chunks);
    }

    /// Every aligned 2 MiB that is stored to in a folio of its own, all file pages that are used, and a good eighth for
    /// tables.
    fn needed(&mut self) -> u64 {
        const STEP: u64 = 64 << 20;
        let mut cached = 0;
        for file in &mut self.files {
            if file.nameless {
                // Nothing to read: pages come as zeroes.
                file.warm = PageSet::default();
            }
            cached += file.warm.len() + file.cold.len();
        }
        let bytes = self.most_chunks * (2 << 20) + cached * PAGE;
        (bytes + bytes / 8 + STEP).next_multiple_of(STEP).max(256 << 20)
    }
}

fn number(numbers: &mut Numbers, files: &mut Vec<SurveyedFile>, file: &FileId) -> u64 {
    *numbers.entry((file.device, file.inode)).or_insert_with(|| {
        files.push(SurveyedFile::default());
        files.len() as u64 - 1
    })
}
