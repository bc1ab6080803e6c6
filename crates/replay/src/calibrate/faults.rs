//! Measures what this machine's Linux takes for a fault, by folio size.

use std::collections::BTreeMap;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, MmapMut, MmapOptions};
use nix::time::{ClockId, clock_gettime};
use quire::arch::Caches;

use super::{FaultSpread, KernelPrices, host, recorder, walk_ns};
use crate::output::{Progress, say};
use crate::settings::{Places, Settings};

/// The largest folio, to whose multiples the memory is aligned.
const ALIGN: usize = 2 << 20;

/// Bounds of the cache before the last one, in bytes, where the processor hides it or has an unusual one.
const LEAST_CACHE: usize = 256 << 10;
const MOST_CACHE: usize = 4 << 20;

/// Memory that is freed and taken again, at least a folio of it, and how often.
const RECYCLED: usize = 128 << 10;
const RECYCLINGS: usize = 20;

/// Rounds of the largest folios whose memory the host had taken, and how long free memory rests before each: Linux tells a
/// virtual machine's host of whole free blocks after two seconds (`mm/page_reporting.c`), of some at a time, and a host that
/// takes them back has to give them again.
const RESTED: usize = 3;
pub(crate) const REST: Duration = Duration::from_secs(3);

/// Readings of the caches of which the fastest tells what one takes at least.
const READINGS: usize = 8;

/// The most folios that are touched in a row: more tell nothing new of small ones.
const MOST_FOLIOS: usize = 2048;

const LITTLE: &str = "there is too little memory";

/// What was measured in all rounds.
#[derive(Default)]
struct Rounds {
    /// Nanoseconds of each fault of each round, by KiB of the folio.
    faults: BTreeMap<usize, Vec<Vec<f64>>>,
    /// Those of memory that was freed just before, the usual of each round.
    recycled: BTreeMap<u64, Vec<f64>>,
    /// Of the largest folios, the rounds whose memory the host had taken.
    taken: Vec<Vec<f64>>,
    /// Of the same, the mean of rounds whose memory the host had not taken, where it takes some.
    in_use: Vec<f64>,
}

/// Touches anonymous memory under each folio size in turn, several times, after at least as many folios of the
/// size were touched and freed.
///
/// # Errors
/// Settings that this user may not change, or too little memory.
pub(super) fn measure(smoke: bool) -> Result<KernelPrices> {
    let (count, bytes) = if smoke { (3, 8 << 20) } else { (9, 64 << 20) };
    let places = Places::of_this_machine();
    let settings = Settings::acquire(&places)?;
    let sizes = Settings::folio_sizes(&places).into_iter().filter(|kib| *kib * 1024 <= ALIGN);
    let mut rounds = Rounds { faults: sizes.map(|kib| (kib, Vec::new())).collect(), ..Rounds::default() };
    let rests = !smoke && host_takes_free_memory();
    let mut progress = Progress::new("calibrate", count * rounds.faults.len());
    for _ in 0..count {
        for kib in rounds.faults.keys().copied().collect::<Vec<_>>() {
            progress.show("faults of", &format!("{kib} KiB"));
            progress.advance();
            rounds.take(&settings, kib, bytes, rests)?;
        }
    }
    progress.finish();
    let walk = match rounds.faults.contains_key(&2048) {
        true => settings.only(2048).map(|()| walk_ns())?,
        false => None,
    };
    drop(settings);
    let recorder = recorder::measure(smoke).unwrap_or_else(|error| {
        say(format_args!("quire: what a recording adds to a fault is not known: {error:#}"));
        BTreeMap::new()
    });
    Ok(rounds.prices(walk)?.with_recorder(recorder))
}

