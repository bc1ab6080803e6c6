//! The kernel's half of the page tables, as it is at the start.
//!
//! It maps all usable memory at `DIRECT_MAP`, writable and not executable, and the kernel's image with the rights
//! of each segment. Quire never touches it: each address space gets a copy of its top-level entries
//! (`crate::memory::kernel_half`). So the entries for later mappings exist from the start.

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quire::addr::{Frame, PhysAddr};

use super::five_levels;
use super::start_info::PhysBytes;
use crate::cpu::{area, features};
use crate::memory::kernel_half;
use crate::memory::kernel_map::{self, Rights, SIZE_1G, SIZE_2M, SIZE_4K, SIZE_512G, Table, Tables};
use crate::memory::layout::{self, DIRECT_MAP, KERNEL_BASE};

/// Enough for about 56 GiB in pages of 2 MiB, and for all memory in pages of 1 GiB.
const POOL_TABLES: usize = 64;

/// What [`build_start_up`] takes: a root, the tables of three levels below it, and the top of five levels.
const START_UP_TABLES: usize = 5;

/// The memory of the tables: Quire does not run yet.
struct Pool {
    tables: UnsafeCell<[Table; POOL_TABLES]>,
    used: AtomicUsize,
    /// So many at the end are not the pool's any more.
    given_up: AtomicUsize,
}

// SAFETY: X1: `take` gives out each table once.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool {
    tables: UnsafeCell::new([const { Table::new() }; POOL_TABLES]),
    used: AtomicUsize::new(0),
    given_up: AtomicUsize::new(0),
};

impl Pool {
    fn take(&self) -> Option<&'static Table> {
        let index = self.used.fetch_add(1, Ordering::Relaxed);
        // SAFETY: X1: the index is in bounds and was never given out before.
        (index < POOL_TABLES - self.given_up.load(Ordering::Relaxed))
            .then(|| unsafe { &*self.tables.get().cast::<Table>().add(index) })
    }
}

fn take() -> Option<PhysAddr> {
    POOL.take().map(|table| layout::phys_of_image(core::ptr::from_ref(table)))
}

const TOO_FEW: &str = "too much memory for pages of 2 MiB: use a CPU that has pages of 1 GiB";

/// Gives up the pool's tables that nothing will use: all that are left, but those for other CPUs' start.
pub fn give_up_unused() -> Range<u64> {
    let kept = if area::count() > 1 { START_UP_TABLES } else { 0 };
    let end = (POOL.used.load(Ordering::Relaxed) + kept).min(POOL_TABLES);
    POOL.given_up.store(POOL_TABLES - end, Ordering::Relaxed);
    let start = POOL.tables.get().addr() as u64;
    let at = |table: usize| start + (table * size_of::<Table>()) as u64;
    at(end)..at(POOL_TABLES)
}

/// Builds the tables and returns the frame of the top-level one.
pub fn build(usable: impl Iterator<Item = PhysBytes>) -> Frame {
    let root = POOL.take().expect(TOO_FEW);
    // SAFETY: X1: the root is new, and all tables are of the pool, which the image contains.
    let mut tables = unsafe { Tables::new(root, layout::image_at, take) };
    usable.for_each(|range| map_direct(&mut tables, range));
    map_image(&mut tables);
    for area in [layout::DEVICES, layout::STACKS] {
        for at in area.step_by(SIZE_512G as usize) {
            tables.prepare(at, SIZE_1G).expect(TOO_FEW);
        }
    }
    kernel_map::install(tables);
    let top = if five_levels::are_on() { fifth_level(root) } else { root };
    layout::phys_of_image(core::ptr::from_ref(top)).frame()
}

/// Lets later tables come from Quire, which has started.
pub fn hand_over(root: Frame) {
    let mut top = root.addr();
    if five_levels::are_on() {
        // SAFETY: X5: the table is of the pool, which is a part of the image.
        let fifth = unsafe { &*layout::image_at(top).cast::<Table>() };
        top = PhysAddr(fifth.0[511].load(Ordering::Relaxed) & !0xfff);
    }
    // SAFETY: X5: the root is of the pool, and the tables are those that `build` made, in the direct map like
    // all memory.
    let tables = unsafe {
        let root = &*layout::image_at(top).cast::<Table>();
        Tables::new(root, layout::direct_map, kernel_map::take_frame)
    };
    kernel_map::install(tables);
}

/// Tables that map the kernel and one page of low memory at its own address, executable, for CPUs that start.
pub fn build_start_up(page: PhysAddr) -> Option<Frame> {
    let root = POOL.take()?;
    // SAFETY: X1: the root is new, and its tables in the lower half are of the pool.
    let mut tables = unsafe { Tables::new(root, layout::image_at, take) };
    tables.map(page.0, page, SIZE_4K, Rights::StartUp).ok()?;
    // SAFETY: X5: the kernel's root is a table of the pool, and its upper half does not change.
    let kernel = unsafe { &*layout::image_at(kernel_half::root().addr()).cast::<Table>() };
    let top = if five_levels::are_on() {
        let top = POOL.take()?;
        top.0[0].store(layout::phys_of_image(core::ptr::from_ref(root)).0 | 3, Ordering::Relaxed);
        top
    } else {
        root
    };
    for (entry, kernel) in top.0.iter().zip(&kernel.0).skip(256) {
        entry.store(kernel.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    Some(layout::phys_of_image(core::ptr::from_ref(top)).frame())
}

/// The top of five levels: all addresses of the kernel are below its last entry.
fn fifth_level(root: &'static Table) -> &'static Table {
    let top = POOL.take().expect(TOO_FEW);
    top.0[511].store(layout::phys_of_image(core::ptr::from_ref(root)).0 | 3, Ordering::Relaxed);
    top
}

/// Bytes of the direct map in pages of 2 MiB and of 1 GiB. Ranges may share a page, which is counted for each.
static DIRECT_MAP_BYTES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Bytes of the direct map by the size of its pages: 4 KiB, 2 MiB, 1 GiB.
pub fn direct_map_bytes() -> [u64; 3] {
    let [large, gigantic] = &DIRECT_MAP_BYTES;
    [0, large.load(Ordering::Relaxed), gigantic.load(Ordering::Relaxed)]
}

/// Maps memory at `DIRECT_MAP`, in the largest pages that fit. Its edges are extended to pages of 2 MiB.
fn map_direct(tables: &mut Tables, range: PhysBytes) {
    let end = (range.start.0 + range.bytes).next_multiple_of(SIZE_2M);
    let mut at = range.start.0 & !(SIZE_2M - 1);
    while at < end {
        let gigantic = features::has_1g_pages() && at.is_multiple_of(SIZE_1G) && end - at >= SIZE_1G;
        let size = if gigantic { SIZE_1G } else { SIZE_2M };
        tables.map(DIRECT_MAP + at, PhysAddr(at), size, Rights::Data).expect(TOO_FEW);
        DIRECT_MAP_BYTES[usize::from(gigantic)].fetch_add(size, Ordering::Relaxed);
        at += size;
    }
}

/// Maps the image as the linker script says: no page is both writable and executable. The page below the stack
/// stays unmapped.
fn map_image(tables: &mut Tables) {
    for (segment, rights) in [
        (layout::text(), Rights::Code),
        (layout::rodata(), Rights::Constants),
        (layout::data(), Rights::Data),
        (layout::stack(), Rights::Data),
    ] {
        for at in segment.step_by(SIZE_4K as usize) {
            tables.map(at, PhysAddr(at - KERNEL_BASE), SIZE_4K, rights).expect(TOO_FEW);
        }
    }
}
