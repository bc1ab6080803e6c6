//! A calibration as a JSON file, with its machine and each figure by name.

use std::path::Path;

use anyhow::{Context, Result, bail};
use quire::arch::{Caches, ClearKernel, CopyKernel, CpuFeatures, Feature};
use quire::clear::{Calibration, Cost, Measured, STRETCHES, Stretch, THREADS, bytes_of, class_of, cpus_of};
use serde::{Deserialize, Serialize};

use crate::host::machine::processor;
use crate::output::{Target, quoted};

/// Version of the form below. Version 2 named the machine by its processor's name alone.
const VERSION: u32 = 3;

/// The field that every version has.
#[derive(Deserialize)]
struct Form {
    version: u32,
}

/// A calibration as it is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    version: u32,
    machine: Machine,
    stretch_bytes: u64,
    clear: Vec<Figure>,
    copy: Vec<Figure>,
    stretches: Vec<StretchFigure>,
}

/// The properties of a machine that figures and policy depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Machine {
    /// The processor's name for itself.
    cpu: String,
    /// The features that a clearing kernel may need, by Linux's names.
    features: Vec<String>,
    first_cache_bytes: u64,
    second_cache_bytes: u64,
    last_cache_bytes: u64,
}

/// The cost of one kernel for one extent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Figure {
    kernel: String,
    threads: u64,
    extent_bytes: u64,
    /// Nanoseconds a thread takes for each MiB.
    fill_ns_per_mib: u32,
    /// The same for one read of it afterwards.
    read_ns_per_mib: u32,
}

/// The cost of clearing a large extent in stretches of one length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StretchFigure {
    threads: u64,
    stretch_bytes: u64,
    /// Nanoseconds a thread takes for each MiB.
    fill_ns_per_mib: u32,
}

impl Machine {
    /// This machine.
    fn this() -> Self {
        let (features, caches) = (CpuFeatures::detect(), Caches::detect());
        let names = Feature::ALL.into_iter().filter(|&feature| features.has(feature));
        Self {
            cpu: processor(),
            features: names.map(|feature| feature.name().to_owned()).collect(),
            first_cache_bytes: caches.first,
            second_cache_bytes: caches.second,
            last_cache_bytes: caches.last,
        }
    }

    /// Checks that figures of this machine apply to another. A guest with the same processor may have fewer
    /// features and another share of the caches.
    fn check(&self, other: &Self) -> Result<()> {
        if self.cpu.is_empty() || other.cpu.is_empty() {
            bail!(
                "the processor does not say its name, so saved figures cannot be matched with it: calibrate anew each time"
            );
        }
        if self.cpu != other.cpu {
            bail!("figures of `{}`, and this is `{}`: calibrate anew", self.cpu, other.cpu);
        }
        if self.features != other.features {
            let (theirs, own) = (self.features.join(" "), other.features.join(" "));
            bail!("figures of a processor with `{theirs}`, and this one has `{own}`: calibrate anew");
        }
        let caches = |machine: &Self| {
            [machine.first_cache_bytes, machine.second_cache_bytes, machine.last_cache_bytes]
                .map(|bytes| bytes >> 10)
        };
        let (theirs, own) = (caches(self), caches(other));
        if theirs != own {
            bail!("figures with caches of {theirs:?} KiB, and this machine's have {own:?}: calibrate anew");
        }
        Ok(())
    }
}

impl Saved {
    /// A calibration of this machine.
    pub fn of(calibration: &Calibration) -> Self {
        Self {
            version: VERSION,
            machine: Machine { last_cache_bytes: calibration.last_cache, ..Machine::this() },
            stretch_bytes: calibration.stretch.bytes(),
            clear: figures(&calibration.clear, |at| ClearKernel::ALL[at].name()),
            copy: figures(&calibration.copy, |at| CopyKernel::ALL[at].name()),
            stretches: stretches(calibration),
        }
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// Another version, or no calibration.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        const NONE: &str = "no calibration: make one with `quire calibrate`";
        // Reads the version first, to distinguish a file of another version from one that is no calibration.
        let Form { version } = serde_json::from_slice(bytes).context(NONE)?;
        if version != VERSION {
            bail!("a form of version {version}, where {VERSION} is known: calibrate anew");
        }
        serde_json::from_slice(bytes).context(NONE)
    }

