//! Page tables built by hand, entry by entry.

use std::sync::atomic::{AtomicU64, Ordering};

use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, PhysAddr, VirtAddr, VirtRange};
use quire::cpu::{CpuId, CpuSet};
use quire::platform::{FlushExtent, FlushRequest, FramePlatform, TablePlatform};
use quire::sync::Pinned;

pub(crate) const PRESENT: u64 = 1;
pub(crate) const WRITE: u64 = 2;
pub(crate) const USER: u64 = 4;
pub(crate) const ACCESSED: u64 = 0x20;
pub(crate) const DIRTY: u64 = 0x40;
pub(crate) const LARGE: u64 = 0x80;
pub(crate) const NO_EXECUTE: u64 = 1 << 63;
/// A leaf that allows everything.
pub(crate) const ALL: u64 = PRESENT | WRITE | USER;

pub(crate) const CPU0: CpuId = CpuId(0);
/// The root table of every test; tables below it follow frame by frame.
pub(crate) const ROOT: Frame = Frame(16);

/// The host's memory behind entry `index` of the table at `table`.
pub(crate) fn entry(machine: &Hosted, table: Frame, index: u64) -> &AtomicU64 {
    assert!(index < 512);
    // SAFETY: the tests use frames of the machine only (H1), and all access to their tables is atomic.
    unsafe { AtomicU64::from_ptr(machine.direct_map(PhysAddr(table.addr().0 + index * 8)).cast()) }
}

/// Builds the chain of tables from [`ROOT`] (of `levels` levels) down to `leaf_level` (1 is the lowest), one new frame
/// each in order, and puts `leaf` at its end. Gives the leaf's entry.
pub(crate) fn map(machine: &Hosted, levels: u64, addr: u64, leaf_level: u64, leaf: u64) -> &AtomicU64 {
    let mut table = ROOT;
    for level in (leaf_level + 1..=levels).rev() {
        let slot = entry(machine, table, addr >> (3 + 9 * level) & 511);
        if slot.load(Ordering::Relaxed) & PRESENT == 0 {
            let next = ROOT.0 + 1 + table_count(machine);
            entry(machine, Frame(0), 0).fetch_add(1, Ordering::Relaxed);
            slot.store(next << 12 | ALL, Ordering::Relaxed);
        }
        table = Frame(slot.load(Ordering::Relaxed) >> 12 & 0xff_ffff_ffff);
    }
    let slot = entry(machine, table, addr >> (3 + 9 * leaf_level) & 511);
    slot.store(leaf, Ordering::Relaxed);
    slot
}

/// Tables below the root so far; the first word of frame 0 counts them.
fn table_count(machine: &Hosted) -> u64 {
    entry(machine, Frame(0), 0).load(Ordering::Relaxed)
}

pub(crate) fn machine(config: HostedConfig) -> Hosted {
    config.build().expect("the host has the memory")
}

pub(crate) fn load(machine: &Hosted, root: Option<Frame>) {
    let _pinned = Pinned::new(machine);
    machine.load_root(root);
}

pub(crate) fn range_flush(start: u64, len: u64, stride: u64) -> FlushRequest {
    let range = VirtRange::from_len(VirtAddr(start), len);
    FlushRequest { root: ROOT, extent: FlushExtent::Range { range, stride }, tables: false }
}

pub(crate) fn whole_flush() -> FlushRequest {
    FlushRequest { root: ROOT, extent: FlushExtent::AddressSpace, tables: true }
}

pub(crate) fn flush_here(machine: &Hosted, request: &FlushRequest) {
    let _pinned = Pinned::new(machine);
    machine.flush_local(request);
}

pub(crate) fn flush_there(machine: &Hosted, cpu: CpuId, request: &FlushRequest) {
    let _pinned = Pinned::new(machine);
    let mut targets = CpuSet::EMPTY;
    targets.insert(cpu);
    machine.flush_remote_start(&targets, request);
    machine.flush_remote_wait(&targets, request);
}

pub(crate) fn one(frame: u64) -> FrameRange {
    FrameRange::new(Frame(frame), 1)
}

pub(crate) fn read(machine: &Hosted, addr: u64) -> Result<u8, hosted::PageFault> {
    let mut byte = [0];
    machine.read(VirtAddr(addr), &mut byte).map(|()| byte[0])
}

pub(crate) fn write(machine: &Hosted, addr: u64, byte: u8) -> Result<(), hosted::PageFault> {
    machine.write(VirtAddr(addr), &[byte])
}
