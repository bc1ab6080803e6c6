//! The timed loops of `page-alloc`, the same for every arm, one kind of work in each file.

mod cross;
mod crowded;
mod few;
mod filled;
mod half;
mod mixed;
mod pair;
mod places;
mod scattered;
mod sweep;
mod work;

use super::case::{Crowded, Frames, Operation, PageAlloc};
use crate::bench::experiment::{Prepared, Sample, Skip};
use places::Places;
use work::Worker;

/// An arm that is ready. `build` makes a source for each thread, over memory that is entirely free.
struct Measured<F: Frames, B> {
    case: PageAlloc,
    build: B,
    workers: Vec<Worker<F>>,
}

/// Prepares `case`. Its sources are built now, unless every repetition needs its own memory.
///
/// # Errors
/// Those of `build`.
pub(super) fn prepare<'a, F: Frames + 'a>(
    case: &PageAlloc,
    mut build: impl FnMut() -> Result<Vec<F>, Skip> + 'a,
) -> Result<Box<dyn Prepared + 'a>, Skip> {
    let held = match case.operation {
        Operation::Sweep | Operation::Half(_) => case.count,
        Operation::Pair(_) | Operation::Cross | Operation::FewFree | Operation::Crowded(_) => 0,
    };
    let worker = |source| Worker { source, frames: Places::new(held) };
    let workers = match case.operation {
        Operation::Crowded(_) => Vec::new(),
        _ => build()?.into_iter().map(worker).collect(),
    };
    Ok(Box::new(Measured { case: case.clone(), build, workers }))
}

impl<F: Frames, B: FnMut() -> Result<Vec<F>, Skip>> Prepared for Measured<F, B> {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.workers.iter_mut().for_each(|worker| worker.frames.shift());
        match self.case.operation {
            Operation::Pair(order) => pair::run(&self.case, &mut self.workers, order),
            Operation::Sweep => sweep::run(&self.case, &mut self.workers),
            Operation::Half(half) => half::run(&self.case, &mut self.workers, half),
            Operation::Cross => cross::run(&self.case, &mut self.workers),
            Operation::FewFree => few::run(&self.case, &mut self.workers),
            Operation::Crowded(what) if what != Crowded::Scarce && !F::bears_scattered_frames() => {
                Err(Skip(SCATTERED.to_owned()))
            }
            Operation::Crowded(what) => crowded::run(&self.case, what, &mut || one((self.build)()?)),
        }
    }
}

/// Why a source leaves a case out.
const SCATTERED: &str =
    "free frames are scattered over all memory: a call searches a list of up to 100000 ranges";

/// The source of a case with one thread.
fn one<F>(sources: Vec<F>) -> Result<F, Skip> {
    sources.into_iter().next().ok_or_else(|| Skip("no thread, no source of frames".to_owned()))
}

#[cfg(test)]
mod tests;
