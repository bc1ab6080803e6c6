//! Memory of the running kernel, populated by folios of one chosen and verified size.

use rustix::mm::Advice;

use super::census;
use super::region::Region;
use crate::bench::experiment::Skip;
use crate::bench::folio::{Folio, PAGE};
use crate::host::thp::compact;
use crate::settings::{Places, Settings};

/// Share of the folios that must have the wanted size: the kernel may fall back for a few of them.
const WANTED_SHARE: f64 = 0.99;

/// Chooses folio sizes on this machine; dropping it restores the settings that it changed.
#[derive(Debug, Default)]
pub struct FolioChooser {
    settings: Option<Settings>,
}

impl FolioChooser {
    /// Makes the kernel use folios like `folio` for the regions of [`Self::map`].
    ///
    /// # Errors
    /// [`Skip`] when this kernel or this user cannot choose that size.
    pub fn choose(&mut self, folio: Folio) -> Result<(), Skip> {
        // Base pages need no setting: the mapping itself declines larger ones.
        if folio.order == 0 {
            return Ok(());
        }
        Ok(self.settings()?.only(folio.bytes() / 1024)?)
    }

    /// The right to change settings, which one process has at a time.
    ///
    /// # Errors
    /// [`Skip`] when this user may not change them.
    pub fn settings(&mut self) -> Result<&Settings, Skip> {
        let held = match self.settings.take() {
            Some(held) => held,
            None => Settings::acquire(&Places::of_this_machine())?,
        };
        Ok(self.settings.insert(held))
    }

    /// A region of `bytes`, not populated, whose faults are to be served with folios like `folio`.
    ///
    /// # Errors
    /// [`Skip`] when the kernel refuses the memory or the advice.
    pub fn map(&self, bytes: usize, folio: Folio) -> Result<Region, Skip> {
        self.advise(Region::map(bytes), folio)
    }

    /// The same for a region that was mapped already.
    ///
    /// # Errors
    /// As [`Self::map`].
    pub fn advise(&self, mapped: std::io::Result<Region>, folio: Folio) -> Result<Region, Skip> {
        let region = mapped.map_err(|error| Skip::because("cannot map the memory of the case", error))?;
        let advice = if folio.order == 0 { Advice::LinuxNoHugepage } else { Advice::LinuxHugepage };
        region
            .advise(advice)
            .map_err(|error| Skip::because("the kernel refuses advice on folio sizes", error))?;
        Ok(region)
    }

    /// Folios like `folio` given out by faults so far, in the whole system; 0 for base pages, which are not counted.
    pub fn allocated(&self, folio: Folio) -> u64 {
        let settings = self.settings.as_ref().filter(|_| folio.order > 0);
        settings.and_then(|settings| settings.allocated(folio.bytes() / 1024)).unwrap_or(0)
    }

    /// Checks by the kernel's counter that populating `region` took folios like `folio`; cheap, and touches no
    /// descriptor. `before` is [`Self::allocated`] before it was populated.
    ///
    /// # Errors
    /// [`Skip`] when too many were of another size.
    pub fn check_counter(&self, region: &Region, folio: Folio, before: u64) -> Result<u64, Skip> {
        let wanted = (region.bytes() / folio.bytes()) as u64;
        if folio.order == 0 {
            return Ok(wanted);
        }
        let got = self.allocated(folio).saturating_sub(before);
        // The caller may try once more.
        enough(got, wanted, folio, "were allocated with").inspect_err(|_| compact())?;
        Ok(got)
    }
}

/// Checks frame by frame that `region` of the process `process` (a number or `self`) is populated by folios like `folio`,
/// mapped as it says, in one mapping.
///
/// # Errors
/// [`Skip`] when it is not, or when this user may not look.
pub fn verify(process: &str, region: &Region, folio: Folio) -> Result<(), Skip> {
    let wanted = (region.bytes() / folio.bytes()) as u64;
    if folio.order > 0 {
        let folios = census::folios(process, region)?;
        let of = |pages| folios.get(&pages).copied().unwrap_or(0);
        // The size of these is known by the counter of faults alone.
        let untold = of(census::UNTOLD).div_ceil(1 << folio.order);
        enough(of(1 << folio.order), wanted.saturating_sub(untold), folio, "have, by their descriptors,")?;
    }
    let (pmd_mapped, whole) = census::pmd_mapped(process, region)?;
    if !whole {
        return Err(Skip("the kernel keeps the region as several mappings".to_owned()));
    }
    let wanted_pmd = if folio.pmd { region.bytes() as u64 } else { 0 };
    if pmd_mapped.abs_diff(wanted_pmd) as f64 > region.bytes() as f64 * (1.0 - WANTED_SHARE) {
        return Err(Skip(format!("{pmd_mapped} bytes are mapped by a PMD where {wanted_pmd} should be")));
    }
    Ok(())
}

/// `how` they got their size: faults and later splits have different causes.
fn enough(got: u64, wanted: u64, folio: Folio, how: &str) -> Result<(), Skip> {
    if (got as f64) < wanted as f64 * WANTED_SHARE {
        let kib = folio.bytes() / 1024;
        return Err(Skip(format!(
            "only {got} of {wanted} folios {how} {kib} KiB: free or compact memory (/proc/sys/vm/compact_memory)"
        )));
    }
    Ok(())
}

/// Splits every PMD mapping of `region` into 512 PTEs and keeps the folios whole: it sets and clears a flag
/// of the mapping page by page, which splits the mapping inside a PMD.
///
/// # Errors
/// [`Skip`] when the kernel refuses.
pub fn split_pmds(region: &Region) -> Result<(), Skip> {
    let huge = (2 << 20) / PAGE;
    for first in (0..region.pages()).step_by(huge) {
        for advice in [Advice::LinuxDontFork, Advice::LinuxDoFork] {
            region
                .advise_pages(first, 1, advice)
                .map_err(|error| Skip::because("cannot split a PMD by advice on one page", error))?;
        }
    }
    // Otherwise khugepaged may collapse the PMDs again.
    region.advise(Advice::LinuxNoHugepage).map_err(|error| Skip::because("cannot keep PMDs split", error))
}

/// Minor faults of this process so far.
///
/// # Errors
/// [`Skip`] when `/proc/self/stat` cannot be read.
pub fn minor_faults() -> Result<u64, Skip> {
    procfs::process::Process::myself()
        .and_then(|process| process.stat())
        .map(|stat| stat.minflt)
        .map_err(|error| Skip::because("cannot read /proc/self/stat", error))
}
