//! Which pages of its code a program uses, as the faults of a recording show them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::error::ReplayError;
use super::pages::PageSet;
use super::verb::PAGE;
use crate::trace::{Event, EventKind, FileId, Layouts, Mapping, PathId, TraceReader};

/// The code of the process that uses most of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) pid: u32,
    /// The program; `None` if its start is missing.
    pub(crate) program: Option<PathId>,
    /// Its executable mappings, those with most used pages first.
    pub(crate) mappings: Vec<CodeMapping>,
}

/// An executable mapping, and the pages of it that were used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodeMapping {
    /// Its file; `None` for what is compiled at run time.
    pub(crate) path: Option<PathId>,
    pub(crate) bytes: u64,
    /// Pages that faults brought in, and those that Linux mapped around them.
    pub(crate) pages: u64,
    /// If the mapping started at a multiple of 2 MiB: its 2 MiB with such a page that lie wholly in it, and such pages beyond
    /// the last of them.
    pub(crate) blocks: u64,
    pub(crate) rest: u64,
}

const PROT_EXEC: u32 = 4;
const BLOCK: u64 = 512;

/// Of one address space: by file and start of the mapping its bytes, and the used pages from its start on.
type Used = BTreeMap<(Option<PathId>, u64), (u64, PageSet)>;
/// The first process that had it, and its program.
type Space = (u32, Option<PathId>, Used);

impl Code {
    /// That of a trace; `None` if no page of code was brought in.
    ///
    /// # Errors
    /// As those of the reader.
    pub(super) fn of(path: &Path) -> Result<Option<Self>, ReplayError> {
        let mut layouts = Layouts::default();
        let mut spaces: HashMap<u32, Space> = HashMap::new();
        let mut programs: HashMap<u32, PathId> = HashMap::new();
        for event in TraceReader::open(path)? {
            let event = event?;
            match event.kind {
                EventKind::Exec { name } => drop(programs.insert(event.pid, name)),
                EventKind::Fork { child_pid, .. } => {
                    let name = programs.get(&event.pid).copied();
                    programs.extend(name.map(|name| (child_pid, name)));
                }
                _ => {}
            }
            if let Some((start, end)) = brought_in(&event)
                && let Some(number) = layouts.number_of(event.pid)
            {
                let fresh = || (event.pid, programs.get(&event.pid).copied(), Used::new());
                let (.., used) = spaces.entry(number).or_insert_with(fresh);
                let code = layouts.mapped_in(event.pid, start, end).into_iter();
                code.filter(|part| part.prot & PROT_EXEC != 0).for_each(|part| {
                    // Cut to the range: the whole mapping says where it starts.
                    if let Some(whole) = layouts.find(event.pid, part.start) {
                        note(used, &whole, &part);
                    }
                });
            }
            layouts.apply(&event);
        }
        let pages = |used: &Used| used.values().map(|(_, pages)| pages.len()).sum::<u64>();
        let most = spaces.into_values().max_by_key(|(pid, _, used)| (pages(used), std::cmp::Reverse(*pid)));
        Ok(most.filter(|(.., used)| pages(used) > 0).map(|(pid, program, used)| {
            let mut mappings: Vec<CodeMapping> = used
                .iter()
                .filter(|(_, (_, pages))| pages.len() > 0)
                .map(|((path, _), (bytes, pages))| CodeMapping::new(*path, *bytes, pages))
                .collect();
            mappings.sort_by_key(|mapping| std::cmp::Reverse(mapping.pages));
            Self { pid, program, mappings }
        }))
    }
}

impl CodeMapping {
    fn new(path: Option<PathId>, bytes: u64, pages: &PageSet) -> Self {
        let whole = bytes / PAGE / BLOCK * BLOCK;
        let mut within = pages.clone();
        within.remove_range(whole, u64::MAX);
        let rest = pages.len() - within.len();
        Self { path, bytes, pages: pages.len(), blocks: within.chunks(), rest }
    }
}

/// The addresses that the event made present.
fn brought_in(event: &Event) -> Option<(u64, u64)> {
    let (start, len) = match event.kind {
        _ if event.kind.is_unresolved() => return None,
        EventKind::Fault { addr, protection: false, .. } => (addr / PAGE * PAGE, PAGE),
        EventKind::FaultAround { start, len } | EventKind::Populate { start, len, .. } => (start, len),
        _ => return None,
    };
    Some((start, start.saturating_add(len)))
}

fn note(used: &mut Used, whole: &Mapping, part: &Mapping) {
    let key = (whole.file.map(|FileId { path, .. }| path), whole.start);
    let (bytes, pages) = used.entry(key).or_default();
    *bytes = (*bytes).max(whole.end - whole.start);
    let page = |addr: u64| (addr - whole.start) / PAGE;
    pages.insert_range(page(part.start), page(part.end));
}
