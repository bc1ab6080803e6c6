//! Every allocation fails in turn: nothing changes then, nothing is lost, and calls that need no memory still
//! work (invariant 6).

use hosted::FailurePlan;
use hosted::raw::RawPages;
use hosted::raw::RawTables;
use quire::addr::{FrameRange, Order, PageSize, VirtAddr};
use quire::arch::{Entry, Protection};
use quire::error::MapError;
use quire::page_alloc::Gfp;
use quire::pgtable::{CopyMode, GrantWrite, Zap};
use quire::tlb::{FlushBatch, MmContext, MmuGather, RssChange, ZapStrategy};

use crate::pgtable::support::*;
use testkit::order;

/// A change of 8 MiB at 1 GiB, of which the last 4 MiB are large leaves.
type Verb = fn(&Allocator<'_>, &MmContext) -> Result<(), MapError>;

const VERBS: &[(&str, Verb)] = &[
    ("create", |allocator, context| {
        Tables::create(allocator, context.mode()).map(|context| {
            Tables::destroy(allocator, context);
        })
    }),
    ("map", |allocator, context| {
        let frame = allocator.alloc_raw(Gfp::USER, order(2))?;
        let run = FrameRange::folio(frame, order(2));
        let mapped = page_tables(allocator, context).map_raw(VirtAddr(600 * GIB), run, written());
        mapped.inspect_err(|_| allocator.free_raw(frame, order(2)).unwrap())
    }),
    ("map a whole block by small leaves", |allocator, context| {
        let frame = allocator.alloc_raw(Gfp::USER, BLOCK)?;
        let run = FrameRange::folio(frame, BLOCK);
        let mapped = page_tables(allocator, context).map_raw(VirtAddr(600 * GIB), run, written());
        mapped.inspect_err(|_| allocator.free_raw(frame, BLOCK).unwrap())
    }),
    ("split", |allocator, context| page_tables(allocator, context).split_at(VirtAddr(GIB + 5 * MIB))),
    ("unmap", |allocator, context| {
        let mut gather = MmuGather::new(allocator, context);
        let part = range(GIB + MIB, 6 * MIB);
        let unmapped = page_tables(allocator, context).unmap(&Zap::tables(part, part), &mut gather);
        gather.finish();
        unmapped
    }),
    ("protect", |allocator, context| {
        let mut owed = FlushBatch::new();
        let part = range(GIB + MIB, 6 * MIB);
        let grant = GrantWrite::Exclusive;
        let done = page_tables(allocator, context).protect(part, Protection::READ, grant, &mut owed);
        owed.flush(allocator, context);
        done
    }),
    ("mark lazy free", |allocator, context| {
        let mut owed = FlushBatch::new();
        let done = page_tables(allocator, context).mark_lazy_free(range(GIB + MIB, 6 * MIB), &mut owed);
        owed.flush(allocator, context);
        done.map(drop)
    }),
    ("clear soft-dirty", |allocator, context| {
        let mut owed = FlushBatch::new();
        let done = page_tables(allocator, context).clear_soft_dirty(range(GIB + MIB, 6 * MIB), &mut owed);
        owed.flush(allocator, context);
        done
    }),
    ("mark", |allocator, context| {
        let mut owed = FlushBatch::new();
        let tables = page_tables(allocator, context);
        let done = tables.mark_write_protected(range(GIB + MIB, 6 * MIB), &mut owed);
        owed.flush(allocator, context);
        done.and_then(|()| tables.unmark_write_protected(range(GIB + 3 * MIB, 2 * MIB)))
    }),
    ("copy", |allocator, context| {
        let child = Tables::create(allocator, context.mode())?;
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let tables = page_tables(allocator, context);
        let to = page_tables(allocator, &child);
        let copied = tables.copy(&to, range(GIB, 8 * MIB), CopyMode::Private, &mut owed, &mut rss);
        owed.flush(allocator, context);
        assert_eq!(check(allocator, &child).resident, rss, "the child has what it was said to have");
        Tables::destroy(allocator, child);
        copied
    }),
    ("unshare", |allocator, context| {
        let child = Tables::create(allocator, context.mode())?;
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let (tables, to) = (page_tables(allocator, context), page_tables(allocator, &child));
        let all = range(GIB, 8 * MIB);
        let shared = tables.share(&to, all, all, CopyMode::Private, &mut owed, &mut rss);
        owed.flush(allocator, context);
        assert_eq!(check(allocator, &child).resident, rss, "the child has what it was said to have");
        let done = shared.and_then(|()| to.unshare(all)).and_then(|()| tables.unshare(all));
        assert_eq!(check(allocator, &child).resident, rss);
        Tables::destroy(allocator, child);
        // All of it can be written again.
        tables.unshare(all).expect("no other sharer is left");
        done
    }),
    ("verbs on shared tables", |allocator, context| {
        let child = Tables::create(allocator, context.mode())?;
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        let (tables, to) = (page_tables(allocator, context), page_tables(allocator, &child));
        let shared = tables.share(
            &to,
            range(GIB, 4 * MIB),
            range(GIB, 4 * MIB),
            CopyMode::Private,
            &mut owed,
            &mut rss,
        );
        owed.flush(allocator, context);
        let mut gather = MmuGather::new(allocator, &child);
        let part = range(GIB + MIB, 2 * MIB);
        let done = shared
            .and_then(|()| to.protect(part, Protection::READ, GrantWrite::Exclusive, &mut owed))
            .and_then(|()| to.mark_lazy_free(part, &mut owed).map(drop))
            .and_then(|()| to.unmap(&Zap::tables(part, part), &mut gather));
        gather.finish();
        owed.flush(allocator, &child);
        Tables::destroy(allocator, child);
        tables.unshare(range(GIB, 8 * MIB)).expect("no other sharer is left");
        done
    }),
    ("move to another alignment", |allocator, context| {
        let mut owed = FlushBatch::new();
        let (from, to) = (range(GIB, 8 * MIB), VirtAddr(700 * GIB + 4096));
        let tables = page_tables(allocator, context);
        let moved = tables.move_range(from, to, &mut owed).map_err(|error| {
            // Moving the part back needs no memory.
            let back = range(to.0, error.moved);
            tables.move_range(back, from.start, &mut owed).expect("moving back failed");
            error.error
        });
        owed.flush(allocator, context);
        moved
    }),
];

/// Runs a verb with its `n`-th allocation failing; `None` when it makes fewer.
fn attempt(verb: Verb, zap: ZapStrategy, n: u64) -> Option<()> {
    let mut asked = false;
    with_space_of(small_machine(), zap, |machine, allocator, context| {
        populate(machine, allocator, context, range(GIB, 4 * MIB), order(3));
        populate_large(machine, allocator, context, VirtAddr(GIB + 4 * MIB));
        populate_large(machine, allocator, context, VirtAddr(GIB + 6 * MIB));
        running(machine, context, &[0, 1], || {
            let (before, pages) = (check(allocator, context), pages(machine, context));
            machine.set_failures(FailurePlan::Nth(n));
            let outcome = verb(allocator, context);
            asked = machine.allocations_failed() > 0;
            machine.set_failures(FailurePlan::Off);
            let after = check(allocator, context);
            if let Err(error) = outcome {
                assert!(asked && error == MapError::OutOfMemory, "{error:?}");
                assert_eq!(before.resident, after.resident);
                let same = crate::pgtable::support::pages(machine, context) == pages;
                assert!(same, "a failed verb changed what is mapped");
            }
        });
    });
    asked.then_some(())
}

#[test]
fn every_verb_survives_every_failed_allocation() {
    for zap in ZapStrategy::ALL {
        for (name, verb) in VERBS {
            let failures = (0..).take_while(|&n| attempt(*verb, zap, n).is_some()).count();
            println!("{name}, {zap:?}: {failures} allocations");
            assert!(failures > 0, "{name} asks for no memory");
        }
    }
}

/// Scattered frames fill the gather's own array at once; without memory for more it flushes more often.
#[test]
fn a_gather_without_memory_flushes_more_often() {
    for (plan, flushes) in [(FailurePlan::Off, 1), (FailurePlan::From(0), 16)] {
        with_space(small_machine(), |machine, allocator, context| {
            let tables = page_tables(allocator, context);
            let all = range(GIB, 2 * MIB);
            let frames =
                (0..1024).map(|_| folio(machine, allocator, Order::FRAME).unwrap()).collect::<Vec<_>>();
            for (at, pair) in frames.chunks(2).enumerate() {
                tables
                    .map_raw(VirtAddr(GIB + at as u64 * 4096), FrameRange::new(pair[0], 1), written())
                    .unwrap();
            }
            let mut runs = 0;
            tables.runs(all, |_| runs += 1);
            assert!(runs > 500, "the frames are not scattered: {runs} runs");
            running(machine, context, &[0], || {
                machine.reset_counters();
                machine.set_failures(plan);
                let mut gather = MmuGather::new(allocator, context);
                tables.unmap(&Zap::leaves(all), &mut gather).unwrap();
                assert_eq!(gather.finish().anon, -512);
                machine.set_failures(FailurePlan::Off);
                assert_eq!(machine.counters().flushes_local, flushes);
            });
            frames.chunks(2).for_each(|pair| allocator.free_raw(pair[1], Order::FRAME).unwrap());
        });
    }
}

/// A folio of whole blocks has no slot for the counts of its frames until a small leaf maps one of them.
/// Without memory for the slot the old leaf stays.
#[test]
fn a_replacement_makes_room_for_counts_or_leaves_the_old_leaf() {
    with_space(small_machine(), |machine, allocator, context| {
        let (tables, addr) = (page_tables(allocator, context), VirtAddr(GIB));
        let old = populate(machine, allocator, context, range(addr.0, 4096), Order::FRAME)[0];
        let new = folio(machine, allocator, BLOCK).unwrap().add(5);
        let expected = tables.lookup(addr).entry;
        let replace = || {
            let mut gather = MmuGather::new(allocator, context);
            let leaf = Entry::leaf(new, PageSize::Size4K, written());
            let replaced = tables.replace_raw(addr, PageSize::Size4K, expected, leaf, &mut gather);
            gather.finish();
            replaced
        };
        machine.set_failures(FailurePlan::From(0));
        let refused = replace();
        machine.set_failures(FailurePlan::Off);
        assert_eq!((refused, tables.lookup(addr).entry), (Err(MapError::OutOfMemory), expected));
        assert_eq!([old, new].map(|frame| allocator.counts().mapcount(frame)), [1, 0]);
        assert_eq!((replace(), tables.lookup(addr).entry.frame()), (Ok(true), new));
        assert_eq!([old, new].map(|frame| allocator.counts().mapcount(frame)), [0, 1]);
    });
}
