//! The lock-free protocols of the library under every interleaving of three threads, as `loom` explores them.
//! The library's own files are compiled here, with the atomics of [`atomic`] in place of the processor's.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p quire-mm --features published --test loom --release`
//!
//! Each protocol is also run *weakened*, with every order relaxed, without the one total order or without its fences, and
//! must fail then: a model that cannot tell a lock from no lock proves nothing. So do variants that do the right steps in
//! the wrong order.
#![cfg(loom)]

mod atomic;
mod machine;

mod limits {
    /// One word of CPUs and two slots of readers are as good as many, and leave less to explore.
    pub(crate) const MAX_CPUS: usize = 64;
    pub(crate) const READER_SLOTS: usize = 2;
    /// One look before a sleep.
    pub(crate) const LOCK_TURNS: u32 = 1;
}

mod addr {
    pub(crate) use quire::addr::{Frame, Order};
}

mod memmap {
    /// A table, as far as lists know it. It is never freed, as in the library.
    pub(crate) struct BootSlice<T: 'static>(pub(crate) &'static [T]);

    impl<T> Copy for BootSlice<T> {}

    impl<T> Clone for BootSlice<T> {
        fn clone(&self) -> Self {
            *self
        }
    }

    impl<T> BootSlice<T> {
        pub(crate) fn as_slice(&self) -> &[T] {
            self.0
        }
    }

    impl<T> std::ops::Deref for BootSlice<T> {
        type Target = [T];

        fn deref(&self) -> &[T] {
            self.0
        }
    }
}

mod platform {
    pub(crate) use quire::platform::FramePlatform;

    use crate::atomic::AtomicU32;

    /// The part of the library's trait that locks use, with the atomics of the models.
    pub(crate) trait Platform: FramePlatform {
        fn wait(&self, word: &AtomicU32, seen: u32);
        fn wake(&self, word: &AtomicU32);
    }
}

// The library's own sources, with loom's atomics in place of the processor's: as a dependency it is compiled with the
// latter, so these files are included by path. No other test does.
#[allow(dead_code, unreachable_pub)]
#[path = "../../src/cpu.rs"]
mod cpu;

#[allow(dead_code, unreachable_pub)]
mod sync;

#[allow(dead_code)]
#[path = "../../src/filemap/references.rs"]
mod counted;

mod cpus;
mod kept;
mod leases;
mod lists;
mod locks;
mod references;
mod sections;
mod shootdown;
mod stacks;
mod tables;
mod watched;

use std::panic::{AssertUnwindSafe, catch_unwind};

use atomic::Orders;

/// Explores all interleavings of `model` with at most three preemptions.
fn explore(orders: Orders, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    atomic::set_orders(orders);
    builder.check(move || {
        atomic::start();
        model();
    });
}

/// Explores `model` as it is, which must hold, and with each of `weakened` in place of its orders, which must
/// fail.
fn holds_but_not(weakened: &[Orders], model: impl Fn() + Sync + Send + Copy + 'static) {
    explore(Orders::Kept, model);
    weakened.iter().for_each(|&orders| fails(orders, model));
}

/// Explores `model`, which must fail.
fn fails(orders: Orders, model: impl Fn() + Sync + Send + Copy + 'static) {
    let outcome = catch_unwind(AssertUnwindSafe(|| explore(orders, model)));
    assert!(outcome.is_err(), "the model holds with orders {orders:?}: it checks nothing");
}
