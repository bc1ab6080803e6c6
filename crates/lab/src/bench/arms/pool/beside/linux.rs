//! The running kernel's pool and its small pages.

use quire::hugetlb::HugeSize;

use super::{Memory, Resizing};
use crate::bench::arms::churn::pieces::{SmallPages, linux_piece};
use crate::bench::arms::pool::kernel::{Kernel, total, write};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};

const SIZE: HugeSize = HugeSize::Size2M;

pub(in crate::bench::arms::pool) struct Linux {
    pub(in crate::bench::arms::pool) kernel: Kernel,
}

impl Arm<Resizing> for Linux {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn about(&self) -> &'static str {
        self.kernel.about(
            "one write to nr_hugepages and a read of it for each request, beside threads of \
         this process that mmap, touch and munmap without transparent huge pages. hugetlb_optimize_vmemmap \
         is off; all settings are put back.",
        )
    }

    fn setup(&mut self, case: &Resizing) -> Result<Box<dyn Prepared + '_>, Skip> {
        self.kernel.clear_for(&[SIZE], SIZE, case.pages)?;
        Ok(Box::new(Ready { case: case.clone(), kernel: &self.kernel, _small: SmallPages::only() }))
    }
}

struct Ready<'a> {
    case: Resizing,
    kernel: &'a Kernel,
    _small: SmallPages,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.kernel.choose_saving()?;
        self.case.play(&Running)
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.kernel.empty(SIZE);
    }
}

struct Running;

impl Memory for Running {
    fn enter(&self, _cpu: usize, _worker: bool, body: &mut dyn FnMut()) {
        body();
    }

    fn region(&self, bytes: usize) -> Option<()> {
        linux_piece(bytes)
    }

    fn resize(&self, wanted: u64) -> Result<u64, Skip> {
        write(SIZE, "nr_hugepages", wanted)?;
        Ok(total(SIZE))
    }
}
