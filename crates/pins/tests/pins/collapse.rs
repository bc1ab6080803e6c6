//! The cost of a collapse of surveyed tables: nothing is read twice, and each table is counted once.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::raw::page_tables;
use hosted::{HostedConfig, InterruptPlan};
use quire::addr::{FrameRange, Order, PageSize, VirtAddr, VirtRange};
use quire::arch::{EntryFlags, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::page_alloc::Gfp;
use quire::pgtable::{PageTables, Zap};
use quire::platform::Context;
use quire::tlb::{MmContext, MmuGather};

use crate::Allocator;
use pins::Counting;

const AT: VirtAddr = VirtAddr(3 << 30);
const TABLES: u64 = 8;

/// A folio of 16 MiB that eight tables map, all accessed and dirty, so that hardware sets no bit later. Its leaves have the
/// mark of anonymous memory, or none, as those of files.
fn in_pieces(allocator: &Allocator<'_>, mark: EntryFlags, act: impl FnOnce(&MmContext)) {
    let context = PageTables::create(allocator, PagingMode::FourLevel).unwrap();
    let recorded = mark | EntryFlags::ACCESSED | EntryFlags::DIRTY;
    let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE) | recorded;
    let order = Order::new(Order::BLOCK.get() + TABLES.ilog2() as u8).unwrap();
    let folio = allocator.alloc_raw(Gfp::USER, order).unwrap();
    for table in 0..TABLES {
        let folio = FrameRange::folio(folio.add(table * Order::BLOCK.frames()), Order::BLOCK);
        let addr = AT.add(table * PageSize::Size2M.bytes());
        page_tables(allocator, &context).map_raw(addr, folio, flags).unwrap();
    }
    act(&context);
    PageTables::destroy(allocator, context);
}

/// A survey of each, and then the collapse, whose cost `count` measures.
fn collapse<R>(
    allocator: &Allocator<'_>,
    context: &MmContext,
    checked: bool,
    count: impl FnOnce(&mut dyn FnMut()) -> R,
) -> R {
    let (tables, size) = (page_tables(allocator, context), PageSize::Size2M);
    for table in 0..TABLES {
        let addr = AT.add(table * size.bytes());
        let part = VirtRange::from_len(addr, size.bytes());
        assert_eq!(tables.check_collapse(addr, size, part), Ok(()));
    }
    count(&mut || {
        let mut gather = MmuGather::new(allocator, context);
        let range = VirtRange::from_len(AT, TABLES * size.bytes());
        assert_eq!(tables.collapse_tables(range, checked, &mut gather), Ok(TABLES));
        gather.finish();
    })
}

#[test]
fn a_collapse_counts_each_table_once() {
    let machine = HostedConfig::new(256 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        let allocator = crate::allocator(&counting, &machine);
        in_pieces(&allocator, EntryFlags::ANON, |context| {
            let (calls, ()) = collapse(&allocator, context, true, |work| counting.during(work));
            // Includes those of the frames of tables, which are freed one by one.
            println!("{} holds of blocks", calls.block_locks);
            assert!((TABLES..=2 * TABLES).contains(&calls.block_locks), "{}", calls.block_locks);
        });
    });
}

/// Instructions for each table of a collapse.
#[cfg(not(miri))]
fn instructions<const KINDS: usize>(kinds: [(EntryFlags, bool); KINDS]) -> [u64; KINDS] {
    let machine = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(256 << 20) };
    let machine = machine.build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        let allocator = crate::allocator(&counting, &machine);
        kinds.map(|(mark, checked)| {
            let mut steps = 0;
            in_pieces(&allocator, mark, |context| {
                steps = collapse(&allocator, context, checked, |work| {
                    // SAFETY: H7: the handler does nothing.
                    let counted = unsafe {
                        machine.interrupt_at_steps(InterruptPlan::Count, Context::HardInterrupt, || (), work)
                    };
                    counted.unwrap().events
                });
            });
            steps / TABLES
        })
    })
}

#[cfg(not(miri))]
#[test]
fn what_was_compared_is_not_read_again() {
    let [checked, anew] = instructions([(EntryFlags::ANON, true), (EntryFlags::ANON, false)]);
    println!("{checked} instructions for each table, {anew} if it is read");
    assert!(checked + 512 * 4 < anew, "{checked} for each table, {anew} if it is read");
}

/// A folio of whole blocks has one dirty mark: the first dirty leaf of a table sets it for all.
#[cfg(not(miri))]
#[test]
fn one_leaf_of_a_files_folio_marks_it_dirty() {
    let [anon, file] = instructions([(EntryFlags::ANON, true), (EntryFlags::NONE, true)]);
    println!("{anon} instructions for each table of anonymous memory, {file} for one of a file");
    assert!(file < anon + 200, "{file} for a table of a file, {anon} for one of anonymous memory");
}

/// Instructions for each table that is unmapped: it is read after it was detached, as are those of a page of 1
/// GiB that becomes one leaf.
#[cfg(not(miri))]
fn of_detached_tables(mark: EntryFlags) -> u64 {
    let machine = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(256 << 20) };
    let machine = machine.build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        let allocator = crate::allocator(&counting, &machine);
        let mut steps = 0;
        in_pieces(&allocator, mark, |context| {
            let range = VirtRange::from_len(AT, TABLES * PageSize::Size2M.bytes());
            let unmap = || {
                let mut gather = MmuGather::new(&allocator, context);
                let done = page_tables(&allocator, context).unmap(&Zap::tables(range, range), &mut gather);
                assert_eq!(done, Ok(()));
                gather.finish();
            };
            // SAFETY: H7: the handler does nothing.
            let counted = unsafe {
                machine.interrupt_at_steps(InterruptPlan::Count, Context::HardInterrupt, || (), unmap)
            };
            steps = counted.unwrap().events;
        });
        steps / TABLES
    })
}

/// One leaf of each table tells what all of them recorded, so a folio of a file costs what one of anonymous
/// memory does. A look at each leaf made a collapse of 1 GiB four times as slow.
#[cfg(not(miri))]
#[test]
fn one_leaf_of_a_detached_table_marks_a_files_folio() {
    let [anon, file] = [EntryFlags::ANON, EntryFlags::NONE].map(of_detached_tables);
    println!("{anon} instructions for each table of anonymous memory, {file} for one of a file");
    assert!(file < anon + 128, "{file} for a table of a file, {anon} for one of anonymous memory");
}
