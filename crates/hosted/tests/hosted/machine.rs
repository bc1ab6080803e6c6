//! The machine as the library sees it: memory, CPUs, contexts, locks.

use std::sync::mpsc::channel;

use hosted::raw::{IsolatedMemory, RawClearer, RawMachine};
use hosted::{Backing, FailurePlan, Hosted, HostedConfig, HostedError, MemoryRange};
use quire::addr::{Frame, FrameRange, PhysAddr};
use quire::arch::{Entry, ReadyClear, ReadyCopy};
use quire::clear::Clearer;
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{Context, FlushExtent, FlushRequest, FramePlatform, TablePlatform, TouchHint};
use quire::rank::Rank;
use quire::sync::{Pinned, SpinLock};
use testkit::panic_message;

use crate::support::machine;

const MIB: u64 = 1 << 20;
const CPU0: CpuId = CpuId(0);

#[test]
fn clearing_and_copying_reach_the_frames_and_no_other() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        let byte = |frame: u64| machine.direct_map(Frame(frame).addr());
        for frame in 0..4 {
            // SAFETY: frames 0 to 3 are memory of the machine (H1) and this test alone uses them.
            unsafe { byte(frame).write_bytes(frame as u8 + 1, 4096) };
        }
        machine.clear_raw(FrameRange::new(Frame(1), 1), ReadyClear::PLAIN);
        machine.copy_raw(FrameRange::new(Frame(3), 1), Frame(2), ReadyCopy::PLAIN);
        // SAFETY: H1: frames 0 to 3 are memory of the machine, and this test alone uses them.
        let seen = (0..4).map(|frame| unsafe { (*byte(frame), *byte(frame).add(4095)) }).collect::<Vec<_>>();
        assert_eq!(seen, [(1, 1), (0, 0), (4, 4), (4, 4)]);
    });
    let counters = machine.counters();
    assert_eq!((counters.bytes_cleared, counters.bytes_copied), (4096, 4096));
}

/// H1: in release builds too.
#[test]
fn frames_that_are_no_memory_of_the_machine_are_refused_by_number() {
    let machine = machine(1);
    let beyond = Frame(1 << 28);
    machine.run_on(CPU0, || {
        let one = FrameRange::new(beyond, 1);
        let clearer = Clearer::new(&machine, None).expect("a kernel that every processor has");
        let refused = [
            panic_message(|| machine.store_entry_raw(beyond, 0, Entry::EMPTY)),
            panic_message(|| assert!(machine.load_entry_raw(beyond, 0) == Entry::EMPTY)),
            panic_message(|| machine.clear_raw(one, ReadyClear::PLAIN)),
            panic_message(|| machine.copy_raw(one, Frame(0), ReadyCopy::PLAIN)),
            panic_message(|| machine.copy_raw(FrameRange::new(Frame(0), 1), beyond, ReadyCopy::PLAIN)),
            // Its last frame is behind the end.
            panic_message(|| machine.clear_raw(FrameRange::new(Frame(0), 1025), ReadyClear::PLAIN)),
            panic_message(|| clearer.clear_raw(&machine, one, TouchHint::Soon)),
        ];
        for message in refused {
            assert!(message.contains("no memory of this machine"), "{message}");
        }
    });
}

