//! Touches fresh large pages of the running kernel: one of 1 GiB from a pool, or transparent ones of 2 MiB.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Instant;

use super::first::{First, PIECE, What};
use super::ground::{GIB, zeroes};
use crate::bench::arms::clear::huge::{Chooser, Pool};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::linux::populate::verify;

pub(super) fn all(chooser: &Chooser) -> Vec<Box<dyn Arm<First>>> {
    vec![
        Box::new(HugeTlb { chooser: chooser.clone(), pool: OnceCell::new() }),
        Box::new(Thp { chooser: chooser.clone() }),
    ]
}

struct HugeTlb {
    chooser: Chooser,
    /// Filled for the first case, since the kernel takes a second to find a contiguous GiB.
    pool: OnceCell<Result<Rc<Pool>, Skip>>,
}

impl Arm<First> for HugeTlb {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "stores to private hugetlb memory of one page of 1 GiB, all of which the first fault clears. The \
         pool is made for the experiment and put back."
    }

    fn setup(&mut self, case: &First) -> Result<Box<dyn Prepared + '_>, Skip> {
        let pool = self.pool.get_or_init(|| Pool::of(&self.chooser, GIB, 1).map(Rc::new));
        Ok(Box::new(HugeReady { case: *case, pool: pool.clone()? }))
    }
}

struct HugeReady {
    case: First,
    pool: Rc<Pool>,
}

impl Prepared for HugeReady {
    fn run(&mut self) -> Result<Sample, Skip> {
        let mapping = self.pool.map(GIB)?;
        let begun = Instant::now();
        self.case.stores().for_each(|at| mapping.store(at));
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        if self.pool.free() > 0 {
            return Err(Skip("the page of the pool was not used".to_owned()));
        }
        let (start, end) = self.case.ready();
        self.case.sample(nanoseconds, zeroes(start, end, |at| Some(mapping.word(at))))
    }
}

const HUGE: Folio = Folio { order: 9, pmd: true };

struct Thp {
    chooser: Chooser,
}

impl Arm<First> for Thp {
    fn name(&self) -> &'static str {
        "linux-thp"
    }

    fn about(&self) -> &'static str {
        "stores to anonymous memory in transparent huge pages of 2 MiB, with a fault for each; it never gets \
         a page of 1 GiB. Sizes are forced in /sys and verified in /proc/kpageflags."
    }

    fn setup(&mut self, case: &First) -> Result<Box<dyn Prepared + '_>, Skip> {
        self.chooser.borrow_mut().choose(HUGE)?;
        Ok(Box::new(ThpReady { case: *case, chooser: self.chooser.clone() }))
    }
}

struct ThpReady {
    case: First,
    chooser: Chooser,
}

impl Prepared for ThpReady {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (start, end) = self.case.ready();
        let mut region = self.chooser.borrow().map(end - start, HUGE)?;
        let begun = Instant::now();
        // `all`: a touch of each page populates everything. `byte`: only the touched page is populated.
        let each = First { what: What::Each }.stores();
        let nth = (end - start) / PIECE;
        each.take(nth).for_each(|at| region.touch(at / PAGE));
        let nanoseconds = begun.elapsed().as_nanos() as f64;
        verify("self", &region, HUGE)?;
        let bytes = region.as_bytes();
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        self.case.sample(nanoseconds, zeroes(0, bytes.len(), word))
    }
}
