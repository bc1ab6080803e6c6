//! `/proc/PID/maps` and `/proc/PID/numa_maps`.

use core::fmt::{Display, Result, Write};
use core::ops::Range;

use quire::addr::{VirtAddr, VirtRange};
use quire::arch::{EntryFlags, Protection};
use quire::filemap::FileKind;
use quire::limits::MAX_NODES;
use quire::manager::MemoryManager;
use quire::page_alloc::{NodeNames, NodePolicy, NodeSet};
use quire::platform::Platform;
use quire::vm::vma::VmaFlags;
use quire::vm::{Mm, VmaInfo};

use super::columns::Columns;

/// Where a name begins in a line of `maps`.
const NAME_COLUMN: usize = 73;

/// A mapped file as its file system knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappedFile {
    /// The device, as major and minor number.
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
}

/// What the kernel knows about the mappings of an address space.
pub trait Names {
    /// The file that a mapping maps. Zeroes stand for a file that the kernel does not know.
    fn file(&self, vma: &VmaInfo) -> MappedFile;

    /// Writes the path of that file, with ` (deleted)` behind it if it has none any more. Writes nothing for a file
    /// without a name.
    ///
    /// # Errors
    /// Those of the writer.
    fn path(&self, vma: &VmaInfo, out: &mut dyn Write) -> Result;

    /// An address in the mapping that is the program's stack.
    fn stack(&self) -> VirtAddr;

    /// Writes the name of a mapping that is no file's, `[vdso]` for example. Heap and stack have theirs already.
    ///
    /// # Errors
    /// Those of the writer.
    fn special(&self, _vma: &VmaInfo, _out: &mut dyn Write) -> Result {
        Ok(())
    }
}

/// Whether a mapping's memory is charged as soon as it is mapped, since each of its pages may need a frame of its
/// own (Linux: `VM_ACCOUNT`).
pub fn is_charged(vma: &VmaInfo) -> bool {
    let huge = matches!(vma.file, Some((FileKind::Huge { .. }, _)));
    let exempt = vma.flags.contains(VmaFlags::SHARED) || vma.flags.contains(VmaFlags::NO_RESERVE);
    vma.protection.contains(Protection::WRITE) && !exempt && !huge
}

/// Calls `show` with each mapping in ascending order.
pub(super) fn each<P: Platform>(mm: &Mm<'_, P>, mut show: impl FnMut(&VmaInfo) -> Result) -> Result {
    let mut at = VirtAddr(0);
    while let Some(vma) = mm.next_vma(at) {
        show(&vma)?;
        at = vma.range.end;
    }
    Ok(())
}

/// `/proc/PID/maps`: a line for each mapping.
///
/// # Errors
/// Those of the writer.
pub fn maps<P: Platform>(out: &mut dyn Write, mm: &Mm<'_, P>, names: &dyn Names) -> Result {
    let heap = mm.heap();
    each(mm, |vma| line(out, vma, &heap, names))
}

/// The line of one mapping.
pub(super) fn line(out: &mut dyn Write, vma: &VmaInfo, heap: &Range<VirtAddr>, names: &dyn Names) -> Result {
    let file = if vma.file.is_some() { names.file(vma) } else { MappedFile::default() };
    let offset = vma.file.map_or(0, |(_, page)| page << 12);
    let mut out = Columns::new(out);
    head(&mut out, vma.range, rights(vma), offset, file)?;
    out.begin_at(NAME_COLUMN);
    if vma.file.is_some() {
        names.path(vma, &mut out)?;
    } else if let Some(name) = own_name(vma, heap, names) {
        out.write_str(name)?;
    } else {
        names.special(vma, &mut out)?;
    }
    out.begin_at(0);
    out.write_str("\n")
}

/// The line above the sums of `smaps_rollup`.
pub(super) fn rollup_line(out: &mut dyn Write, range: VirtRange) -> Result {
    let mut out = Columns::new(out);
    head(&mut out, range, [b'-', b'-', b'-', b'p'], 0, MappedFile::default())?;
    out.begin_at(NAME_COLUMN);
    out.write_str("[rollup]\n")
}

fn head(out: &mut Columns<'_>, range: VirtRange, rights: [u8; 4], offset: u64, file: MappedFile) -> Result {
    let rights: &dyn Display = &str::from_utf8(&rights).unwrap_or_default();
    let ((major, minor), inode) = (file.device, file.inode);
    let (start, end) = (range.start.0, range.end.0);
    write!(out, "{start:08x}-{end:08x} {rights} {offset:08x} {major:02x}:{minor:02x} {inode} ")
}

fn rights(vma: &VmaInfo) -> [u8; 4] {
    let letter = |right, letter| if vma.protection.contains(right) { letter } else { b'-' };
    let shared = vma.flags.contains(VmaFlags::SHARED);
    [
        letter(Protection::READ, b'r'),
        letter(Protection::WRITE, b'w'),
        letter(Protection::EXEC, b'x'),
        if shared { b's' } else { b'p' },
    ]
}

