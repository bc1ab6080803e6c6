//! A machine records the kernel that copies a moving folio, and the reschedule points of the copy.

use hosted::{Hosted, HostedConfig};
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::arch::{ClearKernel, CopyKernel};
use quire::clear::{ClearPolicy, class_of};
use quire::cpu::CpuId;
use quire::limits::CLEAR_STRETCH_BYTES;
use quire::manager::{Config, MemoryManager};
use quire::page_alloc::AllocatorConfig;
use quire::vm::{Access, FolioPolicy, Mm};

use crate::migrate::support::PAGE;
use crate::migrate::world::{MIB, R, anonymous};
use crate::watched::{Event, Watched};
use testkit::ranges_of;

const BASE: u64 = 64 * MIB;
const HUGE: u64 = 2 * MIB;

/// Copies of 2 MiB and more go past the caches, and no smaller one.
fn past_from_huge() -> ClearPolicy {
    let mut policy = ClearPolicy::only(ClearKernel::String, CopyKernel::String);
    let large = class_of(HUGE);
    policy.copy.as_flattened_mut().iter_mut().for_each(|row| row[large..].fill(CopyKernel::Movnti));
    policy
}

type Test<'t> = dyn Fn(&Hosted, &Watched<'_>, &MemoryManager<'_, Watched<'_>>, &Mm<'_, Watched<'_>>) + 't;

/// Runs `test` with one folio of 2 MiB at [`BASE`], with a word in each page.
fn with_folio(test: &Test<'_>) {
    let machine = HostedConfig::new(32 * MIB).build().unwrap();
    let watched = Watched::new(&machine);
    machine.run_on(CpuId(0), || {
        let allocator = AllocatorConfig { clear: Some(past_from_huge()), ..AllocatorConfig::default() };
        let config = Config { folios: FolioPolicy::only(Order::BLOCK), allocator, ..Config::default() };
        let manager = hosted::raw::memory_manager(&watched, &ranges_of(&machine), &config).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        mm.mmap(&anonymous(BASE, HUGE)).unwrap();
        mm.fault(VirtAddr(BASE), Access::Write).unwrap();
        (0..512).for_each(|page| machine.write(at(page), &page.to_le_bytes()).unwrap());
        test(&machine, &watched, &manager, &mm);
        for page in 0..512_u64 {
            let mut bytes = [0; 8];
            machine.read(at(page), &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), page);
        }
        mm.validate().unwrap();
        mm.switch_out();
        mm.exit();
        manager.validate().unwrap();
    });
}

fn at(page: u64) -> VirtAddr {
    VirtAddr(BASE + page * PAGE)
}

/// Moves the folio. Returns what was copied, by which kernel, and the most frames without a reschedule point.
fn moved(
    machine: &Hosted,
    watched: &Watched<'_>,
    manager: &MemoryManager<'_, Watched<'_>>,
    mm: &Mm<'_, Watched<'_>>,
) -> (Vec<(FrameRange, CopyKernel)>, u64) {
    let folio = machine.probe(mm.root(), at(0)).unwrap().frame;
    watched.events();
    assert_eq!(manager.migrate(folio), Ok(512));
    let (mut copies, mut since, mut longest) = (Vec::new(), 0, 0);
    for event in watched.events() {
        match event {
            Event::Copy(from, _, kernel) => {
                copies.push((from, kernel));
                since += from.count;
            }
            Event::Point => since = 0,
            _ => {}
        }
        longest = longest.max(since);
    }
    assert_ne!(machine.probe(mm.root(), at(0)).unwrap().frame, folio);
    assert_eq!(copies.iter().map(|(from, _)| from.count).sum::<u64>(), 512, "each frame once");
    (copies, longest)
}

/// The size of the folio decides, not that of the stretch that is copied at a time.
#[test]
fn a_huge_folio_goes_by_the_kernel_for_its_size() {
    with_folio(&|machine, watched, manager, mm| {
        let (copies, _) = moved(machine, watched, manager, mm);
        assert!(copies.iter().all(|(_, kernel)| *kernel == CopyKernel::Movnti), "{copies:?}");
    });
}

#[test]
fn others_run_while_a_huge_folio_is_copied() {
    with_folio(&|machine, watched, manager, mm| {
        let (copies, longest) = moved(machine, watched, manager, mm);
        assert!(longest <= CLEAR_STRETCH_BYTES / PAGE, "{longest} frames in a row: {copies:?}");
    });
}

/// The same where small leaves map it, a few in every flush.
#[test]
fn others_run_while_its_pages_are_copied() {
    with_folio(&|machine, watched, manager, mm| {
        mm.mprotect(at(100), PAGE, R).unwrap();
        assert_eq!(machine.probe(mm.root(), at(0)).unwrap().frames, 1);
        let (copies, longest) = moved(machine, watched, manager, mm);
        assert_eq!(copies.len(), 512, "leaf by leaf");
        assert!(longest <= CLEAR_STRETCH_BYTES / PAGE, "{longest} frames in a row");
        assert!(copies.iter().all(|(_, kernel)| *kernel == CopyKernel::Movnti), "{copies:?}");
    });
}
