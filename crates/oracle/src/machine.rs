//! The library on its hosted machine, as a subject.

pub mod convert;
mod shape;

pub use shape::{MachineShape, RunCounts, check_machine, check_written, run_machine};

use std::collections::HashMap;
use std::rc::Rc;

use hosted::{Hosted, Translation};
use quire::addr::{Frame, FrameRange, Order, PhysAddr, VirtAddr};
use quire::arch::EntryFlags;
use quire::cpu::CpuId;
use quire::error::{FaultError, MmError};
use quire::manager::MemoryManager;
use quire::stats::Stat;
use quire::vm::{self, Collapser, File, MapRequest, Mm, Sharing};

use crate::counts::{Mapped, Owners};
use crate::mappings::Mappings;
use crate::space::{Advice, Kind, Map, PAGE, PROBE_OFFSETS, Prot, Remap, SpaceId, Vma};
use crate::subject::{Actor, Present, Resident, Subject};

/// Faults after which an access counts as impossible.
const FAULTS: usize = 64;

/// The most pages of a range that are read one by one; for more, the whole page table is read.
const MOST_PROBED: u64 = 8192;

/// Bytes that a stack may reach; Linux's usual limit.
pub const STACK_LIMIT: u64 = 8 << 20;

/// Address spaces of one machine, with its CPUs.
pub struct Quire<'p> {
    machine: &'p Hosted,
    manager: &'p MemoryManager<'p, Hosted>,
    spaces: Vec<Option<Mm<'p, Hosted>>>,
    files: HashMap<u64, Rc<File<'p, Hosted>>>,
    /// The address space that each CPU runs.
    running: Vec<Option<SpaceId>>,
    /// Whether memory may run out.
    tight: bool,
    single_pages: bool,
    /// Failed allocations before the last operation.
    failed_before: u64,
    /// Leaves of 1 GiB that existed after a CPU had cleared ahead.
    gigantic: u64,
    /// Ranges of 2 MiB that were collapsed.
    collapsed: u64,
    /// Owners of frames before there was an address space.
    owners_before: Owners,
}

impl<'p> Quire<'p> {
    /// The machine with one empty address space, number 0, whose heap starts at `heap`, and these files (number, bytes).
    ///
    /// # Errors
    /// If memory does not suffice for that.
    pub fn new(
        machine: &'p Hosted,
        manager: &'p MemoryManager<'p, Hosted>,
        files: &[(u64, u64)],
        heap: u64,
    ) -> Result<Self, MmError> {
        let mut quire = Self {
            machine,
            manager,
            spaces: Vec::new(),
            files: HashMap::new(),
            running: vec![None; machine.config().cpus],
            tight: false,
            single_pages: false,
            failed_before: 0,
            gigantic: 0,
            collapsed: 0,
            owners_before: Owners::default(),
        };
        quire.owners_before = machine.run_on(CpuId(0), || quire.owners(&Mapped::default()));
        machine.run_on(CpuId(0), || {
            for &(number, bytes) in files {
                let name = quire::platform::FileId(number);
                machine.files().set_size(name, bytes);
                quire.files.insert(number, Rc::new(manager.open(name)?));
            }
            let first = manager.new_mm()?;
            first.set_brk_start(VirtAddr(heap));
            first.set_stack_limit(STACK_LIMIT);
            quire.spaces.push(Some(first));
            Ok::<(), MmError>(())
        })?;
        Ok(quire)
    }

    /// Says that memory may run out.
    #[must_use]
    pub fn tight(mut self, tight: bool) -> Self {
        self.tight = tight;
        self
    }

    /// Says that the folio policy allows single frames only.
    #[must_use]
    pub fn single(mut self, single_pages: bool) -> Self {
        self.single_pages = single_pages;
        self
    }

    /// Leaves of 1 GiB that existed when a CPU had cleared ahead, summed.
    pub fn gigantic(&self) -> u64 {
        self.gigantic
    }

    /// Ranges of 2 MiB that were collapsed.
    pub fn collapsed(&self) -> u64 {
        self.collapsed
    }

