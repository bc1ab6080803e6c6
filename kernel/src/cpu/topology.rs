//! Which CPUs, interrupt controllers and memory nodes the machine has. Fixed once the kernel has started.

use quire::addr::PhysAddr;
use quire::cpu::CpuId;
use quire::limits::MAX_NODES;
use spin::Once;

use super::area::MAX_CPUS;

/// Ranges of memory whose node is known, at most.
const MAX_MEMORY: usize = 32;
/// ISA interrupts that the firmware says more about, at most.
const ISA_LINES: usize = 16;
const MAX_IO_APICS: usize = 4;
/// The distance within a node (ACPI 6.5, 5.2.17).
const LOCAL: u8 = 10;
const REMOTE: u8 = 20;

/// The addresses that the processor and the chip set use unless the firmware says otherwise.
const LOCAL_APIC: PhysAddr = PhysAddr(0xfee0_0000);
const IO_APIC: PhysAddr = PhysAddr(0xfec0_0000);

/// Memory and its node.
#[derive(Clone, Copy, Debug)]
pub struct NodeMemory {
    /// The first byte.
    pub start: PhysAddr,
    /// How many.
    pub bytes: u64,
    /// The node.
    pub node: u8,
}

/// An I/O APIC, which serves interrupts from a first number on.
#[derive(Clone, Copy, Debug)]
pub struct IoApicPlace {
    /// Its registers.
    pub registers: PhysAddr,
    /// Its first global system interrupt.
    pub first: u32,
}

/// Where an ISA interrupt arrives, and how.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// The global system interrupt.
    pub number: u32,
    /// A low level or a falling edge asserts it.
    pub active_low: bool,
    /// It stays asserted until the device is served.
    pub level: bool,
}

/// The machine.
#[derive(Debug)]
pub struct Topology {
    /// The registers of the local APICs: each CPU finds its own there.
    pub local_apic: PhysAddr,
    /// The local APIC of each CPU, by number. The first CPU is the one that started the kernel.
    apic_ids: [u32; MAX_CPUS],
    cpus: usize,
    cpu_nodes: [u8; MAX_CPUS],
    /// The firmware's number of each node.
    domains: [u32; MAX_NODES],
    nodes: usize,
    memory: [NodeMemory; MAX_MEMORY],
    memory_count: usize,
    distances: [[u8; MAX_NODES]; MAX_NODES],
    io_apics: [IoApicPlace; MAX_IO_APICS],
    io_apic_count: usize,
    lines: [Line; ISA_LINES],
}

impl Topology {
    /// A machine whose firmware says nothing: the running CPU, one node, and controllers at their usual places.
    pub fn new(apic_id: u32) -> Self {
        let mut topology = const { Self::unknown() };
        topology.apic_ids = [apic_id; MAX_CPUS];
        topology
    }

    /// Of constants alone, which are copied: to compute them in the kernel takes more code than room.
    const fn unknown() -> Self {
        let mut distances = [[REMOTE; MAX_NODES]; MAX_NODES];
        let mut node = 0;
        while node < MAX_NODES {
            distances[node][node] = LOCAL;
            node += 1;
        }
        let mut lines = [Line { number: 0, active_low: false, level: false }; ISA_LINES];
        let mut line = 0;
        while line < ISA_LINES {
            lines[line].number = line as u32;
            line += 1;
        }
        Self {
            local_apic: LOCAL_APIC,
            apic_ids: [0; MAX_CPUS],
            cpus: 1,
            cpu_nodes: [0; MAX_CPUS],
            domains: [0; MAX_NODES],
            nodes: 0,
            memory: [NodeMemory { start: PhysAddr(0), bytes: 0, node: 0 }; MAX_MEMORY],
            memory_count: 0,
            distances,
            io_apics: [IoApicPlace { registers: IO_APIC, first: 0 }; MAX_IO_APICS],
            io_apic_count: 0,
            lines,
        }
    }

    /// Adds a CPU, unless it is the running one or there are too many.
    pub fn add_cpu(&mut self, apic_id: u32) {
        if !self.apic_ids[..self.cpus].contains(&apic_id) && self.cpus < MAX_CPUS {
            self.apic_ids[self.cpus] = apic_id;
            self.cpus += 1;
        }
    }

