//! Steps the library's page tables and the model together, on several CPUs that access what is mapped.

use hosted::raw::RawTables;
use hosted::raw::page_tables;
use hosted::raw::{RawMachine, RawPages};
use std::collections::{HashMap, VecDeque};

use hosted::{FailurePlan, FaultCause, Hosted, HostedConfig, OnViolation, PageFault};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use quire::arch::{Entry, EntryFlags, PagingMode};
use quire::cpu::CpuId;
use quire::error::MapError;
use quire::limits::TABLE_ENTRIES;
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};
use quire::pgtable::{GrantWrite, PageTables, Zap};
use quire::tlb::{FlushBatch, MmContext, MmuGather, ZapStrategy};

use super::ops::{CPUS, Rights, TableOp, flags, protection, rights};
use super::{Leaf, TableModel, USER_PAGES};
use crate::counts::Mapped;
use crate::space::Prot;

const BYTES: u64 = 64 << 20;
const RECENT: usize = 40;
/// The page in the middle of the mapped range: a border between two entries of the top level.
const MIDDLE: i64 = 1 << 32;

type Outcome = Result<(), String>;

/// Model and page tables of one address space.
pub struct TableLockstep<'a, 'p> {
    machine: &'p Hosted,
    allocator: &'a PageAllocator<'p, Hosted>,
    context: &'a MmContext,
    model: TableModel<Rights>,
    /// The word that was stored last to each frame in use.
    words: HashMap<u64, u64>,
    next_word: u64,
    /// The accesses made last: their translations are cached, and are tried again after each operation.
    recent: VecDeque<TableOp>,
    /// Leaves of 2 MiB that were mapped.
    large: u64,
}

fn address(page: i32) -> VirtAddr {
    VirtAddr(((MIDDLE + i64::from(page)) as u64) << 12)
}

fn range(page: i32, count: u32) -> VirtRange {
    VirtRange::from_len(address(page), u64::from(count) << 12)
}

impl TableLockstep<'_, '_> {
    /// Does the operations on a fresh machine, unmaps everything and checks that nothing is lost. Returns how many leaves
    /// of 2 MiB were mapped.
    ///
    /// # Errors
    /// The difference, with the number of the operation.
    pub fn check(ops: &[TableOp], zap: ZapStrategy) -> Result<u64, String> {
        Self::check_losing(ops, zap, FailurePlan::Off)
    }

