//! When a private page that was read-only can be stored to again without a fault: single pages, and a leaf of
//! 2 MiB.

use hosted::raw::RawPages;
use hosted::raw::RawTables;
use hosted::{Hosted, HostedConfig};
use quire::addr::{Frame, FrameRange, PageSize, VirtAddr};
use quire::arch::{EntryFlags, Protection};
use quire::pgtable::{CopyMode, GrantWrite, Zap};
use quire::tlb::{FlushBatch, MmContext, MmuGather, RssChange};

use crate::pgtable::support::*;

const BOTH: Protection = Protection::from_bits(3);
const AT: VirtAddr = VirtAddr(GIB);
const LARGE: u64 = 2 * MIB;

/// One folio of 2 MiB, and its mappings.
struct Scene<'s, 'p> {
    machine: &'s Hosted,
    allocator: &'s Allocator<'p>,
    context: &'s MmContext,
    child: &'s MmContext,
    frame: Frame,
}

impl Scene<'_, '_> {
    fn protect(&self, protection: Protection, grant: GrantWrite) {
        let mut owed = FlushBatch::new();
        let all = range(AT.0, LARGE);
        page_tables(self.allocator, self.context).protect(all, protection, grant, &mut owed).unwrap();
        owed.flush(self.allocator, self.context);
    }

    /// The child maps the parent's pages, then only `kept` of them, whichever way the parent maps them.
    fn fork(&self, kept: std::ops::Range<u64>) {
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let (from, to) = (page_tables(self.allocator, self.context), page_tables(self.allocator, self.child));
        from.copy(&to, range(AT.0, LARGE), CopyMode::Private, &mut owed, &mut rss).unwrap();
        owed.flush(self.allocator, self.context);
        let mut gather = MmuGather::new(self.allocator, self.child);
        for (start, end) in [(0, kept.start), (kept.end, 512)] {
            let part = range(AT.0 + start * 4096, (end - start) * 4096);
            to.unmap(&Zap::leaves(part), &mut gather).unwrap();
        }
        gather.finish();
    }

    fn held(&self, hold: bool, pages: std::ops::Range<u64>) {
        let frames = FrameRange::new(self.frame.add(pages.start), pages.end - pages.start);
        if hold {
            self.allocator.frames().hold(frames);
        } else {
            self.allocator.release_raw(frames);
        }
    }

    /// How many pages can be stored to, as an independent walker and a CPU's stores see it.
    fn writable(&self) -> u64 {
        let leaves = self.machine.leaves(self.context.root());
        let marked = leaves.iter().filter(|leaf| leaf.write).map(|leaf| leaf.frames).sum();
        let store = |page: &u64| self.machine.write(AT.add(page * 4096), &[1]).is_ok();
        let stored = running(self.machine, self.context, &[0], || (0..512).filter(store).count() as u64);
        assert_eq!(stored, marked);
        stored
    }
}

/// What happens to written memory after it is made read-only and before it is made writable; and how many
/// pages can be stored to afterwards, where each page has a leaf of its own and where all have one.
type Case = (&'static str, EntryFlags, fn(&Scene<'_, '_>), u64, u64);

const CASES: &[Case] = &[
    ("ours", EntryFlags::NONE, |_| (), 512, 512),
    ("shared with a child", EntryFlags::NONE, |scene| scene.fork(0..512), 0, 0),
    ("one page of it shared", EntryFlags::NONE, |scene| scene.fork(77..78), 511, 0),
    ("the first page of it shared", EntryFlags::NONE, |scene| scene.fork(0..1), 511, 0),
    ("the child is gone", EntryFlags::NONE, |scene| scene.fork(0..0), 512, 512),
    ("held", EntryFlags::NONE, |scene| scene.held(true, 0..512), 0, 0),
    ("not soft-dirty", EntryFlags::SOFT_DIRTY, |_| (), 0, 0),
    ("no anonymous memory", EntryFlags::ANON, |_| (), 0, 0),
    (
        "stores are to be noticed",
        EntryFlags::NONE,
        |scene| {
            let tables = page_tables(scene.allocator, scene.context);
            let mut owed = FlushBatch::new();
            tables.clear_soft_dirty(range(AT.0, LARGE), &mut owed).unwrap();
            owed.flush(scene.allocator, scene.context);
        },
        0,
        0,
    ),
    (
        "marked for a handler",
        EntryFlags::NONE,
        |scene| {
            let tables = page_tables(scene.allocator, scene.context);
            let mut owed = FlushBatch::new();
            tables.mark_write_protected(range(AT.0, LARGE), &mut owed).unwrap();
            owed.flush(scene.allocator, scene.context);
        },
        0,
        0,
    ),
];

/// Sets one case up. Returns how many pages can be stored to in the end.
fn outcome(case: &Case, large: bool, grant: GrantWrite) -> u64 {
    let (_, lacking, change, ..) = *case;
    let mut writable = 0;
    with_space(HostedConfig::new(64 * MIB).with_cpus(2), |machine, allocator, context| {
        let frame = folio(machine, allocator, BLOCK).unwrap();
        let (tables, flags) = (page_tables(allocator, context), written().without(lacking));
        if large {
            tables.map_large_raw(AT, frame, PageSize::Size2M, flags).unwrap();
        } else {
            tables.map_raw(AT, FrameRange::folio(frame, BLOCK), flags).unwrap();
        }
        let child = Tables::create(allocator, context.mode()).unwrap();
        let scene = Scene { machine, allocator, context, child: &child, frame };
        scene.protect(Protection::READ, grant);
        change(&scene);
        let leaves = check(allocator, context).leaves;
        scene.protect(BOTH, grant);
        assert_eq!(check(allocator, context).leaves, leaves, "a protection splits nothing");
        writable = scene.writable();
        if allocator.frames().is_held(frame) {
            scene.held(false, 0..512);
        }
        Tables::destroy(allocator, child);
    });
    writable
}

/// A leaf of 2 MiB gets the right to store back where all pages of it would.
#[test]
fn a_large_leaf_gets_its_right_back_where_all_its_pages_would() {
    for case @ (name, .., small, large) in CASES {
        assert_eq!(outcome(case, false, GrantWrite::Exclusive), *small, "{name}, small leaves");
        assert_eq!(outcome(case, true, GrantWrite::Exclusive), *large, "{name}, a large leaf");
        assert_eq!(*large, if *small == 512 { 512 } else { 0 }, "{name}");
        assert_eq!(outcome(case, true, GrantWrite::Never), 0, "{name}");
    }
}

/// A leaf of 1 GiB waits for the fault: no single place says whether all of it is exclusive.
#[test]
fn a_gigantic_leaf_waits_for_the_fault() {
    let config = HostedConfig { tlb_model: false, clearing: false, ..HostedConfig::new(2 * GIB + 64 * MIB) };
    with_space(config, |machine, allocator, context| {
        let frame = folio(machine, allocator, quire::addr::Order::GIGANTIC).expect("no gigantic folio");
        let tables = page_tables(allocator, context);
        tables.map_large_raw(AT, frame, PageSize::Size1G, written()).unwrap();
        for (protection, writable) in [(BOTH, true), (Protection::READ, false), (BOTH, false)] {
            let mut owed = FlushBatch::new();
            tables.protect(range(AT.0, GIB), protection, GrantWrite::Exclusive, &mut owed).unwrap();
            owed.flush(allocator, context);
            assert_eq!(machine.leaves(context.root())[0].write, writable);
        }
    });
}
