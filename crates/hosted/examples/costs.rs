//! What the machine itself costs, so that measurements made on it can be read: nanoseconds per call, best of nine.
//!
//! `cargo run --release -p quire-hosted --example costs`

use std::hint::black_box;
use std::time::Instant;

use hosted::{Backing, Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, VirtAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{FlushExtent, FlushRequest, Platform};
use quire::rank::Rank;

const CALLS: u32 = 1_000_000;

/// Never inlined, so that its machine code can be looked at.
#[inline(never)]
fn pin_pair(machine: &Hosted) -> CpuId {
    let cpu = machine.pin();
    machine.unpin();
    cpu
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
        cost("ranks on, taken and dropped", CALLS, || ranks(&checking));
        let one = FrameRange::new(Frame(512), 1);
        cost("frames_freed, one frame, nothing cached", CALLS, || checking.frames_freed(one));
        cost("frames_freed, 512 frames, nothing cached", CALLS, || checking.frames_freed(folio));
    });
}
