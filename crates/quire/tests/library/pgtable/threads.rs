//! Real threads as CPUs of one address space: faults and `MADV_DONTNEED` with the lock held for reading,
//! everything else between.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use std::hint::spin_loop;
use std::sync::Barrier;
use std::time::Instant;

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use quire::addr::{FrameRange, Order, PageSize, VirtAddr, VirtRange};
use quire::arch::{Entry, EntryFlags, Protection};
use quire::pgtable::{CopyMode, GrantWrite, Zap};

use quire::sync::{Rank, RwLock};
use quire::tlb::{FlushBatch, MmContext, MmuGather, RssChange, ZapStrategy};

use crate::pgtable::support::*;
use testkit::{order, seed, stress_time};

const CPUS: usize = 3;
/// The addresses: four tables of leaves across a boundary of an upper level.
const ALL: (u64, u64) = (GIB - 4 * MIB, 8 * MIB);

struct Shared<'s, 'p> {
    machine: &'s Hosted,
    allocator: &'s Allocator<'p>,
    context: &'s MmContext,
    lock: RwLock<()>,
}

impl Shared<'_, '_> {
    fn tables(&self) -> Tables<'_, '_> {
        page_tables(self.allocator, self.context)
    }

    fn any_range(&self, rng: &mut Rng) -> VirtRange {
        let pages = 1 << rng.u32(0..=10);
        let first = rng.u64(0..=2048 - pages) & !(pages.min(512) - 1);
        range(ALL.0 + first * 4096, pages * 4096)
    }

    /// A store fault at one page: maps a new folio, takes a copy, or finds that another CPU was faster.
    fn fault(&self, addr: VirtAddr, rng: &mut Rng) {
        let _shared = self.lock.read(self.machine);
        let found = self.tables().lookup(addr);
        match found.leaf_size() {
            None => {
                let size = if rng.u8(..8) == 0 { BLOCK } else { order(rng.u8(0..=4)) };
                let Some(frame) = folio(self.machine, self.allocator, size) else { return };
                let start = addr.align_down(size.bytes());
                let mapped = if size == BLOCK && rng.bool() {
                    self.tables().map_large_raw(start, frame, PageSize::Size2M, written())
                } else {
                    self.tables().map_raw(start, FrameRange::folio(frame, size), written())
                };
                if mapped.is_err() {
                    self.allocator.free_raw(frame, size).unwrap();
                }
            }
            Some(size) if rng.u8(..4) == 0 => {
                if size != PageSize::Size4K {
                    return self.tables().split_at(addr).unwrap_or(());
                }
                let Ok(frame) = self.allocator.alloc_raw(quire::page_alloc::Gfp::USER, Order::FRAME) else {
                    return;
                };
                // With the address-space lock held, the old frame stays only if it is still mapped; a copy of
                // later contents is dropped.
                self.allocator.clear_raw(FrameRange::new(frame, 1), Default::default());
                let new = Entry::leaf(frame, size, written());
                let mut gather = MmuGather::new(self.allocator, self.context);
                let replaced = self.tables().replace_raw(addr, size, found.entry, new, &mut gather);
                gather.finish();
                if replaced != Ok(true) {
                    self.allocator.free_raw(frame, Order::FRAME).unwrap();
                }
            }
            Some(_) if found.entry.has(EntryFlags::UFFD_WP) => {
                let page = range(addr.align_down(4096).0, 4096);
                self.tables().unmark_write_protected(page).unwrap_or(());
            }
            Some(size) => {
                let more = EntryFlags::WRITE | EntryFlags::USER | EntryFlags::SOFT_DIRTY;
                self.tables().upgrade(addr, size, found.entry, more);
            }
        }
    }

    /// `MADV_DONTNEED` and `MADV_FREE`.
    fn drop_pages(&self, part: VirtRange, rng: &mut Rng) {
        let _shared = self.lock.read(self.machine);
        if rng.bool() {
            let mut owed = FlushBatch::new();
            let _ = self.tables().mark_lazy_free(part, &mut owed);
            owed.flush(self.allocator, self.context);
        } else {
            let mut gather = MmuGather::new(self.allocator, self.context);
            let _ = self.tables().unmap(&Zap::leaves(part), &mut gather);
            gather.finish();
        }
    }

    /// `munmap`, `mprotect`, `fork`, checkpointing, userfaultfd, `khugepaged`, `mremap`.
    fn alone(&self, part: VirtRange, rng: &mut Rng) {
        let exclusive = self.lock.write(self.machine);
        let tables = self.tables();
        let mut owed = FlushBatch::new();
        match rng.u8(..7) {
            0 => {
                let mut gather = MmuGather::new(self.allocator, self.context);
                let _ = tables.unmap(&Zap::tables(part, part), &mut gather);
                // From here on other CPUs may map the addresses again, while this one frees the old frames
                // and tables.
                gather.flush();
                drop(exclusive);
                gather.finish();
                return;
            }
            1 => {
                let protection = if rng.bool() { Protection::READ } else { Protection::from_bits(3) };
                let _ = tables.protect(part, protection, GrantWrite::Exclusive, &mut owed);
            }
            2 => tables.clear_soft_dirty(part, &mut owed).unwrap_or(()),
            3 => tables.mark_write_protected(part, &mut owed).unwrap_or(()),
            4 => self.fork(part, &mut owed),
            5 => drop(tables.collapse(part.start.align_down(2 * MIB))),
            _ => {
                let to = VirtAddr(3 * GIB + part.start.0 % (2 * MIB));
                let moved =
                    tables.move_range(part, to, &mut owed).map_or_else(|error| error.moved, |()| part.len());
                owed.flush(self.allocator, self.context);
                tables.move_range(range(to.0, moved), part.start, &mut owed).expect("moving back failed");
            }
        }
        owed.flush(self.allocator, self.context);
    }

