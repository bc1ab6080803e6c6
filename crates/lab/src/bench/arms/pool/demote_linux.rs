//! The running kernel's pages of 1 GiB, demoted.

use std::time::Instant;

use quire::hugetlb::HugeSize;

use super::case::{Demotion, PARTS, REQUEST, Way};
use super::kernel::{Kernel, check, resize, write};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

pub(super) struct Linux {
    pub(super) kernel: Kernel,
}

impl Arm<Demotion> for Linux {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn about(&self) -> &'static str {
        self.kernel.about(
            "one write to `demote` of the running kernel's pool of 1 GiB, with \
         hugetlb_optimize_vmemmap off: system call, links and counts, page descriptors. All settings are put \
         back.",
        )
    }

    fn setup(&mut self, case: &Demotion) -> Result<Box<dyn Prepared + '_>, Skip> {
        if case.way != Way::Demote {
            return Err(Skip("Linux cannot make pages of 1 GiB out of pages of 2 MiB".to_owned()));
        }
        self.kernel.clear_for(&HugeSize::ALL, HugeSize::Size1G, case.pages)?;
        Ok(Box::new(Ready { case: *case, kernel: &self.kernel }))
    }
}

struct Ready<'a> {
    case: Demotion,
    kernel: &'a Kernel,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let pages = self.case.pages;
        self.kernel.choose_saving()?;
        resize(HugeSize::Size1G, pages)?;
        let start = Instant::now();
        let written = write(HugeSize::Size1G, "demote", pages);
        let nanoseconds = start.elapsed().as_nanos() as f64;
        let outcome = written.and_then(|()| check(HugeSize::Size2M, pages * PARTS));
        resize(HugeSize::Size2M, 0)?;
        outcome?;
        check(HugeSize::Size1G, 0)?;
        Ok(Sample::new(nanoseconds / pages as f64, pages).metric(REQUEST, nanoseconds).count("pages", pages))
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        HugeSize::ALL.into_iter().for_each(|size| self.kernel.empty(size));
    }
}
