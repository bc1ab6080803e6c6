//! Reads the mappings of a process that runs, and which of their pages are present.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use memmap2::MmapMut;
use nix::unistd::Pid;

use super::proc_files;
use super::raw::{Existing, Mapping, Present};

const PAGE: u64 = 4096;

/// Pages of a huge page.
const HUGE: u64 = 512;

/// Entries of a page map that are read at once.
const BATCH: u64 = 1 << 15;

const MAP_SHARED: u32 = 0x1;
const MAP_PRIVATE: u32 = 0x2;
const MAP_GROWSDOWN: u32 = 0x100;
const MAP_LOCKED: u32 = 0x2000;
const MAP_NORESERVE: u32 = 0x4000;
const MAP_HUGETLB: u32 = 0x4_0000;

const MADV_DONTFORK: u64 = 10;
const MADV_HUGEPAGE: u64 = 14;
const MADV_NOHUGEPAGE: u64 = 15;
const MADV_WIPEONFORK: u64 = 18;

/// User memory ends below this address.
const USER_END: u64 = 1 << 56;

/// A mapping as `smaps` shows it.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) mapping: Mapping,
    /// Bytes of its present pages.
    pub(super) resident: u64,
    /// Bytes of pages with an accessed bit, and of memory under leaves of 2 MiB.
    pub(super) referenced: u64,
    pub(super) large: u64,
    pub(super) locked: bool,
    /// Memory of a device, which has no pages.
    pub(super) device: bool,
    pub(super) advice: Vec<u64>,
}

/// What reading a process has found.
pub(super) struct Found {
    pub(super) existing: Existing,
    /// Bytes of present pages that were not read, because the time was over.
    pub(super) unread: u64,
}

/// Finds pages of zeroes, which no process has written.
pub(super) struct Zeroes {
    /// The frame of the zero page.
    page: Option<u64>,
    flags: Option<File>,
    /// The first frame of the huge zero page, once one was met.
    huge: Option<u64>,
}

/// Reads a process whose threads are stopped.
pub(super) fn read(pid: Pid, threads: Vec<u32>, zeroes: &mut Zeroes, deadline: Instant) -> io::Result<Found> {
    // A first thread that has ended has no memory.
    let tid = threads.last().copied().unwrap_or_default();
    let text = |name: &str| proc_files::text(format!("/proc/{pid}/task/{tid}/{name}"));
    let areas = parse(&text("smaps")?);
    let pagemap = File::open(format!("/proc/{pid}/task/{tid}/pagemap"))?;
    let name = proc_files::text(format!("/proc/{pid}/comm"))?.trim_end_matches('\n').to_owned();
    let heap = heap(&text("stat")?, &areas);
    let mut unread = 0;
    let mut mappings = Vec::with_capacity(areas.len());
    for Area { mut mapping, resident, locked, device, advice, .. } in areas {
        let mut pages = Vec::new();
        if !device {
            let missing = runs(&pagemap, &mapping, resident, zeroes, deadline, &mut pages)?;
            unread += missing;
            // Memory that is locked on fault has pages that are not present.
            let present: u64 = pages.iter().map(|(_, len, _)| len).sum();
            if locked && present == mapping.len {
                mapping.flags |= MAP_LOCKED;
            }
        }
        mappings.push(Present { mapping, advice, pages });
    }
    Ok(Found { existing: Existing { name, threads, heap, mappings }, unread })
}

/// Where the heap starts and ends. The kernel shows the end only to the page.
fn heap(stat: &str, areas: &[Area]) -> Option<(u64, u64)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let start: u64 = fields.split_whitespace().nth(44)?.parse().ok()?;
    let heaps = areas.iter().map(|area| &area.mapping).filter(|mapping| mapping.name == "[heap]");
    let end = heaps.map(|mapping| mapping.start + mapping.len).max().unwrap_or(start);
    (start != 0 && end >= start).then_some((start, end))
}

/// Adds the runs of present pages. Returns the bytes of those for which there was no time.
fn runs(
    pagemap: &File,
    mapping: &Mapping,
    resident: u64,
    zeroes: &mut Zeroes,
    deadline: Instant,
    runs: &mut Vec<(u64, u64, bool)>,
) -> io::Result<u64> {
    // The pages of the kernel's own mappings are not the process's.
    let private = mapping.flags & MAP_PRIVATE != 0 && !mapping.name.starts_with("[v");
    let (mut page, end) = (mapping.start / PAGE, (mapping.start + mapping.len) / PAGE);
    // Huge pages of the pool are not counted as resident.
    let mut left = if mapping.flags & MAP_HUGETLB != 0 { mapping.len } else { resident };
    while page < end && left > 0 {
        if Instant::now() > deadline {
            return Ok(left);
        }
        let mut bytes = vec![0; (end - page).min(BATCH) as usize * 8];
        let read = pagemap.read_at(&mut bytes, page * 8)?;
        if read < 8 {
            return Ok(left);
        }
        for entry in bytes[..read].as_chunks().0 {
            let entry = Entry(u64::from_le_bytes(*entry));
            if entry.present() {
                let own = private && !entry.of_file();
                let is_zeroes = own && zeroes.contain(page, entry.frame());
                // The kernel does not count pages of zeroes as resident.
                if !is_zeroes {
                    left = left.saturating_sub(PAGE);
                }
                let written = own && !is_zeroes;
                match runs.last_mut() {
                    Some((start, len, same)) if *start + *len == page * PAGE && *same == written => {
                        *len += PAGE
                    }
                    _ => runs.push((page * PAGE, PAGE, written)),
                }
            }
            page += 1;
        }
    }
    Ok(0)
}

