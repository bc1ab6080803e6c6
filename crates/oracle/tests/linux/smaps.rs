//! Reading the mappings of a process.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;

use oracle::space::{Backing, Huge, Locked, PAGE, Prot, Vma};

/// The mappings of `smaps` (of a process, below `/proc`) that share a byte with one of `ranges`, which are in ascending
/// order, cut to them; `file` names a file by its inode.
pub(crate) fn mappings(smaps: &str, ranges: &[Range<u64>], file: impl Fn(u64) -> Option<u64>) -> Vec<Vma> {
    // A page holds some mappings: what follows the last range is not asked for.
    let mut text = BufReader::with_capacity(PAGE as usize, File::open(smaps).expect("Linux has it"));
    let end = ranges.last().map_or(0, |range| range.end);
    let (mut vmas, mut line): (Vec<Vma>, _) = (Vec::new(), String::new());
    let mut inside = false;
    while text.read_line(&mut line).expect("the process is there") > 0 {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            vmas.last_mut().filter(|_| inside).into_iter().for_each(|vma| set_flags(vma, flags));
        } else if let Some((start, stop, rest)) = addresses(&line) {
            if start >= end {
                break;
            }
            let cut = ranges.iter().find(|range| start < range.end && stop > range.start);
            inside = cut.is_some();
            vmas.extend(cut.map(|cut| clip(mapping(start, stop, rest, &file), cut)));
        }
        line.clear();
    }
    vmas
}

/// The two addresses that a mapping's first line begins with, and what follows.
fn addresses(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, rest))
}

fn clip(mut vma: Vma, range: &Range<u64>) -> Vma {
    let start = vma.start.max(range.start);
    if vma.backing != Backing::Anonymous {
        vma.page_offset = vma.backing_page(start);
    }
    Vma { start, end: vma.end.min(range.end), ..vma }
}

fn mapping(start: u64, end: u64, rest: &str, file: &impl Fn(u64) -> Option<u64>) -> Vma {
    let mut words = rest.split_ascii_whitespace();
    let perms = words.next().expect("permissions");
    let offset = u64::from_str_radix(words.next().expect("offset"), 16).expect("hexadecimal") / PAGE;
    let inode: u64 = words.nth(1).expect("inode").parse().expect("a number");
    let prot = match &perms[..3] {
        "---" => Prot::None,
        "r--" => Prot::R,
        "-w-" => Prot::W,
        "rw-" => Prot::Rw,
        "r-x" => Prot::Rx,
        "rwx" => Prot::Rwx,
        other => panic!("protection {other} was never asked for"),
    };
    let backing = match file(inode) {
        Some(number) => Backing::File(number),
        None if inode == 0 => Backing::Anonymous,
        None => Backing::Shared(inode),
    };
    Vma {
        start,
        end,
        prot,
        shared: perms.ends_with('s'),
        backing,
        page_offset: if backing == Backing::Anonymous { 0 } else { offset },
        grows_down: false,
        locked: Locked::No,
        huge: Huge::Default,
        accounted: false,
    }
}

fn set_flags(vma: &mut Vma, flags: &str) {
    for word in flags.split_ascii_whitespace() {
        match word {
            "gd" => vma.grows_down = true,
            // `lf` follows.
            "lo" => vma.locked = Locked::Now,
            "lf" => vma.locked = Locked::OnFault,
            "ac" => vma.accounted = vma.is_private() && vma.backing != Backing::Anonymous,
            "hg" => vma.huge = Huge::Yes,
            "nh" => vma.huge = Huge::No,
            _ => {}
        }
    }
}
