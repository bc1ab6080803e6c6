//! Real threads as CPUs of one machine that share an address space.
//!
//! Each thread steps its own model through drawn operations on addresses of its own, next to those of the others, so
//! that page tables, locks and flushes are shared and answers are not. A second test has all threads store to the same
//! private pages while some of them fork and change protections: no store may be lost.

mod view;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{Hosted, HostedConfig};
use oracle::counts::Mapped;
use oracle::lockstep::{Lockstep, budget, given_seed, in_time};
use oracle::ops::{Draw, Left, draw};
use oracle::space::Rules;
use quire::addr::{FrameRange, Order, VirtAddr};
use quire::arch::Protection;
use quire::cpu::CpuId;
use quire::error::FaultError;
use quire::manager::{Config, MemoryManager, MemoryRange};
use quire::platform::FileId;
use quire::tlb::ZapStrategy;
use quire::vm::{Access, FolioPolicy, ForkStrategy, MapRequest, Mm, Placement};
use view::{View, possible};

const CPUS: usize = 3;
const BYTES: u64 = 512 << 20;

fn seed() -> u64 {
    given_seed().unwrap_or_else(|| fastrand::u64(..))
}

fn machine() -> (Hosted, Vec<MemoryRange>) {
    let machine = HostedConfig::new(BYTES).with_cpus(CPUS).build().expect("the host has that much room");
    let frames = FrameRange::new(quire::addr::Frame(0), BYTES / 4096);
    (machine, vec![MemoryRange { frames, node: 0, zeroed: true }])
}

fn policy(rng: &mut Rng) -> FolioPolicy {
    let order = Order::new(*rng.choice(&[0, 0, 2, 4, 9]).expect("not empty")).unwrap_or(Order::FRAME);
    FolioPolicy::only(order).with_pmd_mapped(rng.bool())
}

fn strategy(rng: &mut Rng) -> ForkStrategy {
    if rng.u8(..4) > 0 { ForkStrategy::Share } else { ForkStrategy::Copy }
}

/// All that can be checked at rest.
fn check(machine: &Hosted, manager: &MemoryManager<'_, Hosted>, mm: &Mm<'_, Hosted>) -> Result<(), String> {
    mm.validate().map_err(|fault| fault.to_string())?;
    manager.validate().map_err(|violation| format!("{violation:?}"))?;
    let memory = [FrameRange::new(quire::addr::Frame(0), BYTES / 4096)];
    Mapped::read(machine, &[mm.root()]).compare(manager.pages(), &memory)?;
    machine.violations().first().map_or(Ok(()), |violation| Err(violation.to_string()))
}

/// Checks and exits the address space, or leaves it as it is after a failure, a panic of a CPU too: outside of the machine it
/// cannot exit, and a second panic would hide the first.
fn finish<R>(
    machine: &Hosted,
    manager: &MemoryManager<'_, Hosted>,
    mm: ManuallyDrop<Mm<'_, Hosted>>,
    result: Result<R, String>,
) -> Result<R, String> {
    let checked =
        machine.run_on(CpuId(0), || result.and_then(|value| check(machine, manager, &mm).map(|()| value)));
    if checked.is_ok() {
        machine.run_on(CpuId(0), || drop(ManuallyDrop::into_inner(mm)));
    }
    checked
}

