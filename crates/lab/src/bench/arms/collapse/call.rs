//! The call `MADV_COLLAPSE`, apart from the experiment `collapse-thp`: other experiments make it too.

use std::time::Instant;

use rustix::mm::Advice;

use crate::bench::experiment::{Sample, Skip};
use crate::bench::linux::census;
use crate::bench::linux::region::Region;
use crate::bench::linux::verbs::Subject;

/// Collapses all of a region by `MADV_COLLAPSE`.
///
/// # Errors
/// [`Skip`] if the kernel does not collapse all of it.
pub fn by_kernel(subject: Subject) -> Result<Sample, Skip> {
    let region = &subject.region;
    // The case declined larger folios to get single frames; the collapse must be allowed again.
    region.advise(Advice::LinuxHugepage).map_err(|error| Skip::because("MADV_HUGEPAGE", error))?;
    timed(&subject, census::pmd_mapped)
}

/// Populates and frees so many bytes in huge pages. What the collapse allocates is then memory that the host
/// of a virtual machine has brought in, as all of the memory of Quire's machine is.
///
/// # Errors
/// [`Skip`] if the kernel has too little memory.
pub fn bring_in(bytes: usize) -> Result<(), Skip> {
    let refused = |error| Skip::because("memory to bring in", error);
    let region = Region::map(bytes).map_err(refused)?;
    region.advise(Advice::LinuxHugepage).map_err(refused)?;
    region.touch_all();
    Ok(())
}

/// Times the call. Afterwards PMDs must map all of the region, with its contents.
pub(super) fn timed(
    subject: &Subject,
    mapped: impl Fn(&str, &Region) -> Result<(u64, bool), Skip>,
) -> Result<Sample, Skip> {
    let region = &subject.region;
    bring_in(region.bytes())?;
    let start = Instant::now();
    let outcome = region.collapse();
    let time = start.elapsed().as_nanos() as f64;
    outcome.map_err(|error| {
        Skip::because("MADV_COLLAPSE (needs Linux 6.1 or later and free memory in one piece)", error)
    })?;
    let (mapped, _) = mapped("self", region)?;
    if mapped != region.bytes() as u64 {
        return Err(Skip(format!("{mapped} bytes are mapped by PMDs where {} should be", region.bytes())));
    }
    match region.marked() {
        pages if pages == subject.pages => Ok(Sample::new(time, pages)),
        pages => Err(Skip(format!("{pages} pages hold what was written, of {}", subject.pages))),
    }
}
