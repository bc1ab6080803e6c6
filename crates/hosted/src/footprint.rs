//! The host memory behind an arena, by the host's own accounting.

use std::io;
use std::ops::Range;

use crate::arena::Arena;

/// Host memory behind an arena, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Footprint {
    /// Memory behind the ranges.
    pub resident: u64,
    /// The part of it in huge pages.
    pub huge: u64,
}

impl Arena {
    /// The host memory of this arena now, from `/proc/self/smaps`: whether prefaulting and the request for
    /// huge pages had an effect.
    ///
    /// # Errors
    /// When the host has no such file.
    pub fn footprint(&self) -> io::Result<Footprint> {
        let (first, last) = (self.ranges()[0], self.ranges()[self.ranges().len() - 1]);
        let start = self.direct_map(first.start).addr() as u64;
        let span = start..start + (last.end().0 - first.start.0);
        Ok(parse(&std::fs::read_to_string("/proc/self/smaps")?, &span))
    }
}

/// Sums up the mappings that lie within `span`; holes among them hold nothing.
fn parse(smaps: &str, span: &Range<u64>) -> Footprint {
    let mut footprint = Footprint::default();
    let mut inside = false;
    for line in smaps.lines() {
        let Some((key, rest)) = line.split_once(' ') else { continue };
        if let Some(mapping) = bounds(key) {
            inside = span.start <= mapping.start && mapping.end <= span.end;
        } else if inside {
            let kib = rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
            match key {
                "Rss:" => footprint.resident += kib << 10,
                "AnonHugePages:" | "ShmemPmdMapped:" => footprint.huge += kib << 10,
                _ => {}
            }
        }
    }
    footprint
}

/// The addresses in a mapping's first line, `start-end` in hexadecimal; `None` for the other lines.
fn bounds(key: &str) -> Option<Range<u64>> {
    let (start, end) = key.split_once('-')?;
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_within_the_span_count() {
        let smaps = "1000-3000 rw-s 00000000 00:01 5 /memfd:x\nSize: 8 kB\nRss:                   4 kB\n\
                     AnonHugePages:         0 kB\nShmemPmdMapped:     2048 kB\nTHPeligible:           0\n\
                     3000-4000 ---p 00000000 00:00 0 \nRss:  0 kB\nVmFlags: mr mw me\n\
                     4000-6000 rw-p 00000000 00:00 0 \nRss:  8 kB\nAnonHugePages:  6 kB\n";
        let whole = Footprint { resident: 12 << 10, huge: 2054 << 10 };
        assert_eq!(parse(smaps, &(0x1000..0x6000)), whole);
        assert_eq!(parse(smaps, &(0x2000..0x6000)), Footprint { resident: 8 << 10, huge: 6 << 10 });
        assert_eq!(parse(smaps, &(0x4001..0x6000)), Footprint::default());
    }
}
