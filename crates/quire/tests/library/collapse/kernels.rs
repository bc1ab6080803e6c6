//! Which kernel a collapse copies with: a machine records it.

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::arch::{ClearKernel, CopyKernel};
use quire::clear::{ClearPolicy, class_of};
use quire::cpu::CpuId;
use quire::limits::CLEAR_STRETCH_BYTES;
use quire::manager::Config;
use quire::page_alloc::AllocatorConfig;
use quire::vm::{Access, FolioPolicy};

use crate::collapse::support::{BASE, HUGE, PAGE, counts, word};
use crate::collapse::world::{MIB, anonymous};
use crate::watched::{Event, Watched};
use testkit::ranges_of;

/// The size of the folio decides, although its pages are copied one at a time.
#[test]
fn copies_go_by_the_kernel_for_the_folio() {
    let mut policy = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
    let large = class_of(HUGE);
    policy.copy.as_flattened_mut().iter_mut().for_each(|row| row[large..].fill(CopyKernel::Movnti));
    let machine = HostedConfig::new(32 * MIB).build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let allocator = AllocatorConfig { clear: Some(policy), ..AllocatorConfig::default() };
        let config = Config { folios: FolioPolicy::FRAMES, allocator, ..Config::default() };
        let manager = hosted::raw::memory_manager(&watched, &ranges_of(&machine), &config).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        mm.mmap(&anonymous(BASE, HUGE)).unwrap();
        for at in (BASE..BASE + HUGE).step_by(PAGE as usize) {
            mm.fault(VirtAddr(at), Access::Write).unwrap();
            machine.write(VirtAddr(at), &word(at).to_le_bytes()).unwrap();
        }
        watched.events();
        assert_eq!(counts(&mm.collapse(VirtAddr(BASE), HUGE).unwrap()), [1, 0, 0, 0]);
        let (mut frames, mut since) = (0, 0);
        for event in watched.events() {
            match event {
                Event::Copy(from, _, kernel) => {
                    assert_eq!(kernel, CopyKernel::Movnti, "{from:?}");
                    (frames, since) = (frames + from.count, since + from.count);
                }
                Event::Point => since = 0,
                _ => {}
            }
            assert!(since <= CLEAR_STRETCH_BYTES / PAGE, "{since} frames without a reschedule point");
        }
        assert_eq!(frames, 512, "each page once");
        for at in (BASE..BASE + HUGE).step_by(PAGE as usize) {
            let mut bytes = [0; 8];
            machine.read(VirtAddr(at), &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), word(at));
        }
        mm.validate().unwrap();
        mm.switch_out();
        mm.exit();
        manager.validate().unwrap();
    });
}
