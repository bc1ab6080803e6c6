//! A CPU that goes from one address space directly to another. (`pgtable/windows.rs` interrupts the switch after each instruction.)

use hosted::HostedConfig;
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::stats::Stat;
use quire::vm::Access;

use crate::vm::world::{MIB, Space, anonymous, load, store, with_manager};

const BASE: u64 = 0x1000_0000;
const CPU1: CpuId = CpuId(1);

fn machine() -> HostedConfig {
    HostedConfig::new(64 * MIB).with_cpus(2)
}

/// A mapping with a page in it that is there to be unmapped.
fn fill(mm: &Space<'_>) {
    mm.mmap(&anonymous(BASE, MIB)).unwrap();
    mm.fault(VirtAddr(BASE), Access::Write).unwrap();
}

#[test]
fn a_switch_loads_one_root_and_moves_the_flushes_with_the_cpu() {
    with_manager(machine(), |machine, manager| {
        let (first, second) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        fill(&first);
        fill(&second);
        first.switch_in();
        store(machine, &first, BASE, 1).unwrap();
        machine.reset_counters();
        first.switch_to(&second);
        assert_eq!(machine.counters().roots_loaded, 1);
        assert_eq!(load(machine, &second, BASE), Ok(0), "the CPU reads the other one's page");

        let avoided = manager.stat(Stat::TlbFlushAvoided);
        machine.run_on(CPU1, || first.munmap(VirtAddr(BASE), 4096).unwrap());
        assert_eq!(machine.counters().flushes_remote, 0, "no CPU runs it");
        assert_eq!(manager.stat(Stat::TlbFlushAvoided), avoided + 1);
        machine.run_on(CPU1, || second.munmap(VirtAddr(BASE), 4096).unwrap());
        let counted = machine.counters();
        assert_eq!((counted.flushes_remote, counted.cpus_targeted, counted.flushes_local), (1, 1, 0));

        second.switch_out();
        first.exit();
        second.exit();
    });
}

/// A switch that removed the CPU from the set last would make it invisible to flushes.
#[test]
fn a_switch_to_the_same_address_space_changes_nothing() {
    with_manager(machine(), |machine, manager| {
        let mm = manager.new_mm().unwrap();
        fill(&mm);
        mm.switch_in();
        store(machine, &mm, BASE, 1).unwrap();
        machine.reset_counters();
        mm.switch_to(&mm);
        assert_eq!(machine.counters().roots_loaded, 0);
        machine.run_on(CPU1, || mm.munmap(VirtAddr(BASE), 4096).unwrap());
        assert_eq!(machine.counters().cpus_targeted, 1);
        mm.switch_out();
        mm.exit();
    });
}

#[test]
#[cfg(debug_assertions)]
fn a_switch_from_an_address_space_that_the_cpu_does_not_run_is_refused() {
    with_manager(machine(), |_, manager| {
        let (first, second) = (manager.new_mm().unwrap(), manager.new_mm().unwrap());
        let message = testkit::panic_message(|| first.switch_to(&second));
        assert!(message.contains("leaves an address space that it does not run"), "{message}");
    });
}
