//! Walkers by frame number, while pages are allocated, freed, and change their size (W4).

use hosted::raw::RawPools;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{FailurePlan, FaultCause, Hosted, HostedConfig, InterruptPlan, OnViolation};
use quire::addr::{Frame, VirtAddr};
use quire::cpu::CpuId;
use quire::hugetlb::{DescriptorPolicy, HugePools, HugeSize, HugeSize::Size1G, HugeSize::Size2M};
use quire::page_alloc::{FrameInfo, NodeSet, PageAllocator};
use quire::platform::Context;
use quire::stats::Stat;
use quire::vmemmap::walker::{self, WindowAccess};
use quire::vmemmap::{Window, descriptor_addr};

use crate::hugetlb::support::{BOTH, GIB, MIB, World, two_nodes, with_policy};
use crate::hugetlb::window::{Kernel, SAVING, WINDOWS, check_page, pages_of};
use testkit::{ranges_of, seed};

fn grow(world: &World<'_, '_>, size: HugeSize, wanted: u64) {
    assert_eq!(world.pools.resize(world.pages, size, BOTH, wanted).after, wanted);
}

/// Whether the running CPU may store to a frame's descriptor, whatever is mapped there.
fn is_writable(machine: &Hosted, frame: Frame) -> bool {
    let addr = descriptor_addr(frame).add(56);
    let found = machine.kernel_load(addr).unwrap();
    match machine.kernel_exchange(addr, found, found) {
        Ok(exchanged) => exchanged.is_ok(),
        Err(fault) => {
            assert_eq!((fault.cause, fault.write), (FaultCause::Protection, true));
            false
        }
    }
}

/// The frame that stays can be stored to at its own addresses, and at no others.
#[test]
fn a_store_to_a_shared_descriptor_faults() {
    for policy in SAVING {
        with_policy(policy, HostedConfig::new(2 * GIB + 64 * MIB), |world| {
            for size in HugeSize::ALL {
                grow(world, size, 1);
                let page = pages_of(world, size)[0];
                for at in (0..size.order().frames()).step_by(31) {
                    assert_eq!(is_writable(world.machine, page.add(at)), at < 64, "frame {at}");
                }
                grow(world, size, 0);
                assert!((0..512).all(|at| is_writable(world.machine, page.add(at))));
            }
        });
    }
}

/// The words of a page's descriptors, as if it started at frame 0.
fn words(world: &World<'_, '_>, page: Frame) -> Vec<[u64; 8]> {
    let kernel = Kernel(world.machine);
    let of = |frame: Frame| {
        let mut words =
            std::array::from_fn(|word| kernel.load(VirtAddr(descriptor_addr(frame).0 + 8 * word as u64)));
        // The highest bit: the tail holds the order of its page, not the head.
        words[1] -= if words[1] == 0 || words[1] >> 63 == 1 { 0 } else { 2 * page.0 };
        words
    };
    (0..512).map(|at| of(page.add(at))).collect()
}

/// A page that was optimised and restored has the same descriptors as one that never was.
#[test]
fn what_is_restored_is_as_it_was() {
    for policy in SAVING {
        with_policy(policy, HostedConfig::new(2 * GIB + 64 * MIB), |world| {
            let (pools, pages, window) = (world.pools, world.pages, world.pools.window().unwrap());
            pools.set_saving(false);
            grow(world, Size2M, 1);
            let never = words(world, pages_of(world, Size2M)[0]);
            grow(world, Size2M, 0);
            pools.set_saving(true);
            grow(world, Size1G, 1);
            assert_eq!(pools.demote(pages, BOTH, 1).done, 1);
            // A promotion that fails half-way leaves restored pages behind.
            world.machine.set_failures(FailurePlan::From(7 * 300));
            assert_eq!(pools.promote(pages, BOTH, 1).done, 0);
            world.machine.set_failures(FailurePlan::Off);
            let all = pages_of(world, Size2M);
            let restored = all.iter().filter(|&&page| !window.is_optimised(pages, page));
            let restored = restored.inspect(|&&page| assert_eq!(words(world, page), never)).count();
            assert!(all.len() == 512 && (290..=300).contains(&restored), "{restored} of {}", all.len());
            for page in all {
                check_page(world, page, Size2M, 0);
            }
            assert_eq!(pools.promote(pages, BOTH, 1).done, 1);
            check_page(world, pages_of(world, Size1G)[0], Size1G, 0);
        });
    }
}

