use quire::addr::VirtAddr;

use super::*;

const ROOT: Frame = Frame(1);

fn loaded() -> (CpuTlb, Reach) {
    let (mut tlb, reach) = (CpuTlb::default(), Reach::new(1 << 20));
    tlb.load_root(&reach, Some(ROOT));
    (tlb, reach)
}

fn leaf(frame: u64, level: u32) -> Leaf {
    Leaf { frame, level, rights: Rights::ALL, dirty: false }
}

fn range(start: u64, len: u64, stride: u64) -> FlushRequest {
    let range = VirtRange::from_len(VirtAddr(start), len);
    FlushRequest { root: ROOT, extent: FlushExtent::Range { range, stride }, tables: false }
}

/// Both ways to carry out a range flush (page by page, and entry by entry) against the definition.
#[test]
fn a_range_flush_drops_exactly_what_its_steps_hit() {
    const K: u64 = 4096;
    const M: u64 = 512 * K;
    let starts = [0, K, 3 * K, M - K, M, 2 * M - K, 5 * M];
    let lens = [K, 2 * K, M, M + K, 3 * M, 9 * M];
    for stride in [K, M] {
        for (start, len) in starts.iter().flat_map(|&start| lens.map(|len| (start, len))) {
            for crowd in [0, 2_500] {
                let (mut tlb, reach) = loaded();
                let mut entries = (0..8).map(|at| (at * M, 2)).collect::<Vec<_>>();
                entries.extend([0, K, 2 * K, M - K, M, M + K, 5 * M + K].map(|addr| (addr, 1)));
                entries.extend((0..crowd).map(|at| ((1 << 40) + at * K, 1)));
                for (at, &(addr, level)) in entries.iter().enumerate() {
                    tlb.fill_leaf(&reach, addr, leaf(at as u64, level));
                }
                tlb.flush(&reach, &range(start, len, stride));
                for (addr, level) in entries {
                    let hit = (start..start + len).step_by(stride as usize);
                    let goes = hit.into_iter().any(|hit| hit >> shift(level) == addr >> shift(level));
                    let there = tlb.entries.leaves[level as usize - 1].contains_key(&(addr >> shift(level)));
                    assert_eq!(
                        there, !goes,
                        "{addr:#x} level {level}, flush {start:#x}+{len:#x}/{stride:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn whatever_is_dropped_is_reached_no_more() {
    let (mut tlb, reach) = loaded();
    let everything = FrameRange::new(Frame(0), 1 << 20);
    let whole = FlushRequest { root: ROOT, extent: FlushExtent::AddressSpace, tables: false };
    let drops: [&dyn Fn(&mut CpuTlb); 3] = [
        &|tlb| tlb.flush(&reach, &whole),
        &|tlb| tlb.flush(&reach, &FlushRequest { tables: true, ..range(0, 1 << 30, 4096) }),
        &|tlb| (0..2).for_each(|at| tlb.forget(&reach, at << 21)),
    ];
    for drop in drops {
        tlb.fill_leaf(&reach, 0, leaf(100, 1));
        tlb.fill_leaf(&reach, 0, leaf(101, 1));
        tlb.fill_leaf(&reach, 1 << 21, leaf(512, 2));
        tlb.fill_table(&reach, 0, 1, Table { frame: 7, rights: Rights::ALL });
        tlb.fill_table(&reach, 0, 3, Table { frame: 8, rights: Rights::ALL });
        let mut found = Vec::new();
        tlb.reaching(&reach, CpuId(0), everything, &mut found);
        assert_eq!(found.len(), 5, "{found:?}");
        drop(&mut tlb);
        found.clear();
        tlb.reaching(&reach, CpuId(0), everything, &mut found);
        assert_eq!(found, [Violation::FreedRoot { cpu: CpuId(0), root: ROOT }]);
        assert!(!reach.may_reach(FrameRange::new(Frame(2), (1 << 20) - 2)));
    }
    tlb.load_root(&reach, None);
    assert!(!reach.may_reach(everything));
}

#[test]
fn another_address_space_is_not_flushed_and_leaves_with_its_root() {
    let (mut tlb, reach) = loaded();
    tlb.fill_leaf(&reach, 0, leaf(100, 1));
    tlb.flush(&reach, &FlushRequest { root: Frame(2), ..range(0, 4096, 4096) });
    assert_eq!(tlb.lookup(0), Some(leaf(100, 1)));
    tlb.load_root(&reach, Some(ROOT));
    assert_eq!(tlb.lookup(0), Some(leaf(100, 1)), "loading the root that is loaded keeps what is cached");
    tlb.load_root(&reach, Some(Frame(2)));
    tlb.load_root(&reach, Some(ROOT));
    assert_eq!(tlb.lookup(0), None);
}

#[test]
fn a_range_flush_keeps_pointers_to_tables_unless_told() {
    let (mut tlb, reach) = loaded();
    let table = Table { frame: 9, rights: Rights::ALL };
    tlb.fill_table(&reach, 0, 1, table);
    tlb.flush(&reach, &range(0, 1 << 21, 4096));
    assert_eq!(tlb.deepest_table(4096), Some((1, table)));
    tlb.flush(&reach, &FlushRequest { tables: true, ..range(1 << 21, 1 << 21, 4096) });
    assert_eq!(tlb.deepest_table(4096), Some((1, table)));
    tlb.flush(&reach, &FlushRequest { tables: true, ..range(8192, 4096, 4096) });
    assert_eq!(tlb.deepest_table(4096), None);
}

/// No flush reaches what a CPU kept, and what was freed meanwhile is noticed when it is loaded.
#[test]
fn what_is_kept_is_checked_when_it_is_loaded() {
    const OTHER: Frame = Frame(2);
    let frame = |number| FrameRange::new(Frame(number), 1);
    for (freed, by_keeping, noticed) in
        [(None, true, false), (Some(100), true, true), (Some(100), false, false), (Some(101), true, false)]
    {
        let (mut tlb, reach) = (CpuTlb::new(true), Reach::new(1 << 20));
        tlb.load_root(&reach, Some(ROOT));
        tlb.fill_leaf(&reach, 0, leaf(100, 1));
        tlb.load_root(&reach, Some(OTHER));
        tlb.flush(&reach, &FlushRequest { root: ROOT, extent: FlushExtent::AddressSpace, tables: true });
        assert_eq!(tlb.lookup(0), None);
        assert!(reach.may_reach(frame(100)), "it is kept");
        let mut found = Vec::new();
        freed.iter().for_each(|&number| tlb.reaching(&reach, CpuId(0), frame(number), &mut found));
        assert_eq!(found, [], "the CPU can't use it now");
        let violation = if by_keeping {
            tlb.load_kept_root(&reach, ROOT)
        } else {
            tlb.load_root(&reach, Some(ROOT));
            None
        };
        assert_eq!(violation.is_some(), noticed, "{freed:?}");
        assert_eq!(tlb.load_kept_root(&reach, ROOT), None, "once");
        let stays = by_keeping && !noticed;
        assert_eq!((tlb.lookup(0).is_some(), reach.may_reach(frame(100))), (stays, stays));
        tlb.load_root(&reach, None);
        tlb.load_root(&reach, Some(ROOT));
        tlb.load_root(&reach, Some(OTHER));
        assert!(!reach.may_reach(frame(100)));
    }
}
