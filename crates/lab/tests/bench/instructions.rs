//! The counts of a verb that is watched instruction by instruction: locked instructions, and descriptors
//! touched.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::HostedConfig;
use lab::bench::folio::{Folio, PAGE};
use lab::bench::ours;
use lab::bench::ours::counting::Counting;
use quire::addr::{Frame, Order};
use quire::cpu::CpuId;
use quire::limits::BLOCK_FRAMES;
use quire::manager::{Config, MemoryManager};
use quire::memmap::DescriptorFlags;
use quire::tlb::ZapStrategy;
use quire::vm::{FolioPolicy, Mm};

const TABLE: usize = 2 << 20;

/// The different descriptors and locked instructions of `verb` on an address space with so many full tables,
/// on a machine of its own. `verb` gets the mapped frames.
fn seen(
    config: Config,
    folio: Folio,
    tables: usize,
    verb: impl FnOnce(&MemoryManager<'_, Counting<'_>>, &Mm<'_, Counting<'_>>, &[Frame]),
) -> (u64, u64) {
    let machine = HostedConfig { prefault: false, ..HostedConfig::bench(64 << 20) }.build().unwrap();
    // SAFETY: H3: used inside `run_on` of this machine alone.
    let counting = Counting::instructions_on(unsafe { machine.bare() }, u64::MAX);
    machine.run_on(CpuId(0), || {
        let policy = FolioPolicy::only(Order::new(folio.order).unwrap()).with_pmd_mapped(folio.pmd);
        let config = Config { folios: policy, ..config };
        let manager =
            hosted::raw::memory_manager(&counting, &ours::ranges(&machine, false), &config).unwrap();
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        ours::map(&mm, tables * TABLE).unwrap();
        ours::populate(&mm, tables * TABLE, folio).unwrap();
        let leaves = machine.leaves(mm.root());
        let frames: Vec<Frame> =
            leaves.iter().flat_map(|leaf| (0..leaf.frames).map(|at| Frame(leaf.frame.0 + at))).collect();
        assert_eq!(frames.len(), tables * TABLE / PAGE);
        let instructions = counting.instructions().unwrap();
        let map = manager.pages().memmap();
        instructions.follow(&machine, map, || verb(&manager, &mm, &frames)).unwrap();
        assert!(instructions.are_all() && instructions.executed() > 1000);
        mm.switch_out();
        drop(mm);
        (instructions.descriptors(), instructions.locked())
    })
}

fn unmap(mm: &Mm<'_, Counting<'_>>, tables: usize) {
    mm.munmap(ours::START, (tables * TABLE) as u64).unwrap();
}

const PAGES: Folio = Folio { order: 0, pmd: false };

/// Beside the tables of the lowest level: those of the three levels above, and the slab that the mapping's
/// record goes back to.
const ALWAYS: u64 = 4;

/// C7: the counting platform does the same work.
#[test]
fn an_unmap_touches_the_descriptors_of_page_tables_alone() {
    let (descriptors, locked) = seen(Config::default(), PAGES, 2, |_, mm, _| unmap(mm, 2));
    assert_eq!(descriptors, 2 + ALWAYS);
    assert!(locked > 0 && locked < 40, "{locked} locked instructions for two tables");
    let large = |pmd| Folio { order: 9, pmd };
    // A leaf of 2 MiB leaves its spare table behind. A folio of a whole block has a descriptor of its own
    // once it was mapped in small pieces, and the frame that its counts share with others is one more.
    let (descriptors, _) = seen(Config::default(), large(true), 1, |_, mm, _| unmap(mm, 1));
    assert_eq!(descriptors, 1 + ALWAYS);
    let (descriptors, _) = seen(Config::default(), large(false), 1, |_, mm, _| unmap(mm, 1));
    assert_eq!(descriptors, 2 + 1 + ALWAYS);
}

/// Every so many frames are looked at, since each look is hundreds of instructions.
const APART: usize = 16;

#[test]
fn a_look_at_the_descriptor_of_each_frame_is_found() {
    let (descriptors, _) = seen(Config::default(), PAGES, 1, |manager, mm, frames| {
        for frame in frames.iter().step_by(APART) {
            assert!(!manager.pages().describe(*frame).unwrap().has(DescriptorFlags::TABLE));
        }
        assert!(!manager.pages().describe(frames[77]).unwrap().has(DescriptorFlags::TABLE));
        unmap(mm, 1);
    });
    assert_eq!(descriptors, (BLOCK_FRAMES / APART) as u64 + 1 + 1 + ALWAYS);
}

/// Page by page, the verb exchanges each entry and takes the lock of its block.
#[test]
fn locked_instructions_of_each_page_are_counted() {
    let config = Config { zap: ZapStrategy::PerPage, ..Config::default() };
    let unmap = |mm: &Mm<'_, Counting<'_>>, pages: u64| mm.munmap(ours::START, pages * PAGE as u64).unwrap();
    let (_, of_2) = seen(config, PAGES, 1, |_, mm, _| unmap(mm, 2));
    let (_, of_6) = seen(config, PAGES, 1, |_, mm, _| unmap(mm, 6));
    assert!(of_6 - of_2 >= 2 * 4 && of_6 - of_2 <= 5 * 4, "{of_2} {of_6}");
    // A needless locked instruction is found.
    let one_more = AtomicU64::new(0);
    let (_, more) = seen(config, PAGES, 1, |_, mm, _| {
        unmap(mm, 2);
        one_more.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(more, of_2 + 1);
}