impl Rounds {
    /// A round of this size.
    fn take(&mut self, settings: &Settings, kib: usize, bytes: usize, rests: bool) -> Result<()> {
        let whole_blocks = kib * 1024 == ALIGN;
        if whole_blocks && self.taken.len() == RESTED {
            return Ok(());
        }
        if kib > 4 {
            settings.only(kib)?;
        }
        warm(kib, bytes).context(LITTLE)?;
        // Smaller folios come from blocks that are in use already.
        let rests = whole_blocks && rests;
        if rests {
            sleep(REST);
        }
        let before = settings.allocated(kib);
        let faults = touch(kib, bytes).context(LITTLE)?;
        // Where memory is fragmented, faults fall back to single frames, and are another size's.
        let given = settings.allocated(kib).zip(before).map(|(after, before)| after - before);
        if given.is_some_and(|given| (given as usize) < faults.len() * 9 / 10) {
            return Ok(());
        }
        let again = touch_recycled(kib)?;
        self.recycled.entry(kib as u64).or_default().push(again);
        if rests {
            // The same blocks once more: the host has just given back what it had taken.
            let once_more = touch(kib, bytes).context(LITTLE)?;
            self.in_use.push(mean(&uninterrupted(&once_more)));
            if host::had_taken(&faults, again) {
                self.taken.push(faults.clone());
            }
        }
        self.faults.entry(kib).or_default().push(faults);
        Ok(())
    }

    /// What they tell.
    ///
    /// # Errors
    /// Not a single fault.
    fn prices(mut self, walk: Option<f64>) -> Result<KernelPrices> {
        // What a program gets that is started alone. Rounds whose memory the host had not taken yet say nothing of that.
        if !self.taken.is_empty() {
            self.faults.insert(ALIGN / 1024, self.taken);
        }
        self.faults.retain(|_, rounds| !rounds.is_empty());
        let of_round = |times: &Vec<f64>| mean(&uninterrupted(times));
        let prices: BTreeMap<u64, f64> = (self.faults.iter())
            .map(|(kib, rounds)| (*kib as u64, usual(rounds.iter().map(of_round).collect())))
            .collect();
        ensure!(prices.contains_key(&4), "no fault was measured");
        let spreads =
            self.faults.iter().map(|(kib, rounds)| (*kib as u64, FaultSpread::of(rounds.concat()))).collect();
        let recycled = self.recycled.into_iter().map(|(kib, rounds)| (kib, usual(rounds))).collect();
        let in_use = (!self.in_use.is_empty()).then(|| usual(self.in_use));
        let prices = KernelPrices::of_this_machine(prices, spreads, walk);
        Ok(prices.with_recycled(recycled).with_blocks_in_use(in_use))
    }
}

/// Whether the host of this virtual machine takes free memory back.
pub(crate) fn host_takes_free_memory() -> bool {
    host::takes_free_memory(&Places::of_this_machine().root)
}

/// Brings in so many bytes of whole blocks and frees them. Faults of 2 MiB that follow get them, and none that the host has taken.
///
/// # Errors
/// Too little memory.
pub(crate) fn bring_in_blocks(bytes: u64) -> Result<()> {
    match bytes {
        0 => Ok(()),
        _ => warm(ALIGN / 1024, bytes as usize).context(LITTLE),
    }
}

/// Memory for this many bytes of folios, and where in it the first one begins.
fn memory_for(kib: usize, bytes: usize) -> io::Result<(MmapMut, usize)> {
    let memory = MmapOptions::new().len(bytes + ALIGN).map_anon()?;
    memory.advise(if kib == 4 { Advice::NoHugePage } else { Advice::HugePage })?;
    let first = memory.as_ptr().align_offset(ALIGN);
    Ok((memory, first))
}

/// Touches folios and frees them, so that those of the next faults come from what is there. The host of a virtual machine may
/// take back what is free for seconds: then faults wait for the host, 180 us and more for one of 4 KiB, as often as chance has it.
fn warm(kib: usize, bytes: usize) -> io::Result<()> {
    let (mut memory, first) = memory_for(kib, bytes)?;
    memory[first..first + bytes].iter_mut().step_by(kib * 1024).for_each(|byte| *byte = 1);
    std::hint::black_box(&mut memory);
    Ok(())
}

