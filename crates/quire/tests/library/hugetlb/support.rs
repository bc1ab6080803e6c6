//! Machines of several nodes, and the checks at the end of every test.

use hosted::{Hosted, HostedConfig, MemoryRange};
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugePools, HugeSize, PoolInfo};
use quire::page_alloc::{AllocatorConfig, NodeSet, PageAllocator};

use testkit::ranges_of;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const BOTH: NodeSet = NodeSet::first(2);

pub(crate) type Pages<'m> = PageAllocator<'m, Hosted>;

/// Pools, and the allocator that they take pages from.
pub(crate) struct World<'w, 'm> {
    pub(crate) machine: &'m Hosted,
    pub(crate) pages: &'w Pages<'m>,
    pub(crate) pools: &'w HugePools<'w>,
}

impl World<'_, '_> {
    pub(crate) fn info(&self, size: HugeSize) -> PoolInfo {
        self.pools.info(self.pages, size)
    }

    pub(crate) fn check(&self) {
        self.pools.validate(self.pages).unwrap();
        self.pages.validate().unwrap();
        let in_pools = |size: HugeSize| self.info(size).total * size.order().frames();
        let info = self.pages.memory_info();
        let window = self.pools.window().map_or(0, |window| window.frames());
        let used = HugeSize::ALL.map(in_pools).iter().sum::<u64>() + window;
        // Invariant 8: a frame that is not in a pool or the window is free or lost. Bad frames may still be
        // part of pages in use.
        let (bad, kept) = (
            self.pages.frames().bad_frames(),
            self.info(HugeSize::Size2M).total + self.info(HugeSize::Size1G).total,
        );
        let lost = info.used - used;
        assert!(lost == bad || lost < bad && kept > 0, "{lost} frames are lost, {bad} are bad");
    }
}

/// A machine of two nodes with this much memory each, and two CPUs, one on each node.
pub(crate) fn two_nodes(bytes: u64) -> HostedConfig {
    let range = |node: u8| MemoryRange::new(u64::from(node) * bytes, bytes).on_node(node);
    let config = HostedConfig { ranges: vec![range(0), range(1)], ..HostedConfig::new(0) };
    config.with_cpus(2).with_nodes(vec![0, 1])
}

/// Runs `test` as CPU 0, and empties the pools at the end.
pub(crate) fn with_pools(config: HostedConfig, test: impl FnOnce(&World<'_, '_>)) {
    with_policy(DescriptorPolicy::InBlock, config, test);
}

/// The same under a descriptor policy. The kernel half of the machine is the window.
pub(crate) fn with_policy(policy: DescriptorPolicy, config: HostedConfig, test: impl FnOnce(&World<'_, '_>)) {
    with_boxed(policy, config, Box::new(test));
}

/// [`with_policy`], compiled once for all tests.
fn with_boxed(policy: DescriptorPolicy, config: HostedConfig, test: Box<dyn FnOnce(&World<'_, '_>) + '_>) {
    let machine = config.build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let pages =
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), AllocatorConfig::default()).unwrap();
        let pools = HugePools::with_policy(&pages, policy).unwrap();
        machine.set_kernel_root(pools.window().map(|window| window.root()));
        let world = World { machine: &machine, pages: &pages, pools: &pools };
        world.check();
        test(&world);
        world.check();
        for size in HugeSize::ALL {
            let _ = pools.resize(&pages, size, NodeSet::ALL, 0);
        }
        pages.lists().drain_all();
        world.check();
    });
}

/// Empty pools of a small machine, for tests of what takes no memory.
pub(crate) fn with_empty_pools(test: impl FnOnce(&Pages<'_>, &HugePools<'_>)) {
    testkit::with_allocator(HostedConfig::new(4 * MIB), |_, pages| {
        test(pages, &HugePools::new(pages).unwrap());
    });
}
