//! Counts the folios that a region really has, from `/proc/<process>/pagemap` and `/proc/kpageflags`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use procfs::PhysicalPageFlags;
use procfs::process::{MMapPath, MemoryMap, MemoryPageFlags, Process};

use super::region::Region;
use crate::bench::experiment::Skip;
use crate::bench::folio::PAGE;

/// Folios by number of pages; at [`UNTOLD`] the pages of which the kernel tells nothing.
pub type Census = BTreeMap<usize, u64>;

/// No number of pages. A kernel that brings in memory late has no flags of frames at the end of memory, mapped or not.
pub const UNTOLD: usize = 0;

/// Counts the folios mapped in `region` of the process `process` (a number or `self`), by their size in
/// pages. Absent pages are not counted.
///
/// # Errors
/// [`Skip`] when this user may not see frame numbers or frame flags.
pub fn folios(process: &str, region: &Region) -> Result<Census, Skip> {
    let kpageflags = open("/proc/kpageflags")?;
    let frames = frames(process, region)?;
    let mut flags = Vec::with_capacity(frames.len());
    for run in frames.chunk_by(|a, b| a.is_some() && b.is_some() && a.map(|frame| frame + 1) == *b) {
        match run[0] {
            Some(first) => flags
                .extend(words(&kpageflags, first as usize, run.len()).map_err(failed)?.into_iter().map(Some)),
            None => flags.extend(run.iter().map(|_| None)),
        }
    }
    Ok(count(flags.into_iter().map(|flags| flags.map(PhysicalPageFlags::from_bits_retain))))
}

/// The frame of each page of `region` in the process `process`, in order of address; `None` where there is none.
///
/// # Errors
/// [`Skip`] when this user may not see frame numbers.
pub fn frames(process: &str, region: &Region) -> Result<Vec<Option<u64>>, Skip> {
    let pagemap = open(&format!("/proc/{process}/pagemap"))?;
    let entries = words(&pagemap, region.start() / PAGE, region.pages()).map_err(failed)?;
    let frames: Vec<Option<u64>> = entries.into_iter().map(frame).collect();
    if frames.contains(&Some(0)) {
        return Err(Skip("frame numbers are hidden from this user: run as root".to_owned()));
    }
    Ok(frames)
}

fn open(path: &str) -> Result<File, Skip> {
    File::open(path).map_err(|error| Skip::because(&format!("cannot open {path}"), error))
}

fn failed(error: io::Error) -> Skip {
    Skip::because("cannot read the frames of a process (run as root)", error)
}

/// Folios by size, from the flags of the frames in the order of their addresses.
fn count(flags: impl Iterator<Item = Option<PhysicalPageFlags>>) -> Census {
    let mut census = Census::new();
    let (mut open, mut untold) = (0, 0);
    let mut close = |pages: &mut usize| {
        if *pages > 0 {
            *census.entry(*pages).or_default() += 1;
            *pages = 0;
        }
    };
    for flags in flags {
        let Some(flags) = flags else {
            close(&mut open);
            continue;
        };
        if flags.is_empty() {
            close(&mut open);
            untold += 1;
            continue;
        }
        if !flags.contains(PhysicalPageFlags::COMPOUND_TAIL) {
            close(&mut open);
        }
        open += 1;
    }
    close(&mut open);
    if untold > 0 {
        census.insert(UNTOLD, untold);
    }
    census
}

fn frame(entry: u64) -> Option<u64> {
    let flags = MemoryPageFlags::from_bits_retain(entry);
    flags.contains(MemoryPageFlags::PRESENT).then(|| flags.get_page_frame_number().0)
}

/// `count` 64-bit words of `file` from word `first` on.
fn words(file: &File, first: usize, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    file.read_exact_at(&mut bytes, first as u64 * 8)?;
    Ok(bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| word[at])))
        .collect())
}

/// Bytes of `region` that the process `process` maps by a PMD, and whether one of its mappings covers it all.
///
/// # Errors
/// [`Skip`] when the process's `smaps` cannot be read.
pub fn pmd_mapped(process: &str, region: &Region) -> Result<(u64, bool), Skip> {
    let inside = |map: &MemoryMap| map.pathname == MMapPath::Anonymous;
    large_in(process, region, "AnonHugePages", inside)
}

/// The same for a region of shared memory.
///
/// # Errors
/// As [`pmd_mapped`].
pub fn shared_pmd_mapped(process: &str, region: &Region) -> Result<(u64, bool), Skip> {
    large_in(process, region, "ShmemPmdMapped", |_| true)
}

fn large_in(
    process: &str,
    region: &Region,
    row: &str,
    kind: impl Fn(&MemoryMap) -> bool,
) -> Result<(u64, bool), Skip> {
    let failed = |error| Skip::because(&format!("cannot read /proc/{process}/smaps"), error);
    let process = Process::new_with_root(format!("/proc/{process}").into());
    let maps = process.and_then(|process| process.smaps()).map_err(failed)?;
    let (start, end) = (region.start() as u64, (region.start() + region.bytes()) as u64);
    let inside = |map: &&MemoryMap| kind(map) && map.address.0 < end && map.address.1 > start;
    let maps: Vec<_> = maps.iter().filter(inside).collect();
    let bytes = maps.iter().filter_map(|map| map.extension.map.get(row)).sum();
    Ok((bytes, maps.len() == 1 && maps[0].address == (start, end)))
}

#[cfg(test)]
mod tests;
