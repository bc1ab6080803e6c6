//! Files by which an operator controls pools of huge pages: writes that may move memory, and the files of control
//! groups.

use core::fmt::{self, Display, Write};

use quire::hugetlb::{Charge, ControlError, HugeGroup, HugeSize, Outcome, Resized, Stopped, parse_bytes};
use quire::manager::MemoryManager;
use quire::page_alloc::NodeSet;
use quire::platform::Platform;

/// Writes to a file that [`HugePools::write_file`](quire::hugetlb::HugePools::write_file) knows. Where a pool finds no
/// free memory in large pieces, moves other memory out of the way.
///
/// # Errors
/// As there.
pub fn write_pool_file<P: Platform>(
    manager: &MemoryManager<'_, P>,
    nodes: NodeSet,
    path: &str,
    text: &str,
) -> Result<Outcome, ControlError> {
    let write = || manager.huge_pools().write_file(manager.pages(), nodes, path, text);
    let mut done = write()?;
    while let Outcome::Resized(Resized { stopped: Some(Stopped::OutOfMemory), after, wanted, .. }) = done
        && let Some((size, nodes)) = manager.huge_pools().file_pool(manager.pages(), nodes, path)
        // Another CPU may have added more pages than are wanted.
        && after < wanted
        && manager.add_huge(size, nodes, wanted - after)
    {
        done = write()?;
    }
    Ok(done)
}

/// What a file of a control group shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Current(Charge),
    Max(Charge),
    Events,
    EventsLocal,
    NumaStat,
}

/// A file `hugetlb.*` of a control group (version 2). `Display` shows its name. A group that is the root of all has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupFile {
    size: HugeSize,
    content: Content,
}

const CONTENTS: [(&str, Content); 7] = [
    ("current", Content::Current(Charge::Usage)),
    ("events", Content::Events),
    ("events.local", Content::EventsLocal),
    ("max", Content::Max(Charge::Usage)),
    ("numa_stat", Content::NumaStat),
    ("rsvd.current", Content::Current(Charge::Reservation)),
    ("rsvd.max", Content::Max(Charge::Reservation)),
];

impl GroupFile {
    /// All files of a group.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |size| CONTENTS.into_iter().map(move |(_, content)| Self { size, content });
        HugeSize::ALL.into_iter().flat_map(of)
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        matches!(self.content, Content::Max(_))
    }

    /// Writes the file's text.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn read<P: Platform>(
        &self,
        out: &mut dyn Write,
        manager: &MemoryManager<'_, P>,
        group: HugeGroup,
    ) -> fmt::Result {
        let (pools, size) = (manager.huge_pools(), self.size);
        match self.content {
            Content::Current(kind) => {
                writeln!(out, "{}", self.bytes(pools.group_counters(group, size, kind).current))
            }
            Content::Max(kind) => match pools.group_counters(group, size, kind).max {
                u64::MAX => out.write_str("max\n"),
                pages => writeln!(out, "{}", self.bytes(pages)),
            },
            Content::Events => writeln!(out, "max {}", pools.group_events(group, size).all),
            Content::EventsLocal => writeln!(out, "max {}", pools.group_events(group, size).own),
            Content::NumaStat => {
                let nodes = pools.group_nodes(manager.pages(), group, size);
                write!(out, "total={}", self.bytes(nodes.iter().sum()))?;
                for (node, pages) in nodes.iter().take(manager.pages().requests().node_count()).enumerate() {
                    write!(out, " N{node}={}", self.bytes(*pages))?;
                }
                out.write_str("\n")
            }
        }
    }

    /// A kernel may charge and limit any number of pages.
    const fn bytes(&self, pages: u64) -> u64 {
        pages.saturating_mul(self.size.bytes())
    }

    /// Sets the limit that the file shows: bytes, rounded down to whole huge pages, or `max`.
    ///
    /// # Errors
    /// [`ControlError::NotPermitted`] if it cannot be written; [`ControlError::NotANumber`].
    pub fn write<P: Platform>(
        &self,
        manager: &MemoryManager<'_, P>,
        group: HugeGroup,
        text: &str,
    ) -> Result<(), ControlError> {
        let Content::Max(kind) = self.content else { return Err(ControlError::NotPermitted) };
        let pages = match text.trim() {
            "max" => u64::MAX,
            text => match parse_bytes(text) {
                Some((bytes, "")) if bytes / self.size.bytes() < MOST / self.size.bytes() => {
                    bytes / self.size.bytes()
                }
                Some((_, "")) => u64::MAX,
                _ => return Err(ControlError::NotANumber),
            },
        };
        manager.huge_pools().set_group_max(group, self.size, kind, pages);
        Ok(())
    }
}

/// A limit of so many bytes is none.
const MOST: u64 = i64::MAX as u64;

impl Display for GroupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.size {
            HugeSize::Size2M => "2MB",
            HugeSize::Size1G => "1GB",
        };
        let name = CONTENTS.iter().find(|(_, content)| *content == self.content).map_or("", |(name, _)| name);
        write!(f, "hugetlb.{size}.{name}")
    }
}
