//! Runs decoded from a fuzzer's bytes: every argument of the system calls as hostile as a program may pass
//! it.
//!
//! Two limits hold, since the model goes page by page: mappings have some hundred pages, and so has the range
//! of one operation. Lengths that map nothing are not limited.

use arbitrary::{Result, Unstructured};
use fastrand::Rng;

use super::Run;
use crate::machine::MachineShape;
use crate::ops::{At, MapOp, Op, Step, To, What};
use crate::space::{Advice, Kind, PAGE, PROBES, Placement, Prot};

/// The most operations of a run.
const MOST_STEPS: usize = 64;

/// The most pages of a mapping, and of a file.
const MOST_PAGES: u64 = 64;

/// Memory for the pages of all mappings in all address spaces, in folios of any size.
const BYTES: u64 = 256 << 20;

/// Lengths that no mapping can have, passed to `mmap` and `mremap` instead of a few pages.
const TOO_LONG: [u64; 6] =
    [1 << 47, (1 << 47) - PAGE, 1 << 63, u64::MAX, u64::MAX - PAGE, u64::MAX - PAGE + 1];

/// Addresses at which arithmetic overflows first.
const EDGES: [u64; 10] = [
    0,
    PAGE,
    0xffff,
    (1 << 47) - PAGE,
    (1 << 47) - 1,
    1 << 47,
    0xffff_8000_0000_0000,
    u64::MAX - PAGE + 1,
    u64::MAX - 7,
    u64::MAX,
];

impl Run {
    /// The run that these bytes encode; any bytes encode one.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut bytes = Unstructured::new(bytes);
        let seed = u64::from(bytes.arbitrary::<u8>().unwrap_or(0));
        let machine = MachineShape { bytes: BYTES, ..MachineShape::new(&mut Rng::with_seed(seed)) };
        let file = |bytes: &mut Unstructured<'_>| bytes.int_in_range(1..=MOST_PAGES).unwrap_or(1) * PAGE;
        let files = (1..=2).map(|number| (number, file(&mut bytes))).collect();
        let mut steps = Vec::new();
        while steps.len() < MOST_STEPS && !bytes.is_empty() {
            // The remaining bytes do not encode an operation.
            let Ok(step) = step(&mut bytes) else { break };
            steps.push(step);
        }
        Self { seed, machine, files, steps }
    }
}

fn step(bytes: &mut Unstructured<'_>) -> Result<Step> {
    let (cpu, space) = (bytes.int_in_range(0..=3)?, bytes.int_in_range(0..=7)?);
    Ok(Step { cpu, space, op: op(bytes)? })
}

fn op(bytes: &mut Unstructured<'_>) -> Result<Op> {
    let bytes = &mut *bytes;
    Ok(match bytes.int_in_range(0..=19)? {
        0 | 1 => Op::Mmap(map(bytes)?),
        2 => Op::Munmap(at(bytes)?, any_len(bytes)?),
        3 => Op::Mprotect(at(bytes)?, any_len(bytes)?, *bytes.choose(&Prot::ALL)?),
        4 | 5 => {
            let (from, old) = (at(bytes)?, any_len(bytes)?);
            Op::Mremap(from, old, len(bytes)?, to(bytes)?)
        }
        6 => Op::Madvise(at(bytes)?, any_len(bytes)?, *bytes.choose(&Advice::ALL)?),
        7 => Op::Brk(heap(bytes)?),
        8 => Op::Mlock(at(bytes)?, any_len(bytes)?, bytes.arbitrary()?),
        9 => Op::Munlock(at(bytes)?, any_len(bytes)?),
        10 => Op::Mlockall(bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?),
        11 => Op::Munlockall,
        12 => Op::Fork,
        13 => Op::Exit,
        14 => Op::Store(at(bytes)?, bytes.choose_index(PROBES)?),
        15 => Op::Load(at(bytes)?, bytes.choose_index(PROBES)?),
        16 => Op::Touch(at(bytes)?, bytes.int_in_range(1..=MOST_PAGES as u32)?),
        17 => Op::Access(at(bytes)?, *bytes.choose(&[Kind::Read, Kind::Write, Kind::Exec])?),
        18 => Op::Truncate(bytes.int_in_range(1..=2)?, bytes.int_in_range(0..=MOST_PAGES * PAGE / 8)? * 8),
        _ => Op::Collapse(at(bytes)?, any_len(bytes)?, bytes.arbitrary()?),
    })
}

