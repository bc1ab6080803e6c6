//! Large folios must not make unmapping of single pages dearer: by every counter, the batched way costs at
//! most what going entry by entry does.

use hosted::HostedConfig;
use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::raw::page_tables;
use quire::addr::{FrameRange, Order, PageSize, VirtAddr, VirtRange};
use quire::arch::{EntryFlags, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::page_alloc::Gfp;
use quire::pgtable::{PageTables, Zap};
use quire::stats::Stat;
use quire::tlb::{MmContext, MmuGather, ZapStrategy};

use crate::Allocator;
#[cfg(not(miri))]
use crate::instructions::steps_of;
use pins::{Calls, Counting};

/// In the middle of the tables of upper levels.
const AT: u64 = 100 << 39 | 200 << 30 | 300 << 21;

/// Which of the mapped pages are unmapped, and how far around them nothing else is mapped.
#[derive(Clone, Copy)]
struct Scene {
    name: &'static str,
    /// The first mapped page, from `AT` on, and how many there are.
    from: u64,
    mapped: u64,
    /// Frames between two of them in memory.
    apart: usize,
    /// Unmapped pages, as (first, count).
    gone: (u64, u64),
    /// Tables may be detached as well.
    alone: bool,
}

const SCENES: &[Scene] = &[
    Scene { name: "one page, alone", from: 0, mapped: 1, apart: 0, gone: (0, 1), alone: true },
    Scene {
        name: "one page, alone at a table's end",
        from: 511,
        mapped: 1,
        apart: 0,
        gone: (511, 1),
        alone: true,
    },
    Scene { name: "one page of many", from: 0, mapped: 64, apart: 0, gone: (7, 1), alone: false },
    Scene { name: "one page of many, scattered", from: 0, mapped: 64, apart: 1, gone: (7, 1), alone: false },
    Scene { name: "eight pages of many", from: 0, mapped: 64, apart: 0, gone: (7, 8), alone: false },
    Scene { name: "64 pages, scattered, alone", from: 0, mapped: 64, apart: 2, gone: (0, 64), alone: true },
    Scene { name: "a table, scattered", from: 0, mapped: 512, apart: 1, gone: (0, 512), alone: true },
];

fn range(first: u64, count: u64) -> VirtRange {
    VirtRange::from_len(VirtAddr(AT + first * PageSize::Size4K.bytes()), count * PageSize::Size4K.bytes())
}

/// Sets up the scene, in which a CPU runs the address space, and clears it away after `act`.
fn staged<R>(
    counting: &Counting<'_>,
    allocator: &Allocator<'_>,
    zap: ZapStrategy,
    scene: Scene,
    act: impl FnOnce(&MmContext) -> R,
) -> R {
    let context = PageTables::create(allocator, PagingMode::FourLevel).unwrap().with_zap(zap);
    let tables = page_tables(allocator, &context);
    let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE) | EntryFlags::ANON;
    let mut spare = Vec::new();
    for page in scene.from..scene.from + scene.mapped {
        let frame = allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap();
        let flags = flags | EntryFlags::ACCESSED | EntryFlags::DIRTY;
        tables.map_raw(range(page, 1).start, FrameRange::new(frame, 1), flags).unwrap();
        spare.extend((0..scene.apart).map(|_| allocator.alloc_raw(Gfp::USER, Order::FRAME).unwrap()));
    }
    context.switch_in(counting);
    let outcome = act(&context);
    context.switch_out(counting);
    PageTables::destroy(allocator, context);
    spare.into_iter().for_each(|frame| allocator.free_raw(frame, Order::FRAME).unwrap());
    outcome
}

fn unmap(allocator: &Allocator<'_>, context: &MmContext, scene: Scene) {
    let part = range(scene.gone.0, scene.gone.1);
    let limits = if scene.alone { context.mode().user_range() } else { part };
    let mut gather = MmuGather::new(allocator, context);
    page_tables(allocator, context).unmap(&Zap::tables(part, limits), &mut gather).unwrap();
    assert_eq!(gather.finish().anon, -(scene.gone.1 as i64));
}

