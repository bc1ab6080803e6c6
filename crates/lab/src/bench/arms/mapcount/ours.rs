//! Page tables over one folio of 1 GiB.

use hosted::raw::RawTables;
use hosted::raw::page_tables;
use std::time::Instant;

use hosted::{Bare, Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, Order, VirtAddr, VirtRange};
use quire::arch::{EntryFlags, PagingMode, Protection};
use quire::cpu::CpuId;
use quire::error::MapError;
use quire::page_alloc::{AllocatorConfig, CountScheme, Gfp, PageAllocator};
use quire::pgtable::{CopyMode, PageTables, Zap};
use quire::stats::Stat;
use quire::tlb::{FlushBatch, MmContext, MmuGather, RssChange};

use super::Verb;
use crate::bench::arms::collapse_huge::name_of;
use crate::bench::experiment::{Arm, Prepared, Sample, Skip};
use crate::bench::ours::{START, ranges};

const GIB: u64 = 1 << 30;
const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4 << 10;
const LEAVES: u64 = GIB / PAGE;

pub(super) struct Quire {
    pub(super) counts: CountScheme,
}

impl Arm<Verb> for Quire {
    fn name(&self) -> &'static str {
        name_of(self.counts)
    }

    fn about(&self) -> &'static str {
        match self.counts {
            CountScheme::Dense => {
                "PageTables::{map, unmap, copy, collapse_whole} on a bare hosted machine, allocating and \
                 freeing page tables. Counts are exact for each frame, and a table that maps all of a block \
                 counts once."
            }
            CountScheme::PerFrame => {
                "as `quire`, with an atomic count in each frame's 64-byte descriptor; descriptors are \
                 allocated and zeroed at the first leaf of each 2 MiB, and stay."
            }
            CountScheme::HeadOnly => {
                "as `quire`, with one count for the folio, changed once for each run of leaves."
            }
            CountScheme::HeadOnlyByLeaf => "as `head-only`, changed once for each leaf.",
            CountScheme::TotalMapped => {
                "as `head-only`, with the number of mapped pages in the same word: the shape of the RFC \"mm/rmap: \
                 support arbitrary folio mappings\" (April 2026), without its lock and its slots for two address \
                 spaces. Of a frame it tells the folio's average."
            }
        }
    }

    fn setup(&mut self, case: &Verb) -> Result<Box<dyn Prepared + '_>, Skip> {
        let config =
            HostedConfig { clearing: false, prefault: false, ..HostedConfig::bench(2 * GIB + (128 << 20)) };
        let machine = config.build().map_err(|error| Skip(error.to_string()))?;
        let mut arrivals: Vec<u32> = (0..LEAVES as u32).collect();
        fastrand::Rng::with_seed(11).shuffle(&mut arrivals);
        Ok(Box::new(Ready { machine, counts: self.counts, verb: *case, arrivals }))
    }
}

struct Ready {
    machine: Hosted,
    counts: CountScheme,
    verb: Verb,
    /// Pieces of 4 KiB, in the order in which they arrive.
    arrivals: Vec<u32>,
}

struct World<'w, 'p> {
    allocator: &'w PageAllocator<'p, Bare>,
    context: &'w MmContext,
    first: Frame,
    arrivals: &'w [u32],
}

const ALL: VirtRange = VirtRange { start: START, end: VirtAddr(START.0 + GIB) };

impl Prepared for Ready {
    fn run(&mut self) -> Result<Sample, Skip> {
        self.machine.run_on(CpuId(0), || {
            // SAFETY: H3: the allocator lives inside `run_on` of this machine, and no other machine runs in
            // between.
            let bare = unsafe { self.machine.bare() };
            let config = AllocatorConfig { counts: self.counts, ..AllocatorConfig::default() };
            let allocator = hosted::raw::page_allocator(bare, &ranges(&self.machine, false), config)
                .map_err(|error| Skip(error.to_string()))?;
            let page = allocator
                .alloc(Gfp::USER, Order::GIGANTIC)
                .map_err(|error| Skip::because("a folio of 1 GiB", error))?;
            let first = allocator.frames().make_huge(page);
            let said = |error: MapError| Skip::because("page tables", error);
            let context = PageTables::create(&allocator, PagingMode::FourLevel).map_err(said)?;
            let world = World { allocator: &allocator, context: &context, first, arrivals: &self.arrivals };
            context.switch_in(bare);
            let sample = world.measure(self.verb).map_err(said);
            context.switch_out(bare);
            PageTables::destroy(&allocator, context);
            sample
        })
    }
}

