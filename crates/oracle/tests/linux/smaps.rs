//! Reading this process's mappings inside a window.

use oracle::space::{Backing, Huge, Locked, PAGE, Prot, Vma};

/// The mappings that lie in `window`, from `/proc/self/smaps`; `file` names a file by its inode.
pub(crate) fn mappings(window: std::ops::Range<u64>, file: impl Fn(u64) -> Option<u64>) -> Vec<Vma> {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("Linux has it");
    let mut vmas: Vec<Vma> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-').and_then(parse_range) {
            inside = window.contains(&start);
            if inside {
                vmas.push(mapping(start, end, words, &file));
            }
        } else if inside && first == "VmFlags:" {
            flags(vmas.last_mut().expect("pushed above"), words);
        }
    }
    vmas
}

fn parse_range((start, end): (&str, &str)) -> Option<(u64, u64)> {
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

fn mapping<'a>(
    start: u64,
    end: u64,
    mut words: impl Iterator<Item = &'a str>,
    file: &impl Fn(u64) -> Option<u64>,
) -> Vma {
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
    }
}

fn flags<'a>(vma: &mut Vma, words: impl Iterator<Item = &'a str>) {
    for word in words {
        match word {
            "gd" => vma.grows_down = true,
            "lo" => vma.locked = Locked::Now,
            "hg" => vma.huge = Huge::Yes,
            "nh" => vma.huge = Huge::No,
            _ => {}
        }
    }
}
