//! The atomics that the library's files get here: `loom`'s, made on first use so that they can be built in constants.
//!
//! `loom` takes sequentially consistent accesses for acquire and release only, and would report the store-load patterns
//! of the library as broken. It does know sequentially consistent fences, so one stands on each side of such an access;
//! that is what processors do as well.

use std::cell::Cell;
use std::sync::OnceLock;

use loom::sync::atomic as real;
use loom::sync::{Condvar, Mutex};
pub(crate) use real::Ordering;

/// How much of the orders of accesses is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Orders {
    /// All.
    Kept,
    /// All, but fences that stand alone are not executed.
    Unfenced,
    /// All, but sequentially consistent accesses have no place in one total order.
    NotTotal,
    /// Nothing: all are relaxed.
    Relaxed,
}

thread_local! {
    /// `loom` runs all threads of a model on one thread of the system.
    static ORDERS: Cell<Orders> = const { Cell::new(Orders::Kept) };
    /// Turns of spin loops in this interleaving.
    static TURNS_TAKEN: Cell<u32> = const { Cell::new(0) };
    /// The atomic that every access changes in this interleaving.
    static TOUCHED: Cell<Option<&'static real::AtomicU32>> = const { Cell::new(None) };
    /// Where threads sleep in this interleaving, and how many do.
    static BED: Cell<Option<&'static (Mutex<u32>, Condvar)>> = const { Cell::new(None) };
}

pub(crate) fn set_orders(orders: Orders) {
    ORDERS.set(orders);
}

/// A turn of a spin loop. Two threads that wait for a third may yield to each other for ever. That is no new
/// interleaving, so after a few turns this one is only brought to its end.
pub(crate) fn turn() {
    const TURNS: u32 = 6;
    if TURNS_TAKEN.replace(TURNS_TAKEN.get() + 1) == TURNS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// Before each interleaving.
pub(crate) fn start() {
    TURNS_TAKEN.set(0);
    TOUCHED.set(Some(Box::leak(Box::new(real::AtomicU32::new(0)))));
    BED.set(Some(Box::leak(Box::new((Mutex::new(0), Condvar::new())))));
}

/// Sleeps until [`wake_sleepers`], unless the word has another value than `seen`. A thread that nothing wakes is
/// a deadlock, which `loom` reports.
pub(crate) fn sleep(word: &AtomicU32, seen: u32) {
    let (awake, bed) = BED.get().expect("an interleaving has begun");
    let mut asleep = awake.lock().expect("no thread panics meanwhile");
    if word.load(Ordering::Acquire) == seen {
        *asleep += 1;
        asleep = bed.wait(asleep).expect("no thread panics meanwhile");
        *asleep -= 1;
    }
}

/// Waits until so many threads sleep.
pub(crate) fn wait_for_sleepers(count: u32) {
    let (asleep, _) = BED.get().expect("an interleaving has begun");
    while *asleep.lock().expect("no thread panics meanwhile") < count {
        loom::thread::yield_now();
    }
}

/// Wakes all threads that sleep, for whatever word.
pub(crate) fn wake_sleepers() {
    let (awake, bed) = BED.get().expect("an interleaving has begun");
    let _guard = awake.lock().expect("no thread panics meanwhile");
    bed.notify_all();
}

fn weak(order: Ordering) -> Ordering {
    if ORDERS.get() == Orders::Relaxed { Ordering::Relaxed } else { order }
}

pub(crate) fn fence(order: Ordering) {
    if ORDERS.get() == Orders::Kept {
        real::fence(order);
    }
}

/// Makes an access sequentially consistent.
fn total_fence() {
    if matches!(ORDERS.get(), Orders::Kept | Orders::Unfenced) {
        real::fence(Ordering::SeqCst);
    }
}

/// Lets `loom` switch threads here. It does so where an access depends on another thread's, but remembers
/// only the last access of each atomic: a thread that loads a flag and then stores it hides an earlier load
/// of the flag by another. One atomic that all accesses change makes each depend on the one before. It orders
/// nothing, so it hides no fault.
fn touch() {
    TOUCHED.get().inspect(|touched| _ = touched.fetch_add(1, Ordering::Relaxed));
}

fn ordered<R>(order: Ordering, access: impl FnOnce(Ordering) -> R) -> R {
    touch();
    let total = order == Ordering::SeqCst;
    if total {
        total_fence();
    }
    let result = access(weak(order));
    if total {
        total_fence();
    }
    result
}

macro_rules! atomics {
    ($($name:ident of $value:ty),*) => {$(
        #[derive(Debug)]
        pub(crate) struct $name {
            first: $value,
            cell: OnceLock<real::$name>,
        }

        #[allow(dead_code)]
        impl $name {
            pub(crate) const fn new(first: $value) -> Self {
                Self { first, cell: OnceLock::new() }
            }

            fn cell(&self) -> &real::$name {
                self.cell.get_or_init(|| real::$name::new(self.first))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                ordered(order, |order| self.cell().load(order))
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                ordered(order, |order| self.cell().store(value, order));
            }

            pub(crate) fn compare_exchange(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let exchange = |success| self.cell().compare_exchange(old, new, success, weak(failure));
                let result = ordered(success, exchange);
                if result.is_err() {
                    // A failed exchange is a turn of a spin loop. `loom` may let the load after it see an
                    // older value again, and would loop for ever.
                    turn();
                }
                result
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                old: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(old, new, success, failure)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$value>::default())
            }
        }
    )*};
}