    /// Uses no more than so many CPUs.
    pub fn limit_cpus(&mut self, most: usize) {
        self.cpus = self.cpus.min(most.max(1));
    }

    /// Adds an I/O APIC.
    pub fn add_io_apic(&mut self, registers: PhysAddr, first: u32) {
        if self.io_apic_count < MAX_IO_APICS {
            self.io_apics[self.io_apic_count] = IoApicPlace { registers, first };
            self.io_apic_count += 1;
        }
    }

    /// An ISA interrupt arrives as another one, with the flags of the MADT.
    pub fn override_line(&mut self, line: u8, number: u32, flags: u16) {
        if let Some(entry) = self.lines.get_mut(usize::from(line)) {
            *entry = Line { number, active_low: flags & 3 == 3, level: flags >> 2 & 3 == 3 };
        }
    }

    /// A CPU belongs to this node of the firmware.
    pub fn set_cpu_domain(&mut self, apic_id: u32, domain: u32) {
        let cpu = self.apic_ids[..self.cpus].iter().position(|&id| id == apic_id);
        if let (Some(cpu), Some(node)) = (cpu, self.node_of_domain(domain)) {
            self.cpu_nodes[cpu] = node;
        }
    }

    /// Memory belongs to this node of the firmware.
    pub fn add_memory(&mut self, memory: NodeMemory, domain: u32) {
        if self.memory_count < MAX_MEMORY
            && let Some(node) = self.node_of_domain(domain)
        {
            self.memory[self.memory_count] = NodeMemory { node, ..memory };
            self.memory_count += 1;
        }
    }

    /// Sets the distance between two nodes of the firmware.
    pub fn set_distance(&mut self, from: u32, to: u32, distance: u8) {
        let node = |domain| self.domains[..self.nodes].iter().position(|&known| known == domain);
        if let (Some(from), Some(to)) = (node(from), node(to)) {
            self.distances[from][to] = distance;
        }
    }

    /// The number of a node; the firmware's numbers may have gaps.
    fn node_of_domain(&mut self, domain: u32) -> Option<u8> {
        if let Some(node) = self.domains[..self.nodes].iter().position(|&known| known == domain) {
            return Some(node as u8);
        }
        let node = self.nodes;
        *self.domains.get_mut(node)? = domain;
        self.nodes += 1;
        Some(node as u8)
    }

    /// The local APICs of the CPUs, by number.
    pub fn apic_ids(&self) -> &[u32] {
        &self.apic_ids[..self.cpus]
    }

    /// The memory whose node is known.
    pub fn memory(&self) -> &[NodeMemory] {
        &self.memory[..self.memory_count]
    }

    /// The I/O APICs; the usual one if the firmware names none.
    pub fn io_apics(&self) -> &[IoApicPlace] {
        &self.io_apics[..self.io_apic_count.max(1)]
    }

    /// Where an ISA interrupt arrives.
    pub fn isa_line(&self, line: u8) -> Line {
        self.lines[usize::from(line)]
    }

    /// The node of a CPU.
    pub fn node_of(&self, cpu: CpuId) -> u8 {
        self.cpu_nodes[cpu.index()]
    }

    /// The distance between two nodes.
    pub fn distance(&self, from: u8, to: u8) -> u8 {
        self.distances[usize::from(from)][usize::from(to)]
    }
}

static TOPOLOGY: Once<Topology> = Once::new();

/// Fixes the machine.
pub fn install(topology: Topology) {
    TOPOLOGY.call_once(|| topology);
}

/// The CPU with this APIC; the first one if none has it.
pub fn cpu_of_apic(apic_id: u32) -> CpuId {
    let index = TOPOLOGY.get().and_then(|machine| machine.apic_ids().iter().position(|&id| id == apic_id));
    CpuId(index.unwrap_or(0) as u32)
}

/// The machine, once it is known.
pub fn get() -> &'static Topology {
    TOPOLOGY.get().expect("installed before it is used")
}