    /// Closes all files. All address spaces have exited.
    pub fn close(mut self) {
        let files = std::mem::take(&mut self.files);
        self.machine.run_on(CpuId(0), || drop(files));
    }

    fn space(&self, id: SpaceId) -> &Mm<'p, Hosted> {
        self.spaces[id].as_ref().expect("address space has exited")
    }

    /// Runs `action` on the CPU, with the address space loaded as a system call or a fault of its program finds it.
    fn on<R>(&mut self, actor: Actor, action: impl FnOnce(&Mm<'p, Hosted>) -> R) -> R {
        let machine = self.machine;
        self.failed_before = self.failed();
        machine.run_on(CpuId(actor.cpu as u32), || {
            self.load(actor);
            action(self.space(actor.space))
        })
    }

    /// Allocations that failed so far, by plan or for lack of memory.
    fn failed(&self) -> u64 {
        self.machine.allocations_failed() + self.manager.stat(Stat::AllocFailed)
    }

    fn load(&mut self, actor: Actor) {
        let before = self.running[actor.cpu].replace(actor.space);
        if before == Some(actor.space) {
            return;
        }
        let next = self.space(actor.space);
        match before {
            Some(before) => self.space(before).switch_to(next),
            None => next.switch_in(),
        }
    }

    /// Repeats an access, with a fault in between, until it succeeds.
    fn access<R>(
        &mut self,
        actor: Actor,
        kind: Kind,
        access: impl Fn(&Hosted) -> Result<R, hosted::PageFault>,
    ) -> Result<R, FaultError> {
        let machine = self.machine;
        self.on(actor, |mm| {
            for _ in 0..FAULTS {
                match access(machine) {
                    Ok(value) => return Ok(value),
                    Err(fault) => mm.fault(fault.addr, convert::access(kind)).map(drop)?,
                }
            }
            panic!("{kind:?} on CPU {} in space {}: {FAULTS} faults and no access", actor.cpu, actor.space);
        })
    }

    fn memory(&self) -> Vec<FrameRange> {
        let ranges = self.machine.ranges().iter();
        ranges.map(|range| FrameRange::new(range.start.frame(), range.bytes / PAGE)).collect()
    }

    /// The contents of the page at `addr`, which `leaf` maps.
    fn page(&self, leaf: &Translation, addr: u64) -> Present {
        let start = leaf.frame.addr().0 + (addr - leaf.addr.0);
        Present {
            addr,
            private: leaf.entry & EntryFlags::ANON.bits() != 0,
            words: PROBE_OFFSETS.map(|offset| self.machine.peek(PhysAddr(start + offset))),
        }
    }

    fn owners(&self, mapped: &Mapped) -> Owners {
        let memory =
            FrameRange::new(Frame(0), self.machine.config().ranges.iter().map(|r| r.bytes / PAGE).sum());
        Owners::read(self.manager.pages(), mapped, memory)
    }

    fn check_here(&self, deep: bool) -> Result<(), String> {
        for (id, mm) in self.spaces.iter().enumerate() {
            let Some(mm) = mm else { continue };
            mm.validate().map_err(|fault| format!("space {id}: {fault}"))?;
        }
        self.manager.validate().map_err(|violation| format!("{violation:?}"))?;
        let frames = self.manager.meminfo().frames;
        if frames.free + frames.cached + frames.used + frames.metadata != frames.total {
            return Err(format!("frames are lost (invariant 8): {frames:?}"));
        }
        if !deep {
            return Ok(());
        }
        let roots: Vec<_> = self.spaces.iter().flatten().map(Mm::root).collect();
        let (mapped, memory) = (Mapped::read(self.machine, &roots), self.memory());
        let (counted, found) = (self.manager.meminfo().page_tables, mapped.tables());
        if counted != found {
            return Err(format!("{counted} page-table pages are counted, but {found} are reached"));
        }
        mapped.compare(self.manager.pages(), &memory)?;
        self.owners(&mapped).compare(&self.owners_before)?;
        let files = self.files.iter().map(|(&number, file)| (number, &**file));
        let mappings = Mappings::read(self.machine, self.spaces.iter().flatten());
        mappings.compare(self.manager, files, 7)
    }
}