atomics! { AtomicBool of bool, AtomicU8 of u8, AtomicU32 of u32, AtomicU64 of u64, AtomicI64 of i64 }

/// As the others, with the methods that lists use.
#[derive(Debug)]
pub(crate) struct AtomicPtr<T> {
    cell: OnceLock<real::AtomicPtr<T>>,
}

impl<T> AtomicPtr<T> {
    /// Inside a model only.
    pub(crate) fn new(first: *mut T) -> Self {
        Self { cell: OnceLock::from(real::AtomicPtr::new(first)) }
    }

    fn cell(&self) -> &real::AtomicPtr<T> {
        self.cell.get_or_init(|| real::AtomicPtr::new(std::ptr::null_mut()))
    }

    pub(crate) fn load(&self, order: Ordering) -> *mut T {
        ordered(order, |order| self.cell().load(order))
    }

    pub(crate) fn store(&self, value: *mut T, order: Ordering) {
        ordered(order, |order| self.cell().store(value, order));
    }
}

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self { cell: OnceLock::new() }
    }
}

impl AtomicU32 {
    pub(crate) fn fetch_add(&self, by: u32, order: Ordering) -> u32 {
        ordered(order, |order| self.cell().fetch_add(by, order))
    }

    pub(crate) fn fetch_sub(&self, by: u32, order: Ordering) -> u32 {
        ordered(order, |order| self.cell().fetch_sub(by, order))
    }

    pub(crate) fn swap(&self, value: u32, order: Ordering) -> u32 {
        ordered(order, |order| self.cell().swap(value, order))
    }

    pub(crate) fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        ordered(order, |order| self.cell().fetch_or(bits, order))
    }

    pub(crate) fn fetch_and(&self, bits: u32, order: Ordering) -> u32 {
        ordered(order, |order| self.cell().fetch_and(bits, order))
    }
}

impl AtomicU64 {
    pub(crate) fn fetch_add(&self, by: u64, order: Ordering) -> u64 {
        ordered(order, |order| self.cell().fetch_add(by, order))
    }

    pub(crate) fn fetch_sub(&self, by: u64, order: Ordering) -> u64 {
        ordered(order, |order| self.cell().fetch_sub(by, order))
    }

    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        ordered(set, |set| self.cell().fetch_update(set, weak(fetch), change))
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        ordered(order, |order| self.cell().swap(value, order))
    }

    pub(crate) fn fetch_or(&self, bits: u64, order: Ordering) -> u64 {
        ordered(order, |order| self.cell().fetch_or(bits, order))
    }

    pub(crate) fn fetch_and(&self, bits: u64, order: Ordering) -> u64 {
        ordered(order, |order| self.cell().fetch_and(bits, order))
    }
}
