//! The address spaces of processes, and the CPUs that run them.
//!
//! A trace does not record the CPUs of threads. Here each thread stays on one CPU, assigned in turn as
//! threads appear. A CPU runs an address space until a thread of another one runs on it, as on a machine
//! without migration. That decides which flushes reach other CPUs.

use std::collections::{BTreeMap, HashMap};

use hosted::Hosted;
use oracle::space::SpaceId;
use quire::cpu::CpuId;
use quire::vm::Mm;

use super::huge::HugeMaps;
use super::pages::PageSet;
use super::parts::PartMap;

/// An address space and the replay's records of it.
pub(super) struct Space<'m> {
    pub(super) mm: Mm<'m, Hosted>,
    /// Pages whose contents the program touched, here or before the fork.
    pub(super) touched: PageSet,
    /// Pages that the program touched in this address space itself.
    pub(super) seen: PageSet,
    /// Untouched pages that Linux would map by its huge page of zeroes.
    pub(super) zeroes: PageSet,
    /// The most resident memory so far, in pages.
    pub(super) rss: u64,
    /// Its mappings, if they are observed.
    pub(super) parts: PartMap,
    /// Its mappings of huge pages of pools.
    pub(super) huge: HugeMaps,
    /// The end of the heap, once a call has shown it.
    pub(super) heap: Option<u64>,
    /// The same in the model.
    pub(super) model: Option<SpaceId>,
    /// Processes that share it.
    users: usize,
}

/// The number of an address space.
pub(super) type Key = u64;

/// Processes, their address spaces and CPUs.
pub(super) struct Processes<'m> {
    machine: &'m Hosted,
    spaces: BTreeMap<Key, Space<'m>>,
    by_pid: HashMap<u32, Key>,
    next: Key,
    /// The address space that each CPU runs.
    running: Vec<Option<Key>>,
    cpu_of: HashMap<u32, CpuId>,
    next_cpu: usize,
}

impl<'m> Space<'m> {
    /// Wraps a fresh address space.
    pub(super) fn new(mm: Mm<'m, Hosted>, model: Option<SpaceId>) -> Self {
        Self {
            mm,
            touched: PageSet::default(),
            seen: PageSet::default(),
            zeroes: PageSet::default(),
            rss: 0,
            parts: PartMap::default(),
            huge: HugeMaps::default(),
            heap: None,
            model,
            users: 1,
        }
    }

    /// Notes resident memory before some of it is freed.
    pub(super) fn look_at_rss(&mut self) {
        self.rss = self.rss.max(self.mm.resident_frames());
    }
}

impl<'m> Processes<'m> {
    pub(super) fn new(machine: &'m Hosted) -> Self {
        Self {
            machine,
            spaces: BTreeMap::new(),
            by_pid: HashMap::new(),
            next: 0,
            running: vec![None; machine.config().cpus],
            cpu_of: HashMap::new(),
            next_cpu: 0,
        }
    }

    /// The CPU of a thread.
    pub(super) fn cpu_of(&mut self, tid: u32) -> CpuId {
        let cpus = self.running.len();
        let next = &mut self.next_cpu;
        *self.cpu_of.entry(tid).or_insert_with(|| {
            *next += 1;
            CpuId(((*next - 1) % cpus) as u32)
        })
    }

    /// Ends a thread, whose number may be reused.
    pub(super) fn end_thread(&mut self, tid: u32) {
        self.cpu_of.remove(&tid);
    }

    /// The address space of a process.
    pub(super) fn key(&self, pid: u32) -> Option<Key> {
        self.by_pid.get(&pid).copied()
    }

    pub(super) fn get(&self, key: Key) -> &Space<'m> {
        &self.spaces[&key]
    }

    pub(super) fn get_mut(&mut self, key: Key) -> &mut Space<'m> {
        self.spaces.get_mut(&key).expect("a key lives as long as a process has it")
    }

    /// All living address spaces.
    pub(super) fn spaces(&self) -> impl Iterator<Item = &Space<'m>> {
        self.spaces.values()
    }

    /// The numbers of all living address spaces.
    pub(super) fn keys(&self) -> Vec<Key> {
        self.spaces.keys().copied().collect()
    }

    /// Processes that live, ascending.
    pub(super) fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.by_pid.keys().copied().collect();
        pids.sort_unstable();
        pids
    }

    /// Makes the caller's CPU `cpu` run the address space.
    pub(super) fn switch_to(&mut self, cpu: CpuId, key: Key) {
        let before = self.running[cpu.index()].replace(key);
        if before == Some(key) {
            return;
        }
        if let Some(before) = before {
            self.spaces[&before].mm.switch_out();
        }
        self.spaces[&key].mm.switch_in();
    }

    /// Gives a process without an address space (see [`Self::release`]) this one.
    pub(super) fn adopt(&mut self, pid: u32, space: Space<'m>) -> Key {
        let key = self.next;
        self.next += 1;
        self.spaces.insert(key, space);
        self.by_pid.insert(pid, key);
        key
    }

    /// Lets a process without an address space share that of another.
    pub(super) fn share(&mut self, pid: u32, key: Key) {
        self.by_pid.insert(pid, key);
        self.get_mut(key).users += 1;
    }

    /// Ends every living process, when the replay stops.
    pub(super) fn release_all(&mut self) {
        for pid in self.pids() {
            drop(self.release(pid));
        }
    }

    /// Takes a process's address space. If no process is left, every CPU leaves it and it is returned.
    pub(super) fn release(&mut self, pid: u32) -> Option<Space<'m>> {
        let key = self.by_pid.remove(&pid)?;
        let space = self.get_mut(key);
        space.users -= 1;
        if space.users > 0 {
            return None;
        }
        let space = self.spaces.remove(&key)?;
        for (cpu, running) in self.running.iter_mut().enumerate() {
            if *running == Some(key) {
                *running = None;
                self.machine.run_on(CpuId(cpu as u32), || space.mm.switch_out());
            }
        }
        Some(space)
    }
}
