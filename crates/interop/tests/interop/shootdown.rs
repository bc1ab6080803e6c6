//! Shootdown on modelled CPUs: threads with a cache of translations each, that take interrupts between their
//! steps and keep them off while they flush.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quire::addr::{Frame, VirtAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{FlushExtent, FlushRequest};
use quire_interop::shootdown::{ContextIds, Cr3, Delivery, LocalApic, LocalTlb, Ring0, Shootdown};

use crate::traps::{CR3, EMULATED, Emulated, catch};

const CPUS: usize = 4;
const PAGES: usize = 64;
const PAGE: u64 = 4096;
const LARGE: u64 = 2 << 20;

fn range(start: u64, end: u64, stride: u64) -> FlushRequest {
    let range = VirtRange::new(VirtAddr(start), VirtAddr(end));
    FlushRequest { root: Frame(7), extent: FlushExtent::Range { range, stride }, tables: false }
}

const ALL: FlushRequest = FlushRequest { root: Frame(9), extent: FlushExtent::AddressSpace, tables: true };

fn set(cpus: &[u32]) -> CpuSet {
    let mut set = CpuSet::EMPTY;
    cpus.iter().for_each(|&cpu| set.insert(CpuId(cpu)));
    set
}

/// Remembers what it was asked for.
#[derive(Default)]
struct Recorder {
    requests: RefCell<Vec<FlushRequest>>,
}

impl LocalTlb for Recorder {
    fn invlpg(&self, _: VirtAddr) {}

    fn reload(&self) {}

    fn flush(&self, request: &FlushRequest) {
        self.requests.borrow_mut().push(*request);
    }
}

/// Remembers its instructions; a reload is `None`.
#[derive(Default)]
struct Instructions(RefCell<Vec<Option<u64>>>);

impl LocalTlb for Instructions {
    fn invlpg(&self, addr: VirtAddr) {
        self.0.borrow_mut().push(Some(addr.0));
    }

    fn reload(&self) {
        self.0.borrow_mut().push(None);
    }
}

fn instructions(request: &FlushRequest) -> Vec<Option<u64>> {
    let tlb = Instructions::default();
    tlb.flush(request);
    tlb.0.take()
}

#[test]
fn few_pages_are_flushed_one_by_one_and_many_by_a_reload() {
    assert_eq!(instructions(&ALL), [None]);
    assert_eq!(instructions(&range(5 * PAGE, 7 * PAGE, PAGE)), [Some(5 * PAGE), Some(6 * PAGE)]);
    assert_eq!(instructions(&range(LARGE, 3 * LARGE, LARGE)), [Some(LARGE), Some(2 * LARGE)]);
    // Both leaves that the range touches.
    assert_eq!(instructions(&range(LARGE + PAGE, 2 * LARGE + PAGE, LARGE)), [Some(LARGE), Some(2 * LARGE)]);
    assert_eq!(instructions(&range(0, 33 * PAGE, PAGE)).len(), 33);
    assert_eq!(instructions(&range(0, 34 * PAGE, PAGE)), [None]);
}

#[test]
fn a_request_arrives_as_it_was_sent() {
    const LAST: u32 = 129;
    let shootdown = Shootdown::<130>::new();
    let tables = FlushRequest { tables: true, ..range(3 * PAGE, 9 * PAGE, PAGE) };
    for request in [ALL, tables, FlushRequest { tables: false, ..ALL }, range(LARGE, 4 * LARGE, LARGE)] {
        let mut interrupted = CpuSet::EMPTY;
        let targets = set(&[0, 63, 64]);
        shootdown.start(CpuId(LAST), &targets, &request, |cpus| interrupted = *cpus);
        assert_eq!(interrupted, targets);
        for cpu in targets.iter() {
            let tlb = Recorder::default();
            shootdown.handle(cpu, &tlb);
            shootdown.handle(cpu, &tlb);
            assert_eq!(*tlb.requests.borrow(), [request], "once");
        }
        shootdown.wait(CpuId(LAST), &Recorder::default());
    }
}

#[test]
fn a_flush_without_targets_does_nothing() {
    let shootdown = Shootdown::<CPUS>::default();
    for _ in 0..2 {
        shootdown.start(CpuId(0), &CpuSet::EMPTY, &ALL, |_| panic!("no CPU is a target"));
        shootdown.wait(CpuId(0), &Recorder::default());
    }
}

