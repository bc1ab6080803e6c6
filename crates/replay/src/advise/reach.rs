//! A reach model from referenced bits, or from what DAMON saw: the TLB entries that the memory needs which a program references
//! in an interval, against those that the processor has.

use std::path::Path;

use serde_json::{Value, json};

use super::accesses::{self, Damon};
use super::lines::labelled;
use super::words::{count, percent, size};
use crate::output::{duration, quoted};
use crate::record::{Referenced, ReferencedMapping, ReferencedProcess};
use crate::tlb::{Access, Processor, Size};
use crate::trace::TraceError;

const PAGE: u64 = 4096;
const BLOCK: u64 = 2 << 20;

/// What one program references, on one processor.
pub(super) struct Reach {
    referenced: Referenced,
    source: Source,
    processor: Processor,
    /// Whether the kernel has bits by frame (`page_idle`); they are not used.
    idle: bool,
}

/// Where it is known from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Referenced bits, with the share of the time that sampling was allowed to take.
    Bits(f64),
    Damon(Damon),
}

/// Entries that memory takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Entries {
    /// All in 4 KiB.
    small: u64,
    /// With private anonymous memory in 2 MiB wherever it has an aligned range of that: those of 2 MiB, if the referenced pages
    /// lie side by side and if they lie apart; and those of 4 KiB for the rest, by how many of the pages lie outside such ranges.
    least: u64,
    most: u64,
    rest: u64,
    most_rest: u64,
}

impl Reach {
    /// `bound` is the share of the time that sampling was allowed to take.
    pub(super) fn of(referenced: &Referenced, bound: f64) -> Self {
        Self::from(referenced.clone(), Source::Bits(bound))
    }

    /// From the accesses in a recording, if it has some.
    pub(super) fn of_recording(path: &Path) -> Result<Option<Self>, TraceError> {
        let found = accesses::of(path)?;
        Ok(found.map(|(referenced, damon)| Self::from(referenced, Source::Damon(damon))))
    }

    fn from(referenced: Referenced, source: Source) -> Self {
        let (processor, idle) =
            (Processor::of_this_machine(), Path::new("/sys/kernel/mm/page_idle").exists());
        Self { referenced, source, processor, idle }
    }

    /// What tells no single accesses.
    pub(super) const fn tells_no_accesses(&self) -> &'static str {
        match self.source {
            Source::Bits(_) => "referenced bits tell no accesses",
            Source::Damon(_) => "DAMON tells no single accesses",
        }
    }

    /// Entries of the last level for data.
    fn last(&self, size: Size) -> u64 {
        let entries = [2, 1].map(|level| u64::from(self.processor.entries(level, Access::Load, size)));
        entries.into_iter().find(|entries| *entries > 0).unwrap_or(0)
    }

    /// The share of the time that sampling took.
    fn overhead(&self) -> f64 {
        self.referenced.spent.as_secs_f64() / self.referenced.sampled.as_secs_f64().max(1e-9)
    }
}

impl Entries {
    fn of(mappings: &[ReferencedMapping]) -> Self {
        let mut sum = Self::default();
        for mapping in mappings {
            let pages = mapping.referenced / PAGE;
            let (start, end) = (mapping.start, mapping.start + mapping.len);
            // Those that the part lies in, if the mapping has all of them.
            let first = (start / BLOCK).max(mapping.within.start.div_ceil(BLOCK));
            let blocks = end.div_ceil(BLOCK).min(mapping.within.end / BLOCK).saturating_sub(first);
            sum.small += pages;
            if mapping.anonymous && blocks > 0 {
                let inside =
                    end.min((first + blocks) * BLOCK).saturating_sub(start.max(first * BLOCK)) / PAGE;
                let all = mapping.len / PAGE;
                sum.least += mapping.referenced.div_ceil(BLOCK).min(blocks);
                sum.most += pages.min(blocks);
                sum.rest += pages.saturating_sub(inside);
                sum.most_rest += pages.min(all.saturating_sub(inside));
            } else {
                sum.rest += pages;
                sum.most_rest += pages;
            }
        }
        sum
    }
}

/// Two bounds, or one number.
fn between(least: u64, most: u64) -> String {
    if least == most { count(least) } else { format!("{} to {}", count(least), count(most)) }
}

fn sum(mappings: &[ReferencedMapping]) -> u64 {
    mappings.iter().map(|mapping| mapping.referenced).sum()
}

