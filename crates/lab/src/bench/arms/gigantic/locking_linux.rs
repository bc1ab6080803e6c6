//! Locks huge pages of the running kernel.

use std::rc::Rc;
use std::time::Instant;

use super::busy::{Busy, length};
use super::ground::{Shared, zeroes};
use super::locking::{Locking, WAITED};
use crate::bench::arms::clear::huge::{Chooser, Pool};
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::host::threads::together;

pub(super) struct HugeTlb {
    pub(super) chooser: Chooser,
    pub(super) shared: Rc<Shared>,
}

impl Arm<Locking> for HugeTlb {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "each thread calls mlock on private hugetlb memory, which the kernel clears with its own reschedule \
         points. The pool is made for the case and put back after it."
    }

    fn setup(&mut self, case: &Locking) -> Result<Box<dyn Prepared + '_>, Skip> {
        if self.shared.processors.len() < case.threads {
            return Err(Skip(format!("this machine has fewer processors than {} threads", case.threads)));
        }
        let pool = Pool::of(&self.chooser, case.page, case.total() / case.page)?;
        Ok(Box::new(Ready { case: *case, pool, processors: &self.shared.processors }))
    }
}

struct Ready<'a> {
    case: Locking,
    pool: Pool,
    processors: &'a [usize],
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = self.case;
        let mapping = self.pool.map(case.total())?;
        let busy = case.loaded.then(|| Busy::on(&self.processors[..case.threads]));
        let mut parts: Vec<usize> = (0..case.threads).collect();
        let spans = together(&mut parts, self.processors, |part, meeting| {
            meeting.wait();
            let begun = Instant::now();
            mapping.lock(*part, case.threads).map(|()| (begun, Instant::now()))
        });
        let waited = busy.map(|busy| busy.waited());
        let spans = spans.into_iter().collect::<Result<Vec<_>, Skip>>()?;
        let zeroes = zeroes(0, case.total(), |at| Some(mapping.word(at)));
        let sample = case.sample(length(&spans), zeroes)?;
        Ok(match waited {
            Some(waited) => sample.metric(WAITED, waited),
            None => sample,
        })
    }
}
