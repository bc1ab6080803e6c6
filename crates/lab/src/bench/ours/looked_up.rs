//! Counts of a verb, taken in repetitions of their own because they would disturb timed ones.

use hosted::Hosted;
use quire::addr::Frame;
use quire::manager::Config;

use super::counting::Counting;
use super::verbs::{Machines, Subject, Verb};
use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::{Memory, neighbours};

/// Counted once for a case.
#[derive(Clone, Copy)]
pub(super) struct LookedUp {
    /// Pages whose frame follows that of the page before.
    in_sequence: u64,
    /// Locks that the verb takes, of every kind.
    locks: u64,
    stepped: Option<(Stepped, PerGib)>,
}

/// Counts of a verb that ran one instruction at a time.
#[derive(Clone, Copy)]
struct Stepped {
    /// The verb's memory: less than is timed, since each instruction takes microseconds.
    bytes: u64,
    executed: u64,
    atomics: u64,
    descriptors: u64,
}

/// The same extrapolated to 1 GiB.
#[derive(Clone, Copy)]
struct PerGib {
    atomics: Option<u64>,
    descriptors: Option<u64>,
}

/// Bytes that a page table of the lowest level maps.
const TABLE: u64 = 2 << 20;

const GIB: u64 = 1 << 30;

/// How much is watched.
struct Extent {
    /// The cases.
    folios: &'static [&'static str],
    /// Sizes of memory, the least first.
    bytes: &'static [usize],
    /// Instructions in one run, 10 us each; larger memory is tried while it promises no more.
    instructions: u64,
}

const FULL: Extent = Extent {
    folios: &["4KiB", "4KiB/shuffled", "64KiB", "2MiB-pte", "2MiB-pmd"],
    bytes: &[64 << 10, 128 << 10, 2 << 20, 4 << 20, 8 << 20, 32 << 20],
    instructions: 100_000,
};

/// Page by page takes 110,000 instructions of a build that is not optimised.
const SMALL: Extent = Extent { folios: &["4KiB"], bytes: &[16 << 10], instructions: 200_000 };

impl LookedUp {
    /// Runs the verb on counting platforms.
    pub(super) fn of<V: Verb>(
        case: &V::Case,
        touches: &[u32],
        config: &Config,
        machine: &Hosted,
        machines: &Machines,
    ) -> Result<Self, Skip> {
        // SAFETY: H3: `with_manager_of` makes, uses and drops the manager inside `run_on` of this machine; no verb
        // uses another machine, and threads that take part in one are CPUs of this machine meanwhile.
        let counting = Counting::locks_on(unsafe { machine.bare() });
        let (in_sequence, locks) = super::with_manager_of(machine, &counting, config, |manager| {
            let subject = Subject::populated::<V>(case, touches, manager, machine, Some(&counting))?;
            let in_sequence = scatter(machine, subject.mm.root(), &V::memory(case))?;
            let sample = V::work(case, subject)?;
            Ok((in_sequence, sample.counters.get("locks").copied().unwrap_or_default()))
        })?;
        let stepped = Stepped::look::<V>(case, config, machines)?;
        Ok(Self { in_sequence, locks, stepped })
    }

    /// Adds the counts to a repetition.
    pub(super) fn add_to(&self, sample: Sample) -> Sample {
        let sample = sample.count("frames_in_sequence", self.in_sequence).count("locks", self.locks);
        let Some((stepped, per_gib)) = self.stepped else { return sample };
        let sample = sample
            .count("stepped_bytes", stepped.bytes)
            .count("instructions", stepped.executed)
            .count("atomics", stepped.atomics)
            .count("descriptors", stepped.descriptors);
        let sample =
            per_gib.atomics.iter().fold(sample, |sample, count| sample.count("atomics_per_gib", *count));
        per_gib.descriptors.iter().fold(sample, |sample, count| sample.count("descriptors_per_gib", *count))
    }
}