/// H1.
#[test]
fn every_backing_starts_zeroed_and_ranges_are_where_they_belong() {
    for backing in [Backing::Memfd, Backing::Anonymous, Backing::Heap] {
        let ranges = vec![MemoryRange::new(3 * MIB, MIB), MemoryRange::new(8 * MIB, 2 * MIB).on_node(1)];
        let config =
            HostedConfig { backing, prefault: true, ..HostedConfig::new(0).with_ranges(ranges.clone()) };
        let machine = config.build().unwrap();
        assert_eq!(machine.ranges(), ranges);
        let (low, high) = (machine.direct_map(PhysAddr(3 * MIB)), machine.direct_map(PhysAddr(10 * MIB - 1)));
        assert_eq!(high as u64 - low as u64, 7 * MIB - 1);
        assert_eq!(low as u64 % (2 * MIB), MIB, "blocks are aligned as their addresses are");
        // SAFETY: both bytes are memory of the machine (H1) and this test alone uses them.
        unsafe {
            assert_eq!((*low, *high), (0, 0));
            (*low, *high) = (1, 2);
            assert_eq!((*low, *high), (1, 2));
        }
        let frames = |start: u64, bytes: u64| FrameRange::new(PhysAddr(start).frame(), bytes / 4096);
        assert!(machine.holds(frames(3 * MIB, MIB)) && machine.holds(frames(8 * MIB, 2 * MIB)));
        let parts = [frames(3 * MIB, 2 * MIB), frames(2 * MIB, 2 * MIB), FrameRange::new(Frame(u64::MAX), 1)];
        assert!(!parts.iter().any(|&frames| machine.holds(frames)));
        let inside = [3 * MIB, 4 * MIB - 1, 8 * MIB, 10 * MIB - 1];
        assert!(inside.iter().all(|&addr| machine.is_memory(PhysAddr(addr))));
        let outside = [0, 3 * MIB - 1, 4 * MIB, 8 * MIB - 1, 10 * MIB, u64::MAX];
        assert!(!outside.iter().any(|&addr| machine.is_memory(PhysAddr(addr))));
    }
}

#[test]
fn a_restart_keeps_what_is_in_memory_of_the_same_ranges_and_nothing_else() {
    let first = machine(2);
    let first_byte = |machine: &Hosted| machine.direct_map(PhysAddr(0));
    // SAFETY: a byte of the machine's memory (H1), which this test alone uses.
    unsafe { *first_byte(&first) = 7 };
    first.run_on(CPU0, || first.clear_raw(FrameRange::new(Frame(1), 1), ReadyClear::PLAIN));
    let config = first.config().clone();
    let same = first.restart(config.clone().with_cpus(1)).unwrap();
    // SAFETY: H1: a byte of the new machine's memory, which this test alone uses.
    assert_eq!(unsafe { *first_byte(&same) }, 7);
    assert_eq!((same.config().cpus, same.counters().bytes_cleared), (1, 0));
    let bytes = config.ranges[0].bytes;
    let longer = config.clone().with_ranges(vec![MemoryRange::new(0, 2 * bytes)]);
    let other = same.restart(longer).unwrap();
    // SAFETY: H1: a byte of the third machine's memory, which this test alone uses.
    assert_eq!(unsafe { *first_byte(&other) }, 0, "other memory");
    let refused = other.restart(HostedConfig { cpus: 0, ..config }).err();
    assert!(matches!(refused, Some(HostedError::BadCpuCount { asked: 0 })));
}

