//! The queue of requests that a virtio block device and its driver share (virtio 1.2, 5.2).
//!
//! A request is a chain of descriptors: a header, the data's parts, and a byte for the outcome. The crate
//! `virtio-drivers` keeps the rings. Its own driver of disks takes one buffer for each request; here a request has
//! many pages, and the interrupt handler completes it.
//!
//! From [`Queue::submit`] until the slot is done, its memory is the device's (Q1 of `docs/invariants/kernel.md`).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::array;
use core::ptr::NonNull;
use core::slice;

use bitflags::bitflags;
use quire::addr::{Order, PhysAddr};
use quire::limits::FRAME_SIZE;
use quire::page_alloc::Gfp;
use quire::platform::TouchHint;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::pci::PciTransport;
use virtio_drivers::transport::pci::bus::{DeviceFunction, PciRoot};
use virtio_drivers::transport::{DeviceType, Transport};
use virtio_drivers::{BufferDirection, Hal};

use crate::device::pci::{self, Ports};
use crate::memory::layout::{direct_map, phys_of};
use crate::memory::{kernel_map, manager};

/// The unit of the device's addresses.
pub const SECTOR: usize = 512;
/// The most parts of a request.
pub const PARTS: usize = 32;
/// Descriptors: enough for several requests of the largest size.
const DESCRIPTORS: usize = 128;
const REQUESTS: usize = 16;

bitflags! {
    /// Features of the device (virtio 1.2, 5.2.3 and 6).
    #[derive(Clone, Copy, Debug)]
    struct Feature: u64 {
        const READ_ONLY = 1 << 5;
        const FLUSH = 1 << 9;
        const VERSION_1 = 1 << 32;
    }
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read = 0,
    Write = 1,
    /// What was written stays when the power goes.
    Flush = 4,
}

/// Memory of a request: pages, or objects of the heap.
#[derive(Clone, Copy)]
pub struct Part {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a part is an address; what may be done with the memory is the matter of Q1.
unsafe impl Send for Part {}

impl Part {
    /// Memory to read into.
    pub fn to(bytes: &mut [u8]) -> Self {
        Self { start: NonNull::from_mut(bytes).cast(), bytes: bytes.len() }
    }

    /// Memory to write from.
    pub fn from(bytes: &[u8]) -> Self {
        Self { start: NonNull::from_ref(bytes).cast(), bytes: bytes.len() }
    }

    /// Its size in sectors.
    pub fn sectors(self) -> u64 {
        (self.bytes / SECTOR) as u64
    }
}

fn order_of(pages: usize) -> Option<Order> {
    Order::new(pages.next_power_of_two().trailing_zeros() as u8)
}

/// The memory of the machine as the device sees it: it has no IOMMU.
struct Dma;

// SAFETY: frames are Quire's owned folios until `dma_dealloc`, zeroed, in the direct map at one offset; registers are
// mapped for ever (invariant 1).
unsafe impl Hal for Dma {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (u64, NonNull<u8>) {
        let all = manager::manager().pages();
        let folio = order_of(pages).and_then(|order| all.alloc(Gfp::KERNEL, order).ok());
        let Some(mut folio) = folio else { return (0, NonNull::dangling()) };
        all.frames().clear(&mut folio, TouchHint::Soon);
        let addr = folio.into_raw().addr();
        (addr.0, NonNull::new(direct_map(addr)).expect("an address of the upper half"))
    }

    unsafe fn dma_dealloc(addr: u64, _: NonNull<u8>, pages: usize) -> i32 {
        let order = order_of(pages).expect("as it was allocated");
        let all = manager::manager().pages();
        // SAFETY: invariant 1: `dma_alloc` gave this folio up by its number, and the queue that used it is
        // gone.
        let folio = unsafe { all.frames().folio_from_raw(PhysAddr(addr).frame(), order) };
        if all.free(folio).is_ok() { 0 } else { -1 }
    }

    unsafe fn mmio_phys_to_virt(addr: u64, bytes: usize) -> NonNull<u8> {
        let registers =
            kernel_map::map_device(PhysAddr(addr), bytes as u64).expect("a table for a disk's registers");
        NonNull::new(registers).expect("an address of the upper half")
    }

    unsafe fn share(part: NonNull<[u8]>, _: BufferDirection) -> u64 {
        phys_of(part.as_ptr()).0
    }

