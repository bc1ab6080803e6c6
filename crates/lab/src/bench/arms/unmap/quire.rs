//! Quire's `munmap`, on a hosted machine.

use quire::cpu::CpuId;
use quire::platform::Platform;

use super::{RunBy, Unmap, beside};
use crate::bench::experiment::{Sample, Skip};
use crate::bench::memory::Memory;
use crate::bench::ours::verbs::{Subject, Verb, at};

pub(super) struct Munmap;

impl Verb for Munmap {
    type Case = Unmap;

    const ABOUT: &'static str = "Mm::munmap on a bare hosted machine: mappings, whole tables detached by one \
     exchange, one flush of the modelled CPU, map counts, frames. No system call, no LRU, no cgroup, no \
     reverse map to change; the memory is populated without touching or clearing it.";

    const WATCHED_IN_SMALL_RUNS: bool = true;

    fn memory(case: &Unmap) -> Memory {
        case.memory
    }

    fn with_memory(case: &Unmap, memory: Memory) -> Option<Unmap> {
        let plain = case.each == case.memory.bytes && case.run_by == RunBy::One;
        plain.then_some(Unmap { memory, each: memory.bytes, ..*case })
    }

    fn cpus(case: &Unmap) -> usize {
        case.run_by.cpus().max(1)
    }

    fn work<P: Platform>(case: &Unmap, subject: Subject<'_, '_, P>) -> Result<Sample, Skip> {
        let mm = &subject.mm;
        let sample = match case.run_by {
            RunBy::One => unmap(case, &subject),
            RunBy::NoCpu => {
                mm.switch_out();
                unmap(case, &subject)
            }
            RunBy::Two(processor) => {
                let machine = subject.machine;
                let spin = |spin: &dyn Fn()| {
                    machine.run_on(CpuId(1), || {
                        mm.switch_in();
                        spin();
                        mm.switch_out();
                    });
                };
                beside(processor, spin, || unmap(case, &subject))
            }
        }?;
        subject.expect_mapped(0)?;
        Ok(sample)
    }
}

fn unmap<P: Platform>(case: &Unmap, subject: &Subject<'_, '_, P>) -> Result<Sample, Skip> {
    let counted = subject.counted();
    let (outcome, time) = counted.timed(|| {
        let calls = (0..case.memory.bytes).step_by(case.each);
        calls.map(|offset| subject.mm.munmap(at(offset), case.each as u64)).find(Result::is_err)
    })?;
    outcome.unwrap_or(Ok(())).map_err(|error| Skip::because("munmap", error))?;
    Ok(counted.sample(time, subject.pages))
}