/// For readers.
pub(super) fn text(reach: &Reach) -> String {
    let Referenced { process, refused, .. } = &reach.referenced;
    let Some(process) = process else {
        let why = refused.clone().unwrap_or_else(|| format!("no interval came to its end; {}", cost(reach)));
        return labelled("reach:", &format!("unknown: {why}"));
    };
    let mut text = labelled("reach:", &found(reach, process)) + &labelled("", &entries(reach, process));
    let mut mappings: Vec<&ReferencedMapping> = process.median.iter().collect();
    mappings.sort_by_key(|mapping| std::cmp::Reverse(mapping.referenced));
    let named: Vec<String> = mappings.iter().take(3).map(|mapping| named(mapping)).collect();
    if !named.is_empty() {
        text += &labelled("", &format!("most in {}", named.join("; ")));
    }
    let large: u64 = process.median.iter().map(|mapping| mapping.large).sum();
    if large > 0 {
        let said = format!("{} lie in folios of 2 MiB, of which one byte references all", size(large));
        text += &labelled("", &said);
    }
    let limits = match (reach.source, reach.idle) {
        (Source::Damon(_), _) => {
            "unknown is which pages of a region they are: DAMON looks at one page of each"
        }
        (Source::Bits(_), true) => {
            "unknown is which pages of a mapping they are: this kernel's page_idle could tell, and is not used"
        }
        (Source::Bits(_), false) => {
            "unknown is which pages of a mapping they are: this kernel has no page_idle, which could tell"
        }
    };
    text + &labelled("", &format!("{limits}; {}", cost(reach)))
}

/// Where it is known from, and how much it is.
fn found(reach: &Reach, process: &ReferencedProcess) -> String {
    let interval = reach.referenced.interval;
    let (name, pid) = (quoted(&process.program), process.pid);
    let (median, intervals) = (size(sum(&process.median)), count(process.intervals));
    let most = size(process.most);
    match reach.source {
        Source::Bits(_) => format!(
            "reach model from referenced bits, interval {:.2} s: {name} ({pid}) references {median} in the median of \
             {intervals} intervals, and {most} at most",
            interval.as_secs_f64(),
        ),
        Source::Damon(Damon { regions, samples, .. }) => format!(
            "reach model from DAMON, {} regions, each looked at every {}: {name} ({pid}) accesses {median} from one look \
             to the next in the median of {intervals} intervals of {samples} looks, and {most} at most",
            count(regions as u64),
            duration(interval.as_nanos() as f64),
        ),
    }
}

/// The TLB entries that it takes.
fn entries(reach: &Reach, process: &ReferencedProcess) -> String {
    let Entries { small, least, most: apart, rest, most_rest } = Entries::of(&process.median);
    let (small_tlb, large_tlb) = (reach.last(Size::Small), reach.last(Size::Large));
    let fits = |entries: u64, tlb: u64| if entries <= tlb { "fit" } else { "do not fit" };
    let huge = match (least, apart) {
        (0, _) => "no mapping has room for 2 MiB".to_owned(),
        (least, apart) => format!(
            "with anonymous memory in 2 MiB {} of 2 MiB ({} of {}) and {} of 4 KiB",
            between(least, apart),
            fits(apart, large_tlb),
            count(large_tlb),
            between(rest, most_rest)
        ),
    };
    let assumed = if reach.processor.leaf.is_none() { "; the TLB is assumed, CPUID hides it" } else { "" };
    format!(
        "that takes {} entries of 4 KiB, which {} into the {} of the last level; {huge}{assumed}",
        count(small),
        fits(small, small_tlb),
        count(small_tlb),
    )
}

/// What sampling cost.
fn cost(reach: &Reach) -> String {
    let Referenced { left_out, longest, .. } = &reach.referenced;
    let bound = match reach.source {
        Source::Bits(bound) => bound,
        Source::Damon(Damon { knows_cost: false, .. }) => {
            return "this kernel does not tell what that cost".to_owned();
        }
        Source::Damon(_) => return format!("its thread took {} of one CPU", percent(reach.overhead())),
    };
    let skipped = match left_out {
        0 => String::new(),
        processes => {
            format!("; {processes} processes were left out, since they take more than 0.5 s at once")
        }
    };
    format!(
        "clearing and reading the bits took {} of the time (the aim is {} at most), {} at once{skipped}",
        percent(reach.overhead()),
        percent(bound),
        duration(longest.as_nanos() as f64),
    )
}

fn named(mapping: &ReferencedMapping) -> String {
    let name = match mapping.name.as_str() {
        "" => format!("anonymous memory at {:#x}", mapping.start),
        name => quoted(name.rsplit('/').next().unwrap_or(name)).to_string(),
    };
    format!("{name}, {} of {}", size(mapping.referenced), size(mapping.len))
}