    unsafe fn unshare(_: u64, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// What a slot is used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// For nothing.
    Free,
    /// For the request of a task that waits.
    Task,
    /// For read-ahead, at this place of its table.
    Ahead(usize),
    /// The task's request is done, with this outcome.
    Done(bool),
}

/// A request.
struct Slot {
    header: [u8; 16],
    outcome: [u8; 1],
    parts: [Part; PARTS],
    count: usize,
    kind: Kind,
    token: u16,
    usage: Use,
}

/// The queue of one disk.
pub struct Queue {
    transport: PciTransport,
    rings: VirtQueue<Dma, DESCRIPTORS>,
    slots: Box<[Slot]>,
}

/// What the device says of itself.
pub struct Properties {
    pub sectors: u64,
    pub read_only: bool,
    pub flushes: bool,
}

/// Starts each virtio disk of the first bus, whose interrupts use this vector. Calls `found` for it.
pub fn start_all(
    vector: impl Fn() -> Option<u8>,
    mut found: impl FnMut(Result<(Queue, Properties), DeviceFunction>),
) {
    let mut root = PciRoot::new(Ports);
    let mut functions = Vec::new();
    functions.extend(root.enumerate_bus(0).filter_map(|(function, info)| {
        let kind = virtio_drivers::transport::pci::virtio_device_type(&info);
        (kind == Some(DeviceType::Block)).then_some(function)
    }));
    for function in functions {
        let started = vector().and_then(|vector| Queue::start(&mut root, function, vector));
        found(started.ok_or(function));
    }
}

impl Queue {
    fn start(root: &mut PciRoot<Ports>, function: DeviceFunction, vector: u8) -> Option<(Self, Properties)> {
        pci::enable(root, function);
        let mut transport = PciTransport::new::<Dma, _>(root, function).ok()?;
        let features = transport.begin_init(Feature::all());
        let sectors = transport.read_consistent(|| {
            let [low, high]: [u32; 2] = [transport.read_config_space(0)?, transport.read_config_space(4)?];
            Ok(u64::from(high) << 32 | u64::from(low))
        });
        pci::send_messages(root, function, vector)?;
        let rings = VirtQueue::new(&mut transport, 0, false, false).ok()?;
        transport.finish_init();
        let properties = Properties {
            sectors: sectors.ok()?,
            read_only: features.contains(Feature::READ_ONLY),
            flushes: features.contains(Feature::FLUSH),
        };
        let slots = (0..REQUESTS).map(|_| Slot::free()).collect();
        Some((Self { transport, rings, slots }, properties))
    }

    /// Gives a request to the device. `None`: the queue has no room now.
    ///
    /// # Safety
    /// Q1: the parts stay, and are not touched, until the slot is done.
    pub unsafe fn submit(&mut self, kind: Kind, sector: u64, parts: &[Part], usage: Use) -> Option<usize> {
        if self.rings.available_desc() < parts.len() + 2 {
            return None;
        }
        let index = self.slots.iter().position(|slot| slot.usage == Use::Free)?;
        let slot = &mut self.slots[index];
        slot.header[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        slot.header[8..].copy_from_slice(&sector.to_le_bytes());
        slot.parts[..parts.len()].copy_from_slice(parts);
        (slot.count, slot.kind) = (parts.len(), kind);
        let rings = &mut self.rings;
        // SAFETY: Q1; the slot's own parts do not move, and stay until `next_done` takes them back.
        let added = slot.with_buffers(|inputs, outputs| unsafe { rings.add(inputs, outputs) });
        slot.token = added.ok()?;
        slot.usage = usage;
        if self.rings.should_notify() {
            self.transport.notify(0);
        }
        Some(index)
    }

    /// Takes a request back that the device has done: what it was for, and whether it went well. One of a task keeps
    /// its slot until [`Self::take_outcome`].
    pub fn next_done(&mut self) -> Option<(Use, bool)> {
        let token = self.rings.peek_used()?;
        let slot = self.slots.iter_mut().find(|slot| slot.token == token && slot.is_running())?;
        let rings = &mut self.rings;
        // SAFETY: Q1: these are the buffers of `submit`.
        let popped = slot.with_buffers(|inputs, outputs| unsafe { rings.pop_used(token, inputs, outputs) });
        let went_well = popped.is_ok() && slot.outcome == [0];
        let usage = slot.usage;
        slot.usage = if usage == Use::Task { Use::Done(went_well) } else { Use::Free };
        Some((usage, went_well))
    }

    /// The outcome of a task's request, once it is done.
    pub fn take_outcome(&mut self, slot: usize) -> Option<bool> {
        let Use::Done(outcome) = self.slots[slot].usage else { return None };
        self.slots[slot].usage = Use::Free;
        Some(outcome)
    }
}

impl Slot {
    fn free() -> Self {
        let nothing = Part { start: NonNull::dangling(), bytes: 0 };
        Self {
            header: [0; 16],
            outcome: [0],
            parts: [nothing; PARTS],
            count: 0,
            kind: Kind::Flush,
            token: 0,
            usage: Use::Free,
        }
    }

    fn is_running(&self) -> bool {
        matches!(self.usage, Use::Task | Use::Ahead(_))
    }

    /// Calls `with` for what the device reads, and what it writes.
    fn with_buffers<R>(
        &mut self,
        with: impl for<'a> FnOnce(&'a [&'a [u8]], &'a mut [&'a mut [u8]]) -> R,
    ) -> R {
        let Self { header, outcome, parts, count, kind, .. } = self;
        let parts = &parts[..*count];
        if *kind != Kind::Read {
            let inputs: [&[u8]; PARTS + 1] =
                array::from_fn(|at| match at.checked_sub(1).map(|at| parts.get(at)) {
                    None => &header[..],
                    // SAFETY: Q1: memory that is not written meanwhile.
                    Some(Some(part)) => unsafe { slice::from_raw_parts(part.start.as_ptr(), part.bytes) },
                    Some(None) => &[],
                });
            return with(&inputs[..=parts.len()], &mut [outcome]);
        }
        let mut outcome = Some(&mut outcome[..]);
        let mut outputs: [&mut [u8]; PARTS + 1] = array::from_fn(|at| match parts.get(at) {
            // SAFETY: Q1: memory that nothing else touches. Only its address goes to the device.
            Some(part) => unsafe { slice::from_raw_parts_mut(part.start.as_ptr(), part.bytes) },
            None => outcome.take().unwrap_or_default(),
        });
        with(&[&header[..]], &mut outputs[..=parts.len()])
    }
}

/// The bytes of a frame as a part.
pub fn part_of(frame: PhysAddr) -> Part {
    let start = NonNull::new(direct_map(frame)).expect("an address of the upper half");
    Part { start, bytes: FRAME_SIZE as usize }
}
