//! A calibration as a file: JSON, a line for each figure.

use std::path::Path;

use anyhow::{Context, Result, bail};
use procfs::Current;
use quire::arch::{Caches, ClearKernel, CopyKernel};
use quire::clear::{Calibration, Cost, Measured, STRETCHES, Stretch, THREADS, bytes_of, class_of, cpus_of};
use serde::{Deserialize, Serialize};

use crate::bench::row::write_atomically;

const VERSION: u32 = 2;

/// What is saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Of this form.
    version: u32,
    /// The processor that was measured.
    cpu: String,
    stretch_bytes: u64,
    last_cache_bytes: u64,
    clear: Vec<Figure>,
    copy: Vec<Figure>,
    stretches: Vec<StretchFigure>,
}

/// What one kernel costs for one extent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Figure {
    kernel: String,
    threads: u64,
    extent_bytes: u64,
    /// Nanoseconds a thread takes for each MiB.
    fill_ns_per_mib: u32,
    /// The same to read it once afterwards.
    read_ns_per_mib: u32,
}

/// What clearing a large extent costs in stretches of one length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StretchFigure {
    threads: u64,
    stretch_bytes: u64,
    /// Nanoseconds a thread takes for each MiB.
    fill_ns_per_mib: u32,
}

/// The processor's name for itself.
fn cpu() -> String {
    let found = procfs::CpuInfo::current().ok();
    found.and_then(|info| info.model_name(0).map(str::to_owned)).unwrap_or_default()
}

impl Saved {
    /// A calibration of this machine.
    pub fn of(calibration: &Calibration) -> Self {
        Self {
            version: VERSION,
            cpu: cpu(),
            stretch_bytes: calibration.stretch.bytes(),
            last_cache_bytes: calibration.last_cache,
            clear: figures(&calibration.clear, |at| ClearKernel::ALL[at].name()),
            copy: figures(&calibration.copy, |at| CopyKernel::ALL[at].name()),
            stretches: stretches(calibration),
        }
    }

    /// Back again.
    ///
    /// # Errors
    /// Another form, another processor, a kernel or an extent that there is not.
    pub fn calibration(&self) -> Result<Calibration> {
        if self.version != VERSION {
            bail!("a form of version {}, where {VERSION} is known: calibrate anew", self.version);
        }
        if self.cpu != cpu() {
            bail!("figures of `{}`, and this is `{}`: calibrate anew", self.cpu, cpu());
        }
        let mut calibration = Calibration::empty(Caches { last: self.last_cache_bytes, ..Caches::default() });
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
    let mut bytes = serde_json::to_vec_pretty(&Saved::of(calibration))?;
    bytes.push(b'\n');
    write_atomically(path, &bytes)
}

/// Reads one.
///
/// # Errors
/// A file that cannot be read or is none of ours; figures that are not this machine's.
pub fn load(path: &Path) -> Result<Calibration> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let saved: Saved = serde_json::from_slice(&bytes).with_context(|| {
        format!("{} is no calibration: make one with `quire calibrate --save`", path.display())
    })?;
    saved.calibration().with_context(|| format!("{} cannot be used", path.display()))
}

#[cfg(test)]
mod tests;
