//! Faults and calls by programs that the kernel runs at them: each has one record, which a program writes
//! into the ring of its CPU. Perf has two to four, which cost the recorded program more than the rest of a
//! recording.
//!
//! ```text
//! sys            requests to the kernel
//! asm            an assembler
//! btf, offsets   where the kernel's structures have their members
//! shared         the memory that programs and recorder share: which threads are followed, and what they are doing
//! programs       all programs: what they have in common is in `write`, each itself in `at_calls`, `at_faults` or `at_tasks`
//! ring, decode   the records
//! ```
//!
//! What is mapped, forks, ends and names of processes are told by perf's events beside them.

mod asm;
mod at_calls;
mod at_faults;
mod at_tasks;
mod btf;
mod decode;
mod offsets;
mod programs;
mod ring;
mod shared;
mod sys;
mod write;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::RecordError;
use super::perf;
use super::raw::{Raw, RawKind, now_ns};
use programs::{Attached, Program};
use ring::Ring;
use shared::{Layout, Shared};
use write::Maps;

/// A ring is too small if more than one part in this many is full when it is emptied.
const TOO_FULL: u64 = 2;

/// A reader that finds more than one part in this many full looks again soon.
const QUICKLY: u64 = 16;

/// The next ring is this many times as large.
const GROWTH: usize = 4;

/// The largest ring of a CPU.
const LARGEST: usize = 256 << 20;

/// No ring of programs can be larger: the kernel keeps its size in 32 bits, and it is a power of two.
const MOST_RING: usize = 1 << 31;

/// Threads have numbers below the kernel's limit, or this one if that is lower: it may be raised.
const LEAST_TIDS: usize = 1 << 15;

/// The programs of a recording.
pub(super) struct Bpf {
    programs: Vec<(Attached, OwnedFd)>,
    /// Each runs its program until it is closed.
    links: Vec<OwnedFd>,
    shared: Shared,
    /// The map of the rings.
    by_cpu: OwnedFd,
    rings: Vec<CpuRing>,
    /// CPUs that were offline at the start. What happens there is lost.
    without_ring: Vec<usize>,
    may_grow: bool,
    /// Size of each ring at the start.
    ring_bytes: usize,
    /// Whether a ring fills up so that it must be read again soon.
    is_busy: bool,
}

struct CpuRing {
    cpu: usize,
    ring: Ring,
}

impl Bpf {
    /// Loads the programs and attaches them; they follow no thread at first. `nameless` is the device of
    /// files that no path leads to.
    pub(super) fn open(
        ring_bytes: Option<usize>,
        default_bytes: usize,
        nameless: Option<u32>,
    ) -> Result<Bpf, RecordError> {
        sees_numbers_of_threads()?;
        let may_grow = ring_bytes.is_none();
        let ring_bytes = ring_bytes.unwrap_or(default_bytes).min(MOST_RING);
        let online = perf::online_cpus()?;
        let cpus = online.iter().max().map_or(0, |last| *last as usize) + 1;
        let layout = Layout::of(cpus, most_tids());
        let map = sys::Map {
            name: "quire_shared",
            kind: sys::ARRAY,
            key_bytes: 4,
            value_bytes: layout.bytes as u32,
            entries: 1,
            flags: sys::MAPPABLE,
        };
        let map = map.make(None).map_err(refused("maps"))?;
        let shared = Shared::map(&map, layout).map_err(refused("maps that a process can map"))?;
        let ring = |cpu: &i32| Ring::make(ring_bytes).map(|ring| CpuRing { cpu: *cpu as usize, ring });
        let rings = online.iter().map(ring).collect::<Result<Vec<_>, _>>().map_err(refused("rings"))?;
        let by_cpu = sys::Map {
            name: "quire_rings",
            kind: sys::ARRAY_OF_MAPS,
            key_bytes: 4,
            value_bytes: 4,
            entries: cpus as u32,
            flags: 0,
        };
        let by_cpu =
            by_cpu.make(rings.first().map(|it| &it.ring.descriptor)).map_err(refused("maps of maps"))?;
        for CpuRing { cpu, ring } in &rings {
            sys::set(&by_cpu, *cpu as u32, &ring.descriptor).map_err(refused("maps of rings"))?;
        }
        let maps = Maps { shared: map.as_raw_fd(), rings: by_cpu.as_raw_fd(), layout };
        let missing = |what| RecordError::NoPrograms { what, source: io::ErrorKind::Unsupported.into() };
        let programs = programs::all(maps, nameless).map_err(missing)?;
        let programs = programs.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        let (links, is_busy) = (Vec::new(), false);
        let has_ring = |cpu: &usize| online.contains(&(*cpu as i32));
        let without_ring = (0..cpus).filter(|cpu| !has_ring(cpu)).collect();
        let mut bpf =
            Bpf { programs, links, shared, by_cpu, rings, without_ring, may_grow, ring_bytes, is_busy };
        bpf.attach()?;
        Ok(bpf)
    }

    /// From here on programs run, if they do not, and records come of the threads that are followed.
    pub(super) fn attach(&mut self) -> Result<(), RecordError> {
        if self.links.is_empty() {
            for (attached, program) in &self.programs {
                match *attached {
                    Attached::Tracepoint(name) => {
                        self.links.push(sys::attach(program, Some(name)).map_err(refused(TRACEPOINTS))?);
                    }
                    Attached::Typed(_) => {
                        self.links.push(sys::attach(program, None).map_err(refused(TRACEPOINTS))?);
                    }
                    Attached::Resolved { major } => {
                        for CpuRing { cpu, .. } in &self.rings {
                            self.links.push(perf::open_for_program(major, *cpu as i32, program)?);
                        }
                    }
                }
            }
        }
        self.shared.set_on(true);
        Ok(())
    }

