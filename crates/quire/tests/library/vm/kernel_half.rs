//! The kernel's half of each root, and the state of the processor that start-up asks for.

use hosted::raw::{RawMachine, page_tables};
use hosted::{FaultCause, Hosted, HostedConfig, MemoryRange};
use quire::addr::{Frame, PageSize, VirtAddr};
use quire::arch::{Entry, EntryFlags, PagingMode, ProcessorState, Protection};
use quire::cpu::CpuId;
use quire::error::{FaultError, InitError, ProcessorError};
use quire::limits::{FRAME_SIZE, START_STACK_BYTES, TABLE_ENTRIES};
use quire::manager::{Config, MemoryManager};
use quire::pgtable::{PageTables, TableViolation};
use quire::platform::TablePlatform;
use quire::vm::{Access, ForkStrategy, MapRequest, Placement};
use testkit::ranges_of;

use crate::vm::world::*;
use crate::watched::Watched;

const UPPER: std::ops::Range<usize> = TABLE_ENTRIES / 2..TABLE_ENTRIES;
/// The memory of the kernel, behind that of the manager: its root, 256 tables, tables for one page, the page.
const KERNEL: u64 = 64 * MIB;
const KERNEL_BYTES: u64 = 2 * MIB;
const KERNEL_FRAMES: u64 = KERNEL_BYTES / FRAME_SIZE;
const ROOT: Frame = Frame(KERNEL / FRAME_SIZE);
const PAGE: Frame = Frame(ROOT.0 + KERNEL_FRAMES - 1);

/// The first address of the upper half.
fn upper_half(mode: PagingMode) -> VirtAddr {
    VirtAddr((-1_i64 << (mode.top().shift() + 8)) as u64)
}

/// An entry in which hardware has nothing left to record, so that it stays as it is.
fn pointer(table: Frame) -> Entry {
    Entry::table(table).with(EntryFlags::ACCESSED)
}

/// Fills all 256 upper entries of the kernel's root, and maps one page at the start of its half.
fn build_kernel(machine: &Hosted, mode: PagingMode) {
    for index in UPPER {
        let table = ROOT.add((index - UPPER.start + 1) as u64);
        machine.store_entry_raw(ROOT, index, pointer(table));
    }
    let (mut table, mut next) = (ROOT.add(1), ROOT.add(257));
    for _ in 1..mode.top().get() {
        machine.store_entry_raw(table, 0, pointer(next));
        (table, next) = (next, next.add(1));
    }
    let flags = EntryFlags::PRESENT | EntryFlags::WRITE | EntryFlags::NO_EXECUTE;
    machine.store_entry_raw(table, 0, Entry::leaf(PAGE, PageSize::Size4K, flags));
    machine.set_kernel_root(Some(ROOT));
}

/// All words of the kernel's memory.
fn kernel_memory(machine: &Hosted) -> Vec<Entry> {
    let words = |frame| (0..TABLE_ENTRIES).map(move |index| machine.load_entry_raw(ROOT.add(frame), index));
    (0..KERNEL_FRAMES).flat_map(words).collect()
}

/// Runs `test` with a manager of all memory but the kernel's. The kernel's memory is unchanged at the end.
fn with_kernel(mode: PagingMode, fork: ForkStrategy, test: impl Fn(&Hosted, &Manager<'_>)) {
    let ranges = vec![MemoryRange::new(0, KERNEL), MemoryRange::new(KERNEL, KERNEL_BYTES)];
    let five_level = mode == PagingMode::FiveLevel;
    let machine =
        HostedConfig { five_level, ..HostedConfig::new(KERNEL).with_ranges(ranges) }.build().unwrap();
    machine.run_on(CpuId(0), || {
        build_kernel(&machine, mode);
        let before = kernel_memory(&machine);
        let config = Config { fork, paging: mode, ..Config::default() };
        let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine)[..1], &config).unwrap();
        manager.pages().lists().drain_local();
        let used = manager.meminfo().frames.used;
        test(&machine, &manager);
        manager.validate().unwrap();
        manager.pages().lists().drain_local();
        assert_eq!(manager.meminfo().frames.used, used, "frames were lost, or freed twice");
        assert!(kernel_memory(&machine) == before, "the kernel's memory was written");
        machine.assert_clean();
    });
}

