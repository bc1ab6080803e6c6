//! Quire's heap, on a hosted machine.

use std::time::Instant;

use hosted::{Bare, Hosted};
use quire::addr::VirtAddr;
use quire::manager::MemoryManager;
use quire::vm::{Access, Mm};

use super::Heap;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::folio::{Folio, PAGE};
use crate::bench::ours;

/// Where the heap starts.
const START: VirtAddr = VirtAddr(64 << 30);

#[derive(Default)]
pub(super) struct Quire {
    machine: Option<Hosted>,
}

impl Arm<Heap> for Quire {
    fn name(&self) -> &'static str {
        "quire"
    }

    fn about(&self) -> &'static str {
        "Mm::brk and a clearing Mm::fault for each page on a bare hosted machine (no checks, as in \
         `page-alloc`), with the flush of the modelled CPU. No trap, no system call, no cgroup."
    }

    fn setup(&mut self, case: &Heap) -> Result<Box<dyn Prepared + '_>, Skip> {
        let machine = ours::kept(&mut self.machine, case.bytes as u64, true)?;
        Ok(Box::new(Ready { case: *case, machine }))
    }
}

struct Ready<'a> {
    case: Heap,
    machine: &'a Hosted,
}

impl Prepared for Ready<'_> {
    fn run(&mut self) -> Result<Sample, Skip> {
        let case = &self.case;
        let work = |manager: &MemoryManager<'_, Bare>| {
            let mm = manager.new_mm().map_err(|error| Skip(error.to_string()))?;
            mm.switch_in();
            mm.set_brk_start(START);
            // One untimed loop, so that page tables and lists are as in every later one.
            once(&mm, case)?;
            let start = Instant::now();
            let mut done = 0;
            for _ in 0..case.loops {
                done += once(&mm, case)?;
            }
            let time = start.elapsed().as_nanos() as f64;
            mm.switch_out();
            Ok(case.sample(time, done))
        };
        // SAFETY: H3: `work` uses no other machine and starts no thread.
        unsafe { ours::with_bare_manager(self.machine, Folio { order: 0, pmd: false }, work) }
    }
}

/// One loop; returns the operations done.
fn once(mm: &Mm<'_, Bare>, case: &Heap) -> Result<u64, Skip> {
    let mut done = 0;
    for end in (0..=case.bytes).step_by(case.step).skip(1) {
        move_end(mm, end)?;
        if !case.touch {
            done += 1;
            continue;
        }
        for at in (end - case.step..end).step_by(PAGE) {
            mm.fault(START.add(at as u64), Access::Write)
                .map_err(|error| Skip(format!("fault at {at:#x} of the heap: {error}")))?;
            done += 1;
        }
    }
    if case.touch {
        move_end(mm, 0)?;
    } else {
        for end in (0..case.bytes).step_by(case.step).rev() {
            move_end(mm, end)?;
            done += 1;
        }
    }
    Ok(done)
}

fn move_end(mm: &Mm<'_, Bare>, bytes: usize) -> Result<(), Skip> {
    let wanted = START.add(bytes as u64);
    if mm.brk(wanted) == wanted { Ok(()) } else { Err(Skip(format!("brk to {bytes} bytes was refused"))) }
}