/// H8.
#[test]
#[cfg(not(miri))]
fn memory_that_is_not_populated_is_cleared_without_taking_any() {
    let machine = HostedConfig::new(512 * MIB).build().unwrap();
    let word = |addr: u64| machine.direct_map(PhysAddr(addr)).cast::<u64>();
    let clear = |addr: u64, bytes: u64| {
        machine.clear_raw(FrameRange::new(PhysAddr(addr).frame(), bytes / 4096), ReadyClear::PLAIN);
    };
    let resident = || machine.arena().footprint().unwrap().resident;
    machine.run_on(CPU0, || {
        // SAFETY: a word of the machine's memory (H1), which this test alone uses.
        assert_eq!(unsafe { word(300 * MIB).read_volatile() }, 0);
        clear(0, 512 * MIB);
        machine.copy_raw(FrameRange::new(Frame(0), 65536), Frame(65536), ReadyCopy::PLAIN);
        assert!(resident() <= 4 * MIB, "{} bytes were taken", resident());
        assert_eq!(machine.counters().bytes_cleared, 512 * MIB);
        // Contents go where they belong, over memory that is populated and memory that is not.
        for addr in [7 * MIB, 11 * MIB + 4096, 300 * MIB] {
            // SAFETY: H1: the word lies in the 512 MiB of the machine, which this test alone uses.
            unsafe { word(addr).write_volatile(addr) };
        }
        machine.copy_raw(FrameRange::new(Frame(0), 65536), Frame(65536), ReadyCopy::PLAIN);
        let seen = |addr: u64| {
            // SAFETY: H1: callers name words in the 512 MiB of the machine, which this test alone uses.
            unsafe { word(addr).read_volatile() }
        };
        assert_eq!((seen(263 * MIB), seen(267 * MIB + 4096), seen(300 * MIB)), (7 * MIB, 11 * MIB + 4096, 0));
        clear(4096, 400 * MIB);
        assert_eq!([7 * MIB, 11 * MIB + 4096, 263 * MIB, 267 * MIB + 4096].map(seen), [0; 4]);
        assert!(resident() <= 24 * MIB, "{} bytes were taken", resident());
        // Only the second block of the source has memory: what was copied says nothing of the first.
        // SAFETY: H1: the word lies in the 512 MiB of the machine, which this test alone uses.
        unsafe { word(402 * MIB).write_volatile(1) };
        let before = resident();
        machine.copy_raw(
            FrameRange::new(PhysAddr(401 * MIB).frame(), 512),
            Frame(420 << 8),
            ReadyCopy::PLAIN,
        );
        assert_eq!(seen(421 * MIB), 1);
        clear(400 * MIB, MIB);
        assert!(resident() <= before + 2 * MIB, "{} bytes were taken", resident() - before);
    });
}

#[test]
fn malformed_configurations_are_refused_by_name() {
    let ranges = |ranges: &[(u64, u64)]| {
        let ranges = ranges.iter().map(|&(start, bytes)| MemoryRange::new(start, bytes)).collect();
        HostedConfig::new(MIB).with_ranges(ranges).build().err()
    };
    assert_eq!(ranges(&[]), Some(HostedError::NoRanges));
    assert_eq!(ranges(&[(0, 4096), (8192, 0)]), Some(HostedError::BadRange { index: 1 }));
    assert_eq!(ranges(&[(100, 4096)]), Some(HostedError::BadRange { index: 0 }));
    assert_eq!(ranges(&[(u64::MAX - 4095, 8192)]), Some(HostedError::BadRange { index: 0 }));
    // More than a processor can address.
    let highest = 0u64.wrapping_sub(2 * MIB);
    assert_eq!(ranges(&[(0, MIB), (highest, MIB)]), Some(HostedError::BadRange { index: 1 }));
    assert_eq!(ranges(&[((1 << 52) - 4096, 8192)]), Some(HostedError::BadRange { index: 0 }));
    assert_eq!(ranges(&[(0, 8192), (4096, 4096)]), Some(HostedError::Overlapping { index: 1 }));
    let cpus = HostedConfig::new(MIB).with_cpus(0).build().err();
    assert_eq!(cpus, Some(HostedError::BadCpuCount { asked: 0 }));
}

/// H3.
#[test]
fn one_thread_at_a_time_is_a_cpu() {
    let machine = machine(2);
    assert!(panic_message(|| machine.pin()).contains("no CPU of this machine"));
    machine.run_on(CpuId(1), || {
        assert_eq!(machine.pin(), CpuId(1));
        machine.unpin();
        let other = std::thread::scope(|scope| {
            scope.spawn(|| panic_message(|| machine.run_on(CpuId(1), || ()))).join().expect("caught")
        });
        assert!(other.contains("taken"), "{other}");
        machine.run_on(CPU0, || assert_eq!(machine.this_cpu(), CPU0));
        assert_eq!(machine.this_cpu(), CpuId(1));
    });
    assert!(panic_message(|| machine.run_on(CpuId(2), || ())).contains("does not exist"));
    machine.run_on(CpuId(1), || ());
}

/// Bytes of stack of the thread whose stack is asked for: more than the C library keeps of other tests' threads.
#[cfg(not(miri))]
const STACK: usize = 16 << 20;

