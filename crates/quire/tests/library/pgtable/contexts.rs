//! What one address space owes is flushed by its own context only (invariants 2 and W6). Debug builds check it.

use quire::addr::{Order, VirtAddr, VirtRange};
use quire::arch::{PagingMode, Protection};
use quire::limits::FRAME_SIZE;
use quire::pgtable::{GrantWrite, Zap};
use quire::tlb::{FlushBatch, MmuGather};
use testkit::panic_message;

use super::support::*;

const PART: VirtRange = VirtRange { start: VirtAddr(MIB), end: VirtAddr(MIB + 8 * FRAME_SIZE) };

/// A gather for one address space is refused by the tables of another, and nothing is unmapped (invariant W6).
#[test]
fn a_gather_of_another_address_space_is_refused() {
    with_space(small_machine(), |machine, allocator, context| {
        populate(machine, allocator, context, PART, Order::FRAME);
        let other = Tables::create(allocator, PagingMode::FourLevel).unwrap();
        let message = panic_message(|| {
            let mut gather = MmuGather::new(allocator, &other);
            page_tables(allocator, context).unmap(&Zap::leaves(PART), &mut gather)
        });
        assert!(message.contains("create it with the context of the tables"), "{message}");
        assert_eq!(check(allocator, context).resident.anon, 8);
        Tables::destroy(allocator, other);
    });
}

/// A batch that owes a flush of one address space is neither flushed with another's context nor filled by
/// another's tables (invariant W6). Once it is flushed, it serves any.
#[test]
fn a_batch_of_another_address_space_is_refused() {
    with_space(small_machine(), |machine, allocator, context| {
        populate(machine, allocator, context, PART, Order::FRAME);
        let other = Tables::create(allocator, PagingMode::FourLevel).unwrap();
        populate(machine, allocator, &other, PART, Order::FRAME);
        let mut owed = FlushBatch::new();
        let protect = |context, owed: &mut FlushBatch| {
            let tables = page_tables(allocator, context);
            tables.protect(PART, Protection::READ, GrantWrite::Never, owed).unwrap();
        };
        protect(context, &mut owed);
        let wrong =
            [panic_message(|| owed.flush(allocator, &other)), panic_message(|| protect(&other, &mut owed))];
        for message in wrong {
            assert!(message.contains("use a batch for each address space"), "{message}");
        }
        owed.flush(allocator, context);
        protect(&other, &mut owed);
        owed.flush(allocator, &other);
        Tables::destroy(allocator, other);
    });
}