impl Stepped {
    /// Watches the verb on as much memory as takes few instructions; `None` if the smallest takes too many.
    fn look<V: Verb>(
        case: &V::Case,
        config: &Config,
        machines: &Machines,
    ) -> Result<Option<(Self, PerGib)>, Skip> {
        let memory = V::memory(case);
        let small = memory.bytes < 1 << 30;
        let extent = if small { &SMALL } else { &FULL };
        if !extent.folios.contains(&memory.name().as_str()) || small && !V::WATCHED_IN_SMALL_RUNS {
            return Ok(None);
        }
        let machine = machines.small(extent.bytes[extent.bytes.len() - 1], V::CLEARING)?;
        let mut seen: Vec<Self> = Vec::new();
        for bytes in
            extent.bytes.iter().copied().filter(|bytes| (memory.folio.bytes()..=memory.bytes).contains(bytes))
        {
            let expected = |count: fn(&Self) -> u64| Self::beyond(&seen, bytes as u64, count);
            if expected(|seen| seen.executed).is_some_and(|expected| expected > extent.instructions) {
                break;
            }
            let Some(case) = V::with_memory(case, Memory { bytes, ..memory }) else { break };
            match Self::on::<V>(&case, config, machine, extent.instructions)? {
                Some(found) => seen.push(found),
                None => break,
            }
        }
        let Some(last) = seen.last() else { return Ok(None) };
        // Both sizes must be whole tables, since most descriptors belong to tables.
        let whole = seen.iter().rev().nth(1).is_some_and(|before| before.bytes >= TABLE);
        // Within one table, only counts that grow with its pages can be extrapolated.
        let grew = seen.iter().rev().nth(1).is_some_and(|before| last.atomics > before.atomics);
        let within = last.bytes < TABLE && grew;
        let per_gib = PerGib {
            atomics: Self::beyond(&seen, GIB, |seen| seen.atomics).filter(|_| whole || within),
            descriptors: Self::beyond(&seen, GIB, |seen| seen.descriptors).filter(|_| whole),
        };
        Ok(Some((*last, per_gib)))
    }

    /// Extrapolates a count to `bytes`: each further byte costs as much as those between the two largest of
    /// `seen`.
    fn beyond(seen: &[Self], bytes: u64, count: impl Fn(&Self) -> u64) -> Option<u64> {
        let [.., before, last] = seen else { return None };
        let more = count(last).saturating_sub(count(before)) * (bytes - last.bytes);
        Some(count(last) + more / (last.bytes - before.bytes))
    }

    /// Watches the verb on this memory; `None` if it takes too many instructions.
    fn on<V: Verb>(
        case: &V::Case,
        config: &Config,
        machine: &Hosted,
        limit: u64,
    ) -> Result<Option<Self>, Skip> {
        let memory = V::memory(case);
        // SAFETY: H3: `with_manager_of` makes, uses and drops the manager inside `run_on` of this machine.
        let counting = Counting::instructions_on(unsafe { machine.bare() }, limit);
        super::with_manager_of(machine, &counting, config, |manager| {
            let touches = memory.touches();
            let subject = Subject::populated::<V>(case, &touches, manager, machine, Some(&counting))?;
            V::work(case, subject).map(drop)
        })?;
        let all = counting.instructions().filter(|seen| seen.are_all());
        Ok(all.map(|seen| Self {
            bytes: memory.bytes as u64,
            executed: seen.executed(),
            atomics: seen.locked(),
            descriptors: seen.descriptors(),
        }))
    }
}

/// Pages whose frame follows that of the page before, by the machine's reading of the page table.
///
/// # Errors
/// [`Skip`] when shuffled memory has frames in sequence.
fn scatter(machine: &Hosted, root: Frame, memory: &Memory) -> Result<u64, Skip> {
    let leaves = machine.leaves(root).into_iter();
    let frames = leaves.flat_map(|leaf| leaf.frame.0..leaf.frame.0 + leaf.frames);
    let found = neighbours(frames);
    if memory.shuffled && found > memory.pages() as u64 / 20 {
        return Err(Skip(format!("{found} of {} frames are in sequence: not shuffled", memory.pages())));
    }
    Ok(found)
}
