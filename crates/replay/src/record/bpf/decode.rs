//! The records that the programs write, and what they say: the same as perf's records say of the same events,
//! so that everything behind this need not know where a record is from.
//!
//! Each has a word that says its kind, the numbers of process and thread, and the time; then words of its
//! own. A fault and most calls have one record each, at their end, for what perf tells by two to four.

use crate::record::abi::Abi;
use crate::record::parse::{device, u32_at, u64_at};
use crate::record::raw::{Raw, RawKind};
use crate::trace::Call;

/// Kinds of records, and how many words each has.
pub(super) const FAULT: i32 = 1;
pub(super) const FAULT_WORDS: usize = 7;
pub(super) const CALL: i32 = 2;
pub(super) const CALL_WORDS: usize = 18;
pub(super) const ENTER: i32 = 3;
pub(super) const ENTER_WORDS: usize = 13;
pub(super) const LEAVE: i32 = 4;
pub(super) const LEAVE_WORDS: usize = 5;
pub(super) const UNLOCKED: i32 = 5;
pub(super) const UNLOCKED_WORDS: usize = 4;
pub(super) const MAP_PAGES: i32 = 6;
pub(super) const MAP_PAGES_WORDS: usize = 7;
pub(super) const DROPPED: i32 = 7;
pub(super) const DROPPED_WORDS: usize = 5;
pub(super) const NEW_TASK: i32 = 8;
pub(super) const NEW_TASK_WORDS: usize = 4;

/// Flags of a fault.
pub(super) const RESOLVED: i32 = 1;
pub(super) const MAJOR: i32 = 2;

/// The flag of an entry whose arguments are in memory, if they could be read.
pub(super) const HAS_BLOCK: i32 = 1;

/// The bit of a fault's code that says that kernel code took it.
pub(super) const KERNEL_MODE: u64 = 1 << 32;

/// The bit of a call's word that says i386.
const COMPAT: u64 = 1 << 40;

/// A record, word by word.
struct Record<'a> {
    bytes: &'a [u8],
    pid: u32,
    tid: u32,
    time_ns: u64,
}

impl Record<'_> {
    fn word(&self, index: usize) -> Option<u64> {
        u64_at(self.bytes, index * 8)
    }

    fn words<const N: usize>(&self, first: usize) -> Option<[u64; N]> {
        let mut words = [0; N];
        for (word, index) in words.iter_mut().zip(first..) {
            *word = self.word(index)?;
        }
        Some(words)
    }

    fn raw(&self, time_ns: u64, kind: RawKind) -> Raw {
        Raw { time_ns, pid: self.pid, tid: self.tid, kind }
    }
}

/// Calls `each` with what a record says, by time. `None` for one that is not whole.
pub(super) fn record(bytes: &[u8], each: &mut dyn FnMut(Raw)) -> Option<()> {
    let (kind, flags) = (u32_at(bytes, 0)?.cast_signed(), u32_at(bytes, 4)?.cast_signed());
    let (tid, pid) = (u32_at(bytes, 8)?, u32_at(bytes, 12)?);
    let record = Record { bytes, pid, tid, time_ns: u64_at(bytes, 16)? };
    let kind = match kind {
        FAULT => return fault(&record, flags, each),
        CALL => return call(&record, each),
        ENTER => {
            let block = (flags & HAS_BLOCK != 0).then(|| record.words::<3>(10)).flatten();
            let (call, args) = decoded(record.word(3)?, record.words(4)?, block)?;
            RawKind::Enter { number: number(record.word(3)?), call, args }
        }
        LEAVE => RawKind::Leave { result: record.word(3)?.cast_signed(), number: record.word(4)? },
        UNLOCKED => RawKind::Unlocked { mm: record.word(3)? },
        MAP_PAGES => {
            let [file, inode, first, last] = record.words(3)?;
            RawKind::MapPages { device: device(file), inode, first, last }
        }
        DROPPED => RawKind::Dropped { device: device(record.word(3)?), inode: record.word(4)? },
        NEW_TASK => RawKind::NewTask { flags: record.word(3)? },
        _ => return None,
    };
    each(record.raw(record.time_ns, kind));
    Some(())
}

fn fault(record: &Record<'_>, flags: i32, each: &mut dyn FnMut(Raw)) -> Option<()> {
    let [begun_ns, addr, code, resolved] = record.words(3)?;
    if begun_ns != 0 {
        let (error_code, kernel_mode) = (code & !KERNEL_MODE, code & KERNEL_MODE != 0);
        each(record.raw(begun_ns, RawKind::Fault { addr, error_code, kernel_mode }));
    }
    if flags & RESOLVED != 0 {
        let kind = RawKind::Resolved { addr: resolved, major: flags & MAJOR != 0 };
        each(record.raw(record.time_ns, kind));
    }
    Some(())
}