/// Nanoseconds of each fault, which a store to the first byte of every folio takes.
fn touch(kib: usize, bytes: usize) -> io::Result<Vec<f64>> {
    let (mut memory, first) = memory_for(kib, bytes)?;
    let count = (bytes / 1024 / kib).min(MOST_FOLIOS);
    let faults = each(count, &twice_the_caches(), |at| memory[first + at * kib * 1024] = 1)?;
    std::hint::black_box(&mut memory);
    Ok(faults)
}

/// The usual nanoseconds of a fault whose memory was freed just before.
fn touch_recycled(kib: usize) -> io::Result<f64> {
    let count = (RECYCLED / 1024 / kib).max(1);
    let mut faults = Vec::with_capacity(RECYCLINGS * count);
    for recycling in 0..=RECYCLINGS {
        let (mut memory, first) = memory_for(kib, count * kib * 1024)?;
        for at in 0..count {
            let start = Instant::now();
            memory[first + at * kib * 1024] = 1;
            let took = start.elapsed();
            // Memory of the first one comes from anywhere.
            if recycling > 0 {
                faults.push(took.as_nanos() as f64);
            }
        }
    }
    Ok(usual(faults))
}

/// Twice as much memory as the caches before the last one hold: a program that reads it between two faults leaves the kernel's
/// code and data in caches of the last level.
fn twice_the_caches() -> Vec<u8> {
    // Ones: no page of it is left to be found by the first reading.
    vec![1; 2 * (Caches::detect().second as usize).clamp(LEAST_CACHE, MOST_CACHE)]
}

/// Nanoseconds of each of these faults, which `fault` takes; `between` is read between two of them.
pub(super) fn each(count: usize, between: &[u8], mut fault: impl FnMut(usize)) -> io::Result<Vec<f64>> {
    let clock = median((0..1000).map(|_| Instant::now().elapsed().as_nanos() as f64));
    // Filled beforehand: a page of it that is new would be a fault of its own.
    let mut spans = vec![Span { elapsed: Duration::MAX, ran: Duration::MAX }; count];
    let read =
        || _ = std::hint::black_box(between.iter().step_by(64).map(|&byte| u64::from(byte)).sum::<u64>());
    let mut spent = own_time()?;
    let mut reading = Duration::MAX;
    for _ in 0..READINGS {
        read();
        let before = std::mem::replace(&mut spent, own_time()?);
        reading = reading.min(spent.saturating_sub(before));
    }
    for (at, span) in spans.iter_mut().enumerate() {
        read();
        *span = Span::of(&mut spent, || fault(std::hint::black_box(at)))?;
    }
    let times = Span::times(&spans, reading);
    Ok(times.into_iter().map(|took| (took.as_nanos() as f64 - clock).max(1.0)).collect())
}

/// A reading and an action.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// How long the action took by the clock.
    elapsed: Duration,
    /// How long the thread ran in both.
    ran: Duration,
}

impl Span {
    /// Of this action, and of what was read before it: `spent` is the processor time of this thread at its begin, and then at the
    /// end. To ask for the processor time right before the action would be more exact, but it brings some of the kernel's memory
    /// back into the caches: a fault took 6 % less then (Intel Xeon).
    fn of(spent: &mut Duration, action: impl FnOnce()) -> io::Result<Self> {
        let start = Instant::now();
        action();
        let elapsed = start.elapsed();
        let until = own_time()?;
        let ran = until.saturating_sub(*spent);
        *spent = until;
        Ok(Self { elapsed, ran })
    }

    /// How long the actions took, without the time in which other programs ran. A reading takes `reading` at least, or less where
    /// it shows: that of a span whose action was short is all that the thread ran but for the action. On a busy machine the first
    /// readings may be slower than all that follow, and faults took no time at all then.
    fn times(spans: &[Self], reading: Duration) -> Vec<Duration> {
        let short = spans.iter().filter(|span| span.elapsed.saturating_mul(4) <= span.ran);
        let reading = short.map(|span| span.ran - span.elapsed).fold(reading, Duration::min);
        spans.iter().map(|span| span.elapsed.min(span.ran.saturating_sub(reading))).collect()
    }
}

/// The processor time of this thread.
pub(crate) fn own_time() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

