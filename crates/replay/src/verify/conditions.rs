//! What else is set while the programs of `quire verify` run: folio sizes of shared memory, pools of huge
//! pages, khugepaged.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::advise::{self, Asked};
use crate::host::memory;
use crate::host::pools::Pool;
use crate::replay::FolioSet;
use crate::settings::{Places, Settings};

/// Sizes of huge pages: name and KiB.
const POOLS: [(&str, usize); 2] = [("2M", 2 << 10), ("1G", 1 << 20)];

/// No processor addresses more.
const MOST_BYTES: u64 = 1 << 56;

/// A pool may take so many eighths of the memory that the machine can give: its programs go on.
const EIGHTHS: u64 = 7;

/// How often the use of a pool is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What the user wants to be set.
#[derive(Clone, Debug, Default)]
pub(super) struct Conditions {
    pub(super) shmem: Option<FolioSet>,
    pub(super) pools: PoolPages,
    pub(super) khugepaged: Option<Asked>,
    /// Whether free memory rests before each run, so that the host of a virtual machine may take it back.
    pub(super) rests: bool,
}

/// Pages that are free in the pools of each size when a program starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PoolPages(pub(super) [u64; POOLS.len()]);

/// The conditions as they are told.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Told {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shmem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) khugepaged: Option<String>,
}

/// Parses pages by size, as `2M=16,1G=1`.
pub(super) fn parse_pools(text: &str) -> Result<PoolPages, String> {
    let (mut pages, mut named) = (PoolPages::default(), [false; POOLS.len()]);
    for one in text.split(',') {
        let wrong = || "write SIZE=PAGES, as 2M=16 or 1G=1, several between commas".to_owned();
        let (size, number) = one.split_once('=').ok_or_else(wrong)?;
        let at =
            POOLS.iter().position(|(name, _)| name.eq_ignore_ascii_case(size.trim())).ok_or_else(wrong)?;
        let number: u64 = number.trim().parse().map_err(|_| wrong())?;
        if number > MOST_BYTES / ((POOLS[at].1 as u64) << 10) {
            return Err(format!("{size}={number} are more pages than a machine has"));
        }
        if std::mem::replace(&mut named[at], true) {
            return Err(format!("{size} has two numbers of pages"));
        }
        pages.0[at] = number;
    }
    Ok(pages)
}

impl PoolPages {
    pub(super) const fn is_none(self) -> bool {
        self.0[0] == 0 && self.0[1] == 0
    }

    /// The bytes of all.
    pub(super) fn bytes(self) -> u64 {
        self.0.iter().zip(POOLS).map(|(pages, (_, kib))| (pages * kib as u64) << 10).sum()
    }

    fn name(self) -> Option<String> {
        let sizes = self.0.iter().zip(POOLS).filter(|(pages, _)| **pages > 0);
        let names: Vec<String> = sizes.map(|(pages, (name, _))| format!("{name}={pages}")).collect();
        (!names.is_empty()).then(|| names.join(","))
    }
}

impl Conditions {
    /// Sets all of it. Without a wish khugepaged is held: it would collapse small pages of longer programs.
    ///
    /// # Errors
    /// Settings that the kernel lacks or refuses, and pools that do not get their pages.
    pub(super) fn apply(&self, settings: &Settings, places: &Places) -> Result<()> {
        match &self.khugepaged {
            Some(asked) => settings.khugepaged(&asked.values())?,
            None => settings.hold_khugepaged()?,
        }
        if let Some(set) = self.shmem {
            settings.shmem(&set.kib().collect::<Vec<_>>())?;
        }
        // The pages of a pool are of no control group.
        let available = || memory::available().unwrap_or(0);
        for (wanted, (name, kib)) in self.pools.0.iter().zip(POOLS).filter(|(pages, _)| **pages > 0) {
            fill(settings, places, available(), (name, kib), *wanted)?;
        }
        Ok(())
    }