/// H8: the C library answers, and a function that is called has as much less as it uses.
#[test]
#[cfg(not(miri))]
fn the_rest_of_a_threads_stack_is_known() {
    const USED: usize = 64 << 10;
    fn left(machine: &Hosted) -> usize {
        machine.stack_left().expect("the C library knows its threads")
    }
    #[inline(never)]
    fn left_below(machine: &Hosted) -> usize {
        let used = std::hint::black_box([0_u8; USED]);
        let below = left(machine);
        std::hint::black_box(&used);
        below
    }
    let machine = HostedConfig::new(16 * MIB).build().unwrap();
    let (above, below) = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn_scoped(scope, || (left(&machine), left_below(&machine))).unwrap().join().unwrap()
    });
    assert!((STACK / 2..=STACK + USED).contains(&above), "{above} bytes of {STACK}");
    assert!(below + USED <= above, "{below} bytes below {above}");
}

/// H9.
#[test]
fn each_thread_finds_its_own_record() {
    let machine = &machine(2);
    let ((here, arrived), (over, end)) = (channel(), channel::<()>());
    let other = move || {
        machine.run_on(CpuId(1), || {
            here.send(()).expect("the other thread waits");
            // An error: the other thread has looked.
            let _ = end.recv();
            machine.this_cpu()
        })
    };
    machine.run_on(CPU0, || {
        std::thread::scope(|scope| {
            let other = scope.spawn(other);
            arrived.recv().expect("it is a CPU");
            let own = machine.this_cpu();
            drop(over);
            assert_eq!((own, other.join().expect("it ends")), (CPU0, CpuId(1)));
        });
    });
}

#[test]
fn machines_know_their_own_threads_only() {
    let (one, two) = (machine(1), machine(2));
    one.run_on(CPU0, || {
        assert!(panic_message(|| two.pin()).contains("no CPU of this machine"));
        two.run_on(CpuId(1), || {
            assert_eq!(two.this_cpu(), CpuId(1));
            assert!(panic_message(|| one.pin()).contains("no CPU of this machine"));
        });
        assert_eq!(one.this_cpu(), CPU0);
        assert_ne!(one.direct_map(PhysAddr(0)), two.direct_map(PhysAddr(0)));
    });
}

#[test]
fn spawned_cpus_are_all_there_and_their_caller_comes_back() {
    let machine = machine(3);
    machine.run_on(CpuId(1), || {
        let cpus = machine.spawn_cpus(3, |cpu| {
            let pinned = Pinned::new(&machine);
            assert_eq!(pinned.cpu(), cpu);
            cpu.0
        });
        assert_eq!(cpus, [0, 1, 2]);
        assert_eq!(machine.this_cpu(), CpuId(1));
        let message = panic_message(|| machine.spawn_cpus(2, |cpu| assert_ne!(cpu, CPU0, "as planned")));
        assert!(message.contains("as planned"));
        assert_eq!(machine.this_cpu(), CpuId(1));
    });
    assert!(panic_message(|| machine.this_cpu()).contains("no CPU"));
}

/// The processors that a caller names count, not those that it was bound to before: threads inherit these.
#[test]
#[cfg(not(miri))]
fn spawned_cpus_run_on_the_processors_that_are_named() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let processors = || {
        let set = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).filter(|&processor| set.is_set(processor)).collect::<Vec<_>>()
    };
    let all = processors();
    let mut first = CpuSet::new();
    first.set(all[0]);
    sched_setaffinity(None, &first).unwrap();
    let machine = machine(3);
    let seen = machine.spawn_pinned_cpus(3, &all, |_| processors());
    let wanted: Vec<_> = (0..3).map(|cpu| vec![all[cpu % all.len()]]).collect();
    assert_eq!(seen, wanted);
    assert_eq!(processors(), [all[0]], "the caller stays where it was");
}

