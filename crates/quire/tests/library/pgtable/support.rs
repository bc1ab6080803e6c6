//! Helpers of the tests of page tables.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
pub use hosted::raw::page_tables;
use hosted::{Hosted, HostedConfig, Translation};
use quire::addr::{Frame, FrameRange, Order, PageSize, VirtAddr, VirtRange};
use quire::arch::ReadyClear;
use quire::arch::{EntryFlags, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::page_alloc::{Gfp, PageAllocator};
use quire::pgtable::{PageTables, TableCensus, Zap};
use quire::stats::Stat;
use quire::tlb::{MmContext, MmuGather, RssChange, ZapStrategy};

use testkit::with_allocator;

pub type Allocator<'p> = PageAllocator<'p, Hosted>;
pub type Tables<'a, 'p> = PageTables<'a, 'p, Hosted>;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
pub const BLOCK: Order = Order::BLOCK;

/// Runs a test with one address space, which is destroyed at the end; all memory must be free then.
pub fn with_space(config: HostedConfig, test: impl FnOnce(&Hosted, &Allocator<'_>, &MmContext)) {
    with_space_of(config, ZapStrategy::default(), test);
}

/// The same with this way of unmapping.
pub fn with_space_of(
    config: HostedConfig,
    zap: ZapStrategy,
    test: impl FnOnce(&Hosted, &Allocator<'_>, &MmContext),
) {
    with_boxed(config, zap, Box::new(test));
}

type Test<'t> = Box<dyn FnOnce(&Hosted, &Allocator<'_>, &MmContext) + 't>;

/// [`with_space_of`], compiled once for all tests.
fn with_boxed(config: HostedConfig, zap: ZapStrategy, test: Test<'_>) {
    with_allocator(config, |machine, allocator| {
        let before = used(allocator);
        let context = Tables::create(allocator, PagingMode::FourLevel).expect("no root").with_zap(zap);
        test(machine, allocator, &context);
        let last = check(allocator, &context);
        let change = Tables::destroy(allocator, context);
        assert_eq!((change.anon, change.file), (-last.resident.anon, -last.resident.file));
        assert_eq!(used(allocator), before, "memory was lost");
        assert_eq!(allocator.validate(), Ok(()));
    });
}

/// The config of most tests: 64 MiB, three CPUs.
pub fn small_machine() -> HostedConfig {
    HostedConfig::new(64 * MIB).with_cpus(3)
}

pub fn used(allocator: &Allocator<'_>) -> u64 {
    allocator.lists().drain_local();
    allocator.memory_info().used
}

pub fn check(allocator: &Allocator<'_>, context: &MmContext) -> TableCensus {
    page_tables(allocator, context).validate().expect("the tables are broken")
}

pub fn folio(machine: &Hosted, allocator: &Allocator<'_>, order: Order) -> Option<Frame> {
    let frame = allocator.alloc_raw(Gfp::USER, order).ok()?;
    hosted::raw::RawMachine::clear_raw(machine, FrameRange::folio(frame, order), ReadyClear::PLAIN);
    Some(frame)
}

/// Flags of private anonymous memory that a store fault maps.
pub fn written() -> EntryFlags {
    EntryFlags::leaf(Protection::READ | Protection::WRITE)
        | EntryFlags::ANON
        | EntryFlags::ACCESSED
        | EntryFlags::DIRTY
        | EntryFlags::SOFT_DIRTY
}

/// Maps new folios of `order` in all of a range.
pub fn populate(
    machine: &Hosted,
    allocator: &Allocator<'_>,
    context: &MmContext,
    range: VirtRange,
    order: Order,
) -> Vec<Frame> {
    let tables = page_tables(allocator, context);
    let addrs = (range.start.0..range.end.0).step_by(order.bytes() as usize);
    addrs
        .map(|addr| {
            let frame = folio(machine, allocator, order).expect("out of memory");
            tables.map_raw(VirtAddr(addr), FrameRange::folio(frame, order), written()).expect("not mapped");
            frame
        })
        .collect()
}

pub fn populate_large(
    machine: &Hosted,
    allocator: &Allocator<'_>,
    context: &MmContext,
    addr: VirtAddr,
) -> Frame {
    let frame = folio(machine, allocator, BLOCK).expect("out of memory");
    page_tables(allocator, context)
        .map_large_raw(addr, frame, PageSize::Size2M, written())
        .expect("not mapped");
    frame
}

/// Unmaps a range with all tables that only it uses.
pub fn unmap_all(allocator: &Allocator<'_>, context: &MmContext, range: VirtRange) -> RssChange {
    let mut gather = MmuGather::new(allocator, context);
    let zap = Zap::tables(range, context.mode().user_range());
    let outcome = page_tables(allocator, context).unmap(&zap, &mut gather);
    let change = gather.finish();
    outcome.expect("not unmapped");
    change
}

/// Runs the address space on these CPUs for the length of `action`.
pub fn running<R>(machine: &Hosted, context: &MmContext, cpus: &[u32], action: impl FnOnce() -> R) -> R {
    let each = |act: &dyn Fn()| cpus.iter().for_each(|&cpu| machine.run_on(CpuId(cpu), act));
    each(&|| context.switch_in(machine));
    let result = action();
    each(&|| context.switch_out(machine));
    result
}

/// How the counters changed over `action`.
pub fn counted<const N: usize>(
    allocator: &Allocator<'_>,
    stats: [Stat; N],
    action: impl FnOnce(),
) -> [u64; N] {
    let before = stats.map(|stat| allocator.lists().stat(stat));
    action();
    core::array::from_fn(|at| allocator.lists().stat(stats[at]) - before[at])
}

pub fn range(start: u64, len: u64) -> VirtRange {
    VirtRange::from_len(VirtAddr(start), len)
}

/// Every mapped page: address, frame, and whether user mode may use it at all.
pub fn pages(machine: &Hosted, context: &MmContext) -> Vec<(u64, u64, bool)> {
    let each = |leaf: &Translation| {
        let (addr, frame, user) = (leaf.addr.0, leaf.frame.0, leaf.user);
        (0..leaf.frames).map(move |at| (addr + at * 4096, frame + at, user))
    };
    machine.leaves(context.root()).iter().flat_map(each).collect()
}
