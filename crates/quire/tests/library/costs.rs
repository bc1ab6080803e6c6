//! Exact costs of address spaces and pools, in calls of the platform: finding the mappings of a frame reads a page table
//! or two, however much is mapped. Those of single requests are counted in `crates/pins`.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::hugetlb::HugeSize;
use quire::limits::HUGE_BATCH;
use quire::manager::Config;
use quire::page_alloc::NodeSet;
use quire::vm::{Access, Backing, FolioPolicy, MapRequest, Placement, Remap, Sharing};
use testkit::ranges_of;

use crate::watched::Watched;

const FROM: VirtAddr = VirtAddr(64 << 30);
const TO: VirtAddr = VirtAddr(80 << 30);
const LEN: u64 = 32 << 20;

/// Each level that is walked asks the machine for its table; 16 tables of the lowest level map the memory.
#[test]
fn a_moved_frame_is_found_without_a_search() {
    let machine = HostedConfig::new(128 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let manager =
            hosted::raw::memory_manager(&watched, &ranges_of(&machine), &Config::default()).unwrap();
        let mm = manager.new_mm().unwrap();
        let prot = Protection::READ | Protection::WRITE;
        let request =
            MapRequest { addr: FROM, len: LEN, prot, placement: Placement::Fixed, ..MapRequest::default() };
        mm.mmap(&request).unwrap();
        for at in (0..LEN).step_by(4096) {
            mm.fault(FROM.add(at), Access::Write).unwrap();
        }
        let last = LEN - 4096;
        let frame = machine.probe(mm.root(), FROM.add(last)).unwrap().frame;
        let looks = |at: VirtAddr| {
            let mut found = Vec::new();
            let (calls, ()) = watched.calls_during(|| manager.mappings(frame, |_, addr| found.push(addr)));
            assert_eq!(found, [at]);
            calls.direct_maps
        };
        assert_eq!(looks(FROM.add(last)), 4);
        mm.mremap(FROM, LEN, LEN, Remap::Fixed(TO)).unwrap();
        // At its first address the walk ends at the third level now.
        let moved = looks(TO.add(last));
        assert!(moved <= 8, "{moved} tables were looked at");
        mm.exit();
    });
}

/// Pages of a file that move into one block are checked in groups: one hold of a block's lock tells which of
/// 64 frames are mapped.
#[test]
fn a_collapse_of_a_file_reads_the_counts_of_64_frames_in_one_hold() {
    let machine = HostedConfig::new(128 << 20).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let manager =
            hosted::raw::memory_manager(&watched, &ranges_of(&machine), &Config::default()).unwrap();
        manager.set_folio_policy(FolioPolicy::FRAMES);
        let (len, file) = (2 << 20, manager.shmem(2 << 20).unwrap());
        let mm = manager.new_mm().unwrap();
        let prot = Protection::READ | Protection::WRITE;
        let backing = Backing::File { file: &file, page_offset: 0 };
        let (sharing, placement) = (Sharing::Shared, Placement::Fixed);
        mm.mmap(&MapRequest { addr: FROM, len, prot, placement, sharing, backing, ..MapRequest::default() })
            .unwrap();
        // The last page first, since pages touched in order would be one block in order already.
        for at in core::iter::once(len - 4096).chain((0..len - 4096).step_by(4096)) {
            mm.fault(FROM.add(at), Access::Write).unwrap();
        }
        let (calls, report) = watched.calls_during(|| mm.collapse(FROM, len).unwrap());
        assert_eq!((report.copied, report.all_refused()), (1, 0));
        // Eight for the checks; the others allocate the block and free the old frames.
        assert!(calls.block_locks < 64, "{} holds of blocks for 512 pages", calls.block_locks);
        mm.exit();
    });
}

/// Pages of one batch that are neighbours go back to the region's free blocks under one hold of its lock.
#[test]
fn neighbours_leave_a_pool_together() {
    let machine = HostedConfig::new(1 << 30).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let manager =
            hosted::raw::memory_manager(&watched, &ranges_of(&machine), &Config::default()).unwrap();
        let resize = |pages: usize| {
            let done = manager.resize_huge(HugeSize::Size2M, NodeSet::ALL, pages as u64);
            assert_eq!(done.after, pages as u64);
        };
        resize(HUGE_BATCH);
        let (calls, ()) = watched.calls_during(|| resize(0));
        println!("{HUGE_BATCH} pages: {} holds of the region's lock, {calls:?}", calls.pool_locks);
        assert_eq!(calls.pool_locks, 1);
        manager.validate().unwrap();
    });
}
