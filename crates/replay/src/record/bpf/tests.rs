//! The programs in the running kernel: it takes them, they write as many records as there are events, and
//! nothing of them stays.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};

use super::*;
use crate::record::raw::RawKind;
use crate::record::tracepoints;

const PAGE: usize = 4096;
const REPEATS: usize = 500;

/// The programs, or a word on why there are none.
fn opened() -> Option<Bpf> {
    let opened = Bpf::open(None, 1 << 20, tracepoints::nameless_device());
    match opened {
        Ok(bpf) => Some(bpf),
        // Of the kernels of today, those without a description of their types or without permission for this
        // user.
        Err(RecordError::NoPrograms { what, source }) if source.kind() != io::ErrorKind::InvalidInput => {
            assert!(
                !what.starts_with("quire_") || !nix::unistd::Uid::effective().is_root(),
                "{what}: {source}"
            );
            println!("skipped: {what}: {source}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The records of this thread's work by their kinds, and what they say.
fn records(bpf: &mut Bpf, work: impl FnOnce()) -> (BTreeMap<u32, usize>, Vec<Raw>) {
    let own = nix::unistd::gettid().as_raw().cast_unsigned();
    bpf.attach().expect("tracepoints");
    bpf.follow(own).expect("a slot");
    work();
    bpf.disable(true);
    bpf.forget(own);
    let (mut kinds, mut raws) = (BTreeMap::new(), Vec::new());
    for CpuRing { ring, .. } in &mut bpf.rings {
        ring.drain(|record| {
            *kinds.entry(record[0].into()).or_default() += 1;
            decode::record(record, &mut |raw| raws.push(raw)).expect("a record of the programs");
        });
    }
    // What the thread does beside the work, such as a fault of its stack.
    kinds.retain(|_, count| *count > REPEATS / 10);
    (kinds, raws)
}

/// Each record costs the program a part of a microsecond.
#[test]
fn an_event_has_one_record() {
    let Some(mut bpf) = opened() else { return };
    let mut memory = MmapMut::map_anon(REPEATS * PAGE).expect("memory");
    // Not every kernel has large folios.
    let _ = memory.advise(Advice::NoHugePage);
    let first = memory.as_ptr().addr() as u64;
    let (faults, raws) = records(&mut bpf, || memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1));
    let is_exact = |found: &BTreeMap<u32, usize>, kind: i32| {
        assert!(found.keys().eq([&kind.cast_unsigned()]), "{found:?}");
        found
            .values()
            .for_each(|count| assert!((REPEATS..REPEATS + REPEATS / 10).contains(count), "{found:?}"));
    };
    is_exact(&faults, decode::FAULT);
    let inside = |addr: u64| (first..first + (REPEATS * PAGE) as u64).contains(&addr);
    let is_write = |raw: &&Raw| match raw.kind {
        RawKind::Fault { addr, error_code, kernel_mode: false } => inside(addr) && error_code & 2 != 0,
        _ => false,
    };
    assert_eq!(raws.iter().filter(is_write).count(), REPEATS);
    let is_resolved =
        |raw: &&Raw| matches!(raw.kind, RawKind::Resolved { addr, major: false } if inside(addr));
    assert_eq!(raws.iter().filter(is_resolved).count(), REPEATS);
    let (calls, raws) = records(&mut bpf, move || {
        for _ in 0..REPEATS / 2 {
            let unwritten = memory.make_read_only().expect("mprotect");
            memory = unwritten.make_mut().expect("mprotect");
        }
    });
    is_exact(&calls, decode::CALL);
    // A call is entered, releases the lock and returns, in this order.
    let mut of_calls = raws.iter().filter_map(|raw| match raw.kind {
        RawKind::Enter { number: 10, args, .. } if args[0] == first => Some(('e', raw.time_ns)),
        RawKind::Unlocked { .. } => Some(('u', raw.time_ns)),
        RawKind::Leave { number: 10, result: 0 } => Some(('l', raw.time_ns)),
        _ => None,
    });
    let mut whole = 0;
    while let Some((kind, entered)) = of_calls.next() {
        if kind == 'e' {
            let (Some(('u', unlocked)), Some(('l', left))) = (of_calls.next(), of_calls.next()) else {
                panic!("a call without its lock or its end")
            };
            assert!(entered < unlocked && unlocked < left);
            whole += 1;
        }
    }
    assert_eq!(whole, REPEATS);
}

/// A thread that the programs do not know, and one that is no longer followed, have no records.
#[test]
fn only_threads_that_are_followed_have_records() {
    let Some(mut bpf) = opened() else { return };
    bpf.attach().expect("tracepoints");
    let mut memory = MmapMut::map_anon(64 * PAGE).expect("memory");
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    let mut found = 0;
    bpf.drain(&mut |_| found += 1);
    assert_eq!(found, 0);
    assert_eq!(bpf.oldest(), None);
    // One that it starts is followed too, until it ends.
    let own = nix::unistd::gettid().as_raw().cast_unsigned();
    bpf.follow(own).expect("a slot");
    let other =
        std::thread::spawn(|| nix::unistd::gettid().as_raw().cast_unsigned()).join().expect("it ends");
    bpf.forget(own);
    let mut of_other = 0;
    bpf.drain(&mut |raw| of_other += usize::from(raw.tid == other));
    assert!(of_other > 0, "its stack was faulted in, and its arena mapped");
    until_forgotten(&bpf, other);
    assert!(!bpf.shared.follows(own));
}

/// The kernel runs the program at the end of a thread a while after others see that it has ended.
fn until_forgotten(bpf: &Bpf, tid: u32) {
    let since = Instant::now();
    while bpf.shared.follows(tid) {
        assert!(since.elapsed() < Duration::from_secs(10), "the slot of a thread that has ended stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The thread that reads the rings during a measurement ends like that. Later its number is another thread's.
#[test]
fn a_thread_that_ends_while_nothing_is_recorded_is_forgotten() {
    let Some(mut bpf) = opened() else { return };
    let own = nix::unistd::gettid().as_raw().cast_unsigned();
    bpf.attach().expect("tracepoints");
    bpf.follow(own).expect("a slot");
    let (say, said) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || {
        say.send(nix::unistd::gettid().as_raw().cast_unsigned()).expect("it is heard");
        let _ = ended.recv();
    });
    let tid = said.recv().expect("it lives");
    assert!(bpf.shared.follows(tid));
    bpf.disable(true);
    drop(end);
    other.join().expect("it ends");
    until_forgotten(&bpf, tid);
}

/// Once all slots have had their turn, the next ones may be those of a row of threads that live on.
#[test]
fn a_thread_finds_a_slot_behind_many_that_are_taken() {
    const HELD: usize = 100;
    let Some(mut bpf) = opened() else { return };
    let own = nix::unistd::gettid().as_raw().cast_unsigned();
    bpf.attach().expect("tracepoints");
    bpf.follow(own).expect("a slot");
    let barrier = std::sync::Barrier::new(HELD + 1);
    let (forks, followed) = std::thread::scope(|scope| {
        (0..HELD).for_each(|_| drop(scope.spawn(|| barrier.wait())));
        // As after a turn: at the first of them.
        bpf.shared.set_next(shared::MOST_SLOTS as u64 + 2);
        let of_new = || {
            let own = || bpf.shared.follows(nix::unistd::gettid().as_raw().cast_unsigned());
            scope.spawn(own).join().expect("it ends")
        };
        let followed = (0..HELD).filter(|_| of_new()).count();
        barrier.wait();
        (HELD, followed)
    });
    assert_eq!(followed, forks);
}

/// What a CPU loses has a place in the order even if no program has kept its time, and one without a ring
/// loses it all.
#[test]
fn what_is_lost_has_a_time() {
    let Some(mut bpf) = opened() else { return };
    bpf.disable(true);
    bpf.drain(&mut |_| ());
    let cpu = bpf.rings.pop().expect("a CPU").cpu;
    bpf.without_ring.push(cpu);
    bpf.shared.lose(cpu);
    let since_ns = now_ns();
    let mut found = Vec::new();
    bpf.drain(&mut |raw| found.push(raw));
    assert!(matches!(found[..], [Raw { kind: RawKind::Lost { records: 1 }, .. }]), "{found:?}");
    assert!((since_ns..=now_ns()).contains(&found[0].time_ns));
}

/// The recorder does not wait for a call that fills memory, which may take seconds: its entry has a record.
#[test]
fn a_call_that_fills_memory_has_a_record_of_its_entry() {
    let Some(mut bpf) = opened() else { return };
    let own = nix::unistd::gettid().as_raw().cast_unsigned();
    bpf.attach().expect("tracepoints");
    bpf.follow(own).expect("a slot");
    drop(memmap2::MmapOptions::new().len(PAGE).populate().map_anon().expect("memory"));
    drop(MmapMut::map_anon(3 * PAGE).expect("memory"));
    bpf.disable(true);
    bpf.forget(own);
    let mut found = Vec::new();
    for CpuRing { ring, .. } in &mut bpf.rings {
        ring.drain(|record| {
            let mut of_record = Vec::new();
            decode::record(record, &mut |raw| of_record.push(raw)).expect("a record of the programs");
            if let RawKind::Enter { number: 9, args, .. } = of_record[0].kind {
                found.push((args[1] as usize / PAGE, of_record.len() > 1));
            }
            if let RawKind::Leave { number: 9, .. } = of_record[0].kind {
                found.push((0, false));
            }
        });
    }
    // Whether entry and return are in one record. The allocator may map memory, too.
    found.retain(|it| [0, 1, 3].contains(&it.0));
    // Rings are read one after the other, and the thread may have changed its CPU.
    found.sort_unstable();
    assert_eq!(found, [(0, false), (1, false), (3, true)]);
}

/// A ring of a page holds few records; those that find no room are counted.
#[test]
fn what_finds_no_room_is_counted() {
    let Ok(mut bpf) = Bpf::open(Some(4096), 4096, None) else { return println!("skipped: no programs here") };
    let own = nix::unistd::gettid().as_raw().cast_unsigned();
    bpf.attach().expect("tracepoints");
    bpf.follow(own).expect("a slot");
    let mut memory = MmapMut::map_anon(REPEATS * PAGE).expect("memory");
    let _ = memory.advise(Advice::NoHugePage);
    memory.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
    bpf.disable(true);
    bpf.forget(own);
    let (mut resolved, mut lost, mut last_ns) = (0, 0, 0);
    bpf.drain(&mut |raw| match raw.kind {
        RawKind::Lost { records } => {
            lost += records;
            assert!(raw.time_ns >= last_ns, "a gap is behind what came before it");
        }
        RawKind::Resolved { .. } => {
            resolved += 1;
            last_ns = raw.time_ns;
        }
        _ => {}
    });
    assert!(resolved > 10 && resolved + lost >= REPEATS as u64, "{resolved}, {lost}");
}

/// The numbers of what a descriptor refers to: programs, then maps.
fn numbers(descriptors: &[OwnedFd]) -> Vec<(bool, u32)> {
    let of = |descriptor: &OwnedFd| {
        let path = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
        let told = std::fs::read_to_string(path).unwrap_or_default();
        let number = |line: &str, name| line.strip_prefix(name)?.trim().parse().ok();
        let of_line = |line: &str| {
            number(line, "prog_id:").map(|it| (true, it)).or(number(line, "map_id:").map(|it| (false, it)))
        };
        told.lines().filter_map(of_line).collect::<Vec<_>>()
    };
    descriptors.iter().flat_map(of).collect()
}

#[test]
fn nothing_stays_in_the_kernel() {
    let Some(mut bpf) = opened() else { return };
    bpf.attach().expect("tracepoints");
    let Bpf { programs, links, shared, by_cpu, rings, .. } = bpf;
    let (attached, programs): (Vec<_>, Vec<_>) = programs.into_iter().unzip();
    let rings: Vec<OwnedFd> = rings.into_iter().map(|it| it.ring.descriptor).collect();
    let mut found = numbers(&programs);
    assert_eq!(found.len(), attached.len());
    found.extend(numbers(&rings));
    found.extend(numbers(&[by_cpu]));
    drop((programs, rings));
    assert!(found.iter().filter(|it| it.0).all(|it| sys::lives(it.0, it.1)), "links keep programs");
    drop((links, shared));
    let since = Instant::now();
    while found.iter().any(|it| sys::lives(it.0, it.1)) {
        assert!(since.elapsed() < Duration::from_secs(60), "something of a recording stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}
