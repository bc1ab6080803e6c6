//! The lives of processes: fork, exec, exit.

use quire::cpu::CpuId;
use quire::vm::Mm;
use quire::vm::vma::VmaFlags;

use super::check::Check;
use super::error::ReplayError;
use super::processes::{Key, Space};
use super::replayer::Replayer;
use super::verb::PAGE;
use crate::trace::PathId;

impl Replayer<'_> {
    /// A process with a copy of the memory.
    pub(super) fn fork(&mut self, parent: Key, tid: u32, child: u32) -> Result<(), ReplayError> {
        let (made, ns) = self.watch.time(|| self.processes.get(parent).mm.fork());
        let mm = made.map_err(|_| self.out_of_memory())?;
        let from = self.processes.get(parent);
        let mut wiped = Vec::new();
        from.mm.vmas(|vma| {
            if vma.flags.contains(VmaFlags::WIPED_ON_FORK) {
                wiped.push((vma.range.start.0, vma.range.len()));
            }
        });
        let model = self.check.as_mut().zip(from.model).map(|(check, id)| check.fork(id, &wiped));
        let mut space = Space::new(mm, model);
        (space.touched, space.heap, space.parts) = (from.touched.clone(), from.heap, from.parts.clone());
        (space.zeroes, space.huge) = (from.zeroes.clone(), from.huge.clone());
        for (addr, len) in wiped {
            [&mut space.touched, &mut space.zeroes]
                .into_iter()
                .for_each(|pages| pages.remove_range(addr / PAGE, (addr + len) / PAGE));
        }
        self.compare(&space)?;
        // A number that is reused without an exit would leak its address space.
        self.drop_space(child)?;
        self.processes.adopt(child, space);
        self.note_start(child);
        self.forked.insert(tid, ns);
        Ok(())
    }

    /// A process shares the memory of another.
    pub(super) fn share(&mut self, key: Key, child: u32) -> Result<(), ReplayError> {
        if self.processes.key(child) != Some(key) {
            // As in a fork: its number may be reused without an exit.
            self.drop_space(child)?;
            self.processes.share(child, key);
            self.note_start(child);
        }
        Ok(())
    }

    /// A process starts another program. Its cost is everything up to the return of the call.
    pub(super) fn exec(&mut self, pid: u32, name: PathId, cpu: CpuId) -> Result<(), ReplayError> {
        // The program's own process, or one that ran before the recording.
        if self.processes.key(pid).is_none() {
            self.counts.processes += 1;
        }
        let gone = self.drop_space(pid)?.unwrap_or(0);
        let (made, ns) = self.watch.time(|| self.manager.new_mm());
        let mm = made.map_err(|_| self.out_of_memory())?;
        self.limit(&mm);
        let model = self.check.as_mut().map(Check::create);
        let mut space = Space::new(mm, model);
        space.parts.program = Some(name);
        let key = self.processes.adopt(pid, space);
        self.note_start(pid);
        self.processes.switch_to(cpu, key);
        self.starting.insert(pid, gone + ns);
        Ok(())
    }

    /// Gives a process its place in the order of starts, unless it has one.
    fn note_start(&mut self, pid: u32) {
        if let Some(each) = &mut self.each {
            each.started(pid);
        }
    }

    /// A process ends.
    pub(super) fn exit(&mut self, pid: u32) -> Result<(), ReplayError> {
        if let Some(ns) = self.drop_space(pid)? {
            self.verbs.add("exit", Some(ns), None);
        }
        if let Some(each) = &mut self.each {
            each.ended(pid);
        }
        self.starting.remove(&pid);
        Ok(())
    }

    /// Takes an address space from a process. The last process that has it ends it; returns the nanoseconds
    /// of that.
    fn drop_space(&mut self, pid: u32) -> Result<Option<u64>, ReplayError> {
        let Some(key) = self.processes.key(pid) else { return Ok(None) };
        self.look_at_memory()?;
        if let Some(each) = &mut self.each {
            let space = self.processes.get_mut(key);
            space.look_at_rss();
            each.left(pid, space.parts.program, space.rss);
        }
        let Some(mut space) = self.processes.release(pid) else { return Ok(None) };
        space.look_at_rss();
        self.counts.peak_rss = self.counts.peak_rss.max(space.rss);
        self.compare(&space)?;
        if let (Some(check), Some(id)) = (&mut self.check, space.model) {
            check.exit(id);
        }
        let ((), ns) = self.watch.time(|| Mm::exit(space.mm));
        Ok(Some(ns))
    }
}