/// Those that did not wait for the host: at most 16 medians, as with recorded faults.
fn uninterrupted(times: &[f64]) -> Vec<f64> {
    let longest = 16.0 * median(times.iter().copied());
    times.iter().copied().filter(|&ns| ns <= longest).collect()
}

/// The mean of the middle half.
pub(crate) fn usual(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let beside = times.len() / 4;
    mean(&times[beside..times.len() - beside])
}

fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_far_from_the_others_do_not_count() {
        assert_eq!(usual(vec![7.0]), 7.0);
        assert_eq!(usual(vec![1.0, 2.0, 6.0]), 3.0, "too few");
        assert_eq!(usual(vec![900.0, 4.0, 2.0, 1.0]), 3.0);
    }

    /// A program that is started alone gets blocks that the host has taken; one behind another program gets what that had.
    #[test]
    fn whole_blocks_have_two_prices_where_the_host_takes_them() {
        let two = || vec![vec![400.0, 600.0]];
        let rounds = |taken: Vec<Vec<f64>>, in_use: Vec<f64>| {
            let faults = [(4, two()), (16, Vec::new()), (2048, vec![vec![70.0, 90.0]])].into();
            Rounds { faults, taken, in_use, ..Rounds::default() }.prices(None)
        };
        let alike = rounds(Vec::new(), Vec::new()).unwrap();
        assert_eq!((&alike.fault_ns, alike.blocks_in_use_ns), (&[(4, 500.0), (2048, 80.0)].into(), None));
        let apart = rounds(vec![vec![800.0, 1000.0]], vec![85.0, 1.0, 85.0, 900.0]).unwrap();
        assert_eq!((apart.fault_ns[&2048], apart.blocks_in_use_ns), (900.0, Some(85.0)));
        assert_eq!(apart.fault_spread[&2048].longest_ns, 1000.0);
        assert!(Rounds::default().prices(None).is_err());
    }

    #[test]
    fn a_fault_that_waited_for_the_host_does_not_count() {
        assert_eq!(mean(&uninterrupted(&[4.0, 5.0, 6.0, 180.0])), 5.0);
        assert_eq!(uninterrupted(&[4.0, 64.0]), [4.0, 64.0], "some faults are long");
    }

    #[test]
    fn time_in_which_the_thread_does_not_run_does_not_count() {
        let asleep = Duration::from_millis(200);
        let mut spent = own_time().expect("Linux counts it");
        let span = Span::of(&mut spent, || sleep(asleep)).expect("Linux counts it");
        let took = Span::times(&[span], Duration::ZERO)[0];
        assert!(took < asleep / 2, "{took:?}");
    }

    /// Another program shared the processor's caches during the first readings.
    #[test]
    fn readings_that_become_faster_do_not_swallow_the_faults() {
        let us = Duration::from_micros;
        let span = |elapsed, ran| Span { elapsed: us(elapsed), ran: us(ran) };
        let spans = [span(2, 62), span(3, 64), span(2, 70), span(500, 63)];
        assert_eq!(Span::times(&spans, us(90)), [2, 3, 2, 3].map(us));
        assert_eq!(Span::times(&spans, us(60)), [2, 3, 2, 3].map(us), "as they were");
        assert_eq!(
            Span::times(&[span(40, 100)], us(90)),
            [us(10)],
            "a long one tells nothing of the reading"
        );
    }

    /// Another program's time counted as far as the caches had been read before the fault.
    #[test]
    fn what_is_read_before_a_fault_is_no_part_of_it() {
        // Far longer than a busy machine takes to put the thread to sleep.
        let between = vec![1; 64 << 20];
        let before = own_time().expect("Linux counts it");
        each(0, &between, |_| ()).expect("Linux counts it");
        let reading = (own_time().expect("Linux counts it") - before).as_nanos() as f64 / READINGS as f64;
        // One of several, since a reading may take longer than another.
        let asleep = each(8, &between, |_| sleep(Duration::from_millis(20))).expect("Linux counts it");
        let least = asleep.iter().copied().fold(f64::MAX, f64::min);
        assert!(least < reading / 10.0, "{asleep:?}, and {reading} ns of a reading");
    }
}