/// A CPU that has read every descriptor has all translations cached: frames must be freed after the flush, or
/// the check fails.
#[test]
fn a_lost_flush_is_noticed() {
    for (lost, noticed) in [(FailurePlan::Off, false), (FailurePlan::Nth(0), true)] {
        let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(256 * MIB) };
        with_policy(DescriptorPolicy::Batched, config, |world| {
            let kernel = Kernel(world.machine);
            // Once to and fro, so that the window's leaves are split.
            grow(world, Size2M, 40);
            grow(world, Size2M, 0);
            (0..65_536).for_each(|frame| _ = walker::head_of(&kernel, Frame(frame)));
            world.machine.lose_flushes(lost);
            grow(world, Size2M, 40);
            world.machine.lose_flushes(FailurePlan::Off);
            assert_eq!(!world.machine.take_violations().is_empty(), noticed);
            if noticed {
                world.machine.set_kernel_root(None);
                world.machine.set_kernel_root(world.pools.window().map(Window::root));
            }
        });
    }
}

/// After a page of 1 GiB was restored, its parts' heads can be stored to, unless the flush was lost.
#[test]
fn a_lost_flush_of_a_restored_page_is_noticed() {
    for (lost, writable) in [(FailurePlan::Off, true), (FailurePlan::Nth(0), false)] {
        let config = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(2 * GIB) };
        with_policy(DescriptorPolicy::Batched, config, |world| {
            grow(world, Size1G, 1);
            let page = pages_of(world, Size1G)[0];
            check_page(world, page, Size1G, 0);
            world.pools.set_saving(false);
            world.machine.lose_flushes(lost);
            assert_eq!(world.pools.demote(world.pages, BOTH, 1).done, 1);
            world.machine.lose_flushes(FailurePlan::Off);
            assert_eq!(is_writable(world.machine, page.add(512 * 77)), writable);
            assert_eq!(world.machine.take_violations().is_empty(), writable);
            world.machine.set_kernel_root(None);
            world.machine.set_kernel_root(world.pools.window().map(Window::root));
        });
    }
}