/// For programs.
pub(super) fn json(reach: &Reach) -> Value {
    let Referenced { process, refused, left_out, longest, interval, .. } = &reach.referenced;
    let mapping = |mapping: &ReferencedMapping| {
        json!({
            "name": mapping.name,
            "address": mapping.start,
            "bytes": mapping.len,
            "referenced_bytes": mapping.referenced,
            "in_2m_bytes": mapping.large,
        })
    };
    let process = process.as_ref().map(|process| {
        let entries = Entries::of(&process.median);
        json!({
            "pid": process.pid,
            "program": process.program,
            "intervals": process.intervals,
            "median_bytes": sum(&process.median),
            "most_bytes": process.most,
            "entries_4k": entries.small,
            "with_2m": { "least_2m": entries.least, "most_2m": entries.most, "least_4k": entries.rest,
                "most_4k": entries.most_rest },
            "mappings": process.median.iter().map(mapping).collect::<Vec<_>>(),
        })
    });
    let (bound, damon) = match reach.source {
        Source::Bits(bound) => (Some(bound), None),
        Source::Damon(damon) => (None, Some(damon)),
    };
    let longest = bound.map(|_| longest.as_nanos() as u64);
    let cost = damon.is_none_or(|damon| damon.knows_cost).then(|| reach.overhead() * 100.0);
    let damon = damon.map(|Damon { regions, sample, samples, .. }| {
        json!({ "regions": regions, "sample_ns": sample.as_nanos() as u64, "samples": samples })
    });
    json!({
        "source": if damon.is_some() { "damon" } else { "referenced_bits" },
        "damon": damon,
        "interval_ns": interval.as_nanos() as u64,
        "process": process,
        "tlb_last_4k": reach.last(Size::Small),
        "tlb_last_2m": reach.last(Size::Large),
        "tlb_assumed": reach.processor.leaf.is_none(),
        "overhead_percent": cost,
        "max_overhead_percent": bound.map(|bound| bound * 100.0),
        "longest_ns": longest,
        "left_out": left_out,
        "refused": refused,
    })
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapping(start: u64, len: u64, referenced: u64, anonymous: bool) -> ReferencedMapping {
        let within = start..start + len;
        ReferencedMapping { name: String::new(), start, len, within, anonymous, referenced, large: 0 }
    }

    #[test]
    fn entries_lie_between_pages_side_by_side_and_apart() {
        // 3 of 4 MiB lie in whole ranges of 2 MiB: one range.
        let odd = mapping(MIB, 4 * MIB - 4096, 3 * PAGE, true);
        let large = mapping(0, 64 * MIB, 4 * MIB, true);
        let file = mapping(0, 64 * MIB, 8 * MIB, false);
        let none = mapping(MIB, 2 * MIB, MIB, true);
        // Each of the three pages may lie outside of it.
        let entries =
            |small, (least, most), (rest, most_rest)| Entries { small, least, most, rest, most_rest };
        assert_eq!(Entries::of(from_ref(&odd)), entries(3, (1, 1), (0, 3)));
        assert_eq!(Entries::of(from_ref(&large)), entries(1024, (2, 32), (0, 0)));
        // What is before and behind the whole range takes entries of 4 KiB.
        let around = mapping(MIB, 4 * MIB - 4096, 4 * MIB - 4096, true);
        assert_eq!(Entries::of(from_ref(&around)), entries(1023, (1, 1), (511, 511)));
        let all = Entries::of(&[odd, large, file, none]);
        let rest = 2048 + 256;
        assert_eq!(all, entries(3 + 1024 + 2048 + 256, (3, 33), (rest, rest + 3)));
    }

    #[test]
    fn a_part_of_a_mapping_lies_in_the_large_pages_of_the_whole() {
        let part = |start, len, within| ReferencedMapping { within, ..mapping(start, len, len, true) };
        // One MiB in the middle of one large page takes one entry, and none of 4 KiB.
        let inside = part(2 * MIB + MIB / 2, MIB, 0..64 * MIB);
        assert_eq!(
            Entries::of(from_ref(&inside)),
            Entries { small: 256, least: 1, most: 1, rest: 0, most_rest: 0 }
        );
        // The mapping begins in the middle of the first large page, which is none then.
        let early = part(MIB, 2 * MIB, MIB..64 * MIB);
        let wanted = Entries { small: 512, least: 1, most: 1, rest: 256, most_rest: 256 };
        assert_eq!(Entries::of(from_ref(&early)), wanted);
        let end = part(3 * MIB, 2 * MIB, 0..5 * MIB);
        assert_eq!(Entries::of(from_ref(&end)), wanted);
    }
}
