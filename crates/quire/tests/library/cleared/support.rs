//! A machine that watches its clears, and programs that store to what they use.

use std::collections::BTreeMap;

use hosted::raw::RawPages;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, VirtAddr};
use quire::clear::Extent;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::{AllocatorConfig, Contents, Gfp, Mobility, Urgency, Zeroes};
use quire::platform::TouchHint;
use quire::vm::{FolioPolicy, PageFlags};

use crate::vm::world::{Manager, Space, store};
use testkit::ranges_of;

pub(crate) const PAGE: u64 = 4096;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const BASE: u64 = 64 << 30;

/// As much as idle CPUs may clear.
pub(crate) const AHEAD: Zeroes =
    Zeroes { remember: true, blocks_ahead: 1 << 20, pieces_ahead: 4096, pools_ahead: 1 << 20, verify: true };

pub(crate) fn config(folios: FolioPolicy) -> Config {
    let allocator = AllocatorConfig { zeroes: AHEAD, ..AllocatorConfig::default() };
    Config { allocator, folios, ..Config::default() }
}

/// The same without reading what is known to be zero, which takes memory of the host.
pub(crate) fn unverified(folios: FolioPolicy) -> Config {
    let zeroes = Zeroes { verify: false, ..AHEAD };
    Config { allocator: AllocatorConfig { zeroes, ..AllocatorConfig::default() }, ..config(folios) }
}

/// Runs `test` on a machine whose memory is all zero at the start, and returns how many frames were cleared
/// although they were still zero.
pub(crate) fn cleared_again(
    machine: HostedConfig,
    config: &Config,
    test: impl FnOnce(&Hosted, &MemoryManager<'_, Hosted>),
) -> u64 {
    cleared_again_boxed(machine, config, Box::new(test))
}

type Test<'t> = Box<dyn FnOnce(&Hosted, &MemoryManager<'_, Hosted>) + 't>;

fn cleared_again_boxed(machine: HostedConfig, config: &Config, test: Test<'_>) -> u64 {
    let machine = machine.watching_clears().build().unwrap();
    promise(&machine);
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine), config).unwrap();
        test(&machine, &manager);
        manager.validate().unwrap();
        if config.allocator.zeroes.verify {
            manager.pages().verify_zeroes().unwrap();
        }
        machine.assert_clean();
    });
    report(&machine)
}

/// All memory of the machine is zero now.
pub(crate) fn promise(machine: &Hosted) {
    for range in machine.ranges() {
        machine.promise_zeroes(FrameRange::new(range.start.frame(), range.bytes / PAGE));
    }
}

/// How many frames were cleared again since the last call. Prints by which paths.
pub(crate) fn report(machine: &Hosted) -> u64 {
    let again = machine.frames_cleared_again();
    for found in machine.take_cleared_again() {
        println!("{:?} were still zero: {}", found.frames, found.path);
    }
    again
}

/// The program stores to each page of a range.
pub(crate) fn store_all(machine: &Hosted, mm: &Space<'_>, addr: u64, len: u64) {
    (addr..addr + len).step_by(PAGE as usize).for_each(|at| store(machine, mm, at, at | 1).unwrap());
}

/// What an idle CPU does until there is nothing left to clear.
pub(crate) fn idle(manager: &MemoryManager<'_, Hosted>) {
    while manager.clear_ahead() || manager.zero_ahead() {}
}

pub(crate) fn only(number: u8) -> FolioPolicy {
    FolioPolicy::only(Order::new(number).unwrap())
}

pub(crate) fn at(addr: u64) -> VirtAddr {
    VirtAddr(addr)
}

/// Where the free memory of a test is. Both hold some frames, so that no block becomes whole of which a part is zero: such a
/// block loses its marks (`alloc::a_block_that_becomes_whole_is_zero_as_a_whole`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ground {
    /// In blocks in small pieces: the first free frame of each is held.
    Pieces,
    /// In whole blocks, beside one for each kind of small memory.
    Blocks,
    /// As the machine was built.
    Fresh,
}

