//! Disks: virtio block devices on the PCI bus.
//!
//! A task submits a request and sleeps; the interrupt handler completes it and wakes the task. Data goes between the
//! device and the pages of the cache without a copy, unless read-ahead has it already.

mod ahead;
mod queue;

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use spin::Once;

use crate::cpu::interrupts;
use crate::device::serial::log;
use crate::errno::Errno;
use crate::sync::IrqLock;
use crate::task::wait::WaitQueue;
use ahead::{Ahead, Look, Window};
use queue::{Kind, Part, Properties, Queue, Use};

pub use queue::{PARTS, SECTOR};

static DISKS: Once<Vec<Disk>> = Once::new();

/// A disk.
pub struct Disk {
    state: IrqLock<State>,
    /// A request is done, or the queue has room.
    changed: WaitQueue,
    properties: Properties,
    /// Requests and sectors of tasks and of read-ahead.
    pub counts: Counts,
}

struct State {
    queue: Queue,
    /// A task waits for a free slot of the queue.
    is_short: bool,
    ahead: Ahead,
}

/// What a disk has done.
#[derive(Default)]
pub struct Counts {
    reads: AtomicU64,
    sectors_read: AtomicU64,
    writes: AtomicU64,
    sectors_written: AtomicU64,
    flushes: AtomicU64,
    /// Windows of read-ahead that the interrupt handler ordered.
    handler_windows: AtomicU64,
}

impl Counts {
    /// Requests that read, sectors read, requests that wrote, sectors written, flushes.
    pub fn now(&self) -> [u64; 5] {
        [&self.reads, &self.sectors_read, &self.writes, &self.sectors_written, &self.flushes]
            .map(|count| count.load(Ordering::Relaxed))
    }

    fn note(&self, kind: Kind, sectors: u64) {
        let (requests, amount) = match kind {
            Kind::Read => (&self.reads, Some(&self.sectors_read)),
            Kind::Write => (&self.writes, Some(&self.sectors_written)),
            Kind::Flush => (&self.flushes, None),
        };
        requests.fetch_add(1, Ordering::Relaxed);
        amount.map(|amount| amount.fetch_add(sectors, Ordering::Relaxed));
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [reads, read, writes, written, flushes] = self.now();
        let handler = self.handler_windows.load(Ordering::Relaxed);
        write!(f, "{reads} reads of {read} sectors, {handler} ordered by the interrupt handler; ")?;
        write!(f, "{writes} writes of {written} sectors, {flushes} flushes")
    }
}

/// Starts the machine's disks.
pub fn start() {
    DISKS.call_once(|| {
        let mut disks = Vec::new();
        let vector = Once::new();
        let vector = || *vector.call_once(|| interrupts::vector_of(complete_all));
        queue::start_all(vector, |found| match found {
            Ok((queue, properties)) => {
                let state = IrqLock::new(State { queue, is_short: false, ahead: Ahead::default() });
                let changed = WaitQueue::new();
                disks.push(Disk { state, changed, properties, counts: Counts::default() });
            }
            Err(function) => log!("the disk at {function} cannot be used"),
        });
        disks
    });
}

/// The disks, in the order of the bus.
pub fn all() -> &'static [Disk] {
    DISKS.get().map_or(&[], Vec::as_slice)
}

/// The handler of the disks' interrupts.
fn complete_all() {
    all().iter().for_each(Disk::complete);
}

impl Disk {
    /// Its size.
    pub fn sectors(&self) -> u64 {
        self.properties.sectors
    }

    /// Whether it cannot be written.
    pub fn is_read_only(&self) -> bool {
        self.properties.read_only
    }

    /// Reads sectors to pages, or to an object of the heap.
    ///
    /// # Errors
    /// [`Errno::EIO`].
    pub fn read(&self, sector: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        self.check(sector, bytes.len())?;
        let look = self.changed.wait_uninterruptible(|| match self.state.lock().ahead.look(sector, bytes) {
            Look::Loading => None,
            look => Some(look),
        });
        match look {
            Look::Hit(spent) => spent.into_iter().for_each(Window::free),
            _ => self.transfer(Kind::Read, sector, &[Part::to(bytes)])?,
        }
        self.read_ahead();
        Ok(())
    }