fn own_name(vma: &VmaInfo, heap: &Range<VirtAddr>, names: &dyn Names) -> Option<&'static str> {
    // As Linux tells them: the heap may be any part of the mapping.
    if vma.range.start < heap.end && vma.range.end > heap.start {
        return Some("[heap]");
    }
    vma.range.contains(names.stack()).then_some("[stack]")
}

/// `/proc/PID/numa_maps`: the policy of each mapping, `default` without one of its own, and how many of its pages are
/// on each node.
///
/// # Errors
/// Those of the writer.
pub fn numa_maps<P: Platform>(
    out: &mut dyn Write,
    manager: &MemoryManager<'_, P>,
    mm: &Mm<'_, P>,
    names: &dyn Names,
) -> Result {
    let heap = mm.heap();
    each(mm, |vma| {
        write!(out, "{:08x} ", vma.range.start.0)?;
        policy(out, vma.nodes, vma.node_names)?;
        if vma.file.is_some() {
            out.write_str(" file=")?;
            names.path(vma, out)?;
        } else if let Some(name) = own_name(vma, &heap, names) {
            write!(out, " {}", name.trim_matches(['[', ']']))?;
        }
        let huge = huge_bytes(vma);
        if huge.is_some() {
            out.write_str(" huge")?;
        }
        let counts = Pages::of(manager, mm, vma, huge.unwrap_or(4096));
        counts.write(out)?;
        if counts.mapped > 0 {
            write!(out, " kernelpagesize_kB={}", huge.unwrap_or(4096) / 1024)?;
        }
        out.write_str("\n")
    })
}

/// Linux: `mpol_to_str`.
fn policy(out: &mut dyn Write, nodes: Option<NodePolicy>, names: NodeNames) -> Result {
    let (word, nodes) = match nodes {
        None => ("default", NodeSet::EMPTY),
        Some(NodePolicy::Local) => ("local", NodeSet::EMPTY),
        Some(NodePolicy::Preferred(node)) => ("prefer", NodeSet::one(node)),
        Some(NodePolicy::PreferredMany(nodes)) => ("prefer (many)", nodes),
        Some(NodePolicy::Bind(nodes)) => ("bind", nodes),
        Some(NodePolicy::Interleave(nodes)) => ("interleave", nodes),
    };
    out.write_str(word)?;
    out.write_str(match names {
        NodeNames::Plain => "",
        NodeNames::Static(_) => "=static",
        NodeNames::Relative(_) => "=relative",
    })?;
    let mut before = ':';
    for first in nodes.iter().filter(|&node| node == 0 || !nodes.contains(node - 1)) {
        write!(out, "{before}{first}")?;
        before = ',';
        let last = (first..).take_while(|&node| nodes.contains(node)).last().unwrap_or(first);
        if last > first {
            write!(out, "-{last}")?;
        }
    }
    Ok(())
}

/// The size of a mapping's pages if they are huge pages of a pool.
pub(super) fn huge_bytes(vma: &VmaInfo) -> Option<u64> {
    match vma.file {
        Some((FileKind::Huge { order, .. }, _)) => Some(order.bytes()),
        _ => None,
    }
}

/// Pages of one mapping, in units of its page size.
#[derive(Default)]
struct Pages {
    mapped: u64,
    anon: u64,
    dirty: u64,
    most: u64,
    nodes: [u64; MAX_NODES],
}

impl Pages {
    fn of<P: Platform>(manager: &MemoryManager<'_, P>, mm: &Mm<'_, P>, vma: &VmaInfo, unit: u64) -> Self {
        let (mut bytes, nodes) = (Self::default(), manager.pages().requests().node_count());
        mm.mapped(vma.range, |run| {
            if run.has(EntryFlags::SPECIAL) {
                return;
            }
            let count = |applies| if applies { run.frames.count << 12 } else { 0 };
            bytes.mapped += count(true);
            bytes.anon += count(run.has(EntryFlags::ANON));
            bytes.dirty += count(run.has(EntryFlags::DIRTY));
            bytes.most = bytes.most.max(run.spaces);
            for part in run.frames.by_block() {
                // A block belongs to one node.
                let node = if nodes > 1 { manager.pages().store().node_of_frame(part.start) } else { 0 };
                bytes.nodes[usize::from(node)] += part.count << 12;
            }
        });
        let pages = |bytes: u64| bytes / unit;
        Self {
            mapped: pages(bytes.mapped),
            anon: pages(bytes.anon),
            dirty: pages(bytes.dirty),
            most: bytes.most,
            nodes: bytes.nodes.map(pages),
        }
    }

    fn write(&self, out: &mut dyn Write) -> Result {
        let rows = [
            ("anon", self.anon, self.anon > 0),
            ("dirty", self.dirty, self.dirty > 0),
            ("mapped", self.mapped, self.mapped > 0 && self.mapped != self.anon && self.mapped != self.dirty),
            ("mapmax", self.most, self.most > 1),
        ];
        for (name, number, _) in rows.into_iter().filter(|(.., shown)| *shown) {
            write!(out, " {name}={number}")?;
        }
        for (node, pages) in self.nodes.iter().enumerate().filter(|(_, pages)| **pages > 0) {
            write!(out, " N{node}={pages}")?;
        }
        Ok(())
    }
}
