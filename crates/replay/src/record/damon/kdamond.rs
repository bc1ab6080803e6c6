//! A thread of DAMON, by its files in sysfs (Linux: `Documentation/admin-guide/mm/damon/usage.rst`). Below its directory
//! are numbers of contexts and targets: writing one makes so many directories.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::line;
use crate::host::thp::selected;
use crate::settings::{Places, Settings};

/// From one look at the accessed bits to the next: the kernel's default.
pub(super) const SAMPLE: Duration = Duration::from_millis(5);

/// Looks that are added up: 100 ms, the kernel's default.
pub(super) const SAMPLES: u32 = 20;

/// How often the regions are fitted to the mappings.
const UPDATE: Duration = Duration::from_millis(500);

/// The least number of regions of all targets together, and the most. Each look costs a walk of the page table for each.
const REGIONS: (usize, usize) = (100, 1000);

/// The operations that watch the addresses of processes.
const OPERATIONS: &str = "vaddr";

/// The thread. Its number goes back with this value.
pub(super) struct Kdamond<W> {
    directory: PathBuf,
    write: W,
    _number: Settings,
}

impl<W: Fn(&Path, &str) -> io::Result<()>> Kdamond<W> {
    /// Makes the thread, with one context.
    ///
    /// # Errors
    /// Why this kernel cannot.
    pub(super) fn claim(places: &Places, write: W) -> Result<Self, String> {
        let number = Settings::kdamond(places).map_err(|error| error.to_string())?;
        let kdamond = Self { directory: places.kdamonds.join("0"), write, _number: number };
        kdamond.put("contexts/nr_contexts", "1")?;
        let available = fs::read_to_string(kdamond.directory.join("contexts/0/avail_operations"));
        let available = available.map_err(|error| format!("DAMON does not tell its operations: {error}"))?;
        if !available.split_whitespace().any(|operations| operations == OPERATIONS) {
            let others = available.split_whitespace().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "this kernel's DAMON watches no addresses of processes (CONFIG_DAMON_VADDR), only {others}"
            ));
        }
        Ok(kdamond)
    }

    /// Watches processes, in this order. Returns the number of the thread.
    ///
    /// # Errors
    /// One of them has ended; DAMON is in use otherwise.
    pub(super) fn start(&self, pids: &[i32]) -> Result<i32, String> {
        let micros = |time: Duration| time.as_micros().to_string();
        let (least, most) = REGIONS;
        // The kernel refuses fewer than three of each.
        let least = (least / pids.len().max(1)).max(3);
        let attributes = [
            ("intervals/sample_us", micros(SAMPLE)),
            ("intervals/aggr_us", micros(SAMPLE * SAMPLES)),
            ("intervals/update_us", micros(UPDATE)),
            ("nr_regions/min", least.to_string()),
            ("nr_regions/max", most.to_string()),
        ];
        self.put("contexts/0/operations", OPERATIONS)?;
        for (name, value) in attributes {
            self.put(&format!("contexts/0/monitoring_attrs/{name}"), &value)?;
        }
        self.put("contexts/0/targets/nr_targets", &pids.len().to_string())?;
        for (target, pid) in pids.iter().enumerate() {
            self.put(&format!("contexts/0/targets/{target}/pid_target"), &pid.to_string())?;
        }
        self.put("state", "on")?;
        let thread = selected(&self.directory.join("pid")).and_then(|pid| pid.parse::<i32>().ok());
        let thread = thread.filter(|pid| *pid > 0).ok_or("DAMON's thread has ended at once")?;
        // It is the number of the first PID namespace.
        match line(format!("/proc/{thread}/comm")) {
            Some(name) if name.starts_with("kdamond") => Ok(thread),
            _ => Err("DAMON's thread is not seen from this PID namespace".to_owned()),
        }
    }

    /// Whether it runs; it ends with the last process that it watches.
    pub(super) fn is_on(&self) -> bool {
        selected(&self.directory.join("state")).as_deref() == Some("on")
    }

    /// Ends it, if it runs.
    pub(super) fn stop(&self) {
        if self.is_on() {
            // One that ended just now is refused.
            let _ = self.put("state", "off");
        }
    }

    fn put(&self, name: &str, value: &str) -> Result<(), String> {
        let path = self.directory.join(name);
        (self.write)(&path, value).map_err(|error| format!("DAMON refuses {value} as {name}: {error}"))
    }
}

/// Writes a file of sysfs.
pub(super) fn put(path: &Path, value: &str) -> io::Result<()> {
    fs::write(path, value)
}