#[test]
fn one_interrupt_serves_two_senders() {
    let shootdown = Shootdown::<CPUS>::new();
    let mut interrupted = Vec::new();
    shootdown.start(CpuId(0), &set(&[2]), &ALL, |cpus| interrupted.push(*cpus));
    shootdown.start(CpuId(1), &set(&[2, 3]), &range(0, PAGE, PAGE), |cpus| interrupted.push(*cpus));
    assert_eq!(interrupted, [set(&[2]), set(&[3])], "CPU 2 is interrupted once");
    let tlb = Recorder::default();
    shootdown.handle(CpuId(2), &tlb);
    assert_eq!(*tlb.requests.borrow(), [ALL, range(0, PAGE, PAGE)]);
    shootdown.handle(CpuId(3), &tlb);
    shootdown.wait(CpuId(0), &tlb);
    shootdown.wait(CpuId(1), &tlb);
}

#[test]
#[should_panic(expected = "is not over")]
fn a_second_flush_before_the_first_is_over_is_refused() {
    let shootdown = Shootdown::<CPUS>::new();
    shootdown.start(CpuId(0), &set(&[1]), &ALL, |_| {});
    shootdown.start(CpuId(0), &set(&[2]), &ALL, |_| {});
}

/// P2: outside of ring 0 each of the instructions is an exception, whose handler emulates it.
#[test]
fn ring_0_executes_the_instructions_of_a_flush() {
    catch();
    EMULATED.with_borrow_mut(|all| all.reserve(16));
    // SAFETY: P2: the handler emulates what ring 0 alone may execute, and no such register is changed.
    let tlb = unsafe {
        let tlb = Ring0::new();
        tlb.load_root(Frame(5));
        tlb
    };
    tlb.flush(&range(LARGE, 2 * LARGE + PAGE, LARGE));
    tlb.flush(&ALL);
    let expected = [
        Emulated::WriteCr3(5 * PAGE),
        Emulated::Invlpg(LARGE),
        Emulated::Invlpg(2 * LARGE),
        Emulated::ReadCr3,
        Emulated::WriteCr3(5 * PAGE),
    ];
    assert_eq!(EMULATED.take(), expected);
    assert_eq!(CR3.get(), 5 * PAGE);
}

/// P2.
#[test]
fn a_root_is_loaded_under_its_identifier() {
    catch();
    EMULATED.with_borrow_mut(|all| all.reserve(16));
    let contexts = ContextIds::<2, 2>::new();
    let (cpu, keep) = (CpuId(1), 1 << 63);
    let load = |value: Cr3| {
        // SAFETY: P2: the handler emulates what ring 0 alone may execute, and no such register is changed.
        unsafe { Ring0::new().load_context(value) };
        CR3.get()
    };
    assert_eq!(load(contexts.fresh(cpu, Frame(5))), 5 * PAGE + 1);
    assert_eq!(load(contexts.fresh(cpu, Frame(6))), 6 * PAGE + 2);
    assert_eq!(load(contexts.kept(cpu, Frame(5))), 5 * PAGE + 1 + keep);
    assert_eq!(load(contexts.fresh(cpu, Frame(5))), 5 * PAGE + 1, "the same again, afresh");
    assert_eq!(
        load(contexts.kept(cpu, Frame(7))),
        7 * PAGE + 1,
        "the first identifier, of another root before"
    );
    assert_eq!(load(contexts.kept(cpu, Frame(5))), 5 * PAGE + 2, "which lost its own");
    assert_eq!(load(contexts.kept(CpuId(0), Frame(7))), 7 * PAGE + 1, "each CPU has its own");
    assert_eq!(load(Cr3::new(Frame(9))), 9 * PAGE);
    EMULATED.take();
}

/// A processor whose cached entries have an identifier, with one entry for each root.
#[derive(Default)]
struct Tagged {
    loaded: u64,
    cached: std::collections::HashMap<u64, u64>,
}

impl Tagged {
    fn write_cr3(&mut self, value: u64) {
        self.loaded = value & !(1 << 63);
        if value >> 63 == 0 {
            self.cached.remove(&(value & 0xfff));
        }
    }

    /// Reads the entry, whose value in the table of the loaded root is `there`.
    fn read(&mut self, there: impl Fn(u64) -> u64) -> u64 {
        *self.cached.entry(self.loaded & 0xfff).or_insert_with(|| there(self.loaded / PAGE))
    }
}