fn lockstep_round(seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let (machine, ranges) = machine();
    let zap = ZapStrategy::ALL[seed as usize % ZapStrategy::ALL.len()];
    let config = Config { folios: policy(&mut rng), fork: strategy(&mut rng), zap, ..Config::default() };
    let manager = machine.run_on(CpuId(0), || hosted::raw::memory_manager(&machine, &ranges, &config));
    let manager = manager.map_err(|error| error.to_string())?;
    let mm = machine.run_on(CpuId(0), || manager.new_mm()).map_err(|error| error.to_string())?;
    let mm = ManuallyDrop::new(mm);
    let results = machine.spawn_cpus(CPUS, |cpu| {
        let mut rng = Rng::with_seed(seed ^ u64::from(cpu.0 + 1) << 32);
        let mut shape = Draw::new(&mut rng, 400, 1);
        shape.narrow(600);
        shape.without(&[Left::Heap]);
        let files = shape.files.clone();
        let steps = possible(draw(&mut rng, &shape));
        for &(number, bytes) in &files {
            machine.files().set_size(FileId(view::file_of(cpu, number)), bytes);
        }
        mm.switch_in();
        let view = View::new(&machine, &manager, &mm, cpu, &files);
        let mut lockstep = Lockstep::new(view, Rules::default(), 1, &files, seed);
        lockstep.model.name_files(|number| view::file_of(cpu, number));
        let result = lockstep.run(&steps);
        mm.switch_out();
        result.map_err(|divergence| format!("{cpu:?}: {divergence:?}\n{}", oracle::ops::source(&steps)))
    });
    let result = results.into_iter().collect::<Result<(), String>>();
    finish(&machine, &manager, mm, result)
}

#[test]
fn threads_agree_with_their_models() {
    let (start, limit) = (Instant::now(), budget(Duration::from_secs(3)));
    let first = seed();
    let mut rounds = 0;
    while start.elapsed() < limit {
        let seed = first.wrapping_add(rounds);
        let label = format!("QUIRE_SEED={seed}");
        if let Err(what) = in_time(&label, || lockstep_round(seed)) {
            panic!("{label}: {what}");
        }
        rounds += 1;
    }
    println!("{rounds} rounds of {CPUS} threads agreed, from QUIRE_SEED={first}");
}

const PAGES: u64 = 96;
const AREA: u64 = 0x2000_0000_0000;

/// What each thread stored last into its word of each page.
type Stored = [[AtomicU64; PAGES as usize]; CPUS];

fn address(page: u64, cpu: usize) -> VirtAddr {
    VirtAddr(AREA + page * 4096 + 64 * cpu as u64)
}

/// Makes an access as a program would; while another thread has taken the right to store away, it tries again.
fn persist<R>(
    mm: &Mm<'_, Hosted>,
    access: Access,
    attempt: impl Fn() -> Result<R, hosted::PageFault>,
) -> Result<R, String> {
    for _ in 0..1_000_000 {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(fault) => match mm.fault(fault.addr, access) {
                Ok(_) | Err(FaultError::Protection) => std::thread::yield_now(),
                Err(error) => return Err(format!("{access:?} at {:#x}: {error}", fault.addr.0)),
            },
        }
    }
    Err(format!("{access:?}: a million faults and no access"))
}