/// The cost of the scene in calls of the platform, and in exchanges and detached tables.
fn cost(counting: &Counting<'_>, allocator: &Allocator<'_>, zap: ZapStrategy, scene: Scene) -> (Calls, u64) {
    let entries = || allocator.lists().stat(Stat::ZapEntry) + allocator.lists().stat(Stat::ZapTable);
    staged(counting, allocator, zap, scene, |context| {
        let before = entries();
        let (calls, ()) = counting.during(|| unmap(allocator, context, scene));
        (calls, entries() - before)
    })
}

#[test]
fn single_pages_never_cost_more_than_entry_by_entry() {
    let machine = HostedConfig::new(256 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        for &scene in SCENES {
            // Each on a new allocator: folios that the other run left on lists would change the cost.
            let cost = |zap| {
                let allocator = crate::allocator(&counting, &machine);
                cost(&counting, &allocator, zap, scene)
            };
            let (way, entries) = cost(ZapStrategy::Tables);
            let (singly, exchanged) = cost(ZapStrategy::PerPage);
            assert!(entries <= exchanged, "{}: {entries} entries, singly {exchanged}", scene.name);
            for (name, ours, theirs) in [
                ("pins", way.pins, singly.pins),
                ("addresses of the direct map", way.direct_maps, singly.direct_maps),
                ("flushes", way.flushes, singly.flushes),
                ("runs told to be free", way.freed, singly.freed),
                ("block locks", way.block_locks, singly.block_locks),
                ("shard locks", way.shard_locks, singly.shard_locks),
                ("table locks", way.other_locks, singly.other_locks),
                ("allocations", way.fail_asked, singly.fail_asked),
            ] {
                println!("{}: {name}: {ours}, singly {theirs}", scene.name);
                assert!(ours <= theirs, "{}: {name}: {ours}, singly {theirs}", scene.name);
            }
        }
    });
}

/// The same, counted in instructions.
#[cfg(not(miri))]
#[test]
fn one_page_never_takes_more_instructions_than_entry_by_entry() {
    let machine = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(256 << 20) };
    let machine = machine.build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        for &scene in SCENES.iter().filter(|scene| scene.gone.1 == 1) {
            let steps = |zap| {
                let allocator = crate::allocator(&counting, &machine);
                staged(&counting, &allocator, zap, scene, |context| {
                    steps_of(&machine, &mut || unmap(&allocator, context, scene))
                })
            };
            let (way, singly) = (steps(ZapStrategy::Tables), steps(ZapStrategy::PerPage));
            println!("{}: {way} instructions, singly {singly}", scene.name);
            assert!(way <= singly, "{}: {way} instructions, singly {singly}", scene.name);
        }
    });
}

/// The published way frees folio by folio, so it falls with their size. To ask at each page how far its folio
/// goes made it rise again, and so did masks of the whole block for each page.
#[cfg(not(miri))]
#[test]
fn entry_by_entry_falls_with_the_size_of_folios() {
    const PAGES: u64 = 32;
    let machine = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(256 << 20) };
    let machine = machine.build().unwrap();
    machine.run_on(CpuId(0), || {
        let counting = Counting::new(&machine);
        let steps = |order: u8| {
            let allocator = crate::allocator(&counting, &machine);
            let context = PageTables::create(&allocator, PagingMode::FourLevel).unwrap();
            let context = context.with_zap(ZapStrategy::PerPage);
            let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE) | EntryFlags::ANON;
            for page in (0..PAGES).step_by(1 << order) {
                let order = Order::new(order).unwrap();
                let frames = FrameRange::folio(allocator.alloc_raw(Gfp::USER, order).unwrap(), order);
                page_tables(&allocator, &context).map_raw(range(page, 1).start, frames, flags).unwrap();
            }
            let mut unmap = || {
                let mut gather = MmuGather::new(&allocator, &context);
                let zap = Zap::tables(range(0, PAGES), range(0, PAGES));
                page_tables(&allocator, &context).unmap(&zap, &mut gather).unwrap();
                gather.finish();
            };
            let steps = steps_of(&machine, &mut unmap);
            PageTables::destroy(&allocator, context);
            steps / PAGES
        };
        let [single, of_4, of_16, of_512] = [0, 2, 4, 9].map(steps);
        println!("instructions a page: {single}, in folios of 4: {of_4}, of 16: {of_16}, of 512: {of_512}");
        assert!(single > of_16 && single > of_512, "{single}, {of_16} in folios of 16, {of_512} of 512");
    });
}