impl World<'_, '_> {
    fn measure(&self, verb: Verb) -> Result<Sample, MapError> {
        // Warms tables and counts, and allocates what a way of counting keeps.
        self.map(BLOCK)?;
        self.unmap();
        let start = Instant::now();
        let nanoseconds = |start: Instant| start.elapsed().as_nanos() as f64;
        let time = match verb {
            Verb::Map | Verb::MapEach => {
                self.map(if verb == Verb::Map { BLOCK } else { PAGE })?;
                nanoseconds(start)
            }
            Verb::Unmap => {
                self.map(BLOCK)?;
                let start = Instant::now();
                self.unmap();
                nanoseconds(start)
            }
            Verb::Arrive | Verb::Arrived => self.arrive(verb)?,
            Verb::Fork => self.fork()?,
            Verb::Collapse => {
                self.map(BLOCK)?;
                let start = Instant::now();
                self.collapse(self.context)?;
                nanoseconds(start)
            }
        };
        let counts = self.allocator.lists().stat(Stat::NrMapCountPages);
        Ok(Sample::new(time, LEAVES).count("count_frames", counts))
    }

    fn tables(&self) -> PageTables<'_, '_, Bare> {
        page_tables(self.allocator, self.context)
    }

    /// Maps the whole folio, `bytes` at a time.
    fn map(&self, bytes: u64) -> Result<(), MapError> {
        for at in (0..GIB).step_by(bytes as usize) {
            self.map_at(self.context, at, bytes)?;
        }
        Ok(())
    }

    fn map_at(&self, context: &MmContext, at: u64, bytes: u64) -> Result<(), MapError> {
        let flags = EntryFlags::leaf(Protection::READ | Protection::WRITE)
            | EntryFlags::ACCESSED
            | EntryFlags::DIRTY
            | EntryFlags::SOFT_DIRTY;
        let run = FrameRange::new(self.first.add(at / PAGE), bytes / PAGE);
        page_tables(self.allocator, context).map_raw(START.add(at), run, flags)
    }

    /// Maps pieces as they arrive, here and in another address space, and collapses both; returns the time of
    /// one of the two.
    fn arrive(&self, verb: Verb) -> Result<f64, MapError> {
        let other = PageTables::create(self.allocator, PagingMode::FourLevel)?;
        let mut start = Instant::now();
        for &piece in self.arrivals {
            for context in [self.context, &other] {
                self.map_at(context, u64::from(piece) * PAGE, PAGE)?;
            }
        }
        let arrived = start.elapsed();
        start = Instant::now();
        self.collapse(self.context)?;
        self.collapse(&other)?;
        let collapsed = start.elapsed();
        PageTables::destroy(self.allocator, other);
        Ok(if verb == Verb::Arrive { arrived } else { collapsed }.as_nanos() as f64)
    }

    fn unmap(&self) {
        let mut gather = MmuGather::new(self.allocator, self.context);
        let zapped = self.tables().unmap(&Zap::tables(ALL, ALL), &mut gather);
        gather.finish();
        debug_assert_eq!(zapped, Ok(()));
    }

    fn fork(&self) -> Result<f64, MapError> {
        self.map(BLOCK)?;
        let context = PageTables::create(self.allocator, PagingMode::FourLevel)?;
        let child = page_tables(self.allocator, &context);
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let start = Instant::now();
        let copied = self.tables().copy(&child, ALL, CopyMode::Shared, &mut owed, &mut rss);
        let time = start.elapsed().as_nanos() as f64;
        owed.flush(self.allocator, self.context);
        PageTables::destroy(self.allocator, context);
        copied.map(|()| time)
    }

    fn collapse(&self, context: &MmContext) -> Result<(), MapError> {
        let mut gather = MmuGather::new(self.allocator, context);
        let collapsed = page_tables(self.allocator, context).collapse_whole(START, &mut gather);
        gather.finish();
        if collapsed == Ok(true) { Ok(()) } else { Err(MapError::Occupied) }
    }
}
