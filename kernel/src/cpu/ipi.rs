//! What CPUs ask of each other: flushes, barriers, to look into their run queues, and to stop.

use core::sync::atomic::{AtomicU64, Ordering};

use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::limits::{FLUSH_PAGES_CEILING, FRAME_SIZE};
use quire::platform::{FlushExtent, FlushRequest};
use quire_interop::shootdown::{LocalTlb, Shootdown};

use super::apic::{self, Delivery};
use super::area::{self, MAX_CPUS};
use super::interrupts::{FLUSH, RESCHEDULE};
use super::topology;
use crate::memory::kernel_half::CPU;

static FLUSHES: Shootdown<MAX_CPUS> = Shootdown::new();
/// The CPUs that run, one bit each.
static ONLINE: AtomicU64 = AtomicU64::new(1);

/// The CPUs that run the kernel.
pub fn online() -> CpuSet {
    let bits = ONLINE.load(Ordering::Acquire);
    let mut set = CpuSet::EMPTY;
    (0..MAX_CPUS as u32).filter(|cpu| bits >> cpu & 1 == 1).for_each(|cpu| set.insert(CpuId(cpu)));
    set
}

/// The running CPU answers interrupts from here on.
pub fn set_online() {
    ONLINE.fetch_or(1 << area::cpu_id().0, Ordering::AcqRel);
}

/// The CPUs that run the kernel but the calling one.
pub fn others() -> CpuSet {
    let mut set = online();
    set.remove(area::cpu_id());
    set
}

/// Sends an interrupt to a CPU.
pub fn send(cpu: CpuId, delivery: Delivery) {
    apic::send(topology::get().apic_ids()[cpu.index()], delivery);
}

/// Lets a CPU look into its run queue.
pub fn reschedule(cpu: CpuId) {
    send(cpu, Delivery::Vector(RESCHEDULE));
}

/// Asks CPUs to flush, and does not wait. The task stays on its CPU until [`wait_for_flush`].
pub fn start_flush(targets: &CpuSet, request: &FlushRequest) {
    FLUSHES.start(area::cpu_id(), targets, request, |quiet| {
        quiet.iter().for_each(|cpu| send(cpu, Delivery::Vector(FLUSH)));
    });
}

/// Waits until the CPUs have flushed.
pub fn wait_for_flush() {
    FLUSHES.wait(area::cpu_id(), &FlushedCpu);
}

/// Flushes what other CPUs asked for.
pub fn serve_flushes() {
    FLUSHES.handle(area::cpu_id(), &FlushedCpu);
}

/// Makes each of the CPUs execute a full barrier, and waits: an interrupt is one, and so are the mailbox's exchanges.
pub fn fence(targets: &CpuSet) {
    let mut targets = *targets;
    targets.remove(area::cpu_id());
    let nothing = FlushExtent::Range { range: VirtRange::default(), stride: FRAME_SIZE };
    start_flush(&targets, &FlushRequest { root: Frame(0), extent: nothing, tables: false });
    core::sync::atomic::fence(Ordering::SeqCst);
    wait_for_flush();
}

/// Flushes translations of the kernel on all CPUs, in pieces that are flushed page by page: loading a root would
/// keep global ones.
pub fn flush_kernel(range: VirtRange) {
    let targets = others();
    let mut start = range.start.0;
    while start < range.end.0 {
        let end = range.end.0.min(start + FLUSH_PAGES_CEILING * FRAME_SIZE);
        let piece = VirtRange::new(VirtAddr(start), VirtAddr(end));
        let extent = FlushExtent::Range { range: piece, stride: FRAME_SIZE };
        let request = FlushRequest { root: Frame(0), extent, tables: false };
        start_flush(&targets, &request);
        CPU.flush(&request);
        wait_for_flush();
        start = end;
    }
}

/// The running CPU as it answers others. A build that is to be caught by the tests loses one flush in a hundred.
struct FlushedCpu;

impl LocalTlb for FlushedCpu {
    fn invlpg(&self, addr: VirtAddr) {
        CPU.invlpg(addr);
    }

    fn reload(&self) {
        CPU.reload();
    }

    #[cfg(feature = "lossy-flushes")]
    fn flush(&self, request: &FlushRequest) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if COUNT.fetch_add(1, Ordering::Relaxed) % 100 != 99 {
            CPU.flush(request);
        }
    }
}