#[test]
fn interrupts_nest_and_start_with_nothing_held() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        assert_eq!(machine.context(), Context::Task);
        machine.lock_taken(Rank::Pool);
        machine.interrupt(Context::SoftInterrupt, || {
            assert_eq!(machine.context(), Context::SoftInterrupt);
            machine.lock_taken(Rank::Block);
            machine.interrupt(Context::HardInterrupt, || {
                assert_eq!(machine.context(), Context::HardInterrupt);
                assert!(!machine.disable_interrupts());
            });
            machine.lock_dropped(Rank::Block);
        });
        machine.lock_dropped(Rank::Pool);
        let on = machine.disable_interrupts();
        assert!(on && !machine.disable_interrupts());
        let refused = panic_message(|| machine.interrupt(Context::HardInterrupt, || ()));
        assert!(refused.contains("interrupts are off"), "{refused}");
        machine.restore_interrupts(on);
        let left =
            panic_message(|| machine.interrupt(Context::HardInterrupt, || machine.lock_taken(Rank::Slab)));
        assert!(left.contains("Slab"), "{left}");
        assert_eq!(machine.context(), Context::Task);
    });
}

/// A task may sleep for an address space's lock, and wakes others when it gives it back.
#[test]
fn the_lock_of_an_address_space_is_asked_for_and_given_back_where_a_task_may_do_so() {
    let machine = machine(1);
    machine.run_on(CPU0, || {
        machine.pin();
        let pinned = panic_message(|| machine.lock_taken(Rank::AddressSpace));
        assert!(pinned.contains("a pinned task asked"), "{pinned}");
        machine.lock_dropped(Rank::AddressSpace);
        machine.unpin();
        machine.lock_taken(Rank::AddressSpace);
        machine.lock_taken(Rank::PageTable);
        let under = panic_message(|| machine.lock_dropped(Rank::AddressSpace));
        assert!(under.contains("a task that holds a lock gave"), "{under}");
        machine.lock_dropped(Rank::PageTable);
    });
}

#[test]
fn locks_in_a_wrong_order_are_refused_with_both_names() {
    let machine = machine(1);
    let (block, pool) = (SpinLock::new(Rank::Block, ()), SpinLock::new(Rank::Pool, ()));
    machine.run_on(CPU0, || {
        let _block = block.lock(&machine);
        let _pool = pool.lock(&machine);
    });
    let message = machine.run_on(CPU0, || {
        panic_message(|| {
            let _pool = pool.lock(&machine);
            let _block = block.lock(&machine);
        })
    });
    assert!(message.contains("Block was asked for while Pool is held"), "{message}");
    let unchecked = HostedConfig { check_ranks: false, ..HostedConfig::new(MIB) }.build().unwrap();
    unchecked.run_on(CPU0, || {
        let _pool = pool.lock(&unchecked);
        let _block = block.lock(&unchecked);
    });
}

#[test]
fn flushes_are_counted_exactly() {
    let machine =
        HostedConfig { real_ipis: !cfg!(miri), ..HostedConfig::new(MIB).with_cpus(3) }.build().unwrap();
    let range = quire::addr::VirtRange::from_len(quire::addr::VirtAddr(0), 5 * 4096);
    let ranged =
        FlushRequest { root: Frame(1), extent: FlushExtent::Range { range, stride: 4096 }, tables: false };
    let whole = FlushRequest { extent: FlushExtent::AddressSpace, tables: true, ..ranged };
    let mut others = CpuSet::first(3);
    others.remove(CPU0);
    machine.run_on(CPU0, || {
        let _pinned = Pinned::new(&machine);
        machine.flush_local(&ranged);
        machine.flush_remote_start(&others, &whole);
        machine.flush_remote_wait(&others, &whole);
        machine.fence_cpus(&others);
        machine.fence_cpus(&CpuSet::first(0));
    });
    let counters = machine.counters();
    assert_eq!((counters.flushes_local, counters.flushes_remote, counters.cpus_targeted), (1, 1, 2));
    assert_eq!((counters.flushes_range, counters.pages_flushed), (1, 5));
    assert_eq!((counters.flushes_address_space, counters.flushes_tables), (1, 1));
    assert_eq!((counters.ipis, counters.fences), (u64::from(!cfg!(miri)), 1));
    machine.reset_counters();
    assert_eq!(machine.counters(), hosted::Counters::default());
}

