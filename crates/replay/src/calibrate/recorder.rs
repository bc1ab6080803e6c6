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

    /// Takes them; returns the nanoseconds of each as this process finds them.
    fn take(self) -> io::Result<Vec<f64>> {
        match self {
            Self::Anon => {
                let mut memory = MmapMut::map_anon(FAULTS * PAGE)?;
                memory.advise(Advice::NoHugePage)?;
                each(FAULTS, 0, |at| memory[at * PAGE] = 1)
            }
            Self::File => {
                let file = cached(FAULTS * AROUND)?;
                each(FAULTS, 0, |at| {
                    std::hint::black_box(file[at * AROUND]);
                })
            }
            Self::Copy => {
                let mut file = cached(FAULTS * PAGE)?;
                std::hint::black_box(file.iter().step_by(PAGE).map(|&byte| u64::from(byte)).sum::<u64>());
                each(FAULTS, 0, |at| file[at * PAGE] = 1)
            }
        }
    }
}

/// A private mapping of a file whose pages are in the page cache.
fn cached(bytes: usize) -> io::Result<MmapMut> {
    let mut file = File::from(memfd_create("quire-calibrate", MemfdFlags::CLOEXEC)?);
    file.write_all(&vec![1; bytes])?;
    // SAFETY: C1: nothing else knows this file, so its bytes change by this mapping alone, which the value owns.
    unsafe { MmapOptions::new().len(bytes).map_copy(&file) }
}

/// Nanoseconds that a fault takes longer in a recording, by the name of its kind.
///
/// # Errors
/// A recording that is not permitted, or too little memory.
pub(super) fn measure(smoke: bool) -> Result<BTreeMap<String, f64>> {
    let rounds = if smoke { 2 } else { 25 };
    let mut recorder = OwnFaults::of_this_thread()?;
    let mut longer: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for faults in Faults::ALL {
            let apart = apart(faults, &mut recorder)?;
            longer.entry(faults.kind().name()).or_default().push(apart);
        }
    }
    Ok(longer.into_iter().map(|(kind, apart)| (kind.to_owned(), usual(apart))).collect())
}

/// The recorded time less that of a fault alone, of one round.
fn apart(faults: Faults, recorder: &mut OwnFaults) -> Result<f64> {
    let little = "there is too little memory";
    let alone = usual(faults.take().context(little)?);
    let (taken, recorded) = recorder.during(|| faults.take());
    taken.context(little)?;
    let recorded: Vec<f64> =
        recorded.iter().filter(|fault| faults.has(fault)).map(|fault| fault.ns as f64).collect();
    ensure!(recorded.len() >= FAULTS, "the recording lacks faults");
    Ok(usual(recorded) - alone)
}
