//! What this machine's Linux takes for a fault, by folio size: as `quire calibrate --kernel` measured it, kept for all users of
//! the machine. Prices of another kernel or processor are not used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use quire::vm::FaultKind;
use serde::{Deserialize, Serialize};

use crate::host::machine::processor;
use crate::output::{Target, quoted};
use crate::settings::Places;

/// Version of the form below.
const VERSION: u32 = 1;

/// KiB of a block, which a folio of this size takes whole.
const BLOCK_KIB: u64 = 2048;

/// The measured prices, as they are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelPrices {
    version: u32,
    /// The kernel's release, and the processor's name for itself.
    kernel: String,
    cpu: String,
    /// Nanoseconds of a fault that brings in a folio of zeroes, by KiB of the folio: the mean of a round, and of the rounds
    /// the median.
    pub fault_ns: BTreeMap<u64, f64>,
    /// How far single faults are apart, by KiB of the folio; files of older commands lack it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fault_spread: BTreeMap<u64, FaultSpread>,
    /// Nanoseconds of such a fault whose memory was freed a moment ago, by KiB of the folio; files of older commands lack it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub recycled_ns: BTreeMap<u64, f64>,
    /// Nanoseconds of a fault of 2 MiB whose memory the host of a virtual machine has not taken back, where it takes free memory:
    /// `fault_ns` has those of memory that it has taken. Files of older commands lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_in_use_ns: Option<f64>,
    /// Nanoseconds that an access takes longer if it misses the TLBs; files of older commands lack it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walk_ns: Option<f64>,
    /// Nanoseconds that a fault takes longer in a recording, by the name of its kind; files of older commands lack it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub recorder_ns: BTreeMap<String, f64>,
}

/// Nanoseconds of single faults of one folio size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FaultSpread {
    /// Half of the faults take longer.
    pub median_ns: f64,
    /// One fault in a hundred takes longer.
    pub p99_ns: f64,
    /// The longest of all.
    pub longest_ns: f64,
}

impl FaultSpread {
    /// That of these faults, of which there is at least one.
    pub(super) fn of(mut faults: Vec<f64>) -> Self {
        faults.sort_by(f64::total_cmp);
        let at = |part: f64| faults[((faults.len() - 1) as f64 * part).ceil() as usize];
        Self { median_ns: at(0.5), p99_ns: at(0.99), longest_ns: at(1.0) }
    }

    /// Whether they are times, the shorter ones first.
    fn is_sound(&self) -> bool {
        let times = [0.0, self.median_ns, self.p99_ns, self.longest_ns];
        times.iter().all(|ns| ns.is_finite()) && times.is_sorted()
    }
}

impl KernelPrices {
    /// Those of this kernel and processor.
    pub fn of_this_machine(
        fault_ns: BTreeMap<u64, f64>,
        fault_spread: BTreeMap<u64, FaultSpread>,
        walk_ns: Option<f64>,
    ) -> Self {
        Self {
            version: VERSION,
            kernel: release(),
            cpu: processor(),
            fault_ns,
            fault_spread,
            recycled_ns: BTreeMap::new(),
            blocks_in_use_ns: None,
            walk_ns,
            recorder_ns: BTreeMap::new(),
        }
    }

    /// The same, and faults whose memory was freed a moment ago.
    #[must_use]
    pub fn with_recycled(self, recycled_ns: BTreeMap<u64, f64>) -> Self {
        Self { recycled_ns, ..self }
    }

    /// The same, and what a recording adds to a fault.
    #[must_use]
    pub fn with_recorder(self, recorder_ns: BTreeMap<String, f64>) -> Self {
        Self { recorder_ns, ..self }
    }

    /// The same, and a fault of 2 MiB whose memory the host has not taken back.
    #[must_use]
    pub fn with_blocks_in_use(self, blocks_in_use_ns: Option<f64>) -> Self {
        Self { blocks_in_use_ns, ..self }
    }

    /// Those of memory that the host has not taken back.
    #[must_use]
    pub fn of_memory_in_use(mut self) -> Self {
        if let Some(ns) = self.blocks_in_use_ns {
            self.fault_ns.insert(BLOCK_KIB, ns);
            // What is known of single ones is of the others.
            self.fault_spread.remove(&BLOCK_KIB);
        }
        self
    }

