//! Each kernel by itself on the machine of the arm `quire`: the upper bound for populating.

use hosted::raw::RawMachine;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange};
use quire::arch::{CpuFeatures, ReadyClear};
use quire::cpu::CpuId;

use super::grounds::{MARKED, mark, zeroes};
use super::populate::{Populating, length};
use super::way::Way;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::PAGE;
use crate::host::threads::Meeting;

/// The machine of a case, shared by all arms that clear its memory, because the host's pages differ in speed.
#[derive(Clone, Default)]
pub(super) struct Machines(Rc<RefCell<Option<Rc<Hosted>>>>);

impl Machines {
    /// Uses an existing machine, for the cases that it [fits](Self::bytes).
    #[cfg(test)]
    pub(super) fn with(machine: Hosted) -> Self {
        Self(Rc::new(RefCell::new(Some(Rc::new(machine)))))
    }

    /// Memory for a case and one page more, so that enough pages are aligned wherever the tables are.
    pub(super) fn bytes(case: &Populating) -> u64 {
        (case.total() + case.page.max(64 << 20)) as u64
    }

    /// The machine with memory and CPUs for a case.
    pub(super) fn of(&self, case: &Populating) -> Result<Rc<Hosted>, Skip> {
        let bytes = Self::bytes(case);
        let mut kept = self.0.borrow_mut();
        let fits = |machine: &&Rc<Hosted>| {
            machine.ranges()[0].bytes == bytes && machine.config().cpus == case.threads
        };
        if let Some(machine) = kept.as_ref().filter(fits) {
            return Ok(machine.clone());
        }
        // Drops the old machine before building a larger one.
        *kept = None;
        let built = HostedConfig::bench(bytes).with_cpus(case.threads).build();
        let machine = Rc::new(built.map_err(|error| Skip(error.to_string()))?);
        *kept = Some(machine.clone());
        Ok(machine)
    }
}

/// One kernel over each thread's part, and nothing else.
pub(super) struct Raw {
    way: Way,
    kernel: ReadyClear,
    cpus: Vec<usize>,
    machines: Machines,
}

impl Raw {
    pub(super) fn arm(way: Way, cpus: &[usize], machines: &Machines) -> Box<dyn Arm<Populating>> {
        let ready = match way {
            Way::Kernel(kernel) => kernel.on(CpuFeatures::detect()).ok(),
            _ => None,
        };
        let kernel = ready.unwrap_or(ReadyClear::PLAIN);
        Box::new(Self { way, kernel, cpus: cpus.to_vec(), machines: machines.clone() })
    }
}

impl Arm<Populating> for Raw {
    fn name(&self) -> &'static str {
        self.way.name()
    }

    fn about(&self) -> &'static str {
        self.way.about()
    }

    fn setup(&mut self, case: &Populating) -> Result<Box<dyn Prepared + '_>, Skip> {
        let machine = self.machines.of(case)?;
        Ok(Box::new(Ready { kernel: self.kernel, cpus: &self.cpus, machine, case: *case }))
    }
}

struct Ready<'a> {
    kernel: ReadyClear,
    cpus: &'a [usize],
    machine: Rc<Hosted>,
    case: Populating,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let (case, kernel, machine) = (self.case, self.kernel, &*self.machine);
        let page = (case.page / PAGE) as u64;
        let first = machine.ranges()[0].start.frame().0.next_multiple_of(page);
        let frames = (case.bytes / PAGE) as u64;
        let meeting = Meeting::of(case.threads);
        let done = machine.spawn_pinned_cpus(case.threads, self.cpus, |cpu: CpuId| {
            let part = FrameRange::new(Frame(first + cpu.index() as u64 * frames), frames);
            mark(machine, part);
            meeting.wait();
            let begun = Instant::now();
            machine.clear_raw(part, kernel);
            let ended = Instant::now();
            ((begun, ended), zeroes(machine, part))
        });
        let (spans, cleared): (Vec<_>, Vec<_>) = done.into_iter().unzip();
        Ok(case.sample(length(&spans), cleared.iter().sum::<u64>() * (MARKED / PAGE) as u64))
    }
}
