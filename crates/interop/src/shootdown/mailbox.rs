//! Mailboxes: how a flush gets from one CPU to others, and the answer back.
//!
//! Each CPU has one request, which it writes as a sender, and one set of senders, which it reads as a target.
//!
//! 1. The sender writes its request and the number of targets. It then enters itself in the set of each target
//!    (*release*), and interrupts the targets whose sets were empty. A target whose set was not empty gets the
//!    interrupt of the sender that found it empty, and empties the set after that.
//! 2. A target takes the whole set out by one exchange (*acquire*), so two handlers on one CPU never serve the
//!    same sender twice. (*Release*: a sender that then finds the set empty sends a new interrupt, which comes
//!    after the one that the target has taken.) For each sender it reads the request, flushes, and counts the
//!    sender's number down (*release*).
//! 3. The sender waits until the number is zero (*acquire*). Only then may it write another request. While it
//!    waits it serves its own set, so that two CPUs that flush each other with interrupts off both go on.

use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::limits::{FRAME_SIZE, MAX_CPUS};
use quire::platform::{FlushExtent, FlushRequest};

use super::local::LocalTlb;
use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// Marks in the stride of a request that tables were removed; a stride is a multiple of a page.
const TABLES: u64 = 1;

/// What a CPU asks of others.
#[repr(align(64))]
struct Outbox {
    root: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    /// 0 for the whole address space; with [`TABLES`].
    stride: AtomicU64,
    /// How many targets have not answered.
    pending: AtomicU32,
}

impl Outbox {
    const fn new() -> Self {
        Self {
            root: AtomicU64::new(0),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            stride: AtomicU64::new(0),
            pending: AtomicU32::new(0),
        }
    }

    /// No target reads meanwhile: all have answered the request before.
    fn write(&self, request: &FlushRequest) {
        let (range, stride) = match request.extent {
            FlushExtent::Range { range, stride } => (range, stride),
            FlushExtent::AddressSpace => (VirtRange::default(), 0),
        };
        debug_assert!(stride.is_multiple_of(FRAME_SIZE));
        self.root.store(request.root.0, Ordering::Relaxed);
        self.start.store(range.start.0, Ordering::Relaxed);
        self.end.store(range.end.0, Ordering::Relaxed);
        self.stride.store(stride | if request.tables { TABLES } else { 0 }, Ordering::Relaxed);
    }

    fn read(&self) -> FlushRequest {
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let stride = word(&self.stride);
        let extent = match stride & !TABLES {
            0 => FlushExtent::AddressSpace,
            stride => FlushExtent::Range {
                range: VirtRange::new(VirtAddr(word(&self.start)), VirtAddr(word(&self.end))),
                stride,
            },
        };
        FlushRequest { root: Frame(word(&self.root)), extent, tables: stride & TABLES != 0 }
    }
}

/// The senders that wait for a CPU, one bit each.
#[repr(align(64))]
struct Inbox([AtomicU64; MAX_CPUS / 64]);

/// The mailboxes of a machine with at most `CPUS` CPUs, numbered from 0.
pub struct Shootdown<const CPUS: usize> {
    outboxes: [Outbox; CPUS],
    inboxes: [Inbox; CPUS],
}

impl<const CPUS: usize> Shootdown<CPUS> {
    /// The words of an inbox that are used.
    const WORDS: usize = {
        assert!(CPUS <= MAX_CPUS, "the library knows fewer CPUs");
        CPUS.div_ceil(64)
    };

    /// No CPU asks for anything.
    pub const fn new() -> Self {
        Self {
            outboxes: [const { Outbox::new() }; CPUS],
            inboxes: [const { Inbox([const { AtomicU64::new(0) }; MAX_CPUS / 64]) }; CPUS],
        }
    }

    /// Asks `targets` to flush, and does not wait. `interrupt` gets the CPUs to interrupt: all targets but
    /// those that another sender is interrupting. Each must run [`Self::handle`] afterwards. With the
    /// x2APIC, `interrupt` begins with `mfence; lfence`, since writing its registers waits for no store
    /// (Intel SDM volume 3A, section 11.12.3). Without targets, nothing happens.
    ///
    /// Precondition: `cpu` is the running CPU, pinned, and no target. It has waited for its last flush. Does
    /// not block, so that the caller can flush its own translations meanwhile.
    ///
    /// # Panics
    /// When the last flush of this CPU is not over.
    pub fn start(
        &self,
        cpu: CpuId,
        targets: &CpuSet,
        request: &FlushRequest,
        interrupt: impl FnOnce(&CpuSet),
    ) {
        if targets.is_empty() {
            return;
        }
        debug_assert!(!targets.contains(cpu), "a CPU flushes its own translations itself");
        assert!(self.is_over(cpu), "the last flush of {cpu:?} is not over");
        let outbox = &self.outboxes[cpu.index()];
        outbox.write(request);
        outbox.pending.store(targets.len() as u32, Ordering::Relaxed);
        let mut quiet = CpuSet::EMPTY;
        for target in targets.iter() {
            let word = &self.inboxes[target.index()].0[cpu.index() / 64];
            if word.fetch_or(1 << (cpu.index() % 64), Ordering::AcqRel) == 0 {
                quiet.insert(target);
            }
        }
        if !quiet.is_empty() {
            interrupt(&quiet);
        }
    }

    /// Waits until all targets of this CPU's last flush have flushed. Serves other senders meanwhile, so
    /// interrupts may be off.
    ///
    /// Precondition: `cpu` is the running CPU, pinned, and `tlb` flushes it.
    pub fn wait(&self, cpu: CpuId, tlb: &impl LocalTlb) {
        while !self.is_over(cpu) {
            self.handle(cpu, tlb);
            tlb.relax();
        }
    }

    /// Whether all targets of this CPU's last flush have flushed.
    pub fn is_over(&self, cpu: CpuId) -> bool {
        self.outboxes[cpu.index()].pending.load(Ordering::Acquire) == 0
    }

    /// Flushes what other CPUs ask of this one; the handler of the interrupt. May be called at any time, also
    /// while it runs already.
    ///
    /// Precondition: `cpu` is the running CPU, pinned or in an interrupt, and `tlb` flushes it. Does not
    /// block.
    pub fn handle(&self, cpu: CpuId, tlb: &impl LocalTlb) {
        for (at, word) in self.inboxes[cpu.index()].0[..Self::WORDS].iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut senders = word.swap(0, Ordering::AcqRel);
            while senders != 0 {
                let outbox = &self.outboxes[at * 64 + senders.trailing_zeros() as usize];
                senders &= senders - 1;
                tlb.flush(&outbox.read());
                outbox.pending.fetch_sub(1, Ordering::Release);
            }
        }
    }
}

impl<const CPUS: usize> Default for Shootdown<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}