    /// Refuses what cannot be run under these sizes.
    ///
    /// # Errors
    /// khugepaged where no memory may have folios of 2 MiB under any of them: Linux does not start it then.
    pub(super) fn check(&self, sizes: &[FolioSet]) -> Result<()> {
        match &self.khugepaged {
            Some(asked) if asked.values().is_empty() => {
                bail!("--khugepaged off: it is held without this option; leave it out")
            }
            Some(_) if !sizes.is_empty() && !sizes.iter().any(|set| advise::khugepaged_starts(*set)) => {
                bail!(
                    "khugepaged collapses nothing where folios of 2M are off: with --khugepaged, --sizes must have a set with 2M"
                )
            }
            _ => Ok(()),
        }
    }

    /// The pools, if pages were wanted.
    pub(super) fn pools(&self) -> Option<PoolPages> {
        (!self.pools.is_none()).then_some(self.pools)
    }

    pub(super) fn told(&self) -> Told {
        let khugepaged = self.khugepaged.as_ref().map(|asked| {
            let values = asked.values();
            values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
        });
        Told { shmem: self.shmem.map(FolioSet::name), pool: self.pools.name(), khugepaged }
    }
}

/// The directory of a pool.
fn pool(places: &Places, kib: usize) -> PathBuf {
    places.pools.join(format!("hugepages-{kib}kB"))
}

/// Makes a pool large enough for so many free pages that no mapping has reserved. The kernel would grant as
/// much as it can, down to the last page of other programs, so that more than most of the `available` bytes
/// is not asked for.
fn fill(
    settings: &Settings,
    places: &Places,
    available: u64,
    (name, kib): (&str, usize),
    wanted: u64,
) -> Result<()> {
    let directory = pool(places, kib);
    let Some(Pool { all, free }) = Pool::read(&directory) else {
        bail!("this kernel has no pool of huge pages of {name}")
    };
    let more = wanted.saturating_sub(free);
    if more == 0 {
        return Ok(());
    }
    let most = available / 8 * EIGHTHS / ((kib as u64) << 10);
    if more > most {
        bail!(
            "the pool of huge pages of {name} has {free} free pages of {wanted}, and this machine has memory for {most} more"
        );
    }
    settings.set(&directory.join("nr_hugepages"), &(all + more).to_string())?;
    match unreserved(&directory) {
        Some(free) if free >= wanted => Ok(()),
        free => bail!(
            "the pool of huge pages of {name} has {} free pages of {wanted}: memory is in use, or in pieces",
            free.unwrap_or(0)
        ),
    }
}

/// Free pages that no mapping has reserved.
fn unreserved(directory: &Path) -> Option<u64> {
    Pool::read(directory).map(|pages| pages.free)
}

/// Ends the watch when what is watched has ended, by a panic too: its thread is waited for, and the settings
/// are put back behind it.
struct EndsWatch<'a>(&'a AtomicBool);

impl Drop for EndsWatch<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does something, and looks meanwhile how many pages of the pools are in use or reserved at the most.
pub(super) fn watched<T>(pools: PoolPages, places: &Places, run: impl FnOnce() -> T) -> (T, PoolPages) {
    if pools.is_none() {
        return (run(), PoolPages::default());
    }
    let directories = POOLS.map(|(_, kib)| pool(places, kib));
    let before = directories.each_ref().map(|directory| unreserved(directory).unwrap_or(0));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = [0; POOLS.len()];
            while !ended.load(Ordering::Relaxed) {
                for (at, directory) in directories.iter().enumerate() {
                    let free = unreserved(directory).unwrap_or(before[at]);
                    most[at] = most[at].max(before[at].saturating_sub(free));
                }
                thread::sleep(LOOK);
            }
            PoolPages(most)
        });
        let ends = EndsWatch(&ended);
        let done = run();
        drop(ends);
        (done, watch.join().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests;