/// H3: it is the same machine, without checks.
#[test]
fn a_bare_machine_has_the_nodes_and_distances_of_its_machine() {
    let ranges = vec![MemoryRange::new(0, MIB), MemoryRange::new(MIB, MIB).on_node(1)];
    let config = HostedConfig::new(0).with_ranges(ranges).with_cpus(2).with_nodes(vec![0, 1]);
    let machine = config.with_distances(vec![vec![10, 40], vec![40, 10]]).build().unwrap();
    // SAFETY: H3: no call below asks which CPU it runs on.
    let bare = unsafe { machine.bare() };
    assert_eq!((bare.node_of(CpuId(1)), bare.node_distance(0, 1), bare.node_distance(1, 1)), (1, 40, 10));
}

#[test]
fn allocations_fail_at_every_index_in_turn() {
    let machine = machine(1);
    for index in 0..5 {
        machine.set_failures(FailurePlan::Nth(index));
        let failed = (0..5).filter(|_| machine.fail_allocation()).count();
        assert_eq!((failed, machine.allocations_asked(), machine.allocations_failed()), (1, 5, 1));
    }
}

#[test]
#[cfg(not(miri))]
fn sixty_four_tebibytes_of_address_space_cost_nothing_until_touched() {
    let whole = 64 << 40;
    let machine = match HostedConfig::new(whole).build() {
        Ok(machine) => machine,
        Err(error @ HostedError::Arena { .. }) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let last = machine.direct_map(PhysAddr(whole - 1));
    // SAFETY: the last byte is memory of the machine (H1) and this test alone uses it.
    unsafe {
        assert_eq!(*last, 0);
        *last = 1;
    }
    // A machine with the same span but two small ranges takes address space only.
    drop(machine);
    let ranges = vec![MemoryRange::new(0, MIB), MemoryRange::new(whole - MIB, MIB)];
    let sparse = HostedConfig { prefault: true, ..HostedConfig::new(0).with_ranges(ranges) }.build().unwrap();
    assert!(!sparse.is_memory(PhysAddr(whole / 2)));
}

/// The host's own accounting: prefaulted memory is there, untouched memory is not, holes cannot be touched (H2).
#[test]
#[cfg(not(miri))]
fn the_host_holds_what_is_used_and_guards_the_holes() {
    let ranges = vec![MemoryRange::new(2 * MIB, 2 * MIB), MemoryRange::new(64 * MIB, 4 * MIB)];
    for backing in [Backing::Memfd, Backing::Anonymous] {
        let config = HostedConfig { backing, ..HostedConfig::sparse(0).with_ranges(ranges.clone()) };
        let machine = config.clone().build().unwrap();
        assert_eq!(machine.arena().footprint().unwrap().resident, 0);
        machine.run_on(CPU0, || machine.clear_raw(FrameRange::new(Frame(512), 3), ReadyClear::PLAIN));
        assert_eq!(machine.arena().footprint().unwrap().resident, 3 * 4096);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let end = machine.direct_map(PhysAddr(4 * MIB - 1)) as u64 + 1;
        let hole =
            maps.lines().find(|line| line.starts_with(&format!("{end:x}-"))).expect("a hole has a mapping");
        assert!(hole.contains(" ---p "), "{hole}");
        let next = machine.direct_map(PhysAddr(64 * MIB)) as u64;
        assert!(hole.contains(&format!("-{next:x} ")), "{hole}");
        let warm = HostedConfig { prefault: true, huge_pages: true, ..config }.build().unwrap();
        assert_eq!(warm.arena().footprint().unwrap().resident, 6 * MIB);
        assert!(warm.arena().footprint().unwrap().huge <= 6 * MIB);
    }
}
