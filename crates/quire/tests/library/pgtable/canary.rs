//! Each verb that must flush, with its flushes lost: the modelled TLBs must show it, or this suite could not
//! tell a correct library from one that never flushes (invariant 2).

use hosted::raw::RawTables;
use hosted::{FailurePlan, Hosted, HostedConfig, OnViolation};
use quire::addr::{Order, PageSize, VirtAddr};
use quire::arch::{Entry, EntryFlags, Protection};
use quire::cpu::CpuId;
use quire::pgtable::{CopyMode, GrantWrite, Zap};
use quire::tlb::{FlushBatch, MmContext, MmuGather, RssChange, ZapStrategy};

use crate::pgtable::support::*;
use testkit::order;

const AT: VirtAddr = VirtAddr(GIB);

/// A verb on the 4 MiB at `AT`. Returns whether CPU 1 then could do what it must not.
type Verb = fn(&Hosted, &Allocator<'_>, &MmContext) -> bool;

const VERBS: &[(&str, Verb)] = &[
    ("unmap whole tables", |_, allocator, context| {
        unmap_all(allocator, context, range(AT.0, 4 * MIB));
        false
    }),
    ("unmap leaves", |_, allocator, context| {
        let mut gather = MmuGather::new(allocator, context);
        page_tables(allocator, context).unmap(&Zap::leaves(range(AT.0, 4 * MIB)), &mut gather).unwrap();
        gather.finish();
        false
    }),
    ("protect", |machine, allocator, context| {
        let mut owed = FlushBatch::new();
        let tables = page_tables(allocator, context);
        tables.protect(range(AT.0, 4 * MIB), Protection::READ, GrantWrite::Never, &mut owed).unwrap();
        owed.flush(allocator, context);
        store(machine)
    }),
    ("copy", |machine, allocator, context| {
        let child = Tables::create(allocator, context.mode()).unwrap();
        let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
        page_tables(allocator, context)
            .copy(
                &page_tables(allocator, &child),
                range(AT.0, 4 * MIB),
                CopyMode::Private,
                &mut owed,
                &mut rss,
            )
            .unwrap();
        owed.flush(allocator, context);
        let stored = store(machine);
        Tables::destroy(allocator, child);
        stored
    }),
    ("share", |machine, allocator, context| {
        let child = Tables::create(allocator, context.mode()).unwrap();
        share(allocator, context, &child);
        let stored = store(machine);
        Tables::destroy(allocator, child);
        stored
    }),
    ("leave a shared table", |machine, allocator, context| {
        let child = Tables::create(allocator, context.mode()).unwrap();
        share(allocator, context, &child);
        // The child exits last, and frees tables that the parent's CPUs may still walk.
        reload(machine);
        page_tables(allocator, context).unshare(range(AT.0, 4 * MIB)).unwrap();
        Tables::destroy(allocator, child);
        false
    }),
    ("move", |machine, allocator, context| {
        let mut owed = FlushBatch::new();
        let tables = page_tables(allocator, context);
        tables.move_range(range(AT.0, 4 * MIB), VirtAddr(3 * GIB), &mut owed).unwrap();
        owed.flush(allocator, context);
        store(machine)
    }),
    ("move leaves", |machine, allocator, context| {
        let mut owed = FlushBatch::new();
        let tables = page_tables(allocator, context);
        tables.move_range(range(AT.0, 4 * MIB), VirtAddr(3 * GIB + 4096), &mut owed).unwrap();
        owed.flush(allocator, context);
        store(machine)
    }),
    ("replace", |machine, allocator, context| {
        let tables = page_tables(allocator, context);
        let new = folio(machine, allocator, Order::FRAME).unwrap();
        let mut gather = MmuGather::new(allocator, context);
        let leaf = Entry::leaf(new, PageSize::Size4K, written());
        let old = tables.lookup(AT).entry;
        tables.replace_raw(AT, PageSize::Size4K, old, leaf, &mut gather).unwrap();
        gather.finish();
        false
    }),
    ("collapse", |_, allocator, context| {
        assert_eq!(page_tables(allocator, context).collapse(AT.add(2 * MIB)), Ok(true));
        false
    }),
    ("clear soft-dirty", |machine, allocator, context| {
        let mut owed = FlushBatch::new();
        page_tables(allocator, context).clear_soft_dirty(range(AT.0, 4 * MIB), &mut owed).unwrap();
        owed.flush(allocator, context);
        store(machine)
    }),
    ("mark for a handler", |machine, allocator, context| {
        let mut owed = FlushBatch::new();
        page_tables(allocator, context).mark_write_protected(range(AT.0, 4 * MIB), &mut owed).unwrap();
        owed.flush(allocator, context);
        store(machine)
    }),
    ("mark lazy free", |machine, allocator, context| {
        let mut owed = FlushBatch::new();
        let tables = page_tables(allocator, context);
        tables.mark_lazy_free(range(AT.0, 4 * MIB), &mut owed).unwrap();
        owed.flush(allocator, context);
        store(machine) && !tables.lookup(AT).entry.has(EntryFlags::DIRTY)
    }),
];

fn share(allocator: &Allocator<'_>, context: &MmContext, child: &MmContext) {
    let (mut owed, mut rss) = (FlushBatch::new(), RssChange::default());
    let (from, to, all) =
        (page_tables(allocator, context), page_tables(allocator, child), range(AT.0, 4 * MIB));
    from.share(&to, all, all, CopyMode::Private, &mut owed, &mut rss).unwrap();
    owed.flush(allocator, context);
    assert_eq!(rss.anon, 1024);
}

/// CPU 1 reads everything, so that it caches how the tables are reached now.
fn reload(machine: &Hosted) {
    for addr in (AT.0..AT.0 + 4 * MIB).step_by(4096) {
        machine.run_on(CpuId(1), || machine.read(VirtAddr(addr), &mut [0]).unwrap());
    }
}

fn store(machine: &Hosted) -> bool {
    machine.run_on(CpuId(1), || machine.write(AT, &[7]).is_ok())
}

/// Runs one verb while CPUs 0 and 1 have all of the range cached. Returns whether something was wrong
/// afterwards.
fn is_caught(verb: Verb, zap: ZapStrategy, plan: FailurePlan) -> bool {
    let mut caught = false;
    let config = HostedConfig { on_violation: OnViolation::Record, ..small_machine() };
    with_space_of(config, zap, |machine, allocator, context| {
        populate(machine, allocator, context, range(AT.0, 2 * MIB), order(2));
        populate(machine, allocator, context, range(AT.0 + 2 * MIB, 2 * MIB), BLOCK);
        running(machine, context, &[0, 1], || {
            for addr in (AT.0..AT.0 + 4 * MIB).step_by(4096) {
                machine.run_on(CpuId(1), || machine.write(VirtAddr(addr), &[1]).unwrap());
            }
            machine.lose_flushes(plan);
            caught = verb(machine, allocator, context);
            machine.lose_flushes(FailurePlan::Off);
        });
        caught |= machine.violation_count() > 0;
    });
    caught
}

#[test]
fn a_lost_flush_is_caught_and_a_made_one_is_not() {
    for zap in ZapStrategy::ALL {
        for (name, verb) in VERBS {
            assert!(!is_caught(*verb, zap, FailurePlan::Off), "{name}, {zap:?}");
            assert!(
                is_caught(*verb, zap, FailurePlan::From(0)),
                "{name}, {zap:?}: lost flushes went unnoticed"
            );
        }
    }
}
