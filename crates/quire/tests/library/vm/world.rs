//! A machine, its manager, and accesses as a program makes them: through the software MMU, with faults
//! handled.

use hosted::{Hosted, HostedConfig};
use quire::addr::VirtAddr;
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager};
use quire::vm::{ForkStrategy, MapRequest, Mm, Placement};

use testkit::ranges_of;
pub(crate) use testkit::{load, store};

pub(crate) const RW: Protection = Protection::from_bits(3);
pub(crate) const R: Protection = Protection::READ;
pub(crate) const MIB: u64 = 1 << 20;

pub(crate) type Manager<'p> = MemoryManager<'p, Hosted>;
pub(crate) type Space<'m> = Mm<'m, Hosted>;

pub(crate) const FORKS: [ForkStrategy; 2] = [ForkStrategy::Copy, ForkStrategy::Share];

/// Runs `test` as CPU 0 of a machine, with every check on, and checks that all memory is free at the end.
pub(crate) fn with_manager(config: HostedConfig, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_forks(config, ForkStrategy::default(), test);
}

/// The same with forks of this kind.
pub(crate) fn with_forks(config: HostedConfig, fork: ForkStrategy, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_config(config, Config { fork, ..Config::default() }, test);
}

/// The same with any choices.
pub(crate) fn with_config(machine: HostedConfig, config: Config, test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_boxed(machine, &config, Box::new(test));
}

type Test<'t> = Box<dyn FnOnce(&Hosted, &Manager<'_>) + 't>;

/// [`with_config`], compiled once for all tests.
fn with_boxed(machine: HostedConfig, config: &Config, test: Test<'_>) {
    let machine = machine.build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), config).expect("no manager");
        manager.pages().lists().drain_local();
        let before = manager.meminfo().frames;
        test(&machine, &manager);
        manager.validate().expect("broken at the end");
        manager.pages().lists().drain_local();
        let after = manager.meminfo().frames;
        assert_eq!(after.used, before.used, "frames were lost, or freed twice");
        machine.assert_clean();
    });
}

pub(crate) fn small(test: impl FnOnce(&Hosted, &Manager<'_>)) {
    with_manager(HostedConfig::new(64 * MIB), test);
}

/// An address space that this CPU runs for the length of `test`, checked at the end.
pub(crate) fn run<'m>(manager: &'m Manager<'_>, test: impl FnOnce(&Space<'m>)) {
    run_boxed(manager, Box::new(test));
}

fn run_boxed<'m>(manager: &'m Manager<'_>, test: Box<dyn FnOnce(&Space<'m>) + '_>) {
    let mm = manager.new_mm().expect("no address space");
    mm.switch_in();
    test(&mm);
    mm.validate().expect("broken address space");
    mm.switch_out();
    mm.exit();
}

/// Private anonymous memory that can be read and written, at a fixed address.
pub(crate) fn anonymous(addr: u64, len: u64) -> MapRequest<'static> {
    MapRequest { addr: VirtAddr(addr), len, prot: RW, placement: Placement::Fixed, ..MapRequest::default() }
}