fn on_every_kernel(test: impl Fn(&Hosted, &Manager<'_>)) {
    for mode in [PagingMode::FourLevel, PagingMode::FiveLevel] {
        FORKS.into_iter().for_each(|fork| with_kernel(mode, fork, &test));
    }
}

fn mode_of(machine: &Hosted) -> PagingMode {
    if machine.config().five_level { PagingMode::FiveLevel } else { PagingMode::FourLevel }
}

/// The upper half of the root is the kernel's, and leads to the kernel's page.
fn check(machine: &Hosted, mm: &Space<'_>) {
    for index in UPPER {
        assert_eq!(machine.load_entry_raw(mm.root(), index), machine.load_entry_raw(ROOT, index), "{index}");
    }
    let there = machine.probe(mm.root(), upper_half(mode_of(machine))).expect("the kernel is not mapped");
    assert_eq!((there.frame, there.user), (PAGE, false));
    mm.validate().unwrap();
}

/// Invariant W5.
#[test]
fn every_root_has_the_kernels_half() {
    on_every_kernel(|machine, manager| {
        let parent = manager.new_mm().unwrap();
        check(machine, &parent);
        parent.switch_in();
        let at = parent.mmap(&anonymous(0x7fff_0000_0000, 4 * MIB)).unwrap();
        store(machine, &parent, at.0, 1).unwrap();
        let child = parent.fork().unwrap();
        check(machine, &child);
        parent.switch_out();
        // The child takes another program on: a new address space in the place of its own.
        child.switch_in();
        store(machine, &child, at.0, 2).unwrap();
        let program = manager.new_mm().unwrap();
        check(machine, &program);
        child.switch_out();
        child.exit();
        program.switch_in();
        program.mmap(&anonymous(0x1000_0000, MIB)).unwrap();
        store(machine, &program, 0x1000_0000, 3).unwrap();
        let grandchild = program.fork().unwrap();
        [&parent, &program, &grandchild].into_iter().for_each(|mm| check(machine, mm));
        program.switch_out();
        [parent, program, grandchild].into_iter().for_each(|mm| mm.exit());
    });
}

/// The frames of destroyed roots are allocated again, as roots and as user memory.
#[test]
fn a_root_that_was_used_before_has_the_kernels_half_only() {
    on_every_kernel(|machine, manager| {
        for _ in 0..40 {
            let mm = manager.new_mm().unwrap();
            mm.switch_in();
            let at = mm.mmap(&anonymous(0x1000_0000, 64 * FRAME_SIZE)).unwrap();
            for page in (at.0..at.0 + 64 * FRAME_SIZE).step_by(FRAME_SIZE as usize) {
                let mut bytes = [1; FRAME_SIZE as usize];
                mm.fault(VirtAddr(page), Access::Write).unwrap();
                machine.read(VirtAddr(page), &mut bytes).unwrap();
                assert!(bytes.iter().all(|&byte| byte == 0), "user memory holds entries of the kernel");
                machine.write(VirtAddr(page), &[u8::MAX; FRAME_SIZE as usize]).unwrap();
            }
            check(machine, &mm);
            mm.switch_out();
            mm.exit();
        }
    });
}

/// Invariant W5.
#[test]
fn no_user_mapping_reaches_the_kernels_half() {
    on_every_kernel(|machine, manager| {
        let mode = mode_of(machine);
        let mm = manager.new_mm().unwrap();
        mm.switch_in();
        // The last page below the kernel's half, and whatever lies beyond.
        let last = VirtAddr(mode.user_range().end.0 - FRAME_SIZE);
        mm.mmap(&anonymous(last.0, FRAME_SIZE)).unwrap();
        store(machine, &mm, last.0, 7).unwrap();
        for addr in [mode.user_range().end, upper_half(mode), VirtAddr(u64::MAX - FRAME_SIZE + 1)] {
            assert!(mm.mmap(&anonymous(addr.0, FRAME_SIZE)).is_err(), "{addr:?}");
            assert_eq!(mm.fault(addr, Access::Write), Err(FaultError::NotMapped), "{addr:?}");
        }
        let refused = machine.write(upper_half(mode), &[7]).unwrap_err();
        assert_eq!(refused.cause, FaultCause::Protection, "user mode reached the kernel's page");
        // Nor does what is asked about it.
        let table = ROOT.add(256 + u64::from(mode.top().get()) - 1);
        let leaf = machine.load_entry_raw(table, 0);
        assert_eq!(leaf.frame(), PAGE);
        machine.store_entry_raw(table, 0, leaf.with(EntryFlags::SOFT_DIRTY));
        assert!(!mm.is_soft_dirty(upper_half(mode)), "a leaf of the kernel was read");
        machine.store_entry_raw(table, 0, leaf);
        check(machine, &mm);
        let hint = MapRequest { addr: upper_half(mode), placement: Placement::Hint, ..anonymous(0, MIB) };
        let found = mm.mmap(&MapRequest { prot: Protection::READ, ..hint }).unwrap();
        assert!(mode.user_range().contains(found));
        mm.munmap(VirtAddr(FRAME_SIZE), mode.user_range().end.0 - FRAME_SIZE).unwrap();
        assert_eq!((mm.rss().anon, machine.leaves(mm.root()).len()), (0, 0));
        check(machine, &mm);
        mm.switch_out();
        mm.exit();
    });
}

/// Invariant W5, and the contract of `kernel_root`: a kernel that adds an entry later is told.
#[test]
fn a_changed_half_of_the_kernel_is_found() {
    with_kernel(PagingMode::FourLevel, ForkStrategy::default(), |machine, manager| {
        let context = PageTables::create(manager.pages(), PagingMode::FourLevel).unwrap();
        let tables = page_tables(manager.pages(), &context);
        assert_eq!(tables.validate().unwrap().tables, 1);
        let entry = machine.load_entry_raw(ROOT, 300);
        // What hardware records is no change.
        machine.store_entry_raw(ROOT, 300, entry.without(EntryFlags::ACCESSED));
        assert!(tables.validate().is_ok());
        machine.store_entry_raw(ROOT, 300, pointer(PAGE));
        assert_eq!(tables.validate(), Err(TableViolation::KernelHalf { index: 300, entry }));
        machine.store_entry_raw(ROOT, 300, entry);
        PageTables::destroy(manager.pages(), context);
    });
}

#[test]
fn a_machine_without_a_kernel_root_leaves_the_upper_half_empty() {
    small(|machine, manager| {
        assert_eq!(machine.kernel_root(), None);
        let mm = manager.new_mm().unwrap();
        assert!(UPPER.into_iter().all(|index| machine.load_entry_raw(mm.root(), index).is_empty()));
        mm.exit();
    });
}

/// What a manager on a processor of this state says.
fn refused(state: ProcessorState, paging: PagingMode) -> Option<ProcessorError> {
    let machine = HostedConfig::new(16 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        watched.set_state(state);
        let config = Config { paging, ..Config::default() };
        let manager: Result<MemoryManager<'_, _>, _> =
            hosted::raw::memory_manager(&watched, &ranges_of(&machine), &config);
        match manager {
            Err(InitError::BadProcessor(error)) => Some(error),
            other => other.map(|_| None).expect("refused for another reason"),
        }
    })
}

