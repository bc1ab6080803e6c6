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
const REST: Duration = Duration::from_secs(3);

/// Readings of the caches of which the fastest tells what one takes at least.
const READINGS: usize = 8;

/// The most folios that are touched in a row: more tell nothing new of small ones.
const MOST_FOLIOS: usize = 2048;

/// Touches anonymous memory under each folio size in turn, several times, after at least as many folios of the
/// size were touched and freed.
///
/// # Errors
/// Settings that this user may not change, or too little memory.
pub(super) fn measure(smoke: bool) -> Result<KernelPrices> {
    let (rounds, bytes) = if smoke { (3, 8 << 20) } else { (9, 64 << 20) };
    let places = Places::of_this_machine();
    let settings = Settings::acquire(&places)?;
    let sizes = Settings::folio_sizes(&places).into_iter().filter(|kib| *kib * 1024 <= ALIGN);
    let mut measured: BTreeMap<usize, Vec<Vec<f64>>> = sizes.map(|kib| (kib, Vec::new())).collect();
    let mut recycled: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    let rests = !smoke && host::takes_free_memory(&places.root);
    let mut taken = Vec::new();
    let mut progress = Progress::new("calibrate", rounds * measured.len());
    for _ in 0..rounds {
        for (&kib, times) in &mut measured {
            progress.show("faults of", &format!("{kib} KiB"));
            progress.advance();
            let whole_blocks = kib * 1024 == ALIGN;
            if whole_blocks && taken.len() == RESTED {
                continue;
            }
            if kib > 4 {
                settings.only(kib)?;
            }
            warm(kib, bytes).context("there is too little memory")?;
            // Smaller folios come from blocks that are in use already.
            if whole_blocks && rests {
                sleep(REST);
            }
            let before = settings.allocated(kib);
            let faults = touch(kib, bytes).context("there is too little memory")?;
            // Where memory is fragmented, faults fall back to single frames, and are another size's.
            let given = settings.allocated(kib).zip(before).map(|(after, before)| after - before);
            if given.is_none_or(|given| given as usize >= faults.len() * 9 / 10) {
                let again = touch_recycled(kib)?;
                recycled.entry(kib as u64).or_default().push(again);
                if whole_blocks && rests && host::had_taken(&faults, again) {
                    taken.push(faults.clone());
                }
                times.push(faults);
            }
        }
    }
    progress.finish();
    // What a program gets that is started alone. Rounds whose memory the host had not taken yet say nothing of that.
    if !taken.is_empty() {
        measured.insert(ALIGN / 1024, taken);
    }
    let walk = match measured.contains_key(&2048) {
        true => settings.only(2048).map(|()| walk_ns())?,
        false => None,
    };
    drop(settings);
    let measured = || measured.iter().filter(|(_, rounds)| !rounds.is_empty());
    let prices: BTreeMap<u64, f64> = measured()
        .map(|(kib, rounds)| {
            (*kib as u64, usual(rounds.iter().map(|times| mean(&uninterrupted(times))).collect()))
        })
        .collect();
    ensure!(prices.contains_key(&4), "no fault was measured");
    let spreads = measured().map(|(kib, rounds)| (*kib as u64, FaultSpread::of(rounds.concat()))).collect();
    let recorder = recorder::measure(smoke).unwrap_or_else(|error| {
        say(format_args!("quire: what a recording adds to a fault is not known: {error:#}"));
        BTreeMap::new()
    });
    let recycled = recycled.into_iter().map(|(kib, rounds)| (kib, usual(rounds))).collect();
    Ok(KernelPrices::of_this_machine(prices, spreads, walk).with_recycled(recycled).with_recorder(recorder))
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
    let faults = each(count, twice_the_caches(), |at| memory[first + at * kib * 1024] = 1)?;
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

/// Twice the bytes that the caches before the last one hold: a program that reads them between two faults leaves the kernel's
/// code and data in caches of the last level.
fn twice_the_caches() -> usize {
    2 * (Caches::detect().second as usize).clamp(LEAST_CACHE, MOST_CACHE)
}

/// Nanoseconds of each of these faults, which `fault` takes; `between` bytes are read between two of them.
pub(super) fn each(count: usize, between: usize, mut fault: impl FnMut(usize)) -> io::Result<Vec<f64>> {
    let between = vec![1u8; between];
    let clock = median((0..1000).map(|_| Instant::now().elapsed().as_nanos() as f64));
    // Filled beforehand: a page of it that is new would be a fault of its own.
    let mut faults = vec![1.0; count];
    let read =
        || _ = std::hint::black_box(between.iter().step_by(64).map(|&byte| u64::from(byte)).sum::<u64>());
    let mut spent = own_time()?;
    let mut reading = Duration::MAX;
    for _ in 0..READINGS {
        read();
        let before = std::mem::replace(&mut spent, own_time()?);
        reading = reading.min(spent.saturating_sub(before));
    }
    for (at, ns) in faults.iter_mut().enumerate() {
        read();
        let took = time(&mut spent, reading, || fault(std::hint::black_box(at)))?;
        *ns = (took.as_nanos() as f64 - clock).max(1.0);
    }
    Ok(faults)
}

/// How long the action took, without the time in which other programs ran. `spent` is the processor time of this thread at an
/// earlier moment, and then at the end; in between the thread ran for `reading` at least before the action. To ask for the
/// processor time right before the action would be more exact, but it brings some of the kernel's memory back into the caches: a
/// fault took 6 % less then (Intel Xeon).
fn time(spent: &mut Duration, reading: Duration, action: impl FnOnce()) -> io::Result<Duration> {
    let start = Instant::now();
    action();
    let elapsed = start.elapsed();
    let until = own_time()?;
    let most = until.saturating_sub(*spent).saturating_sub(reading);
    *spent = until;
    Ok(elapsed.min(most))
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

    #[test]
    fn a_fault_that_waited_for_the_host_does_not_count() {
        assert_eq!(mean(&uninterrupted(&[4.0, 5.0, 6.0, 180.0])), 5.0);
        assert_eq!(uninterrupted(&[4.0, 64.0]), [4.0, 64.0], "some faults are long");
    }

    #[test]
    fn time_in_which_the_thread_does_not_run_does_not_count() {
        let asleep = Duration::from_millis(200);
        let mut spent = own_time().expect("Linux counts it");
        let took = time(&mut spent, Duration::ZERO, || sleep(asleep)).expect("Linux counts it");
        assert!(took < asleep / 2, "{took:?}");
    }

    /// Another program's time counted as far as the caches had been read before the fault.
    #[test]
    fn what_is_read_before_a_fault_is_no_part_of_it() {
        // Far longer than a busy machine takes to put the thread to sleep.
        let between = 64 << 20;
        let before = own_time().expect("Linux counts it");
        each(0, between, |_| ()).expect("Linux counts it");
        let reading = (own_time().expect("Linux counts it") - before).as_nanos() as f64 / READINGS as f64;
        // One of several, since a reading may take longer than another.
        let asleep = each(8, between, |_| sleep(Duration::from_millis(20))).expect("Linux counts it");
        let least = asleep.iter().copied().fold(f64::MAX, f64::min);
        assert!(least < reading / 10.0, "{asleep:?}, and {reading} ns of a reading");
    }
}