    /// The same on a machine that loses flushes.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_losing(ops: &[TableOp], zap: ZapStrategy, lost: FailurePlan) -> Result<u64, String> {
        let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(BYTES) };
        let machine = config.with_cpus(CPUS).build().map_err(|error| error.to_string())?;
        machine.lose_flushes(lost);
        let frames = FrameRange::new(Frame(0), BYTES >> 12);
        let ranges = [MemoryRange { frames, node: 0, zeroed: true }];
        machine.run_on(CpuId(0), || {
            let allocator = hosted::raw::page_allocator(&machine, &ranges, AllocatorConfig::default());
            let allocator = allocator.map_err(|error| error.to_string())?;
            let before = allocator.memory_info().used;
            let context = PageTables::create(&allocator, PagingMode::FourLevel).map_err(|e| e.to_string())?;
            let context = context.with_zap(zap);
            let mut lockstep = TableLockstep {
                machine: &machine,
                allocator: &allocator,
                context: &context,
                model: TableModel::new(USER_PAGES - 1),
                words: HashMap::new(),
                next_word: 1,
                recent: VecDeque::new(),
                large: 0,
            };
            lockstep.run(ops)?;
            let large = lockstep.large;
            PageTables::destroy(&allocator, context);
            if let Some(violation) = machine.violations().first() {
                return Err(violation.to_string());
            }
            allocator.lists().drain_local();
            allocator.validate().map_err(|violation| format!("{violation:?}"))?;
            let after = allocator.memory_info().used;
            if before == after {
                Ok(large)
            } else {
                Err(format!("{before} frames used before, {after} after"))
            }
        })
    }

    fn run(&mut self, ops: &[TableOp]) -> Outcome {
        let (machine, context) = (self.machine, self.context);
        context.switch_in(machine);
        // The other CPUs are idle between their accesses, and keep their translations.
        for cpu in 1..CPUS {
            machine.run_on(CpuId(cpu as u32), || context.switch_in(machine));
        }
        for (n, op) in ops.iter().enumerate() {
            let done = self.step(*op).and_then(|()| self.again()).and_then(|()| self.compare(n % 32 == 31));
            done.map_err(|what| format!("operation {n}, {op:?}: {what}"))?;
        }
        self.compare(true)?;
        self.unmap(-(1 << 20), 1 << 21, true)?;
        self.compare(true)?;
        for cpu in 1..CPUS {
            machine.run_on(CpuId(cpu as u32), || context.switch_out(machine));
        }
        context.switch_out(machine);
        Ok(())
    }

    fn tables(&self) -> PageTables<'_, '_, Hosted> {
        page_tables(self.allocator, self.context)
    }

    fn step(&mut self, op: TableOp) -> Outcome {
        match op {
            TableOp::Map(page, order, prot) => {
                self.map(page, Order::new(order).unwrap_or(Order::FRAME), prot)
            }
            TableOp::MapLarge(page, prot) => self.map_large(page, prot),
            TableOp::Share(from, to, prot) => self.share(from, to, prot),
            TableOp::Unmap(page, count, tables) => self.unmap(page, count, tables),
            TableOp::Protect(page, count, prot) => self.protect(page, count, prot),
            TableOp::ClearSoftDirty(page, count) => self.clear_soft_dirty(page, count),
            TableOp::Mark(page, count, on) => self.mark(page, count, on),
            TableOp::Split(page) => {
                self.model.split_at(address(page).page());
                self.tables().split_at(address(page)).map_err(|error| error.to_string())
            }
            TableOp::Store(cpu, page) => {
                self.recent.push_front(op);
                self.store(cpu, page)
            }
            TableOp::Load(cpu, page) => {
                self.recent.push_front(op);
                self.load(cpu, page)
            }
        }
    }

    /// Makes the accesses made last once more.
    fn again(&mut self) -> Outcome {
        self.recent.truncate(RECENT);
        self.recent.clone().into_iter().try_for_each(|op| match op {
            TableOp::Store(cpu, page) => self.store(cpu, page),
            TableOp::Load(cpu, page) => self.load(cpu, page),
            _ => Ok(()),
        })
    }

    fn map(&mut self, page: i32, order: Order, prot: Prot) -> Outcome {
        let Ok(frame) = self.allocator.alloc_raw(Gfp::USER, order) else { return Ok(()) };
        let (addr, run) = (address(page), FrameRange::folio(frame, order));
        let got = self.tables().map_raw(addr, run, flags(prot));
        let leaf = Leaf { frame, size: PageSize::Size4K, flags: rights(prot) };
        let crosses = addr.page() % 512 + run.count > 512;
        let want =
            if crosses { Err(MapError::Unaligned) } else { self.model.map(addr.page(), leaf, run.count) };
        if got.is_err() {
            self.allocator.free_raw(frame, order).map_err(|error| error.to_string())?;
        }
        same(got, want)
    }

    fn map_large(&mut self, page: i32, prot: Prot) -> Outcome {
        let Ok(frame) = self.allocator.alloc_raw(Gfp::USER, Order::BLOCK) else { return Ok(()) };
        let (addr, size) = (address(page), PageSize::Size2M);
        let got = self.tables().map_large_raw(addr, frame, size, flags(prot));
        if got.is_err() {
            self.allocator.free_raw(frame, Order::BLOCK).map_err(|error| error.to_string())?;
        }
        if got == Err(MapError::Occupied) && self.has_table(addr) {
            // A table without leaves prevents it too, and the model knows no tables.
            return Ok(());
        }
        self.large += u64::from(got.is_ok());
        same(got, self.model.map(addr.page(), Leaf { frame, size, flags: rights(prot) }, 1))
    }

    /// Whether the 2 MiB at `addr` have a table, with leaves or without.
    fn has_table(&self, addr: VirtAddr) -> bool {
        let mut table = self.context.root();
        [39, 30, 21].into_iter().all(|shift| {
            let entry = self.machine.load_entry_raw(table, (addr.0 >> shift) as usize % TABLE_ENTRIES);
            table = entry.frame();
            entry.has(EntryFlags::PRESENT) && !entry.has(EntryFlags::LARGE)
        })
    }

    fn share(&mut self, from: i32, to: i32, prot: Prot) -> Outcome {
        let Some((frame, _)) = self.model.translate(address(from).page()) else { return Ok(()) };
        let got = self.tables().map_raw(address(to), FrameRange::new(frame, 1), flags(prot));
        if got == Err(MapError::OutOfMemory) {
            return Ok(());
        }
        let leaf = Leaf { frame, size: PageSize::Size4K, flags: rights(prot) };
        same(got, self.model.map(address(to).page(), leaf, 1))
    }

    fn unmap(&mut self, page: i32, count: u32, tables: bool) -> Outcome {
        let range = range(page, count);
        let mut gather = MmuGather::new(self.allocator, self.context);
        let zap = if tables { Zap::tables(range, self.limits(range)) } else { Zap::leaves(range) };
        let got = self.tables().unmap(&zap, &mut gather);
        let change = gather.finish();
        if got == Err(MapError::OutOfMemory) {
            return Ok(());
        }
        let gone = self.model.unmap(range.start.page(), range.pages());
        let pages: u64 = gone.iter().map(|(_, leaf)| leaf.size.frames()).sum();
        let left = Mapped::read(self.machine, &[self.context.root()]);
        self.words.retain(|&frame, _| left.leaves_of(Frame(frame)) > 0);
        let counted = -(change.file + change.anon);
        if counted != pages as i64 {
            return Err(format!("{counted} pages were counted out, {pages} were mapped"));
        }
        same(got, Ok(()))
    }

    /// The largest range around this one in which nothing else is mapped.
    fn limits(&self, range: VirtRange) -> VirtRange {
        let (mut start, mut end) = (0, USER_PAGES - 1);
        for (page, leaf) in self.model.leaves() {
            if page + leaf.size.frames() <= range.start.page() {
                start = page + leaf.size.frames();
            } else if page >= range.end.page() {
                end = end.min(page);
            } else if page < range.start.page() {
                start = range.start.page();
            }
            if page < range.end.page() && page + leaf.size.frames() > range.end.page() {
                end = end.min(range.end.page());
            }
        }
        VirtRange::new(VirtAddr(start << 12), VirtAddr(end << 12))
    }

    fn protect(&mut self, page: i32, count: u32, prot: Prot) -> Outcome {
        let range = range(page, count);
        let mut owed = FlushBatch::new();
        let got = self.tables().protect(range, protection(prot), GrantWrite::Always, &mut owed);
        owed.flush(self.allocator, self.context);
        if got == Err(MapError::OutOfMemory) {
            return Ok(());
        }
        self.model.protect(range.start.page(), range.pages(), |rights| rights.protected(prot));
        same(got, Ok(()))
    }

    fn clear_soft_dirty(&mut self, page: i32, count: u32) -> Outcome {
        let range = range(page, count);
        let clear = |tables: PageTables<'_, '_, Hosted>, owed: &mut _| tables.clear_soft_dirty(range, owed);
        self.change(range, clear, |rights| Rights { soft_dirty: false, write: false, ..rights })
    }

    fn mark(&mut self, page: i32, count: u32, on: bool) -> Outcome {
        let range = range(page, count);
        if on {
            let mark =
                |tables: PageTables<'_, '_, Hosted>, owed: &mut _| tables.mark_write_protected(range, owed);
            self.change(range, mark, |rights| Rights { marked: true, write: false, ..rights })
        } else {
            let unmark = |tables: PageTables<'_, '_, Hosted>, _: &mut _| tables.unmark_write_protected(range);
            self.change(range, unmark, |rights| Rights { marked: false, ..rights })
        }
    }

    /// Applies `change` to all leaves of a range.
    fn change(
        &mut self,
        range: VirtRange,
        verb: impl FnOnce(PageTables<'_, '_, Hosted>, &mut FlushBatch) -> Result<(), MapError>,
        change: impl Fn(Rights) -> Rights,
    ) -> Outcome {
        let mut owed = FlushBatch::new();
        let got = verb(self.tables(), &mut owed);
        owed.flush(self.allocator, self.context);
        if got == Err(MapError::OutOfMemory) {
            return Ok(());
        }
        self.model.protect(range.start.page(), range.pages(), change);
        same(got, Ok(()))
    }

    /// The required result of an access.
    fn expected(&self, page: i32, write: bool) -> Result<Frame, FaultCause> {
        match self.model.translate(address(page).page()) {
            None => Err(FaultCause::NotPresent),
            Some((_, rights)) if !rights.user => Err(FaultCause::NotPresent),
            Some((_, rights)) if write && !rights.write => Err(FaultCause::Protection),
            Some((frame, _)) => Ok(frame),
        }
    }

    /// Makes an access on a CPU. After a right was added, the CPU may have a cached translation with fewer
    /// rights; the fault refreshes it, so the access is repeated once.
    fn access<R>(&self, cpu: u8, attempt: impl Fn() -> Result<R, PageFault>) -> Result<R, FaultCause> {
        let twice = || attempt().or_else(|_| attempt()).map_err(|fault| fault.cause);
        self.machine.run_on(CpuId(u32::from(cpu)), twice)
    }

    fn store(&mut self, cpu: u8, page: i32) -> Outcome {
        let (machine, addr, word) = (self.machine, address(page), self.next_word);
        self.next_word += 1;
        let got = self.access(cpu, || machine.write(addr, &word.to_le_bytes()));
        let want = self.expected(page, true);
        if let Ok(frame) = want {
            self.words.insert(frame.0, word);
        }
        same(got, want.map(drop))
    }

    fn load(&mut self, cpu: u8, page: i32) -> Outcome {
        let (machine, addr) = (self.machine, address(page));
        let got = self.access(cpu, || {
            let mut bytes = [0; 8];
            machine.read(addr, &mut bytes).map(|()| u64::from_le_bytes(bytes))
        });
        match (got, self.expected(page, false)) {
            (Ok(word), Ok(frame)) => {
                let want = self.words.get(&frame.0);
                let right = want.is_none_or(|&want| want == word);
                if right { Ok(()) } else { Err(format!("{word:#x} on CPU {cpu}, want {want:x?}")) }
            }
            (got, want) => same(got.map(drop), want.map(drop)),
        }
    }

    fn compare(&mut self, deep: bool) -> Outcome {
        if let Some(violation) = self.machine.violations().first() {
            return Err(violation.to_string());
        }
        let leaves = self.machine.leaves(self.context.root()).into_iter().map(|leaf| {
            let flags = Entry::from_bits(leaf.entry).flags();
            let (soft_dirty, marked) =
                (flags.contains(EntryFlags::SOFT_DIRTY), flags.contains(EntryFlags::UFFD_WP));
            let rights = Rights { write: leaf.write, user: leaf.user, exec: leaf.exec, soft_dirty, marked };
            (leaf.addr.page(), leaf.frame, leaf.frames, rights)
        });
        let model =
            self.model.leaves().map(|(page, leaf)| (page, leaf.frame, leaf.size.frames(), leaf.flags));
        let (leaves, model): (Vec<_>, Vec<_>) = (leaves.collect(), model.collect());
        if let Some((got, want)) = leaves.iter().zip(&model).find(|(got, want)| got != want) {
            return Err(format!("leaf {got:x?}, want {want:x?}"));
        }
        if let Some(leaf) =
            self.machine.leaves(self.context.root()).iter().find(|leaf| leaf.present != leaf.user)
        {
            return Err(format!("hardware uses {leaf:x?}, which the program must not"));
        }
        if leaves.len() != model.len() {
            return Err(format!("{} leaves, want {}", leaves.len(), model.len()));
        }
        if !deep {
            return Ok(());
        }
        self.tables().validate().map_err(|violation| format!("{violation:?}"))?;
        let memory = [FrameRange::new(Frame(0), BYTES >> 12)];
        Mapped::read(self.machine, &[self.context.root()]).compare(self.allocator, &memory)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(got: T, want: T) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("answer {got:?}, want {want:?}")) }
}