    /// Nanoseconds that a fault of this kind takes longer in a recording. Kinds that were not measured have what one has that
    /// brings in a page of zeroes: the records of its begin and its end.
    pub fn of_recorder(&self, kind: &str) -> f64 {
        let of = |kind| self.recorder_ns.get(kind).copied();
        of(kind).or_else(|| of(FaultKind::Anon.name())).unwrap_or(0.0)
    }

    /// Whether they are of this kernel and processor.
    pub fn are_of(&self, kernel: &str, cpu: &str) -> bool {
        !cpu.is_empty() && (&*self.kernel, &*self.cpu) == (kernel, cpu)
    }

    /// By order of the folio.
    pub fn by_order<T: Copy>(by_kib: &BTreeMap<u64, T>) -> BTreeMap<u8, T> {
        by_kib.iter().map(|(kib, of)| ((kib / 4).checked_ilog2().unwrap_or(0) as u8, *of)).collect()
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let prices: Self =
            serde_json::from_slice(bytes).context("it is no result of `quire calibrate --kernel`")?;
        ensure!(prices.version == VERSION, "it has version {}, this command reads {VERSION}", prices.version);
        let in_use = prices.blocks_in_use_ns.as_ref().map(|ns| (&BLOCK_KIB, ns));
        for (kib, ns) in prices.fault_ns.iter().chain(&prices.recycled_ns).chain(in_use) {
            let power = kib.is_power_of_two() && (4..=2048).contains(kib);
            ensure!(power && ns.is_finite() && *ns > 0.0, "it has no price for folios of {kib} KiB");
        }
        ensure!(prices.fault_ns.contains_key(&4), "it has no price for 4 KiB");
        for (kib, spread) in &prices.fault_spread {
            let known = prices.fault_ns.contains_key(kib) && spread.is_sound();
            ensure!(known, "it has no times of single faults of {kib} KiB");
        }
        let walk = prices.walk_ns.unwrap_or_default();
        ensure!(walk.is_finite() && walk >= 0.0, "it has no time of a walk");
        let recorder = prices
            .recorder_ns
            .iter()
            .find(|(kind, ns)| !FaultKind::NAMES.contains(&kind.as_str()) || !ns.is_finite());
        ensure!(recorder.is_none(), "it has no times of a recorder");
        Ok(prices)
    }

    fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).with_context(|| {
            format!("cannot read {} (make one with `quire calibrate --kernel --save`)", quoted(path))
        })?;
        Self::parse(&bytes).with_context(|| format!("{} cannot be used", quoted(path)))
    }

    /// Fails for another kernel or processor.
    fn check_machine(&self) -> Result<()> {
        let (kernel, cpu) = (release(), processor());
        if (&self.kernel, &self.cpu) != (&kernel, &cpu) {
            bail!("it was measured with Linux {} on {}", self.kernel, self.cpu);
        }
        Ok(())
    }

    /// As a JSON file.
    ///
    /// # Errors
    /// None that are known.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    /// Keeps them where [`kernel_prices`] finds them.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep(&self, place: &Path) -> Result<()> {
        let directory = place.parent().unwrap_or_else(|| Path::new("."));
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make the directory {}", quoted(directory)))?;
        Target::named(place)?.write(&self.bytes()?)
    }
}

/// The file of this machine's prices. It is in no user's directory: root measures, by `sudo` or not, and others read.
pub fn kernel_place() -> PathBuf {
    Places::of_this_machine().root.join("var/cache/quire/kernel-prices.json")
}

/// Prices, and their file.
pub type Found = (PathBuf, KernelPrices);

/// The prices in `asked`, of whatever machine, or those that are kept of this machine, The inner
/// error says why there are none, and the cure.
///
/// # Errors
/// When the file that was asked for cannot be read.
pub fn kernel_prices(asked: Option<&Path>) -> Result<Result<Found, String>> {
    const CURE: &str = "run `quire calibrate --kernel` as root";
    if let Some(path) = asked {
        return Ok(Ok((path.to_owned(), KernelPrices::load(path)?)));
    }
    let place = kernel_place();
    if !place.exists() {
        return Ok(Err(format!("this machine's Linux was never measured: {CURE}")));
    }
    let usable = KernelPrices::load(&place).and_then(|prices| prices.check_machine().map(|()| prices));
    Ok(match usable {
        Ok(prices) => Ok((place, prices)),
        Err(error) => Err(format!("{error:#}: {CURE}")),
    })
}

/// The running kernel's release.
fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
