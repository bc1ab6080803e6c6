//! Rare events as log records.

use std::sync::Mutex;

use hosted::{Hosted, HostedConfig};
use log::{Level, Log, Metadata, Record};
use quire::addr::{Frame, FrameRange, Order, PhysAddr};
use quire::cpu::{CpuId, CpuSet};
use quire::page_alloc::{AllocatorConfig, Gfp, MemoryRange, Verdict};
use quire::platform::{Context, Event, FramePlatform};
use quire_interop::log::{TARGET, level_of};

const BYTES: u64 = 8 << 20;

/// A hosted machine that logs.
struct Logging<'m>(&'m Hosted);

// SAFETY: every method is the hosted machine's, which keeps the contracts (H1, H3), but for the event, which logs.
unsafe impl FramePlatform for Logging<'_> {
    fn pin(&self) -> CpuId {
        self.0.pin()
    }

    fn unpin(&self) {
        self.0.unpin();
    }

    fn context(&self) -> Context {
        self.0.context()
    }

    fn cpu_count(&self) -> usize {
        self.0.cpu_count()
    }

    fn fence_cpus(&self, targets: &CpuSet) {
        self.0.fence_cpus(targets);
    }

    fn direct_map(&self, addr: PhysAddr) -> *mut u8 {
        self.0.direct_map(addr)
    }

    fn event(&self, event: Event) {
        quire_interop::log::report(event);
    }
}

// SAFETY: H1: its memory is the hosted machine's.
unsafe impl hosted::raw::IsolatedMemory for Logging<'_> {
    fn holds(&self, frames: FrameRange) -> bool {
        self.0.holds(frames)
    }
}

/// Keeps the records of the library.
struct Kept(Mutex<Vec<(Level, String)>>);

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

impl Log for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn log(&self, record: &Record<'_>) {
        self.0.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

fn records() -> Vec<(Level, String)> {
    std::mem::take(&mut KEPT.0.lock().unwrap())
}

#[test]
fn what_is_rare_is_logged() {
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let machine = HostedConfig::new(BYTES).with_cpus(2).build().unwrap();
    let logging = Logging(&machine);
    let memory = MemoryRange { frames: FrameRange::new(Frame(0), BYTES / 4096), node: 0, zeroed: true };
    let pages = machine.run_on(CpuId(0), || {
        hosted::raw::page_allocator(&logging, &[memory], AllocatorConfig::default()).unwrap()
    });
    // The list of another CPU has frames.
    machine.run_on(CpuId(1), || {
        pages.free(pages.alloc(Gfp::KERNEL, Order::FRAME).unwrap()).unwrap();
    });
    assert_eq!(records(), [], "nothing rare has happened");
    machine.run_on(CpuId(0), || {
        let mut taken = Vec::new();
        while let Ok(folio) = pages.alloc(Gfp::KERNEL, Order::FRAME) {
            taken.push(folio);
        }
        let short = (Level::Debug, "memory is short: drained the lists of other CPUs".to_string());
        let out = (Level::Warn, "out of memory: no folio of 4 KiB".to_string());
        let seen = records();
        assert!(seen.contains(&short), "{seen:?}");
        assert_eq!(seen.last(), Some(&out), "{seen:?}");
        assert!(pages.alloc(Gfp::KERNEL, Order::BLOCK).is_err());
        assert_eq!(records().pop(), Some((Level::Debug, "out of memory: no folio of 2048 KiB".to_string())));
        let bad = taken[0].frame();
        taken.into_iter().for_each(|folio| pages.free(folio).unwrap());
        assert_eq!(pages.condemn(bad), Verdict::Lost);
        let text = format!("memory at {:#x} went bad: its frame is out of use", bad.addr().0);
        assert_eq!(records(), [(Level::Error, text)]);
        assert_eq!(pages.validate(), Ok(()));
    });
}

#[test]
fn reclaim_is_worth_a_warning_when_nothing_is_left() {
    assert_eq!(level_of(Event::Reclaimed { frames: 32 }), Level::Info);
    assert_eq!(level_of(Event::Reclaimed { frames: 0 }), Level::Warn);
    assert_eq!(Event::Reclaimed { frames: 32 }.to_string(), "memory is short: reclaimed 32 frames");
}