impl Drop for Quire<'_> {
    /// Remaining address spaces belong to a run that failed, perhaps in the middle of an operation: they are
    /// abandoned as they are, with their machine.
    fn drop(&mut self) {
        self.spaces.drain(..).for_each(std::mem::forget);
        self.files.drain().for_each(std::mem::forget);
    }
}

impl Subject for Quire<'_> {
    fn mmap(&mut self, actor: Actor, map: &Map) -> Result<u64, MmError> {
        // A reference besides the table's, so that a panic of the library does not close it.
        let file = map.file.map(|(number, page)| (Rc::clone(&self.files[&number]), page));
        let backing = match &file {
            Some((file, page_offset)) => vm::Backing::File { file, page_offset: *page_offset },
            None => vm::Backing::Anonymous,
        };
        let request = MapRequest {
            addr: VirtAddr(map.addr),
            len: map.len,
            prot: convert::protection(map.prot),
            placement: convert::placement(map.placement),
            sharing: if map.shared { Sharing::Shared } else { Sharing::Private },
            backing,
            grows_down: map.grows_down,
            populate: map.populate,
            locked: map.locked,
            ..MapRequest::default()
        };
        self.on(actor, |mm| mm.mmap(&request).map(|addr| addr.0))
    }

    fn munmap(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.on(actor, |mm| mm.munmap(VirtAddr(addr), len))
    }

    fn mprotect(&mut self, actor: Actor, addr: u64, len: u64, prot: Prot) -> Result<(), MmError> {
        self.on(actor, |mm| mm.mprotect(VirtAddr(addr), len, convert::protection(prot)))
    }

    fn mremap(&mut self, actor: Actor, addr: u64, old: u64, new: u64, to: Remap) -> Result<u64, MmError> {
        self.on(actor, |mm| mm.mremap(VirtAddr(addr), old, new, convert::remap(to)).map(|addr| addr.0))
    }

    fn madvise(&mut self, actor: Actor, addr: u64, len: u64, advice: Advice) -> Result<(), MmError> {
        self.on(actor, |mm| mm.madvise(VirtAddr(addr), len, convert::advice(advice)))
    }

    fn brk(&mut self, actor: Actor, addr: u64) -> u64 {
        self.on(actor, |mm| mm.brk(VirtAddr(addr)).0)
    }

    fn mlock(&mut self, actor: Actor, addr: u64, len: u64, on_fault: bool) -> Result<(), MmError> {
        self.on(actor, |mm| mm.mlock(VirtAddr(addr), len, on_fault))
    }

    fn munlock(&mut self, actor: Actor, addr: u64, len: u64) -> Result<(), MmError> {
        self.on(actor, |mm| mm.munlock(VirtAddr(addr), len))
    }

    fn mlockall(&mut self, actor: Actor, current: bool, future: bool, on_fault: bool) -> Result<(), MmError> {
        self.on(actor, |mm| mm.mlockall(current, future, on_fault))
    }

    fn munlockall(&mut self, actor: Actor) -> Result<(), MmError> {
        self.on(actor, Mm::munlockall)
    }

    fn clear_ahead(&mut self, actor: Actor, pieces: u16) {
        let (machine, manager) = (self.machine, self.manager);
        self.gigantic += self.on(actor, |mm| {
            let _cleared = (0..pieces).take_while(|_| manager.clear_ahead()).count();
            let leaves = machine.leaves(mm.root()).into_iter();
            leaves.filter(|leaf| leaf.frames == Order::GIGANTIC.frames()).count() as u64
        });
    }

    fn collapse(&mut self, actor: Actor, addr: u64, len: u64, behind: bool) {
        if self.single_pages {
            // Then only touched pages are known to be resident.
            return;
        }
        let manager = self.manager;
        let collapser = &mut Collapser::default();
        self.collapsed += self.on(actor, |mm| {
            if behind {
                manager.collapse_ahead(collapser).collapsed.collapsed()
            } else {
                // A range with a hole is refused, after the rest was collapsed.
                let copied = || manager.stat(Stat::ThpCollapseCopied) + manager.stat(Stat::ThpCollapseFile);
                let before = copied();
                let _refused = mm.collapse(VirtAddr(addr), len);
                copied() - before
            }
        });
    }

    fn truncate(&mut self, actor: Actor, file: u64, bytes: u64) -> Result<(), MmError> {
        let file = Rc::clone(&self.files[&file]);
        self.on(actor, |_| file.truncate(bytes))
    }

    fn fork(&mut self, actor: Actor) -> Result<(), MmError> {
        let child = self.on(actor, Mm::fork)?;
        self.spaces.push(Some(child));
        Ok(())
    }

    fn exit(&mut self, actor: Actor) {
        for cpu in 0..self.running.len() {
            if self.running[cpu] == Some(actor.space) {
                self.machine.run_on(CpuId(cpu as u32), || self.space(actor.space).switch_out());
                self.running[cpu] = None;
            }
        }
        let mm = self.spaces[actor.space].take();
        self.machine.run_on(CpuId(actor.cpu as u32), || drop(mm));
    }

    fn store(&mut self, actor: Actor, addr: u64, word: u64) -> Result<(), FaultError> {
        self.access(actor, Kind::Write, |machine| machine.write(VirtAddr(addr), &word.to_le_bytes()))
    }

    fn load(&mut self, actor: Actor, addr: u64) -> Result<u64, FaultError> {
        self.access(actor, Kind::Read, |machine| {
            let mut bytes = [0; 8];
            machine.read(VirtAddr(addr), &mut bytes).map(|()| u64::from_le_bytes(bytes))
        })
    }

    fn fault(&mut self, actor: Actor, addr: u64, kind: Kind) -> Result<(), FaultError> {
        match kind {
            Kind::Exec => self.access(actor, kind, |machine| machine.fetch(VirtAddr(addr)).map(drop)),
            Kind::Read | Kind::Write => {
                self.on(actor, |mm| mm.fault(VirtAddr(addr), convert::access(kind)).map(drop))
            }
        }
    }

    fn vmas(&mut self, space: SpaceId) -> Vec<Vma> {
        let mut vmas = Vec::new();
        let mm = self.space(space);
        self.machine.run_on(CpuId(0), || mm.vmas(|info| vmas.push(convert::vma(info))));
        vmas
    }

    fn resident(&mut self, space: SpaceId) -> Option<Resident> {
        let rss = self.machine.run_on(CpuId(0), || self.space(space).rss());
        Some(Resident { anon: rss.anon, locked: rss.locked * PAGE })
    }

    fn present(&mut self, space: SpaceId, start: u64, end: u64, mut show: impl FnMut(&Present)) -> bool {
        let root = self.space(space).root();
        let pages = |first: u64, end: u64| (first..end).step_by(PAGE as usize);
        if (end - start) / PAGE <= MOST_PROBED {
            let found =
                pages(start, end).filter_map(|addr| Some((addr, self.machine.probe(root, VirtAddr(addr))?)));
            found.for_each(|(addr, leaf)| show(&self.page(&leaf, addr)));
            return true;
        }
        for leaf in self.machine.leaves(root) {
            pages(leaf.addr.0, leaf.addr.0 + leaf.frames * PAGE)
                .for_each(|addr| show(&self.page(&leaf, addr)));
        }
        true
    }

    fn single_pages(&self) -> bool {
        self.single_pages
    }

    fn is_scarce(&self) -> bool {
        self.tight
    }

    fn may_lack_memory(&mut self) -> bool {
        self.tight && self.failed() > self.failed_before
    }

    fn violated(&mut self) -> Option<String> {
        let broken = self.machine.violation_count() > 0;
        broken.then(|| self.machine.violations().first().map_or(String::new(), |first| first.to_string()))
    }

    fn check(&mut self, deep: bool) -> Result<(), String> {
        self.machine.run_on(CpuId(0), || self.check_here(deep))
    }
}
