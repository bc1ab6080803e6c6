//! Caches of small objects on a hosted machine.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use hosted::{FailurePlan, HostedConfig};
use quire::error::AllocError;
use quire::slab::{Cache, CacheUsage};
use testkit::{seed, with_allocator};

const BYTES: u64 = 16 << 20;

fn exercise<T: Copy + PartialEq + std::fmt::Debug>(make: impl Fn(u64) -> T) {
    with_allocator(HostedConfig::new(BYTES), |machine, pages| {
        let cache = Cache::<T>::new();
        let mut rng = fastrand::Rng::with_seed(seed(1));
        let mut live: Vec<(NonNull<MaybeUninit<T>>, T)> = Vec::new();
        for step in 0..20_000 {
            if rng.u32(..100) < if step / 2000 % 2 == 0 { 60 } else { 40 } {
                let object = cache.alloc(pages).unwrap();
                let value = make(step);
                // SAFETY: the cache handed out memory for a `T`, which is this test's until it is freed.
                unsafe { object.cast::<T>().write(value) };
                live.push((object, value));
            } else if !live.is_empty() {
                let (object, value) = live.swap_remove(rng.usize(..live.len()));
                // SAFETY: a live object that was written when it was handed out; freed once.
                unsafe {
                    assert_eq!(object.cast::<T>().read(), value, "objects do not overlap");
                    cache.free(pages, object);
                }
            }
            let least = (live.len() as u64).div_ceil(Cache::<T>::OBJECTS as u64);
            let usage = cache.usage(machine);
            assert_eq!(usage.objects, live.len() as u64);
            assert!(usage.frames >= least);
        }
        for (object, _) in live {
            // SAFETY: each live object came from this cache and is freed once.
            unsafe { cache.free(pages, object) };
        }
        assert_eq!(cache.usage(machine), CacheUsage::default(), "an unused cache takes no memory");
    });
}

/// Invariants S2, S3 and S4.
#[test]
fn objects_of_many_sizes_keep_their_contents() {
    exercise(|step| step);
    exercise(|step| [step; 17]);
    exercise(|step| [step; 64]);
    exercise(|step| [step; 500]);
    exercise(|step| step as u8);
}

#[test]
fn out_of_memory_is_an_error() {
    with_allocator(HostedConfig::new(BYTES), |machine, pages| {
        let cache = Cache::<[u64; 64]>::new();
        // A slab's frame, and the frame of its descriptor.
        for nth in [0, 1] {
            machine.set_failures(FailurePlan::Nth(nth));
            assert_eq!(cache.alloc(pages), Err(AllocError::OutOfMemory));
        }
        machine.set_failures(FailurePlan::Nth(2));
        let first: Vec<_> = (0..Cache::<[u64; 64]>::OBJECTS).map(|_| cache.alloc(pages).unwrap()).collect();
        assert_eq!(cache.alloc(pages), Err(AllocError::OutOfMemory));
        machine.set_failures(FailurePlan::Off);
        let next = cache.alloc(pages).unwrap();
        for object in first.into_iter().chain([next]) {
            // SAFETY: each came from this cache and is freed once.
            unsafe { cache.free(pages, object) };
        }
    });
}

#[test]
#[should_panic(expected = "freed twice")]
fn a_double_free_is_caught() {
    let machine = HostedConfig::new(BYTES).build().unwrap();
    machine.run_on(quire::cpu::CpuId(0), || {
        let pages = hosted::raw::page_allocator(
            &machine,
            &testkit::ranges_of(&machine),
            quire::page_alloc::AllocatorConfig::default(),
        )
        .unwrap();
        let cache = Cache::<u64>::new();
        let (first, _second) = (cache.alloc(&pages).unwrap(), cache.alloc(&pages).unwrap());
        // SAFETY: the slab stays, since a second object is in use: the bitmap can be asked.
        unsafe {
            cache.free(&pages, first);
            cache.free(&pages, first);
        }
    });
}

/// Invariant S1.
#[test]
fn several_cpus_share_a_cache() {
    let machine = HostedConfig::new(BYTES).with_cpus(3).build().unwrap();
    let pages = machine.run_on(quire::cpu::CpuId(0), || {
        hosted::raw::page_allocator(
            &machine,
            &testkit::ranges_of(&machine),
            quire::page_alloc::AllocatorConfig::default(),
        )
        .unwrap()
    });
    let cache = Cache::<[u64; 9]>::new();
    machine.spawn_cpus(3, |cpu| {
        let mut live = Vec::new();
        let mut rng = fastrand::Rng::with_seed(seed(7) + u64::from(cpu.0));
        for step in 0..5000u64 {
            if rng.bool() {
                let object = cache.alloc(&pages).unwrap();
                let value = [step << 8 | u64::from(cpu.0); 9];
                // SAFETY: memory for this type, this thread's until it is freed.
                unsafe { object.cast::<[u64; 9]>().write(value) };
                live.push((object, value));
            } else if let Some((object, value)) = live.pop() {
                // SAFETY: a live object that was written when it was handed out; freed once.
                unsafe {
                    assert_eq!(object.cast::<[u64; 9]>().read(), value);
                    cache.free(&pages, object);
                }
            }
        }
        // SAFETY: each live object came from this cache and is freed once.
        live.into_iter().for_each(|(object, _)| unsafe { cache.free(&pages, object) });
    });
    machine.run_on(quire::cpu::CpuId(0), || {
        assert_eq!(cache.usage(&machine), CacheUsage::default());
        pages.lists().drain_local();
        pages.validate().unwrap();
    });
}