/// A call that has one record. It says the last lock of each kind, which is what decides.
fn call(record: &Record<'_>, each: &mut dyn FnMut(Raw)) -> Option<()> {
    let [entered_ns, entered, result, left] = record.words(3)?;
    let [mm, section_ns, shares, shown_ns, shown_mm] = record.words(13)?;
    let Some((call, args)) = decoded(entered, record.words(7)?, None) else { return Some(()) };
    each(record.raw(entered_ns, RawKind::Enter { number: number(entered), call, args }));
    if shown_ns != 0 {
        each(record.raw(shown_ns, RawKind::Locked { mm: shown_mm }));
    }
    if mm != 0 {
        let kind = if shares != 0 { RawKind::Locked { mm } } else { RawKind::Unlocked { mm } };
        each(record.raw(section_ns, kind));
    }
    each(record.raw(record.time_ns, RawKind::Leave { number: left, result: result.cast_signed() }));
    Some(())
}

const fn number(word: u64) -> u64 {
    word & 0xffff_ffff
}

/// The call of a word that the programs composed, if it is one of memory.
fn decoded(word: u64, args: [u64; 6], block: Option<[u64; 3]>) -> Option<(Call, [u64; 6])> {
    let abi = if word & COMPAT != 0 { Abi::I386 } else { Abi::Native };
    let halves = |[first, second, third]: [u64; 3]| {
        [first, first >> 32, second, second >> 32, third, third >> 32].map(|half| half as u32)
    };
    abi.decode(number(word), args, |_| block.map(halves))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raws(words: &[u64]) -> Vec<Raw> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut found = Vec::new();
        record(&bytes, &mut |raw| found.push(raw));
        assert!(found.iter().all(|raw| (raw.pid, raw.tid) == (7, 8)));
        found
    }

    fn head(kind: i32, flags: i32, time_ns: u64) -> [u64; 3] {
        [kind as u64 | (flags as u64) << 32, 7 << 32 | 8, time_ns]
    }

    fn said(raws: &[Raw]) -> Vec<String> {
        raws.iter().map(|raw| format!("{} {:?}", raw.time_ns, raw.kind)).collect()
    }

    #[test]
    fn a_fault_has_a_begin_and_if_it_was_resolved_an_end() {
        let rest = [10, 0x1000, KERNEL_MODE | 3, 0x1008];
        let resolved = raws(&[&head(FAULT, RESOLVED | MAJOR, 20)[..], &rest].concat());
        let begin = "10 Fault { addr: 4096, error_code: 3, kernel_mode: true }";
        assert_eq!(said(&resolved), [begin, "20 Resolved { addr: 4104, major: true }"]);
        assert_eq!(said(&raws(&[&head(FAULT, 0, 20)[..], &rest].concat())), [begin]);
        let unknown = raws(&[&head(FAULT, RESOLVED, 20)[..], &[0, 5, 5, 0x1000]].concat());
        assert_eq!(said(&unknown), ["20 Resolved { addr: 4096, major: false }"]);
    }

    #[test]
    fn a_call_is_entered_locked_and_left() {
        // munmap, with a downgrade; then madvise, with a lock for reading before one for writing.
        let munmap = [10, 11, 0, 11, 0x1000, 0x2000, 0, 0, 0, 0, 99, 12, 1, 0, 0];
        let munmap = raws(&[&head(CALL, 0, 20)[..], &munmap].concat());
        assert_eq!(munmap.len(), 3);
        assert!(
            matches!(munmap[0].kind, RawKind::Enter { number: 11, call: Call::Munmap, args } if args[1] == 0x2000)
        );
        assert_eq!(said(&munmap)[1..], ["12 Locked { mm: 99 }", "20 Leave { number: 11, result: 0 }"]);
        let madvise = [10, 28, -22_i64 as u64, 28, 0x1000, 0x2000, 4, 0, 0, 0, 99, 15, 0, 12, 98];
        let madvise = said(&raws(&[&head(CALL, 0, 20)[..], &madvise].concat()));
        let expected =
            ["12 Locked { mm: 98 }", "15 Unlocked { mm: 99 }", "20 Leave { number: 28, result: -22 }"];
        assert_eq!(madvise[1..], expected);
    }

    #[test]
    fn arguments_of_i386_are_those_of_its_abi() {
        let enter = [COMPAT | 90, 0x8000, 0, 0, 0, 0, 0, 0x2000 << 32 | 0x1000, 0x22 << 32 | 3, 0xffff_ffff];
        let told = raws(&[&head(ENTER, HAS_BLOCK, 20)[..], &enter].concat());
        let RawKind::Enter { number: 90, call: Call::Mmap, args } = told[0].kind else { panic!("{told:?}") };
        assert_eq!(args, [0x1000, 0x2000, 3, 0x22, 0xffff_ffff, 0]);
        // Without its arguments it is no call.
        assert!(raws(&[&head(ENTER, 0, 20)[..], &enter].concat()).is_empty());
    }

    #[test]
    fn a_record_that_is_cut_off_says_nothing() {
        let whole = [&head(DROPPED, 0, 20)[..], &[8 << 20 | 1, 55]].concat();
        assert_eq!(said(&raws(&whole)), ["20 Dropped { device: 34359738369, inode: 55 }"]);
        for words in 0..whole.len() {
            assert!(raws(&whole[..words]).is_empty(), "{words}");
        }
    }
}
