//! The leaves that map a program's memory, by the kind of mapping: the addresses of an instrumented program are not those
//! of the recorded one.

use std::collections::HashMap;

use procfs::process::{MMPermissions, MMapPath, Process};

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

/// The leaves of private anonymous memory. All other memory has 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backing {
    pub(crate) heap: Leaves,
    pub(crate) anonymous: Leaves,
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
    /// The page of an address in a range of this kind.
    pub(super) fn page(&self, addr: u64, kind: Kind, processor: &Processor) -> Page {
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
}

impl Ranges {
    pub(super) fn new(pid: u32) -> Self {
        Self { pid, kinds: HashMap::new(), last: (u64::MAX, Kind::Other) }
    }

    /// The kind of the range around an address.
    pub(super) fn kind(&mut self, addr: u64) -> Kind {
        let range = addr / RANGE;
        if self.last.0 != range {
            let pid = self.pid;
            let kind = *self.kinds.entry(range).or_insert_with(|| kind_of(pid, range * RANGE));
            self.last = (range, kind);
        }
        self.last.1
    }
}

/// The kind of the mapping that a range lies in, by the maps of the process; other memory if it has ended.
fn kind_of(pid: u32, start: u64) -> Kind {
    let maps = i32::try_from(pid).ok().and_then(|pid| Process::new(pid).ok()?.maps().ok());
    let around = |map: &&procfs::process::MemoryMap| map.address.0 <= start && start + RANGE <= map.address.1;
    let maps = maps.as_ref().into_iter().flatten();
    let Some(map) = maps.clone().find(around).filter(|map| map.pathname == MMapPath::Anonymous) else {
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
