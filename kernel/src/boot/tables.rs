//! The kernel's half of the page tables, built once and never changed.
//!
//! It maps all usable memory at `DIRECT_MAP`, writable and not executable, and the kernel's image with the rights
//! of each segment. Quire never touches it: each address space gets a copy of its top-level entries
//! (`crate::memory::kernel_half`).

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use quire::addr::{Frame, PhysAddr};

use super::start_info::PhysBytes;
use crate::cpu::features;
use crate::memory::layout::{self, DIRECT_MAP, KERNEL_BASE};

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const LEAF: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const SIZE_4K: u64 = 1 << 12;
const SIZE_2M: u64 = 1 << 21;
const SIZE_1G: u64 = 1 << 30;

/// Enough for about 56 GiB in pages of 2 MiB, and for all memory in pages of 1 GiB.
const POOL_TABLES: usize = 64;

#[repr(C, align(4096))]
struct Table([u64; 512]);

/// The memory of the tables: Quire does not run yet.
struct Pool {
    tables: UnsafeCell<[Table; POOL_TABLES]>,
    used: AtomicUsize,
}

// SAFETY: `take` gives out each table once.
unsafe impl Sync for Pool {}

static POOL: Pool =
    Pool { tables: UnsafeCell::new([const { Table([0; 512]) }; POOL_TABLES]), used: AtomicUsize::new(0) };

impl Pool {
    fn take(&self) -> &'static mut Table {
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        assert!(index < POOL_TABLES, "too much memory for pages of 2 MiB: use a CPU that has pages of 1 GiB");
        // SAFETY: the index is in bounds and was never given out before.
        unsafe { &mut *self.tables.get().cast::<Table>().add(index) }
    }
}

/// Builds the tables and returns the frame of the top-level one.
pub fn build(usable: impl Iterator<Item = PhysBytes>) -> Frame {
    let root = POOL.take();
    usable.for_each(|range| map_direct(root, range));
    map_image(root);
    layout::phys_of_image(core::ptr::from_ref(root)).frame()
}

/// Maps memory at `DIRECT_MAP`, in the largest pages that fit. Its edges are extended to pages of 2 MiB.
fn map_direct(root: &mut Table, range: PhysBytes) {
    let end = (range.start.0 + range.bytes).next_multiple_of(SIZE_2M);
    let mut at = range.start.0 & !(SIZE_2M - 1);
    while at < end {
        let gigantic = features::has_1g_pages() && at.is_multiple_of(SIZE_1G) && end - at >= SIZE_1G;
        let size = if gigantic { SIZE_1G } else { SIZE_2M };
        map(root, DIRECT_MAP + at, at, size, WRITE | NO_EXECUTE);
        at += size;
    }
}

/// Maps the image as the linker script says: no page is both writable and executable. The page below the stack
/// stays unmapped.
fn map_image(root: &mut Table) {
    for (segment, rights) in [
        (layout::text(), 0),
        (layout::rodata(), NO_EXECUTE),
        (layout::data(), WRITE | NO_EXECUTE),
        (layout::stack(), WRITE | NO_EXECUTE),
    ] {
        for at in segment.step_by(SIZE_4K as usize) {
            map(root, at, at - KERNEL_BASE, SIZE_4K, rights);
        }
    }
}

/// Maps one page of the kernel. A page that two ranges share is mapped twice, alike.
fn map(root: &mut Table, virt: u64, phys: u64, size: u64, rights: u64) {
    let mut table = root;
    let mut covers = SIZE_1G << 9;
    while covers > size {
        table = next_table(&mut table.0[index(virt, covers)]);
        covers >>= 9;
    }
    let leaf = if size == SIZE_4K { 0 } else { LEAF };
    table.0[index(virt, size)] = phys | rights | leaf | GLOBAL | PRESENT;
}

/// The index into a table whose entries cover `size` bytes each.
fn index(virt: u64, size: u64) -> usize {
    (virt / size % 512) as usize
}

fn next_table(entry: &mut u64) -> &mut Table {
    if *entry & PRESENT == 0 {
        let table = POOL.take();
        *entry = layout::phys_of_image(core::ptr::from_ref(table)).0 | WRITE | PRESENT;
    }
    let table = layout::image_at(PhysAddr(*entry & ADDRESS));
    // SAFETY: the entry leads to a table of the pool, and the caller owns the whole tree.
    unsafe { &mut *table.cast::<Table>() }
}