/// Goes from root to root on one CPU, while entries change. Returns how many stale ones were read. With `forgets`, a
/// load keeps the translations of the identifier, whichever root had it before.
fn go_round(seed: u64, forgets: bool) -> u64 {
    const ROOTS: usize = 6;
    let (mut random, contexts) = (fastrand::Rng::with_seed(seed), ContextIds::<1, 3>::new());
    // By root: the entry, and what it was when the CPU left.
    let (mut entries, mut left) = ([0_u64; ROOTS], [None; ROOTS]);
    let (mut cpu, mut at, mut stale) = (Tagged::default(), 0, 0);
    cpu.write_cr3(contexts.fresh(CpuId(0), Frame(1)).bits());
    for round in 1..5000 {
        match random.u8(..3) {
            0 => {
                left[at] = Some(entries[at]);
                at = random.usize(..ROOTS);
                let root = Frame(at as u64 + 1);
                let good = left[at] == Some(entries[at]);
                let value = if good { contexts.kept(CpuId(0), root) } else { contexts.fresh(CpuId(0), root) };
                cpu.write_cr3(value.bits() | if forgets { 1 << 63 } else { 0 });
            }
            1 => {
                let changed = random.usize(..ROOTS);
                entries[changed] = round;
                if changed == at {
                    // What `reload` does.
                    cpu.write_cr3(cpu.loaded);
                }
            }
            _ => stale += u64::from(cpu.read(|root| entries[root as usize - 1]) != entries[at]),
        }
    }
    stale
}

#[test]
fn no_identifier_has_translations_of_another_root() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    assert_eq!(go_round(seed, false), 0);
    assert!(go_round(seed, true) > 0, "a load that forgets another root's entries is noticed");
}

/// P3.
#[test]
fn an_apic_in_memory_is_commanded() {
    #[repr(align(4096))]
    struct Registers([AtomicU32; 0x100]);
    let registers = Registers([const { AtomicU32::new(0xaaaa_0000) }; 0x100]);
    let at = |offset: usize| registers.0[offset / 4].load(Ordering::Acquire);
    // SAFETY: P3: memory in the place of the registers.
    let apic = unsafe { LocalApic::in_memory(registers.0.as_ptr().cast::<u8>().cast_mut()) };
    apic.send([3, 0xfe], Delivery::Vector(0xf1));
    assert_eq!((at(0x310), at(0x300)), (0xfe << 24, 1 << 14 | 0xf1));
    // SAFETY: P3: no CPU is behind the memory.
    unsafe { apic.start(7, 8) };
    assert_eq!((at(0x310), at(0x300)), (7 << 24, 1 << 14 | 6 << 8 | 8));
    apic.end_of_interrupt();
    assert_eq!(at(0xb0), 0);
    // A command that is on its way is waited for.
    registers.0[0x300 / 4].store(1 << 12, Ordering::Release);
    let sent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            assert!(!sent.load(Ordering::Acquire), "it was not waited for");
            registers.0[0x300 / 4].store(0, Ordering::Release);
        });
        apic.send([1], Delivery::Nmi);
        sent.store(true, Ordering::Release);
    });
    assert_eq!((at(0x310), at(0x300)), (1 << 24, 1 << 14 | 4 << 8));
}

/// P3.
#[test]
fn an_x2apic_is_commanded() {
    catch();
    EMULATED.with_borrow_mut(|all| all.reserve(8));
    // SAFETY: P3: the handler emulates what ring 0 alone may execute.
    let apic = unsafe { LocalApic::x2apic() };
    apic.send([3, 0x1_0002], Delivery::Vector(0xf1));
    apic.end_of_interrupt();
    // SAFETY: P3: the handler resets no CPU.
    unsafe { apic.start(7, 8) };
    let command = |id: u64, low: u64| Emulated::WriteMsr(0x830, id << 32 | 1 << 14 | low);
    let sent = [command(3, 0xf1), command(0x1_0002, 0xf1), Emulated::WriteMsr(0x80b, 0)];
    let started = [command(7, 5 << 8), command(7, 6 << 8 | 8)];
    assert_eq!(EMULATED.take(), [&sent[..], &started].concat());
}

/// The upper bits would be lost, and another CPU would get the interrupt.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "needs an x2APIC")]
fn an_apic_in_memory_refuses_ids_of_more_than_eight_bits() {
    let registers = [const { AtomicU32::new(0) }; 0x100];
    // SAFETY: P3: memory in the place of the registers.
    let apic = unsafe { LocalApic::in_memory(registers.as_ptr().cast::<u8>().cast_mut()) };
    apic.send([0x103], Delivery::Nmi);
}

/// One value in a static serves all CPUs.
#[test]
fn an_apic_is_used_by_all_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<LocalApic>();
}

/// What the CPUs of a model do wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    /// A sender relies on its flush before it is over.
    NoWait,
    /// A sender forgets one target.
    LostMark,
}

/// A machine whose page-table entries are numbers that only grow.
struct Machine {
    shootdown: Shootdown<CPUS>,
    entries: [AtomicU64; PAGES],
    /// By CPU and page: the cached entry, or 0.
    cached: [[AtomicU64; PAGES]; CPUS],
    interrupts: [AtomicBool; CPUS],
    running: AtomicUsize,
    /// Stale translations that senders found after their flushes.
    stale: AtomicU64,
    bug: Bug,
}