    /// Writes consecutive sectors from several such places: at most [`PARTS`].
    ///
    /// # Errors
    /// [`Errno::EIO`].
    pub fn write(&self, sector: u64, from: &[&[u8]]) -> Result<(), Errno> {
        let bytes = from.iter().map(|part| part.len()).sum();
        self.check(sector, bytes)?;
        let mut parts = [Part::from(&[]); PARTS];
        parts.iter_mut().zip(from).for_each(|(part, from)| *part = Part::from(from));
        let outcome = self.transfer(Kind::Write, sector, &parts[..from.len()]);
        self.forget(sector..sector + (bytes / SECTOR) as u64);
        outcome
    }

    /// Makes what was written stay when the power goes.
    ///
    /// # Errors
    /// [`Errno::EIO`].
    pub fn flush(&self) -> Result<(), Errno> {
        if self.properties.flushes { self.transfer(Kind::Flush, 0, &[]) } else { Ok(()) }
    }

    /// Drops what was read ahead, and waits for what is on the way.
    pub fn forget_all(&self) {
        self.state.lock().ahead.end_stream();
        self.forget(0..u64::MAX);
        self.changed.wait_uninterruptible(|| self.state.lock().ahead.is_empty().then_some(()));
    }

    fn check(&self, sector: u64, bytes: usize) -> Result<(), Errno> {
        let end = sector.checked_add((bytes / SECTOR) as u64);
        if end.is_some_and(|end| end <= self.sectors()) { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Submits a request, and sleeps until it is done.
    fn transfer(&self, kind: Kind, sector: u64, parts: &[Part]) -> Result<(), Errno> {
        self.counts.note(kind, parts.iter().map(|part| part.sectors()).sum());
        let submit = || {
            let mut state = self.state.lock();
            // SAFETY: Q1: the caller lent the memory to this function, which returns when the request is done.
            let slot = unsafe { state.queue.submit(kind, sector, parts, Use::Task) };
            state.is_short |= slot.is_none();
            slot
        };
        let slot = self.changed.wait_uninterruptible(submit);
        let (went_well, is_awaited) = self.changed.wait_uninterruptible(|| {
            let mut state = self.state.lock();
            let outcome = state.queue.take_outcome(slot)?;
            Some((outcome, core::mem::take(&mut state.is_short)))
        });
        // The handler woke the tasks when the request was done. The slot is free only now.
        if is_awaited {
            self.changed.wake_all();
        }
        if went_well { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Orders a window if the stream needs one. Its memory is allocated while no lock is held: this CPU's handler takes
    /// the same one, and may have interrupted the holder of a lock of the allocator.
    fn read_ahead(&self) {
        while let Some(stray) = { self.state.lock().ahead.take_stray() } {
            stray.free();
        }
        let wanted = self.state.lock().ahead.wanted(true);
        let Some(window) = wanted.and_then(|start| Window::allocate(start..self.sectors().max(start))) else {
            return;
        };
        let rejected = self.state.lock().order(window, &self.counts);
        rejected.into_iter().for_each(Window::free);
    }

    fn forget(&self, sectors: Range<u64>) {
        while let Some(window) = { self.state.lock().ahead.forget(&sectors) } {
            window.free();
        }
    }

    /// Completes what the device has done. In the handler: nothing here waits.
    fn complete(&self) {
        let mut state = self.state.lock();
        while let Some((usage, went_well)) = state.queue.next_done() {
            if let Use::Ahead(place) = usage {
                state.ahead.arrived(place, went_well).into_iter().for_each(Window::free);
                if !went_well {
                    state.ahead.end_stream();
                }
            }
        }
        while let Some(start) = state.ahead.wanted(false)
            && let Some(window) = Window::allocate(start..self.sectors().max(start))
        {
            if let Some(rejected) = state.order(window, &self.counts) {
                rejected.free();
                break;
            }
            self.counts.handler_windows.fetch_add(1, Ordering::Relaxed);
        }
        drop(state);
        self.changed.wake_all();
    }
}

impl State {
    /// Lets the device fill a window. Returns it when it is not wanted, or the queue has no room.
    fn order(&mut self, window: Window, counts: &Counts) -> Option<Window> {
        let Some(place) = self.ahead.place(&window) else { return Some(window) };
        let mut parts = [Part::from(&[]); PARTS];
        let count = parts.iter_mut().zip(window.parts()).map(|(part, page)| *part = page).count();
        // SAFETY: Q1: the window keeps its pages until `arrived`, and reads none before.
        let slot =
            unsafe { self.queue.submit(Kind::Read, window.start(), &parts[..count], Use::Ahead(place)) };
        if slot.is_none() {
            return Some(window);
        }
        counts.note(Kind::Read, parts[..count].iter().map(|part| part.sectors()).sum());
        self.ahead.put(place, window);
        None
    }
}
