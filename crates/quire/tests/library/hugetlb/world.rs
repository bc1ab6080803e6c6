//! Programs that map huge pages: a machine, its manager with pools, and accesses through the software MMU.

use std::time::Instant;

use hosted::{Hosted, HostedConfig};
use quire::addr::{VirtAddr, VirtRange};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugeSize, PoolInfo};
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::NodeSet;
use quire::vm::{Backing, File, MapRequest, Mm, Placement, Sharing};

use testkit::ranges_of;
pub(crate) use testkit::{load, store};

pub(crate) const R: Protection = Protection::READ;
pub(crate) const RW: Protection = Protection::from_bits(3);
pub(crate) const HUGE: u64 = 2 << 20;
/// Where most tests map: a multiple of 1 GiB.
pub(crate) const BASE: u64 = 4 << 30;

pub(crate) type Manager<'p> = MemoryManager<'p, Hosted>;
pub(crate) type Space<'m> = Mm<'m, Hosted>;

/// What an idle CPU does.
pub(crate) fn clear_ahead_until(manager: &Manager<'_>, end: Instant) {
    while Instant::now() < end {
        manager.clear_ahead();
    }
}

/// Runs `test` as CPU 0 of a machine with a pool of so many pages of 2 MiB. Checks at the end that the pool
/// has all of them, that none is reserved, and that all memory is free.
pub(crate) fn with_huge(pages: u64, test: impl Fn(&Hosted, &Manager<'_>)) {
    with_config(
        HostedConfig::new((pages * HUGE + (64 << 20)).next_power_of_two()),
        HugeSize::Size2M,
        pages,
        test,
    );
}

/// The same on any machine, with pages of any size; once with descriptors in the block, and once in a window.
pub(crate) fn with_config(
    machine: HostedConfig,
    size: HugeSize,
    pages: u64,
    test: impl Fn(&Hosted, &Manager<'_>),
) {
    for descriptors in [DescriptorPolicy::InBlock, DescriptorPolicy::Batched] {
        let config = Config { descriptors, ..Config::default() };
        with_policy(machine.clone(), &config, size, pages, &test);
    }
}

/// Compiled once for all tests.
fn with_policy(
    machine: HostedConfig,
    config: &Config,
    size: HugeSize,
    pages: u64,
    test: &dyn Fn(&Hosted, &Manager<'_>),
) {
    let machine = machine.build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine), config).unwrap();
        let pools = manager.huge_pools();
        machine.set_kernel_root(pools.window().map(|window| window.root()));
        manager.pages().lists().drain_local();
        let used = || manager.meminfo().frames.used - pools.window().map_or(0, |window| window.frames());
        let before = used();
        let resized = pools.resize(manager.pages(), size, NodeSet::ALL, pages);
        assert_eq!(resized.after, pages);
        test(&machine, &manager);
        assert_eq!(info(&manager, size), PoolInfo { total: pages, free: pages, ..PoolInfo::default() });
        check(&manager);
        let _ = pools.resize(manager.pages(), size, NodeSet::ALL, 0);
        manager.pages().lists().drain_local();
        assert_eq!(used(), before, "frames were lost, or freed twice");
        machine.assert_clean();
    });
}

pub(crate) fn check(manager: &Manager<'_>) {
    manager.huge_pools().validate(manager.pages()).unwrap();
    manager.validate().unwrap();
}

pub(crate) fn info(manager: &Manager<'_>, size: HugeSize) -> PoolInfo {
    manager.huge_pools().info(manager.pages(), size)
}

pub(crate) fn free_and_promised(manager: &Manager<'_>) -> (u64, u64) {
    let info = info(manager, HugeSize::Size2M);
    (info.free, info.reserved)
}

/// An address space that this CPU runs for the length of `test`, checked at the end.
pub(crate) fn run<'m>(manager: &'m Manager<'_>, test: impl FnOnce(&Space<'m>)) {
    let mm = manager.new_mm().expect("no address space");
    within(&mm, || test(&mm));
}

/// Runs an address space on this CPU for the length of `test`, and checks it.
pub(crate) fn within<T>(mm: &Space<'_>, test: impl FnOnce() -> T) -> T {
    mm.switch_in();
    let done = test();
    mm.validate().expect("broken address space");
    mm.switch_out();
    done
}

/// Private memory of 2 MiB pages at a fixed address.
pub(crate) fn private(addr: u64, pages: u64) -> MapRequest<'static> {
    MapRequest {
        addr: VirtAddr(addr),
        len: pages * HUGE,
        prot: RW,
        placement: Placement::Fixed,
        huge: Some(HugeSize::Size2M),
        ..MapRequest::default()
    }
}

/// A part of a file, from its page `first` on.
pub(crate) fn of_file<'f>(
    file: &'f File<'_, Hosted>,
    sharing: Sharing,
    addr: u64,
    (first, pages): (u64, u64),
) -> MapRequest<'f> {
    let backing = Backing::File { file, page_offset: first * (HUGE >> 12) };
    MapRequest { sharing, backing, huge: None, ..private(addr, pages) }
}

/// A child of the running address space.
pub(crate) fn fork<'m>(mm: &Space<'m>) -> Space<'m> {
    mm.fork().expect("no memory for a child")
}

pub(crate) fn ranges(mm: &Space<'_>) -> Vec<VirtRange> {
    let mut all = Vec::new();
    mm.vmas(|vma| all.push(vma.range));
    all
}

/// All pages of a pool are free again, and the machine is in order.
pub(crate) fn all_are_back(manager: &Manager<'_>, size: HugeSize) {
    let left = info(manager, size);
    assert_eq!((left.free, left.reserved, left.surplus), (left.total, 0, 0), "all pages are back");
    check(manager);
}

/// Like `with_huge`, for tests in which frames go bad and pools become smaller.
pub(crate) fn with_pool(size: HugeSize, bytes: u64, pages: u64, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    let machine = HostedConfig::new(bytes).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &Config::default()).unwrap();
        manager.pages().lists().drain_local();
        let before = manager.meminfo().frames;
        let pools = manager.huge_pools();
        assert_eq!(pools.resize(manager.pages(), size, NodeSet::ALL, pages).after, pages);
        test(&machine, &manager);
        all_are_back(&manager, size);
        let _ = pools.resize(manager.pages(), size, NodeSet::ALL, 0);
        manager.pages().lists().drain_all();
        let after = manager.meminfo();
        assert_eq!(after.frames.used, before.used + after.bad, "only bad frames are lost");
        machine.assert_clean();
    });
}