impl Ground {
    pub(crate) fn hold(self, manager: &Manager<'_>) -> Vec<Frame> {
        let pages = manager.pages();
        let taken = |mobility| pages.alloc_raw(Gfp { mobility, ..Gfp::USER }, Order::FRAME).unwrap();
        if self == Ground::Fresh {
            return Vec::new();
        }
        if self == Ground::Blocks {
            return Mobility::ALL.map(taken).to_vec();
        }
        let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
        let all: Vec<_> = std::iter::from_fn(|| take(manager, gfp, Order::FRAME)).collect();
        let blocks: BTreeMap<_, _> = all.iter().rev().map(|&frame| (frame.block(), frame)).collect();
        let (held, rest): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|frame| blocks[&frame.block()] == *frame);
        rest.into_iter().for_each(|frame| pages.free_zeroed_raw(frame, Order::FRAME).unwrap());
        held
    }
}

/// Allocates a folio of zeroes, and clears it unless it is known to be zero.
pub(crate) fn take(manager: &Manager<'_>, gfp: Gfp, folio: Order) -> Option<Frame> {
    let (frame, contents) = manager.pages().alloc_maybe_zeroed_raw(gfp, folio).ok()?;
    if contents == Contents::Unknown {
        let extent = Extent::new(FrameRange::folio(frame, folio), TouchHint::Later);
        manager.pages().clear_extent_raw(&extent).unwrap();
    }
    Some(frame)
}

/// Clears all free memory that is not known to be zero, and leaves all of it known to be, but for what is on lists.
pub(crate) fn sweep(machine: &Hosted, manager: &Manager<'_>) {
    let pages = manager.pages();
    let gfp = Gfp { urgency: Urgency::Reserve, ..Gfp::USER };
    let all: Vec<_> = std::iter::from_fn(|| take(manager, gfp, Order::FRAME)).collect();
    all.into_iter().for_each(|frame| pages.free_zeroed_raw(frame, Order::FRAME).unwrap());
    machine.take_cleared_again();
}

/// Free frames that are zero without a mark that says so.
pub(crate) fn unmarked(machine: &Hosted, manager: &Manager<'_>) -> u64 {
    let mut zero = 0;
    let all = |range: &hosted::MemoryRange| FrameRange::new(range.start.frame(), range.bytes / PAGE);
    for range in machine.ranges().iter().map(all) {
        manager.kpageflags(range, |frames, flags| {
            zero += if flags.0 & PageFlags::BUDDY != 0 { machine.frames_still_zero(frames) } else { 0 };
        });
    }
    let pages = manager.pages();
    let known = pages.zone_info().map(|zone| zone.zeroed).sum::<u64>() + pages.zeroed_on_lists();
    zero.checked_sub(known).expect("what is known to be zero was cleared, or was zero at the start")
}

/// What a program does, and how many frames are cleared again because of it.
pub(crate) type Case = (&'static str, u64, fn(&Hosted, &Manager<'_>));

/// Runs each case on memory that is all known to be zero, and checks how many frames it clears again, or leaves zero without
/// a mark.
pub(crate) fn check(ground: Ground, machine: &HostedConfig, config: &Config, cases: &[Case]) {
    for &(name, expected, case) in cases {
        let end = cleared_again(machine.clone(), config, |machine, manager| {
            let held = ground.hold(manager);
            if ground != Ground::Fresh {
                sweep(machine, manager);
            }
            let before = unmarked(machine, manager);
            case(machine, manager);
            let (again, lost) = (report(machine), unmarked(machine, manager) - before);
            assert_eq!(again + lost, expected, "{name}: {again} and {lost}, {ground:?}, {:?}", config.folios);
            held.into_iter().for_each(|frame| manager.pages().free_raw(frame, Order::FRAME).unwrap());
        });
        assert_eq!(end, 0);
    }
}
