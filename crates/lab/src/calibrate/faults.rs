//! Measures what this machine's Linux takes for a fault, by folio size.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, MmapOptions};

use super::{FaultSpread, KernelPrices, walk_ns};
use crate::settings::{Places, Settings};

/// The largest folio, to whose multiples the memory is aligned.
const ALIGN: usize = 2 << 20;

/// What a program reads between two faults, in bytes: more than the caches next to the processor hold.
const BETWEEN: usize = 256 << 10;

/// Touches fresh anonymous memory under each folio size in turn, several times. The first pass is not counted: the host of a
/// virtual machine may have to find the memory.
///
/// # Errors
/// Settings that this user may not change, or too little memory.
pub(super) fn measure(smoke: bool) -> Result<KernelPrices> {
    let (rounds, bytes) = if smoke { (3, 8 << 20) } else { (9, 64 << 20) };
    let places = Places::of_this_machine();
    let settings = Settings::acquire(&places)?;
    let sizes = Settings::folio_sizes(&places).into_iter().filter(|kib| *kib * 1024 <= ALIGN);
    let mut measured: BTreeMap<usize, Vec<Vec<f64>>> = sizes.map(|kib| (kib, Vec::new())).collect();
    for round in 0..=rounds {
        for (&kib, times) in &mut measured {
            if kib > 4 {
                settings.only(kib)?;
            }
            let before = settings.allocated(kib);
            let faults = touch(kib, bytes).context("there is too little memory")?;
            // Where memory is fragmented, faults fall back to single frames, and are another size's.
            let given = settings.allocated(kib).zip(before).map(|(after, before)| after - before);
            if round > 0 && given.is_none_or(|given| given as usize >= bytes / 1024 / kib * 9 / 10) {
                times.push(faults);
            }
        }
    }
    let walk = match measured.contains_key(&2048) {
        true => settings.only(2048).map(|()| walk_ns())?,
        false => None,
    };
    drop(settings);
    let measured = || measured.iter().filter(|(_, rounds)| !rounds.is_empty());
    let prices: BTreeMap<u64, f64> = measured()
        .map(|(kib, rounds)| (*kib as u64, median(rounds.iter().map(|times| mean(times)))))
        .collect();
    ensure!(prices.contains_key(&4), "no fault was measured");
    let spreads = measured().map(|(kib, rounds)| (*kib as u64, FaultSpread::of(rounds.concat()))).collect();
    Ok(KernelPrices::of_this_machine(prices, spreads, walk))
}

/// Nanoseconds of each fault, which a store to the first byte of every folio takes. Between two faults a program uses its
/// memory, so that the kernel finds less of what it needs in the caches: other memory is read before each.
fn touch(kib: usize, bytes: usize) -> io::Result<Vec<f64>> {
    let mut memory = MmapOptions::new().len(bytes + ALIGN).map_anon()?;
    memory.advise(if kib == 4 { Advice::NoHugePage } else { Advice::HugePage })?;
    let first = memory.as_ptr().align_offset(ALIGN);
    let between = vec![1u8; BETWEEN];
    let clock = median((0..1000).map(|_| Instant::now().elapsed().as_nanos() as f64));
    // Filled beforehand: a page of it that is new would be a fault of its own.
    let mut faults = vec![1.0; bytes / 1024 / kib];
    let folios = memory[first..first + bytes].iter_mut().step_by(kib * 1024);
    for (byte, ns) in folios.zip(&mut faults) {
        std::hint::black_box(between.iter().step_by(64).map(|&byte| u64::from(byte)).sum::<u64>());
        let start = Instant::now();
        *std::hint::black_box(byte) = 1;
        *ns = (start.elapsed().as_nanos() as f64 - clock).max(1.0);
    }
    std::hint::black_box(&mut memory);
    Ok(faults)
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len() as f64
}

fn median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
