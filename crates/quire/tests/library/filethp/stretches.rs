//! A collapse that brings in missing pages has reschedule points: a machine records them.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::limits::COLLAPSE_FILE_PAGES;
use quire::manager::Config;
use quire::page_alloc::{AllocatorConfig, Zeroes};
use quire::vm::{Access, Backing, FolioPolicy, MapRequest, Placement, Sharing};

use crate::filethp::support::{BASE, HUGE, PAGE};
use crate::filethp::world::{MIB, RW};
use crate::watched::{Event, Watched};
use testkit::ranges_of;

#[test]
fn holes_of_shmem_are_cleared_some_at_a_time() {
    let machine = HostedConfig::new(32 * MIB).build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let zeroes = Zeroes { remember: false, ..Zeroes::default() };
        let allocator = AllocatorConfig { zeroes, ..AllocatorConfig::default() };
        let config = Config { folios: FolioPolicy::FRAMES, allocator, ..Config::default() };
        let manager = hosted::raw::memory_manager(&watched, &ranges_of(&machine), &config).unwrap();
        let file = manager.shmem(HUGE).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        let request = MapRequest {
            addr: VirtAddr(BASE),
            len: HUGE,
            prot: RW,
            placement: Placement::Fixed,
            sharing: Sharing::Shared,
            backing: Backing::File { file: &file, page_offset: 0 },
            ..MapRequest::default()
        };
        mm.mmap(&request).unwrap();
        mm.fault(VirtAddr(BASE + 7 * PAGE), Access::Write).unwrap();
        machine.write(VirtAddr(BASE + 7 * PAGE), &[7]).unwrap();
        watched.events();
        assert_eq!(mm.collapse(VirtAddr(BASE), HUGE).unwrap().copied, 1);
        let (mut since, mut longest, mut all) = (0, 0, 0);
        for event in watched.events() {
            match event {
                Event::Clear(frames, _) => (since, all) = (since + frames.count, all + frames.count),
                Event::Point => since = 0,
                _ => {}
            }
            longest = longest.max(since);
        }
        assert!(all >= 511, "{all}: the holes");
        assert!(longest <= COLLAPSE_FILE_PAGES as u64, "{longest} frames without a reschedule point");
        for page in 0..512 {
            let mut byte = [0];
            machine.read(VirtAddr(BASE + page * PAGE), &mut byte).unwrap();
            assert_eq!(byte, [if page == 7 { 7 } else { 0 }], "page {page}");
        }
        mm.validate().unwrap();
        mm.switch_out();
        mm.exit();
        drop(file);
        manager.validate().unwrap();
    });
}
