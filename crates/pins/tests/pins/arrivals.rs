//! The cost of leaves of 4 KiB that arrive one at a time inside one page of 1 GiB, in two address spaces.

use hosted::raw::{RawTables, page_tables};
use hosted::{Hosted, HostedConfig, InterruptPlan};
use quire::addr::{FrameRange, Order, VirtAddr, VirtRange};
use quire::arch::{EntryFlags, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::limits::{BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use quire::page_alloc::{AllocatorConfig, CountScheme, Gfp};
use quire::pgtable::PageTables;
use quire::platform::Context;
use quire::tlb::MmuGather;

use super::ranges_of;
use pins::Machine;

const AT: VirtAddr = VirtAddr(4 << 30);
/// Pieces that arrive before the measured ones.
const BEFORE: u64 = 100;
/// Pieces whose arrival is measured.
const COUNTED: u64 = 8;

/// Maps all pieces of one block in a scattered order, in so many address spaces, and collapses it in each.
/// `measure` runs some of the arrivals.
fn arrive<const WATCHES: bool, R>(
    counts: CountScheme,
    spaces: usize,
    measure: impl FnOnce(&Hosted, &Machine<'_, WATCHES>, &mut dyn FnMut()) -> R,
) -> R {
    let config = HostedConfig { tlb_model: false, check_ranks: false, ..HostedConfig::new(3 << 30) };
    let machine = config.build().unwrap();
    machine.run_on(CpuId(0), || {
        let platform = Machine::<WATCHES>::new(&machine);
        let config = AllocatorConfig { counts, ..AllocatorConfig::default() };
        let allocator = hosted::raw::page_allocator(&platform, &ranges_of(&machine), config).unwrap();
        let page = allocator.alloc(Gfp::USER, Order::GIGANTIC).unwrap();
        let page = allocator.frames().make_huge(page);
        let spaces: Vec<_> =
            (0..spaces).map(|_| PageTables::create(&allocator, PagingMode::FourLevel).unwrap()).collect();
        let leaf = EntryFlags::leaf(Protection::READ | Protection::WRITE);
        // The record of the first block has the page's descriptor: these are of the second.
        let arrive = |nth: u64| {
            let piece = BLOCK_FRAMES as u64 + nth * 205 % BLOCK_FRAMES as u64;
            for context in &spaces {
                let run = FrameRange::new(page.add(piece), 1);
                let flags = leaf | EntryFlags::ACCESSED | EntryFlags::DIRTY;
                page_tables(&allocator, context).map_raw(AT.add(piece * FRAME_SIZE), run, flags).unwrap();
            }
        };
        (0..BEFORE).for_each(arrive);
        let measured = measure(&machine, &platform, &mut || (BEFORE..BEFORE + COUNTED).for_each(arrive));
        (BEFORE + COUNTED..BLOCK_FRAMES as u64).for_each(arrive);
        for context in spaces {
            let mut gather = MmuGather::new(&allocator, &context);
            let range = VirtRange::from_len(AT.add(BLOCK_SIZE), BLOCK_SIZE);
            let tables = page_tables(&allocator, &context);
            assert_eq!(tables.collapse_tables(range, false, &mut gather), Ok(1));
            gather.finish();
            PageTables::destroy(&allocator, context);
        }
        measured
    })
}

/// Instructions of each arrival, in all address spaces together.
fn instructions(counts: CountScheme, spaces: usize) -> u64 {
    arrive::<false, _>(counts, spaces, |machine, _, work| {
        // SAFETY: H7: the handler does nothing.
        let counted =
            unsafe { machine.interrupt_at_steps(InterruptPlan::Count, Context::HardInterrupt, || (), work) };
        counted.unwrap().events / COUNTED
    })
}

/// A leaf that arrives takes the lock of its table and that of its block, no shared one, and about as many
/// instructions as one number for the whole page, changed once for each leaf.
#[test]
fn an_arrival_costs_little_more_than_a_number_for_the_page() {
    for spaces in [1, 2] {
        let locks = arrive::<true, _>(CountScheme::Dense, spaces, |_, platform, work| {
            platform.during(work).0.locks()
        });
        let schemes = [CountScheme::Dense, CountScheme::HeadOnlyByLeaf, CountScheme::TotalMapped];
        let [ours, by_leaf, total] = schemes.map(|counts| instructions(counts, spaces));
        println!(
            "{spaces} address spaces, each arrival: {ours} instructions, {by_leaf} by leaf, {total} total-mapped; {locks:?}"
        );
        let leaves = COUNTED * spaces as u64;
        assert_eq!((locks.block, locks.other), (leaves, leaves));
        assert_eq!(locks.shard + locks.pool + locks.parked, 0);
        assert!(ours * 10 <= by_leaf * 11, "{ours} instructions, {by_leaf} by leaf");
        assert!(ours * 10 <= total * 11, "{ours} instructions, {total} where pages are counted together");
    }
}