#[test]
fn a_manager_refuses_a_processor_that_is_not_set_up() {
    let (cr0, cr4, efer) = (0x8005_0033, 0x06f0, 0x0d01);
    let four = PagingMode::FourLevel;
    assert_eq!(refused(ProcessorState::from_registers(cr0, cr4, efer), four), None);
    for (state, name) in [
        (ProcessorState::from_registers(cr0 & !(1 << 16), cr4, efer), "CR0.WP set"),
        (ProcessorState::from_registers(cr0, cr4, efer & !(1 << 11)), "EFER.NXE set"),
    ] {
        let error = refused(state, four).expect("accepted");
        assert_eq!(error.missing().map(|one| one.name).collect::<Vec<_>>(), [name]);
        assert!(InitError::from(error).to_string().contains(name));
    }
}

#[test]
fn a_manager_refuses_a_stack_that_is_too_small() {
    let machine = HostedConfig::new(16 * MIB).build().unwrap();
    machine.run_on(CpuId(0), || {
        let watched = Watched::new(&machine);
        let start = || {
            let manager: Result<MemoryManager<'_, _>, _> =
                hosted::raw::memory_manager(&watched, &ranges_of(&machine), &Config::default());
            manager.map(drop)
        };
        let needed = START_STACK_BYTES;
        watched.set_stack(needed - 1);
        let error = InitError::SmallStack { left: needed - 1, needed };
        assert_eq!(start(), Err(error));
        assert!(error.to_string().contains(&format!("needs {needed} bytes of stack")), "{error}");
        watched.set_stack(needed);
        assert_eq!(start(), Ok(()));
    });
}

#[test]
fn a_manager_refuses_another_number_of_levels() {
    for (five_level, paging) in [(false, PagingMode::FiveLevel), (true, PagingMode::FourLevel)] {
        let machine = HostedConfig { five_level, ..HostedConfig::new(16 * MIB) }.build().unwrap();
        machine.run_on(CpuId(0), || {
            let config = Config { paging, ..Config::default() };
            let manager = hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config);
            let error = manager.err().expect("accepted").to_string();
            assert!(error.contains("CR4.LA57"), "{error}");
        });
    }
}
