//! How much longer a fault takes in a recording than in a program that is not recorded.
//!
//! A recorded time lacks the way into the kernel and back, and contains a part of the recorder's own work: the writing of a
//! record at the fault's begin, and of another one where the kernel tells which pages of a file it maps around. Both together
//! depend on the processor, so this process takes such faults, alone and recorded in turn: the processor's clock, which may change
//! by half between two processes, is the same for both. The faults are in a row, as most are when a program starts or grows: the
//! way into the kernel is in the caches then.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};

use anyhow::{Context, Result, ensure};
use memmap2::{Advice, MmapMut, MmapOptions};
use quire::vm::FaultKind;
use rustix::fs::{MemfdFlags, memfd_create};

use super::faults::{each, usual};
use crate::record::{OwnFault, OwnFaults};

/// Faults in a row.
const FAULTS: usize = 512;
const PAGE: usize = 4096;
/// The kernel maps so much of a file around a fault, by default.
const AROUND: usize = 64 << 10;

/// Faults of one kind.
#[derive(Clone, Copy, Debug)]
enum Faults {
    /// Each brings in a page of zeroes.
    Anon,
    /// Each maps pages of the page cache.
    File,
    /// Each copies a page.
    Copy,
}

impl Faults {
    const ALL: [Self; 3] = [Self::Anon, Self::File, Self::Copy];

    /// The kind that the library counts them as.
    const fn kind(self) -> FaultKind {
        match self {
            Self::Anon => FaultKind::Anon,
            Self::File => FaultKind::FileMinor,
            Self::Copy => FaultKind::Cow,
        }
    }

    /// Whether this is one of them.
    fn has(self, fault: &OwnFault) -> bool {
        let (write, protection) = match self {
            Self::Anon => (true, false),
            Self::File => (false, false),
            Self::Copy => (true, true),
        };
        (fault.write, fault.protection) == (write, protection)
    }

    /// Takes them, those of files in `file`; returns the nanoseconds of each as this process finds them.
    fn take(self, file: &File) -> io::Result<Vec<f64>> {
        match self {
            Self::Anon => {
                let mut memory = MmapMut::map_anon(FAULTS * PAGE)?;
                memory.advise(Advice::NoHugePage)?;
                each(FAULTS, &[], |at| memory[at * PAGE] = 1)
            }
            Self::File => {
                let file = map(file, FAULTS * AROUND)?;
                each(FAULTS, &[], |at| {
                    std::hint::black_box(file[at * AROUND]);
                })
            }
            Self::Copy => {
                let mut file = map(file, FAULTS * PAGE)?;
                std::hint::black_box(file.iter().step_by(PAGE).map(|&byte| u64::from(byte)).sum::<u64>());
                each(FAULTS, &[], |at| file[at * PAGE] = 1)
            }
        }
    }
}

/// A file whose pages are in the page cache.
fn cached(bytes: usize) -> io::Result<File> {
    let mut file = File::from(memfd_create("quire-calibrate", MemfdFlags::CLOEXEC)?);
    file.write_all(&vec![1; bytes])?;
    Ok(file)
}

/// A private mapping of the begin of such a file.
fn map(file: &File, bytes: usize) -> io::Result<MmapMut> {
    // SAFETY: C1: nothing else knows the file of `cached`, and nothing writes to it after that: stores to the mapping, which the
    // value owns, go to pages of its own.
    unsafe { MmapOptions::new().len(bytes).map_copy(file) }
}

/// Nanoseconds that a fault takes longer in a recording, by the name of its kind.
///
/// # Errors
/// A recording that is not permitted, or too little memory.
pub(super) fn measure(smoke: bool) -> Result<BTreeMap<String, f64>> {
    let rounds = if smoke { 2 } else { 25 };
    let mut recorder = OwnFaults::of_this_thread()?;
    // One file for all: how long a fault takes depends on where the pages that it maps lie, by more than what is measured.
    let file = cached(FAULTS * AROUND).context(LITTLE)?;
    let mut longer: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for faults in Faults::ALL {
            let apart = apart(faults, &file, &mut recorder, round % 2 == 1)?;
            longer.entry(faults.kind().name()).or_default().push(apart);
        }
    }
    Ok(longer.into_iter().map(|(kind, apart)| (kind.to_owned(), usual(apart))).collect())
}

const LITTLE: &str = "there is too little memory";

/// The recorded time less that of a fault alone, of one round. What was mapped before decides which memory the kernel has at hand,
/// and what it frees meanwhile: both follow faults of their kind, and each comes first in half of the rounds.
fn apart(faults: Faults, file: &File, recorder: &mut OwnFaults, recorded_first: bool) -> Result<f64> {
    let alone = || Ok::<_, anyhow::Error>(usual(faults.take(file).context(LITTLE)?));
    alone()?;
    let before = if recorded_first { None } else { Some(alone()?) };
    let (taken, recorded) = recorder.during(|| faults.take(file))?;
    taken.context(LITTLE)?;
    let alone = before.map_or_else(alone, Ok)?;
    let recorded: Vec<f64> =
        recorded.iter().filter(|fault| faults.has(fault)).map(|fault| fault.ns as f64).collect();
    ensure!(recorded.len() >= FAULTS, "the recording lacks faults");
    Ok(usual(recorded) - alone)
}
