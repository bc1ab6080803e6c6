//! What the machine itself costs, so that measurements made on it can be read: nanoseconds per call, best of nine.
//!
//! `cargo run --release -p quire-hosted --example costs`

// What is compiled of Quire for the hosted machine below it need not be compiled again.
use testkit as _;

use hosted::raw::RawPages;
use std::hint::black_box;
use std::time::Instant;

use hosted::{Backing, Hosted, HostedConfig, InterruptPlan};
use quire::addr::{Frame, FrameRange, Order, VirtAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, PageAllocator};
use quire::platform::{Context, FlushExtent, FlushRequest, FramePlatform, TablePlatform};
use quire::rank::Rank;

const CALLS: u32 = 1_000_000;

/// Never inlined, so that its machine code can be looked at.
#[inline(never)]
fn pin_pair(machine: &Hosted) -> CpuId {
    let cpu = machine.pin();
    machine.unpin();
    cpu
}

/// One frame out and back: every call of the platform on the shortest path of the library. Never inlined, as above.
#[inline(never)]
fn frame_pair(allocator: &PageAllocator<'_, Hosted>) -> bool {
    allocator
        .alloc_raw(Gfp::USER, Order::FRAME)
        .is_ok_and(|frame| allocator.free_raw(frame, Order::FRAME).is_ok())
}

fn cost(name: &str, calls: u32, mut call: impl FnMut()) {
    let runs = (0..9).map(|_| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
    });
    println!("{name:<44} {:>10.2} ns", runs.fold(f64::INFINITY, f64::min));
}

fn ranks(machine: &Hosted) {
    black_box(machine).lock_taken(Rank::Block);
    black_box(machine).lock_dropped(Rank::Block);
}

fn interrupts(machine: &Hosted) {
    let state = machine.disable_interrupts();
    machine.restore_interrupts(state);
}

/// What it takes to interrupt work, and to follow it step by step.
fn signals(machine: &Hosted) {
    let work = |turns: u32| (0..turns).for_each(|_| _ = black_box(pin_pair(black_box(machine))));
    let context = Context::SoftInterrupt;
    let per_step = |plan| {
        let start = Instant::now();
        // SAFETY: H7: the handler does nothing.
        let ran = unsafe { machine.interrupt_at_steps(plan, context, || (), || work(1000)) };
        let ran = ran.expect("the host has signals");
        (start.elapsed().as_secs_f64() * 1e9 / ran.events as f64, ran.events)
    };
    let (ns, steps) = (0..9)
        .map(|_| per_step(InterruptPlan::Count))
        .fold((f64::INFINITY, 0), |best, run| if run.0 < best.0 { run } else { best });
    println!("a step of {steps}, only counted {ns:>33.0} ns");
    let (ns, _) = per_step(InterruptPlan::Every(1));
    println!("a step, interrupted {ns:>35.0} ns");
    for period in [50, 100, 1000].map(std::time::Duration::from_micros) {
        let start = Instant::now();
        // SAFETY: H7: the handler does nothing.
        let ran = unsafe { machine.with_interrupts(period, context, || (), || work(20_000_000)) };
        let ran = ran.expect("the host has timers");
        let with = start.elapsed();
        let start = Instant::now();
        work(20_000_000);
        let each = with.saturating_sub(start.elapsed()).as_secs_f64() * 1e9 / ran.delivered as f64;
        let every = with.as_secs_f64() * 1e6 / ran.delivered as f64;
        println!("a tick of a timer every {period:?}: one in {every:.1} us, {each:.0} ns each");
    }
    let calls = machine.interrupt_at_calls(
        InterruptPlan::Every(1),
        context,
        || (),
        || {
            let start = Instant::now();
            work(1000);
            start.elapsed()
        },
    );
    let each = calls.result.as_secs_f64() * 1e9 / calls.delivered as f64;
    println!("a call of the platform, interrupted {each:>19.0} ns");
}

/// What prefaulting a machine takes, and what of it the host puts into huge pages.
fn warm(backing: Backing) {
    let config = HostedConfig { backing, ..HostedConfig::bench(256 << 20) };
    let start = Instant::now();
    let machine = config.build().expect("the host has 256 MiB");
    let took = start.elapsed().as_secs_f64() * 1e3;
    let footprint = machine.arena().footprint().unwrap_or_default();
    let [resident, huge] = [footprint.resident, footprint.huge].map(|bytes| bytes >> 20);
    println!(
        "256 MiB, {backing:?}: ready in {took:.1} ms, {resident} MiB resident, {huge} MiB of them in huge pages"
    );
}

fn main() {
    [Backing::Memfd, Backing::Anonymous].into_iter().for_each(warm);
    let bench = HostedConfig { prefault: false, ..HostedConfig::bench(64 << 20).with_cpus(2) };
    let fast = bench.build().expect("the host has 64 MiB");
    let checking = HostedConfig::new(64 << 20).with_cpus(2).build().expect("the host has 64 MiB");
    let range = VirtRange::from_len(VirtAddr(0), 4096);
    let extent = FlushExtent::Range { range, stride: 4096 };
    let request = FlushRequest { root: Frame(1), extent, tables: false };
    let mut other = CpuSet::EMPTY;
    other.insert(CpuId(1));
    let folio = FrameRange::new(Frame(512), 512);
    fast.run_on(CpuId(0), || {
        cost("empty loop", CALLS, || _ = black_box(&fast));
        cost("pin and unpin", CALLS, || _ = black_box(pin_pair(black_box(&fast))));
        let frames = FrameRange::new(Frame(0), (64 << 20) / 4096);
        let ranges = [MemoryRange { frames, node: 0, zeroed: true }];
        let allocator = hosted::raw::page_allocator(&fast, &ranges, AllocatorConfig::default())
            .expect("64 MiB are enough");
        cost("one frame out and back", CALLS, || _ = black_box(frame_pair(black_box(&allocator))));
        cost("interrupts off and on, flags kept", CALLS, || interrupts(black_box(&fast)));
        cost("ranks off, taken and dropped", CALLS, || ranks(&fast));
        cost("fail_allocation off", CALLS, || _ = black_box(black_box(&fast).fail_allocation()));
        cost("frames_freed off", CALLS, || black_box(&fast).frames_freed(folio));
        cost("flush_local of a page", CALLS, || fast.flush_local(&request));
        let remote = || {
            fast.flush_remote_start(&other, &request);
            fast.flush_remote_wait(&other, &request);
        };
        fast.pin();
        cost("flush_remote, no other thread runs", 10_000, remote);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            cost("flush_remote, another thread runs", 10_000, remote);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        fast.unpin();
        cost("now_ns", CALLS, || _ = black_box(fast.now_ns()));
    });
    checking.run_on(CpuId(0), || {
        cost("interrupts off and on, modelled only", CALLS, || interrupts(black_box(&checking)));
        signals(&checking);
        cost("ranks on, taken and dropped", CALLS, || ranks(&checking));
        let one = FrameRange::new(Frame(512), 1);
        cost("frames_freed, one frame, nothing cached", CALLS, || checking.frames_freed(one));
        cost("frames_freed, 512 frames, nothing cached", CALLS, || checking.frames_freed(folio));
    });
}
