//! The leaves that map a program's memory, by the kind of mapping: the addresses of an instrumented program are not those
//! of the recorded one.

use std::collections::HashMap;

use procfs::process::{MMPermissions, MMapPath, MemoryMap, MemoryMaps, Process};

use super::model::Page;
use super::processor::{Processor, Size};

/// The leaves of one kind of mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaves {
    /// 2 MiB wherever an aligned range of that size lies in one mapping.
    pub(crate) large: bool,
    /// Folios of at least as many pages as the processor coalesces.
    pub(crate) grouped: bool,
}

/// The leaves of private anonymous memory and of program text. All other memory has 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backing {
    pub(crate) heap: Leaves,
    pub(crate) anonymous: Leaves,
    /// Whether program text has leaves of 2 MiB, as if each of its mappings started at a multiple of that.
    pub(crate) code: bool,
}

/// The kind of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Heap,
    Anonymous,
    Other,
}

const RANGE: u64 = 2 << 20;
const PAGE: u64 = 4096;

impl Backing {
    /// The page of an address in a range of this kind. An address of program text has the number `code` of its 2 MiB.
    pub(super) fn page(&self, addr: u64, kind: Kind, code: Option<u64>, processor: &Processor) -> Page {
        if let Some(number) = code.filter(|_| self.code) {
            return Page { number, size: Size::Large };
        }
        let leaves = match kind {
            Kind::Heap => self.heap,
            Kind::Anonymous => self.anonymous,
            Kind::Other => Leaves::default(),
        };
        match leaves {
            Leaves { large: true, .. } => Page { number: addr / RANGE, size: Size::Large },
            Leaves { grouped: true, .. } if processor.coalesces > 1 => {
                Page { number: addr / PAGE / processor.coalesces, size: Size::Group }
            }
            _ => Page { number: addr / PAGE, size: Size::Small },
        }
    }
}

/// The aligned ranges of 2 MiB of a process that runs under valgrind.
pub(super) struct Ranges {
    pid: u32,
    /// A range that lies wholly in a mapping has its kind, from its first access on, as a fault on Linux decides it.
    kinds: HashMap<u64, Kind>,
    last: (u64, Kind),
    /// Executable mappings of files, as far as whole 2 MiB of them go: start and end.
    code: Vec<(u64, u64)>,
}

impl Ranges {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, kinds: HashMap::new(), last: (u64::MAX, Kind::Other), code: Vec::new() }
    }

    /// The kind of the range around an address.
    pub(super) fn kind(&mut self, addr: u64) -> Kind {
        let range = addr / RANGE;
        if self.last.0 != range {
            let known = self.kinds.get(&range).copied();
            let kind = known.unwrap_or_else(|| self.look(range * RANGE));
            self.kinds.insert(range, kind);
            self.last = (range, kind);
        }
        self.last.1
    }

    /// The number of the 2 MiB of program text around an address whose range was looked at. No other large page has it: they
    /// lie wholly in other mappings.
    pub(super) fn code(&self, addr: u64) -> Option<u64> {
        let (start, _) = self.code.iter().find(|(start, end)| (*start..*end).contains(&addr))?;
        Some(start / RANGE + (addr - start) / RANGE)
    }

    /// Reads the maps of the process: where its text is, and the kind of the mapping that a range lies in; other memory if the
    /// process has ended.
    fn look(&mut self, start: u64) -> Kind {
        let process = i32::try_from(self.pid).ok().and_then(|pid| Process::new(pid).ok());
        let Some(maps) = process.and_then(|process| process.maps().ok()) else { return Kind::Other };
        let is_code = |map: &&MemoryMap| {
            map.perms.contains(MMPermissions::EXECUTE) && matches!(map.pathname, MMapPath::Path(_))
        };
        let whole =
            |map: &MemoryMap| (map.address.0, map.address.1 - (map.address.1 - map.address.0) % RANGE);
        self.code = maps.iter().filter(is_code).map(whole).collect();
        kind_in(&maps, start)
    }
}

/// The kind of the mapping that a range lies in.
fn kind_in(maps: &MemoryMaps, start: u64) -> Kind {
    let around = |map: &&MemoryMap| map.address.0 <= start && start + RANGE <= map.address.1;
    let Some(map) = maps.iter().find(around).filter(|map| map.pathname == MMapPath::Anonymous) else {
        return Kind::Other;
    };
    let has = |wanted| map.perms.contains(wanted);
    match (has(MMPermissions::PRIVATE | MMPermissions::WRITE), has(MMPermissions::EXECUTE)) {
        // Valgrind lets the heap that `brk` moves be executed.
        (true, true) => Kind::Heap,
        (true, false) => Kind::Anonymous,
        _ => Kind::Other,
    }
}
