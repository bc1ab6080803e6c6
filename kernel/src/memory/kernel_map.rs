//! Mappings in the kernel's half, which all address spaces share.
//!
//! `crate::boot::tables` builds the first ones. Later ones are added and removed below entries of the top level that
//! exist from then on, because each address space has copies of those.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quire::addr::PhysAddr;
use quire::page_alloc::Gfp;

use super::{layout, manager};
use crate::sync::Mutex;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
/// Write-through and no caching: entry 3 of the PAT, which is "uncacheable" after a reset.
const UNCACHED: u64 = 1 << 3 | 1 << 4;
const LEAF: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// The smallest page.
pub const SIZE_4K: u64 = 1 << 12;
/// The page of a second-level entry.
pub const SIZE_2M: u64 = 1 << 21;
/// The page of a third-level entry.
pub const SIZE_1G: u64 = 1 << 30;
/// What an entry of the fourth level covers.
pub const SIZE_512G: u64 = 1 << 39;

/// What the kernel may do with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Fetch and read.
    Code,
    /// Read.
    Constants,
    /// Read and write.
    Data,
    /// Read and write a device's registers.
    Device,
    /// Fetch and read in the lower half, as a starting CPU does. Not global.
    StartUp,
}

impl Rights {
    const fn bits(self) -> u64 {
        match self {
            Self::Code => GLOBAL,
            Self::Constants => GLOBAL | NO_EXECUTE,
            Self::Data => GLOBAL | NO_EXECUTE | WRITE,
            Self::Device => GLOBAL | NO_EXECUTE | WRITE | UNCACHED,
            Self::StartUp => 0,
        }
    }
}

/// No frame is left for a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoTable;

/// A page table. Processors read it at any time.
#[repr(C, align(4096))]
pub struct Table(pub [AtomicU64; 512]);

impl Table {
    /// A table that maps nothing.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }
}

/// Tables of four levels, as their owner sees them.
pub struct Tables {
    /// The table of the fourth level.
    root: &'static Table,
    /// The table at a physical address.
    view: fn(PhysAddr) -> *mut u8,
    /// Takes an empty table.
    take: fn() -> Option<PhysAddr>,
}

impl Tables {
    /// The tables below `root`.
    ///
    /// # Safety
    /// All entries that are not leaves lead to tables, which nothing else changes. `view` gives a pointer to any of
    /// them and to any that `take` gives, and `take` gives each once.
    pub unsafe fn new(
        root: &'static Table,
        view: fn(PhysAddr) -> *mut u8,
        take: fn() -> Option<PhysAddr>,
    ) -> Self {
        Self { root, view, take }
    }

    /// Maps a page of this size, or maps it again alike.
    ///
    /// # Errors
    /// [`NoTable`]; nothing is mapped then.
    pub fn map(&mut self, virt: u64, phys: PhysAddr, size: u64, rights: Rights) -> Result<(), NoTable> {
        let leaf = if size == SIZE_4K { 0 } else { LEAF };
        let entry = self.entry(virt, size)?;
        entry.store(phys.0 | rights.bits() | leaf | PRESENT, Ordering::Release);
        Ok(())
    }

    /// Makes the tables down to those whose entries cover `size` bytes.
    ///
    /// # Errors
    /// [`NoTable`].
    pub fn prepare(&mut self, virt: u64, size: u64) -> Result<(), NoTable> {
        self.entry(virt, size).map(|_| ())
    }

    /// Removes a page of 4 KiB and returns what was mapped. The caller flushes.
    pub fn unmap(&mut self, virt: u64) -> Option<PhysAddr> {
        let entry = self.entry(virt, SIZE_4K).ok()?.swap(0, Ordering::AcqRel);
        (entry & PRESENT != 0).then_some(PhysAddr(entry & ADDRESS))
    }

    fn entry(&mut self, virt: u64, size: u64) -> Result<&'static AtomicU64, NoTable> {
        let mut table = self.root;
        let mut covers = SIZE_512G;
        while covers > size {
            table = self.next(&table.0[index(virt, covers)])?;
            covers >>= 9;
        }
        Ok(&table.0[index(virt, size)])
    }

    fn next(&self, entry: &AtomicU64) -> Result<&'static Table, NoTable> {
        if entry.load(Ordering::Relaxed) & PRESENT == 0 {
            let table = (self.take)().ok_or(NoTable)?;
            entry.store(table.0 | WRITE | PRESENT, Ordering::Release);
        }
        let table = (self.view)(PhysAddr(entry.load(Ordering::Relaxed) & ADDRESS));
        // SAFETY: X5: by the contract of `new` the entry leads to a table, and `view` to its words.
        Ok(unsafe { &*table.cast::<Table>() })
    }
}

/// The index into a table whose entries cover `size` bytes each.
pub fn index(virt: u64, size: u64) -> usize {
    (virt / size % 512) as usize
}

static KERNEL: Mutex<Option<Tables>> = Mutex::new(None);
/// Frames of Quire that hold tables of the kernel's half.
static TABLE_FRAMES: AtomicUsize = AtomicUsize::new(0);

/// Makes these the tables that [`map`] changes.
pub fn install(tables: Tables) {
    *KERNEL.lock() = Some(tables);
}

/// Changes the kernel's mappings.
pub fn with<R>(change: impl FnOnce(&mut Tables) -> R) -> R {
    change(KERNEL.lock().as_mut().expect("installed with the first tables"))
}

/// How many of Quire's frames hold tables of the kernel's half. They are never freed.
pub fn table_frames() -> u64 {
    TABLE_FRAMES.load(Ordering::Relaxed) as u64
}

/// An empty table of Quire's memory.
pub fn take_frame() -> Option<PhysAddr> {
    let folio = manager::manager().pages().requests().alloc_zero_page(Gfp::KERNEL).ok()?;
    TABLE_FRAMES.fetch_add(1, Ordering::Relaxed);
    Some(folio.into_raw().addr())
}

/// Whether [`map_device`] can map addresses up to here.
pub fn is_device(end: u64) -> bool {
    end <= layout::DEVICES.end - layout::DEVICES.start
}

/// Maps the registers of a device, in whole pages, and returns a pointer to the first byte.
///
/// # Errors
/// [`NoTable`].
///
/// # Panics
/// If the address is beyond [`layout::DEVICES`].
pub fn map_device(start: PhysAddr, bytes: u64) -> Result<*mut u8, NoTable> {
    map_physical(start, bytes, Rights::Device)
}

/// Maps tables of the firmware, to be read. The pointer is to the first byte.
///
/// # Errors
/// As for [`map_device`].
pub fn map_firmware(start: PhysAddr, bytes: u64) -> Result<*mut u8, NoTable> {
    map_physical(start, bytes, Rights::Constants)
}

fn map_physical(start: PhysAddr, bytes: u64, rights: Rights) -> Result<*mut u8, NoTable> {
    let end = start.0 + bytes;
    assert!(is_device(end), "an address beyond 1 TiB");
    with(|tables| {
        (start.0 & !(SIZE_4K - 1)..end)
            .step_by(SIZE_4K as usize)
            .try_for_each(|at| tables.map(layout::DEVICES.start + at, PhysAddr(at), SIZE_4K, rights))
    })?;
    Ok(core::ptr::with_exposed_provenance_mut((layout::DEVICES.start + start.0) as usize))
}
