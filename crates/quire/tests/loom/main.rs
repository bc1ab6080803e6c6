//! The lock-free protocols of the library under every interleaving of three threads, as `loom` explores them. The very
//! files of the library are compiled here, with the atomics of [`atomic`] in place of the processor's.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-mm --test loom --release`
//!
//! Each protocol is also run *weakened*, with every order relaxed or without the one total order, and must fail then: a model that cannot tell a lock
//! from no lock proves nothing.
#![cfg(loom)]

mod atomic;
mod machine;

mod limits {
    /// One word of CPUs and two slots of readers are as good as many, and leave less to explore.
    pub(crate) const MAX_CPUS: usize = 64;
    pub(crate) const READER_SLOTS: usize = 2;
}

mod platform {
    pub(crate) use quire::platform::Platform;
}

#[allow(dead_code, unreachable_pub)]
#[path = "../../src/cpu.rs"]
mod cpu;

#[allow(dead_code, unreachable_pub)]
mod sync;

mod cpus;
mod locks;

use std::panic::{AssertUnwindSafe, catch_unwind};

use atomic::Orders;

/// Explores all interleavings of `model` with at most three preemptions, which finds what needs so many.
fn explore(orders: Orders, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    atomic::set_orders(orders);
    builder.check(move || {
        atomic::start();
        model();
    });
}

/// Explores `model` as it is, which must hold, and with each of `weakened` in place of its orders, which must not.
fn holds_but_not(weakened: &[Orders], model: impl Fn() + Sync + Send + Copy + 'static) {
    explore(Orders::Kept, model);
    for &orders in weakened {
        let outcome = catch_unwind(AssertUnwindSafe(|| explore(orders, model)));
        assert!(outcome.is_err(), "the model holds with orders {orders:?}: it checks nothing");
    }
}