/// A CPU of the machine.
struct Cpu<'m> {
    machine: &'m Machine,
    id: usize,
    since: Instant,
}

impl LocalTlb for Cpu<'_> {
    fn invlpg(&self, addr: VirtAddr) {
        self.machine.cached[self.id][(addr.0 / PAGE) as usize].store(0, Ordering::Release);
    }

    fn reload(&self) {
        self.machine.cached[self.id].iter().for_each(|cached| cached.store(0, Ordering::Release));
    }

    fn relax(&self) {
        assert!(self.since.elapsed() < Duration::from_secs(60), "CPU {} waits for ever", self.id);
        std::thread::yield_now();
    }
}

impl Cpu<'_> {
    fn take_interrupt(&self) {
        if self.machine.interrupts[self.id].swap(false, Ordering::Acquire) {
            self.machine.shootdown.handle(CpuId(self.id as u32), self);
        }
    }

    fn access(&self, page: usize) {
        let cached = &self.machine.cached[self.id][page];
        if cached.load(Ordering::Relaxed) == 0 {
            cached.store(self.machine.entries[page].load(Ordering::Acquire), Ordering::Release);
        }
    }

    /// Changes entries and flushes them on `targets`, with interrupts off.
    fn change(&self, pages: std::ops::Range<usize>, targets: CpuSet) {
        let machine = self.machine;
        let changed: Vec<u64> =
            pages.clone().map(|page| machine.entries[page].fetch_add(1, Ordering::AcqRel) + 1).collect();
        let request = range(pages.start as u64 * PAGE, pages.end as u64 * PAGE, PAGE);
        let mut sent = targets;
        let first = targets.iter().next();
        first.filter(|_| machine.bug == Bug::LostMark).inspect(|&first| _ = sent.remove(first));
        let id = CpuId(self.id as u32);
        machine.shootdown.start(id, &sent, &request, |cpus| {
            cpus.iter().for_each(|cpu| machine.interrupts[cpu.index()].store(true, Ordering::Release));
        });
        self.flush(&request);
        if machine.bug != Bug::NoWait {
            machine.shootdown.wait(id, self);
        }
        for cpu in targets.iter().chain([id]) {
            for (page, &entry) in pages.clone().zip(&changed) {
                let cached = machine.cached[cpu.index()][page].load(Ordering::Acquire);
                machine.stale.fetch_add(u64::from(cached != 0 && cached < entry), Ordering::Relaxed);
            }
        }
        machine.shootdown.wait(id, self);
    }

    fn run(&self, seed: u64, rounds: usize) {
        let mut random = fastrand::Rng::with_seed(seed ^ self.id as u64);
        for _ in 0..rounds {
            self.take_interrupt();
            (0..random.usize(..8)).for_each(|_| self.access(random.usize(..PAGES)));
            let start = random.usize(..PAGES);
            let pages = start..(start + random.usize(1..40)).min(PAGES);
            let mut targets = CpuSet::first(CPUS);
            targets.remove(CpuId(self.id as u32));
            if random.u8(..4) == 0 {
                targets.remove(CpuId(random.u32(..CPUS as u32)));
            }
            self.change(pages, targets);
        }
        self.machine.running.fetch_sub(1, Ordering::AcqRel);
        while self.machine.running.load(Ordering::Acquire) > 0 {
            self.take_interrupt();
            self.relax();
        }
    }
}

/// All CPUs flush each other at once. Returns the stale translations that they found.
fn storm(bug: Bug, rounds: usize) -> u64 {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let machine = Machine {
        shootdown: Shootdown::new(),
        entries: std::array::from_fn(|_| AtomicU64::new(1)),
        cached: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        interrupts: std::array::from_fn(|_| AtomicBool::new(false)),
        running: AtomicUsize::new(CPUS),
        stale: AtomicU64::new(0),
        bug,
    };
    std::thread::scope(|scope| {
        for id in 0..CPUS {
            let machine = &machine;
            scope.spawn(move || Cpu { machine, id, since: Instant::now() }.run(seed, rounds));
        }
    });
    machine.stale.into_inner()
}

/// P1, with senders that flush each other at once while interrupts are off.
#[test]
fn no_cpu_keeps_a_stale_translation() {
    assert_eq!(storm(Bug::None, 4000), 0);
}

/// P1: the check of the test above finds what it looks for.
#[test]
fn a_missing_wait_and_a_lost_mark_are_found() {
    assert!(storm(Bug::NoWait, 2000) > 0);
    assert!(storm(Bug::LostMark, 2000) > 0);
}