fn load(machine: &Hosted, mm: &Mm<'_, Hosted>, addr: VirtAddr) -> Result<u64, String> {
    persist(mm, Access::Read, || {
        let mut bytes = [0; 8];
        machine.read(addr, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    })
}

/// Forks and looks at the child: each word is one that its thread stored, no older than before the fork.
fn fork(machine: &Hosted, mm: &Mm<'_, Hosted>, rng: &mut Rng, stored: &Stored) -> Result<(), String> {
    let page = rng.u64(..PAGES);
    let before: Vec<u64> = stored.iter().map(|words| words[page as usize].load(Ordering::SeqCst)).collect();
    let child = mm.fork().map_err(|error| format!("fork: {error}"))?;
    mm.switch_out();
    child.switch_in();
    let mut result = Ok(());
    for (cpu, &least) in before.iter().enumerate() {
        let word = load(machine, &child, address(page, cpu))?;
        // One store may be under way and not noted yet.
        let most = stored[cpu][page as usize].load(Ordering::SeqCst) + 1;
        if word < least || word > most {
            result = Err(format!("child: page {page}, CPU {cpu}: {word}, want {least} to {most}"));
        }
    }
    child.switch_out();
    drop(child);
    mm.switch_in();
    result
}

fn contend(
    machine: &Hosted,
    mm: &Mm<'_, Hosted>,
    cpu: CpuId,
    mut rng: Rng,
    stored: &Stored,
    until: &AtomicBool,
) -> Result<u64, String> {
    let me = cpu.index();
    let mut stores = 0;
    mm.switch_in();
    while !until.load(Ordering::Relaxed) {
        let page = rng.u64(..PAGES);
        let cell = &stored[me][page as usize];
        let (addr, last) = (address(page, me), cell.load(Ordering::SeqCst));
        let seen = load(machine, mm, addr)?;
        if seen != last {
            return Err(format!("page {page}, CPU {me}: {seen} is there, {last} was stored"));
        }
        persist(mm, Access::Write, || machine.write(addr, &(last + 1).to_le_bytes()))?;
        cell.store(last + 1, Ordering::SeqCst);
        stores += 1;
        match rng.u32(..40) {
            0 if me == 0 => fork(machine, mm, &mut rng, stored)?,
            1 | 2 if me == 1 => {
                let (first, len) = (rng.u64(..PAGES / 2), rng.u64(1..PAGES / 2));
                let start = VirtAddr(AREA + first * 4096);
                for prot in [Protection::READ, Protection::READ.union(Protection::WRITE)] {
                    mm.mprotect(start, len * 4096, prot).map_err(|error| format!("mprotect: {error}"))?;
                }
            }
            _ => {}
        }
    }
    mm.switch_out();
    Ok(stores)
}

fn contention_round(seed: u64, time: Duration) -> Result<u64, String> {
    let mut rng = Rng::with_seed(seed);
    let (machine, ranges) = machine();
    let zap = ZapStrategy::ALL[seed as usize % ZapStrategy::ALL.len()];
    let config = Config { folios: policy(&mut rng), fork: strategy(&mut rng), zap, ..Config::default() };
    let manager = machine.run_on(CpuId(0), || hosted::raw::memory_manager(&machine, &ranges, &config));
    let manager = manager.map_err(|error| error.to_string())?;
    let request = MapRequest {
        addr: VirtAddr(AREA),
        len: PAGES * 4096,
        prot: Protection::READ.union(Protection::WRITE),
        placement: Placement::Fixed,
        ..MapRequest::default()
    };
    let mm = machine.run_on(CpuId(0), || {
        let mm = manager.new_mm()?;
        mm.mmap(&request).map(|_| mm)
    });
    let mm = ManuallyDrop::new(mm.map_err(|error| error.to_string())?);
    let stored: Stored = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
    let (until, start) = (AtomicBool::new(false), Instant::now());
    let results = machine.spawn_cpus(CPUS, |cpu| {
        let rng = Rng::with_seed(seed ^ u64::from(cpu.0 + 1));
        if cpu.0 as usize + 1 == CPUS {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(time.saturating_sub(start.elapsed()));
                    until.store(true, Ordering::Relaxed);
                });
                contend(&machine, &mm, cpu, rng, &stored, &until)
            })
        } else {
            contend(&machine, &mm, cpu, rng, &stored, &until)
        }
    });
    let stores = results.into_iter().sum::<Result<u64, String>>();
    finish(&machine, &manager, mm, stores)
}

#[test]
fn no_store_is_lost_to_fork_or_mprotect() {
    let (start, limit) = (Instant::now(), budget(Duration::from_secs(2)));
    let first = seed();
    let (mut rounds, mut stores) = (0, 0);
    while start.elapsed() < limit {
        let seed = first.wrapping_add(rounds);
        let label = format!("QUIRE_SEED={seed}");
        match in_time(&label, || contention_round(seed, Duration::from_millis(500))) {
            Ok(count) => stores += count,
            Err(what) => panic!("{label}: {what}"),
        }
        rounds += 1;
    }
    println!("{stores} stores in {rounds} rounds of {CPUS} threads, from QUIRE_SEED={first}");
}
