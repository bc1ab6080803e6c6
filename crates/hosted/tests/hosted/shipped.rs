//! The whole library at work, as kernels link it: without the feature `published`, where this package is tested by itself.
//! (Tests of the whole workspace have the feature, since the models and the command want it.)

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::page_alloc::NodeSet;
use quire::vm::{Access, Advice, FolioPolicy, MapRequest, Mm};

const BYTES: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

fn with_manager(test: impl FnOnce(&Hosted, &MemoryManager<'_, Hosted>)) {
    let machine = HostedConfig::new(BYTES).build().unwrap();
    machine.run_on(CpuId(0), || {
        let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
        let manager = hosted::raw::memory_manager(&machine, &[memory], &Config::default()).unwrap();
        test(&machine, &manager);
        assert_eq!(manager.validate(), Ok(()));
    });
}

fn map(mm: &Mm<'_, Hosted>, len: u64, huge: Option<HugeSize>) -> VirtAddr {
    let prot = Protection::READ | Protection::WRITE;
    mm.mmap(&MapRequest { len, prot, huge, ..MapRequest::default() }).unwrap()
}

fn touch(mm: &Mm<'_, Hosted>, start: VirtAddr, len: u64) {
    for page in 0..len / 4096 {
        mm.fault(VirtAddr(start.0 + page * 4096), Access::Write).unwrap();
    }
}

#[test]
fn memory_is_mapped_shared_by_fork_and_taken_apart_by_table_and_by_page() {
    with_manager(|_, manager| {
        let free = manager.meminfo().frames.free + manager.meminfo().frames.cached;
        for policy in [FolioPolicy::default(), FolioPolicy::from_bits(0)] {
            manager.set_folio_policy(policy);
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            let at = map(&mm, 16 * MIB, None);
            touch(&mm, at, 16 * MIB);
            let child = mm.fork().unwrap();
            mm.munmap(VirtAddr(at.0 + MIB), 4096).unwrap();
            mm.munmap(VirtAddr(at.0 + 2 * MIB), 8 * MIB).unwrap();
            mm.madvise(VirtAddr(at.0 + 11 * MIB), MIB, Advice::DontNeed).unwrap();
            mm.switch_out();
            child.switch_in();
            touch(&child, at, 4 * MIB);
            child.switch_out();
            assert_eq!(manager.validate(), Ok(()));
            child.exit();
            mm.exit();
        }
        let after = manager.meminfo().frames;
        assert!(after.free + after.cached + 64 >= free, "{after:?}");
    });
}

#[test]
fn a_pool_grows_serves_is_demoted_and_shrinks() {
    with_manager(|_, manager| {
        let (pools, pages) = (manager.huge_pools(), manager.pages());
        assert!(pools.is_saving() && !pools.set_saving(false), "there is nothing to choose");
        assert_eq!(manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 20).after, 20);
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        let at = map(&mm, 8 * MIB, Some(HugeSize::Size2M));
        for page in 0..4 {
            mm.fault(VirtAddr(at.0 + page * 2 * MIB), Access::Write).unwrap();
        }
        assert_eq!(
            manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, 0).after,
            0,
            "those in use are surplus"
        );
        assert_eq!(pools.info(pages, HugeSize::Size2M).total, 4);
        assert_eq!(pools.validate(pages), Ok(()));
        mm.exit();
        assert_eq!(pools.info(pages, HugeSize::Size2M).total, 0);
    });
}