/// Sets the flag when its thread ends, also by a panic, so that no thread waits for one that panicked.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `change` on CPU 0 beside `walk` on CPU 1, which starts first and is told when the change is done.
fn beside(
    policy: DescriptorPolicy,
    prepare: impl Fn(&HugePools, &PageAllocator<'_, Hosted>) + Sync,
    change: impl Fn(&HugePools, &PageAllocator<'_, Hosted>) + Sync,
    walk: impl Fn(&Hosted, &HugePools, &dyn Fn(), &AtomicBool) + Sync,
) {
    let machine = HostedConfig::new(256 * MIB).with_cpus(2).build().unwrap();
    let pages = machine.run_on(CpuId(0), || {
        hosted::raw::page_allocator(&machine, &ranges_of(&machine), Default::default()).unwrap()
    });
    let pools = machine.run_on(CpuId(0), || HugePools::with_policy(&pages, policy).unwrap());
    machine.set_kernel_root(pools.window().map(Window::root));
    machine.run_on(CpuId(0), || prepare(&pools, &pages));
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    machine.spawn_cpus(2, |cpu| {
        if cpu == CpuId(1) {
            let _begun = Done(&begun);
            return walk(&machine, &pools, &|| begun.store(true, Ordering::Release), &done);
        }
        let _done = Done(&done);
        while !begun.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        change(&pools, &pages);
    });
    machine.run_on(CpuId(0), || {
        pools.validate(&pages).unwrap();
        let _ = pools.resize(&pages, Size2M, BOTH, 0);
        pages.validate().unwrap();
    });
}

/// Long enough for a change that does not wait.
const LONG: Duration = Duration::from_millis(60);

/// A change of mappings waits for every walker in a section, in both directions. Where the tails of all pages
/// are the same it need not: no head of a page of 2 MiB becomes read-only.
#[test]
fn a_section_is_waited_for() {
    for policy in SAVING {
        for (from, to) in [(0, 20), (20, 0)] {
            beside(
                policy,
                |pools, pages| assert_eq!(pools.resize(pages, Size2M, BOTH, from).after, from),
                |pools, pages| assert_eq!(pools.resize(pages, Size2M, BOTH, to).after, to),
                |machine, pools, begin, done| {
                    let section = pools.window().unwrap().walkers().enter(machine);
                    begin();
                    if policy == DescriptorPolicy::MaskTail {
                        let begun = Instant::now();
                        while !done.load(Ordering::Acquire) {
                            assert!(begun.elapsed() < Duration::from_secs(60), "it waits for the section");
                            std::thread::yield_now();
                        }
                    } else {
                        std::thread::sleep(LONG);
                        assert!(!done.load(Ordering::Acquire), "a walker may be about to store");
                    }
                    drop(section);
                },
            );
        }
    }
}

/// A page with a walker's reference is not freed before the walker has dropped it.
#[test]
fn a_reference_is_waited_for() {
    for policy in WINDOWS {
        let used = std::sync::Mutex::new(Frame(0));
        beside(
            policy,
            |pools, pages| {
                let _ = pools.resize(pages, Size2M, BOTH, 3);
                *used.lock().unwrap() = pools.take(pages, Size2M, NodeSet::ALL, false).unwrap();
            },
            |pools, pages| pools.give_raw(pages, Size2M, *used.lock().unwrap(), false),
            |machine, pools, begin, done| {
                let (kernel, page) = (Kernel(machine), *used.lock().unwrap());
                let section = pools.window().unwrap().walkers().enter(machine);
                assert!(!walker::try_get(&kernel, page.add(64)), "a tail has no references");
                assert!(walker::try_get(&kernel, page));
                assert_eq!(walker::references(&kernel, page), 2);
                begin();
                std::thread::sleep(LONG);
                assert!(!done.load(Ordering::Acquire), "the page is the walker's, too");
                walker::put(&kernel, page);
                drop(section);
                while !done.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let _section = pools.window().unwrap().walkers().enter(machine);
                assert!(!walker::try_get(&kernel, page), "it is not in use");
            },
        );
    }
}

/// Walks frames in a section each, until told to end, and checks what it finds.
fn walk(machine: &Hosted, pools: &HugePools, pages: &PageAllocator<'_, Hosted>, rng: &mut Rng) -> bool {
    let frame = Frame(rng.u64(..(GIB + 512 * MIB) / 4096));
    let holds = |head: Frame| head.0.is_multiple_of(512) && head <= frame && frame.0 - head.0 < 262_144;
    let Some(window) = pools.window() else {
        return match pages.frames().frame_info(frame) {
            FrameInfo::InUse { head, frames, huge } => {
                assert!(head <= frame && frame.0 - head.0 < frames);
                assert!(!huge || holds(head) && (frames == 512 || frames == 262_144));
                huge
            }
            _ => false,
        };
    };
    let (kernel, _section) = (Kernel(machine), window.walkers().enter(machine));
    let Some(head) = walker::head_of(&kernel, frame) else { return false };
    assert!(holds(head), "{frame:?} is said to belong to {head:?}");
    if let Some(said) = walker::head_at(&kernel, head) {
        assert!(said.order == Size2M.order() || said.order == Size1G.order());
    }
    let gotten = [head, frame].map(|frame| walker::try_get(&kernel, frame));
    for (frame, gotten) in [head, frame].into_iter().zip(gotten) {
        if gotten {
            assert!(walker::references(&kernel, frame) > 1, "one of its own beside the owner's");
            assert_eq!(walker::head_of(&kernel, frame), Some(frame));
            walker::put(&kernel, frame);
        }
    }
    gotten[0]
}

/// One CPU walks while another makes every kind of change to pools.
#[test]
fn walkers_are_safe_at_every_moment() {
    for policy in DescriptorPolicy::ALL {
        let machine = HostedConfig::new(GIB + 512 * MIB).with_cpus(2).build().unwrap();
        let pages = machine.run_on(CpuId(0), || {
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), Default::default()).unwrap()
        });
        let pools = machine.run_on(CpuId(0), || HugePools::with_policy(&pages, policy).unwrap());
        machine.set_kernel_root(pools.window().map(Window::root));
        let (walks, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let found = machine.spawn_cpus(2, |cpu| {
            let mut rng = Rng::with_seed(seed(5) + u64::from(cpu.0));
            let mut found = 0u64;
            if cpu == CpuId(1) {
                let _walked = Done(&walks);
                while !done.load(Ordering::Relaxed) {
                    found += u64::from(walk(&machine, &pools, &pages, &mut rng));
                    if found > 0 {
                        walks.store(true, Ordering::Relaxed);
                    }
                }
                return found;
            }
            let (_done, mut used, mut rounds) = (Done(&done), Vec::new(), 0);
            while rounds < 150 || !walks.load(Ordering::Relaxed) {
                rounds += 1;
                match rng.u8(..6) {
                    0 => _ = pools.resize(&pages, Size2M, BOTH, rng.u64(..300)),
                    1 => _ = pools.resize(&pages, Size1G, BOTH, rng.u64(..2)),
                    2 => _ = (pools.demote(&pages, BOTH, 1), pools.promote(&pages, BOTH, 1)),
                    3 => _ = pools.set_saving(rng.bool()),
                    4 => used.extend(pools.take(&pages, Size2M, NodeSet::ALL, false)),
                    _ if used.is_empty() => {}
                    _ => pools.give_raw(&pages, Size2M, used.swap_remove(rng.usize(..used.len())), false),
                }
            }
            used.into_iter().for_each(|page| pools.give_raw(&pages, Size2M, page, false));
            0
        });
        assert!(found[1] > 0, "{}: the walker met pages", policy.name());
        machine.run_on(CpuId(0), || {
            pools.validate(&pages).unwrap();
            pages.validate().unwrap();
        });
    }
}

/// Two CPUs grow and shrink one pool together, and split the same leaves.
#[test]
fn several_cpus_change_one_window() {
    for policy in WINDOWS {
        for _ in 0..4 {
            let machine = two_nodes(512 * MIB).build().unwrap();
            let pages = machine.run_on(CpuId(0), || {
                hosted::raw::page_allocator(&machine, &ranges_of(&machine), Default::default()).unwrap()
            });
            let pools = machine.run_on(CpuId(0), || HugePools::with_policy(&pages, policy).unwrap());
            machine.set_kernel_root(pools.window().map(Window::root));
            for wanted in [300, 17, 430, 0, 200, 0] {
                let start = std::sync::Barrier::new(2);
                machine.spawn_cpus(2, |_| {
                    start.wait();
                    let _ = pools.resize(&pages, Size2M, BOTH, wanted);
                });
                machine.run_on(CpuId(0), || {
                    pools.validate(&pages).unwrap();
                    pages.validate().unwrap();
                    let (info, window) = (pools.info(&pages, Size2M), pools.window().unwrap());
                    assert_eq!((info.total, info.free, info.surplus), (wanted, wanted, 0));
                    assert_eq!(pages.memory_info().used, 512 * wanted + window.frames());
                });
            }
        }
    }
}

/// One CPU is interrupted at each of its calls of the platform while it replaces a leaf by a table, and the
/// other wants the same leaf back meanwhile. It waits, or finishes before the first goes on; either way no
/// translation is lost.
#[test]
fn a_leaf_is_split_once() {
    let grow_interrupted = |plan: InterruptPlan| {
        let machine = two_nodes(32 * MIB).build().unwrap();
        let pages = machine.run_on(CpuId(0), || {
            hosted::raw::page_allocator(&machine, &ranges_of(&machine), Default::default()).unwrap()
        });
        let pools =
            machine.run_on(CpuId(0), || HugePools::with_policy(&pages, DescriptorPolicy::PerPage).unwrap());
        machine.set_kernel_root(pools.window().map(Window::root));
        machine.run_on(CpuId(0), || pools.set_overcommit(&pages, Size2M, 4));
        let (go, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let calls = machine.spawn_cpus(2, |cpu| {
            if cpu == CpuId(1) {
                let _done = Done(&done);
                while !go.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let page = pools.take(&pages, Size2M, NodeSet::ALL, false).unwrap();
                done.store(true, Ordering::Release);
                pools.give_raw(&pages, Size2M, page, false);
                return 0;
            }
            let _go = Done(&go);
            let handler = || {
                go.store(true, Ordering::Release);
                let begun = Instant::now();
                while !done.load(Ordering::Acquire) && begun.elapsed() < Duration::from_millis(5) {
                    std::thread::yield_now();
                }
            };
            let work = || assert_eq!(pools.resize(&pages, Size2M, BOTH, 2).after, 2);
            machine.interrupt_at_calls(plan, Context::SoftInterrupt, handler, work).events
        })[0];
        machine.run_on(CpuId(0), || {
            pools.validate(&pages).unwrap();
            pages.validate().unwrap();
            assert_eq!(pages.lists().stat(Stat::VmemmapSplit), 1, "all of this memory is one leaf's");
            let _ = pools.resize(&pages, Size2M, BOTH, 0);
            assert_eq!(pages.memory_info().used, pools.window().unwrap().frames());
        });
        calls
    };
    let calls = grow_interrupted(InterruptPlan::Count);
    assert!(calls > 50);
    (0..calls).for_each(|n| _ = grow_interrupted(InterruptPlan::Nth(n)));
}