    /// A child that lives until the parent's flush. It may have got only a part.
    fn fork(&self, part: VirtRange, owed: &mut FlushBatch) {
        let whole = VirtRange::new(part.start.align_down(2 * MIB), part.end.align_up(2 * MIB).unwrap());
        let Ok(child) = Tables::create(self.allocator, Default::default()) else { return };
        let (to, mut rss) = (page_tables(self.allocator, &child), RssChange::default());
        let _ = self.tables().copy(&to, whole, CopyMode::Private, owed, &mut rss);
        owed.flush(self.allocator, self.context);
        let change = Tables::destroy(self.allocator, child);
        assert_eq!((change.anon, change.file), (-rss.anon, -rss.file));
    }

    fn run(&self, rng: &mut Rng) -> u64 {
        self.context.switch_in(self.machine);
        let (start, mut faults) = (Instant::now(), 0);
        while start.elapsed() < stress_time() {
            for _ in 0..16 {
                let addr = VirtAddr(self.any_range(rng).start.0);
                if self.machine.fetch_add(addr, 1).is_err() {
                    faults += 1;
                    self.fault(addr, rng);
                }
            }
            let part = self.any_range(rng);
            match rng.u8(..8) {
                0..3 => self.drop_pages(part, rng),
                3 => self.alone(part, rng),
                _ => {}
            }
        }
        self.context.switch_out(self.machine);
        faults
    }
}

/// Invariants 2 to 5 under real concurrency: the machine panics at the first frame or table that is freed while a CPU
/// still reaches it, and the tables and counts are exact at the end.
/// Invariants 4, W1 and W6.
#[test]
fn threads_fault_unmap_and_move_at_once() {
    let seed = seed(fastrand::u64(..));
    println!("QUIRE_SEED={seed}");
    ZapStrategy::ALL.into_iter().for_each(|zap| race(seed, zap));
}

fn race(seed: u64, zap: ZapStrategy) {
    let config = HostedConfig::new(128 * MIB).with_cpus(CPUS);
    with_space_of(config, zap, |machine, allocator, context| {
        let shared = Shared { machine, allocator, context, lock: RwLock::new(Rank::AddressSpace, ()) };
        let run = |cpu: quire::cpu::CpuId| shared.run(&mut Rng::with_seed(seed ^ u64::from(cpu.0) << 32));
        let faults = machine.spawn_cpus(CPUS, run);
        assert!(faults.iter().all(|&faults| faults > 0), "{faults:?}");
        let census = check(allocator, context);
        println!("{zap:?}: {faults:?} faults, {census:?}");
        unmap_all(allocator, context, range(ALL.0, ALL.1));
    });
}

/// A fault maps a large leaf while half of its 2 MiB, where nothing was mapped, is dropped: the other half
/// stays, however far the drop has come by then.
#[test]
fn a_leaf_that_comes_while_half_of_its_range_is_dropped_keeps_the_other_half() {
    let (half, outside) = (range(GIB + MIB, MIB), VirtAddr(GIB));
    with_space(HostedConfig::new(16 * MIB).with_cpus(2), |machine, allocator, context| {
        let before = used(allocator);
        for round in 0..2000_u64 {
            // For the upper tables.
            populate_large(machine, allocator, context, VirtAddr(GIB + 8 * MIB));
            let frame = folio(machine, allocator, BLOCK).expect("memory");
            let tables = page_tables(allocator, context);
            let start = Barrier::new(2);
            machine.spawn_cpus(2, |cpu| {
                let mut gather = MmuGather::new(allocator, context);
                start.wait();
                // The two meet at another moment each time.
                (0..round * [31, 7919][cpu.0 as usize] % 400).for_each(|_| spin_loop());
                if cpu.0 == 0 {
                    tables.unmap(&Zap::leaves(half), &mut gather).expect("no memory is short");
                } else {
                    tables
                        .map_large_raw(outside, frame, PageSize::Size2M, written())
                        .expect("nothing is there");
                }
                gather.finish();
            });
            assert!(!tables.lookup(outside).entry.is_empty(), "round {round}");
            check(allocator, context);
            unmap_all(allocator, context, range(GIB, 16 * MIB));
            assert_eq!(used(allocator), before, "memory was lost in round {round}");
            assert_eq!(allocator.validate(), Ok(()));
        }
    });
}
