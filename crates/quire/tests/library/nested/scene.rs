//! One address space with second-stage tables, and a verb whose bracket may be lost.

use std::cell::Cell;

use hosted::{FailurePlan, Hosted, HostedConfig, Nested, OnViolation, during};
use quire::addr::VirtAddr;
use quire::cpu::CpuId;
use quire::manager::Config;
use quire::vm::ForkStrategy;

use crate::nested::world::{MIB, Manager, Space};
use testkit::ranges_of;

pub(crate) const PAGE: u64 = 4096;
/// Where guest memory starts in the address space.
pub(crate) const BASE: u64 = 1 << 30;
pub(crate) const GUEST: u64 = 512 * MIB;

/// What a [`Place`] works with.
pub(crate) struct Scene<'a, 'm> {
    pub(crate) machine: &'a Hosted,
    pub(crate) manager: &'m Manager<'m>,
    pub(crate) mm: &'a Space<'m>,
    pub(crate) nested: &'a Nested<'a>,
    plan: FailurePlan,
    verbs: Cell<u32>,
}

/// A change that takes a frame, or a right, from a copy.
pub(crate) type Place = fn(&Scene<'_, '_>);

impl Scene<'_, '_> {
    /// The virtual CPU loads a word of each page.
    pub(crate) fn load(&self, addr: u64, len: u64) {
        let cpu = self.nested.cpu(0);
        (addr..addr + len).step_by(PAGE as usize).for_each(|at| {
            cpu.load(self.mm, at - BASE).expect("readable");
        });
    }

    /// It stores to a word of each page.
    pub(crate) fn store(&self, addr: u64, len: u64) {
        let cpu = self.nested.cpu(0);
        (addr..addr + len)
            .step_by(PAGE as usize)
            .for_each(|at| cpu.store(self.mm, at - BASE, at).expect("writable"));
    }

    pub(crate) fn copies(&self, addr: u64, len: u64) -> usize {
        self.nested.copies(addr - BASE..addr - BASE + len).len()
    }

    /// Runs a change that makes every copy in these addresses stale.
    pub(crate) fn verb(&self, addr: u64, len: u64, action: impl FnOnce()) {
        assert!(self.copies(addr, len) > 0, "there was no copy");
        self.machine.lose_brackets(self.plan);
        during("verb", action);
        self.machine.lose_brackets(FailurePlan::Off);
        if self.plan == FailurePlan::Off {
            assert_eq!(self.copies(addr, len), 0, "copies outlived the verb");
        }
        self.verbs.set(self.verbs.get() + 1);
    }
}

/// Runs one place. Returns whether a violation was found.
pub(crate) fn is_caught(place: Place, fork: ForkStrategy, plan: FailurePlan) -> bool {
    let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(96 * MIB) };
    let machine = config.with_cpus(3).build().expect("the host refused a machine");
    machine.run_on(CpuId(0), || {
        let config = Config { fork, ..Config::default() };
        let manager =
            hosted::raw::memory_manager(&machine, &ranges_of(&machine), &config).expect("no manager");
        let mm = manager.new_mm().expect("no address space");
        let registered = mm.register_secondary();
        let nested = Nested::new(&machine, &mm, VirtAddr(BASE), GUEST, 2);
        let scene = Scene {
            machine: &machine,
            manager: &manager,
            mm: &mm,
            nested: &nested,
            plan,
            verbs: Cell::new(0),
        };
        place(&scene);
        assert_eq!(scene.verbs.get(), 1, "a place is one verb");
        assert!(plan != FailurePlan::Off || nested.stats().brackets["verb"].count > 0);
        nested.check();
        drop(nested);
        drop(registered);
        mm.validate().expect("broken address space");
        mm.exit();
        manager.validate().expect("broken at the end");
        !machine.take_violations().is_empty()
    })
}

/// Runs each place with its bracket, which leaves no violation and no copy, and without, which is noticed.
pub(crate) fn check_all(places: &[(&str, ForkStrategy, Place)]) {
    for &(name, fork, place) in places {
        println!("{name}");
        assert!(!is_caught(place, fork, FailurePlan::Off), "{name}: something is wrong");
        assert!(is_caught(place, fork, FailurePlan::From(0)), "{name}: lost brackets went unnoticed");
    }
}