fn at(bytes: &mut Unstructured<'_>) -> Result<At> {
    // Mostly on a page boundary, mostly among the mappings.
    let byte = if bytes.ratio(1, 16)? { bytes.arbitrary()? } else { 0 };
    let page = bytes.int_in_range(-600..=600)?;
    Ok(match bytes.int_in_range(0..=15)? {
        0 => At::Absolute(*bytes.choose(&EDGES)?),
        1 => At::Absolute(bytes.arbitrary()?),
        2 => At::Null,
        3 | 4 => At::Heap(page, byte),
        5..=7 => At::Returned(bytes.arbitrary()?, page / 8, byte),
        8..=11 => At::Window(page / 16, byte),
        _ => At::Window(page, byte),
    })
}

/// An end of the heap: never one that leaves it with more than some hundred pages.
fn heap(bytes: &mut Unstructured<'_>) -> Result<At> {
    let (page, byte) = (bytes.int_in_range(-2..=MOST_PAGES as i32)?, bytes.arbitrary()?);
    Ok(match bytes.int_in_range(0..=7)? {
        0 => At::Absolute(u64::MAX - u64::from(byte)),
        1 => At::Null,
        _ => At::Heap(page, byte),
    })
}

/// A length that a mapping may have, or one that none can have.
fn len(bytes: &mut Unstructured<'_>) -> Result<u64> {
    let pages = bytes.int_in_range(0..=MOST_PAGES)? * PAGE;
    Ok(match bytes.int_in_range(0..=15)? {
        0 => *bytes.choose(&TOO_LONG)?,
        1 => pages.saturating_sub(u64::from(bytes.int_in_range(1..=PAGE as u16 - 1)?)),
        _ => pages,
    })
}

/// The length of a range that may be mapped or not.
fn any_len(bytes: &mut Unstructured<'_>) -> Result<u64> {
    match bytes.int_in_range(0..=15)? {
        0 => bytes.arbitrary(),
        1 => Ok(bytes.int_in_range(0..=600)? * PAGE),
        _ => len(bytes),
    }
}

fn map(bytes: &mut Unstructured<'_>) -> Result<MapOp> {
    let what = match bytes.int_in_range(0..=7)? {
        0..=3 => What::Anonymous,
        4 => What::SharedAnonymous,
        kind => {
            let page = if kind == 5 { bytes.arbitrary()? } else { bytes.int_in_range(0..=MOST_PAGES)? };
            What::File { file: bytes.int_in_range(1..=2)?, page, shared: bytes.arbitrary()? }
        }
    };
    Ok(MapOp {
        at: at(bytes)?,
        len: len(bytes)?,
        prot: *bytes.choose(&Prot::ALL)?,
        placement: *bytes.choose(&[Placement::Hint, Placement::Fixed, Placement::FixedNoReplace])?,
        what,
        grows_down: bytes.ratio(1, 8)?,
        populate: bytes.ratio(1, 8)?,
        locked: bytes.ratio(1, 8)?,
    })
}

fn to(bytes: &mut Unstructured<'_>) -> Result<To> {
    Ok(match bytes.int_in_range(0..=5)? {
        0 => To::InPlace,
        1 | 2 => To::MayMove,
        3 => To::FixedTo(at(bytes)?),
        4 => To::DontUnmap(at(bytes)?),
        _ => To::FixedDontUnmap(at(bytes)?),
    })
}