    /// Keeps only the programs that tell faults.
    pub(super) fn only_faults(&mut self) {
        self.detach();
        self.programs.retain(|(attached, _)| attached.is_at_faults());
    }

    /// No program runs from here on.
    pub(super) fn detach(&mut self) {
        self.shared.set_on(false);
        self.links.clear();
    }

    /// Writes no record from here on. With `wait`, none is under way any more: then threads that are followed
    /// may still run.
    pub(super) fn disable(&self, wait: bool) {
        self.shared.set_on(false);
        if wait {
            sys::wait_for_programs();
        }
    }

    /// Follows a thread, and what it starts.
    pub(super) fn follow(&self, tid: u32) -> Result<(), RecordError> {
        let full = || refused("more threads")(io::ErrorKind::QuotaExceeded.into());
        self.shared.follow(tid).then_some(()).ok_or_else(full)
    }

    /// Follows a thread no more.
    pub(super) fn forget(&self, tid: u32) {
        self.shared.forget(tid);
    }

    /// Whether faults have records.
    pub(super) fn set_faults(&self, on: bool) {
        self.shared.set_faults(on);
    }

    /// Faults that had none for that reason.
    pub(super) fn missed(&self) -> u64 {
        self.shared.missed()
    }

    /// The begin of the oldest call or fault that has not ended: its record comes at its end. Call this
    /// before [`Bpf::drain`], which finds the records of all that had ended by then.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.shared.oldest()
    }

    /// Calls `each` with what the waiting records say. A gap is placed where it began.
    pub(super) fn drain(&mut self, each: &mut dyn FnMut(Raw)) {
        self.is_busy = false;
        for index in 0..self.rings.len() {
            let CpuRing { cpu, ring } = &mut self.rings[index];
            let drained = ring.drain(|record| {
                let _ = decode::record(record, each);
            });
            let lost = lost(&self.shared, *cpu);
            let has_lost = lost.is_some();
            lost.into_iter().for_each(&mut *each);
            let bytes = ring.bytes() as u64;
            self.is_busy |= drained > bytes / QUICKLY;
            if self.may_grow && (has_lost || drained > bytes / TOO_FULL) {
                self.grow(index, each);
            }
        }
        self.without_ring.iter().filter_map(|cpu| lost(&self.shared, *cpu)).for_each(each);
    }

    /// How often the kernel did not run a program where it should have, since it ran already on that CPU.
    pub(super) fn skipped(&self) -> u64 {
        let of = |program: &OwnedFd| {
            let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).ok()?;
            told.lines().find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse::<u64>().ok())
        };
        self.programs.iter().filter_map(|(_, program)| of(program)).sum()
    }

    /// Gives a CPU a larger ring. If the kernel allows none, the recording goes on with the former one.
    fn grow(&mut self, index: usize, each: &mut dyn FnMut(Raw)) {
        let CpuRing { cpu, ring } = &mut self.rings[index];
        let bytes = ring.bytes() * GROWTH;
        let larger = (bytes <= LARGEST).then(|| Ring::make(bytes).ok()).flatten();
        let Some(larger) =
            larger.filter(|larger| sys::set(&self.by_cpu, *cpu as u32, &larger.descriptor).is_ok())
        else {
            self.may_grow = false;
            return;
        };
        // The kernel has waited until no program writes into the former one.
        let mut former = std::mem::replace(ring, larger);
        former.drain(|record| {
            let _ = decode::record(record, each);
        });
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    pub(super) fn largest_ring(&self) -> usize {
        self.rings.iter().map(|it| it.ring.bytes()).max().unwrap_or_default()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// What keeps the programs attached.
    pub(super) fn into_links(self) -> Vec<OwnedFd> {
        self.links
    }
}

const TRACEPOINTS: &str = "programs at tracepoints";

/// What a CPU has lost since the last call. A gap whose begin no program has kept yet began just now.
fn lost(shared: &Shared, cpu: usize) -> Option<Raw> {
    let (records, since_ns) = shared.take_lost(cpu)?;
    let time_ns = if since_ns == 0 { now_ns() } else { since_ns };
    Some(Raw { time_ns, pid: 0, tid: 0, kind: RawKind::Lost { records } })
}

fn load(program: &Program) -> Result<(Attached, OwnedFd), RecordError> {
    let (kind, typed) = match program.attached {
        Attached::Tracepoint(_) => (sys::TRACEPOINT_PROGRAM, None),
        Attached::Typed(number) => (sys::TYPED_PROGRAM, Some(number)),
        Attached::Resolved { .. } => (sys::EVENT_PROGRAM, None),
    };
    let loaded = sys::load(program.name, kind, typed, &program.code);
    loaded.map(|loaded| (program.attached, loaded)).map_err(refused(program.name))
}

fn refused(what: &'static str) -> impl FnOnce(io::Error) -> RecordError {
    move |source| RecordError::NoPrograms { what, source }
}

/// Programs see the numbers that processes have in the first PID namespace, and everything else here those of
/// its own.
fn sees_numbers_of_threads() -> Result<(), RecordError> {
    /// The kernel's number of the first namespace never changes.
    const FIRST: &str = "pid:[4026531836]";
    let own = std::fs::read_link("/proc/self/ns/pid").map_err(refused("PID namespaces"))?;
    let other = || refused("a PID namespace that is not the first")(io::ErrorKind::Unsupported.into());
    (own.to_str() == Some(FIRST)).then_some(()).ok_or_else(other)
}

fn most_tids() -> usize {
    let limit = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    limit.trim().parse().unwrap_or(LEAST_TIDS).max(LEAST_TIDS)
}

#[cfg(test)]
mod tests;