/// An entry of a page map.
#[derive(Clone, Copy)]
struct Entry(u64);

impl Entry {
    const fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// A page of a file, or of shared memory.
    const fn of_file(self) -> bool {
        self.0 >> 61 & 1 == 1
    }

    /// Its frame; 0 for a reader without the right to see it.
    const fn frame(self) -> u64 {
        self.0 & ((1 << 55) - 1)
    }
}

impl Zeroes {
    /// Finds the zero page by a page that this process reads and never writes.
    pub(super) fn find() -> Zeroes {
        let page = || {
            let memory = MmapMut::map_anon(PAGE as usize).ok()?;
            black_box(memory[0]);
            let mut entry = [0; 8];
            let pagemap = File::open("/proc/self/pagemap").ok()?;
            pagemap.read_exact_at(&mut entry, memory.as_ptr() as u64 / PAGE * 8).ok()?;
            Some(Entry(u64::from_le_bytes(entry)).frame()).filter(|frame| *frame != 0)
        };
        Zeroes { page: page(), flags: File::open("/proc/kpageflags").ok(), huge: None }
    }

    /// Whether this frame, mapped at this page, is one of zeroes.
    fn contain(&mut self, page: u64, frame: u64) -> bool {
        if page.is_multiple_of(HUGE) && frame.is_multiple_of(HUGE) && self.is_zero(frame) {
            self.huge = Some(frame);
        }
        Some(frame) == self.page || self.huge.is_some_and(|first| (first..first + HUGE).contains(&frame))
    }

    fn is_zero(&self, frame: u64) -> bool {
        const ZERO_PAGE: u64 = 24;
        let mut flags = [0; 8];
        let read = self.flags.as_ref().is_some_and(|file| file.read_exact_at(&mut flags, frame * 8).is_ok());
        frame != 0 && read && u64::from_le_bytes(flags) >> ZERO_PAGE & 1 == 1
    }
}

/// The mappings of `smaps`.
pub(super) fn parse(smaps: &str) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for line in smaps.lines() {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(key) = first.strip_suffix(':') {
            let Some(area) = areas.last_mut() else { continue };
            match key {
                "Rss" => area.resident = bytes(rest),
                "Referenced" => area.referenced = bytes(rest),
                "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => area.large += bytes(rest),
                "VmFlags" => rest.split_whitespace().for_each(|flag| area.has(flag)),
                _ => {}
            }
        } else {
            areas.extend(heading(line));
        }
    }
    areas.retain(|area| area.mapping.start < USER_END);
    areas
}

/// A number of KiB.
fn bytes(text: &str) -> u64 {
    let kib = text.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The line of `maps`: addresses, protection, offset, device, inode, name.
fn heading(line: &str) -> Option<Area> {
    let mut fields = line.splitn(6, ' ');
    let mut next = || fields.next();
    let (start, end) = next()?.split_once('-')?;
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let rights = next()?;
    let offset = hex(next()?)?;
    let (major, minor) = next()?.split_once(':')?;
    let device = hex(major)? << 32 | hex(minor)?;
    let inode: u64 = next()?.parse().ok()?;
    let name = next().unwrap_or_default().trim_start().to_owned();
    let prot = [('r', 1), ('w', 2), ('x', 4)].iter().filter(|(right, _)| rights.contains(*right));
    let prot = prot.map(|(_, bit)| bit).sum();
    let flags = if rights.ends_with('s') { MAP_SHARED } else { MAP_PRIVATE };
    let offset = if inode == 0 { 0 } else { offset };
    let mapping = Mapping { start, len: end.checked_sub(start)?, offset, device, inode, prot, flags, name };
    let (resident, referenced, large) = (0, 0, 0);
    Some(Area { mapping, resident, referenced, large, locked: false, device: false, advice: vec![] })
}

impl Area {
    /// Notes a flag.
    fn has(&mut self, flag: &str) {
        match flag {
            "gd" => self.mapping.flags |= MAP_GROWSDOWN,
            "nr" => self.mapping.flags |= MAP_NORESERVE,
            "ht" => self.mapping.flags |= MAP_HUGETLB,
            "lo" => self.locked = true,
            "io" | "pf" => self.device = true,
            "dc" => self.advice.push(MADV_DONTFORK),
            "hg" => self.advice.push(MADV_HUGEPAGE),
            "nh" => self.advice.push(MADV_NOHUGEPAGE),
            "wf" => self.advice.push(MADV_WIPEONFORK),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