    /// The calibration that was saved.
    ///
    /// # Errors
    /// Another machine, or a kernel or extent that does not exist.
    pub fn calibration(&self) -> Result<Calibration> {
        self.machine.check(&Machine::this())?;
        let last = self.machine.last_cache_bytes;
        let mut calibration = Calibration::empty(Caches { last, ..Caches::default() });
        calibration.stretch = Stretch::of(self.stretch_bytes)?;
        for figure in &self.clear {
            let kernel = ClearKernel::from_name(&figure.kernel).with_context(|| figure.kernel.clone())?;
            figure.enter(&mut calibration.clear, kernel as usize)?;
        }
        for figure in &self.copy {
            let kernel = CopyKernel::from_name(&figure.kernel).with_context(|| figure.kernel.clone())?;
            figure.enter(&mut calibration.copy, kernel as usize)?;
        }
        for figure in &self.stretches {
            figure.enter(&mut calibration)?;
        }
        Ok(calibration)
    }
}

impl Figure {
    fn enter<const N: usize>(&self, measured: &mut Measured<N>, kernel: usize) -> Result<()> {
        let class = class_of(self.extent_bytes);
        let threads = (0..THREADS).find(|&threads| cpus_of(threads) == self.threads);
        match threads {
            Some(threads) if bytes_of(class) == self.extent_bytes => {
                measured[threads][kernel][class] =
                    Cost { fill: self.fill_ns_per_mib, read: self.read_ns_per_mib };
                Ok(())
            }
            _ => bail!(
                "{} threads and {} bytes are in no table: calibrate anew",
                self.threads,
                self.extent_bytes
            ),
        }
    }
}

impl StretchFigure {
    fn enter(&self, calibration: &mut Calibration) -> Result<()> {
        let threads = (0..THREADS).find(|&threads| cpus_of(threads) == self.threads);
        let stretch = STRETCHES.iter().position(|stretch| stretch.bytes() == self.stretch_bytes);
        let (Some(threads), Some(stretch)) = (threads, stretch) else {
            bail!(
                "{} threads and stretches of {} bytes are in no table: calibrate anew",
                self.threads,
                self.stretch_bytes
            )
        };
        calibration.stretches[threads][stretch] = self.fill_ns_per_mib;
        Ok(())
    }
}

fn stretches(calibration: &Calibration) -> Vec<StretchFigure> {
    let mut figures = Vec::new();
    for (threads, costs) in calibration.stretches.iter().enumerate() {
        let known = STRETCHES.iter().zip(costs).filter(|(_, cost)| **cost > 0);
        figures.extend(known.map(|(stretch, &cost)| StretchFigure {
            threads: cpus_of(threads),
            stretch_bytes: stretch.bytes(),
            fill_ns_per_mib: cost,
        }));
    }
    figures
}

fn figures<const N: usize>(measured: &Measured<N>, name: impl Fn(usize) -> &'static str) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (threads, kernels) in measured.iter().enumerate() {
        for (kernel, costs) in kernels.iter().enumerate() {
            let known = costs.iter().enumerate().filter(|(_, cost)| cost.is_known());
            figures.extend(known.map(|(class, cost)| Figure {
                kernel: name(kernel).to_owned(),
                threads: cpus_of(threads),
                extent_bytes: bytes_of(class),
                fill_ns_per_mib: cost.fill,
                read_ns_per_mib: cost.read,
            }));
        }
    }
    figures
}

/// Writes a calibration to a file, whole or not at all.
///
/// # Errors
/// When the file cannot be written.
pub fn save(calibration: &Calibration, path: &Path) -> Result<()> {
    Target::named(path)?.write(&bytes(calibration)?)
}

/// The bytes of a calibration's file.
pub(super) fn bytes(calibration: &Calibration) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(&Saved::of(calibration))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Reads a calibration from a file.
///
/// # Errors
/// A file that cannot be read or is no calibration, or figures of another machine.
pub fn load(path: &Path) -> Result<Calibration> {
    let bytes = std::fs::read(path)
        .with_context(|| format!("cannot read {} (make one with `quire calibrate --save`)", quoted(path)))?;
    let calibration = Saved::parse(&bytes).and_then(|saved| saved.calibration());
    calibration.with_context(|| format!("{} cannot be used", quoted(path)))
}

#[cfg(test)]
mod tests;
