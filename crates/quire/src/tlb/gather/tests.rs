use super::*;

fn shown(span: Span) -> (u64, u64, Option<PageSize>) {
    match span.content() {
        Content::Leaves { frames, size, .. } => (frames.start.0, frames.count, Some(size)),
        Content::Table { frame, level } => (frame.0, level.get().into(), None),
        Content::Busy { table, index } => (table.0, index as u64, None),
    }
}

#[test]
fn spans_keep_what_they_were_made_of() {
    let top = Frame((1 << 34) - 1);
    for size in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
        for anon in [false, true] {
            let span = Span::leaves(Frame(1 << 33), 512, size, anon);
            assert_eq!(shown(span), (1 << 33, 512 * size.frames(), Some(size)));
            assert!(matches!(span.content(), Content::Leaves { anon: found, .. } if found == anon));
        }
    }
    for level in [Level::PTE, Level::PMD, Level::PUD, Level::P4D, Level::PGD] {
        assert!(matches!(Span::table(top, level).content(), Content::Table { .. }));
        assert_eq!(shown(Span::table(top, level)), (top.0, level.get().into(), None));
    }
    assert!(matches!(Span::busy(top, 511).content(), Content::Busy { index: 511, .. }));
}

#[test]
fn only_neighbours_of_a_kind_become_one_span() {
    let small = |frame, leaves, anon| Span::leaves(Frame(frame), leaves, PageSize::Size4K, anon);
    let merged = |one: Span, other| one.merged(other).map(shown);
    assert_eq!(merged(small(100, 8, true), small(108, 4, true)), Some((100, 12, Some(PageSize::Size4K))));
    assert_eq!(merged(small(100, 8, true), small(108, 4, false)), None);
    assert_eq!(merged(small(100, 8, true), small(109, 4, true)), None);
    assert_eq!(
        merged(small(100, COUNT_MAX, true), small(100 + COUNT_MAX, 1, true)),
        None,
        "the count is full"
    );
    let large = Span::leaves(Frame(512), 1, PageSize::Size2M, true);
    assert_eq!(
        merged(large, Span::leaves(Frame(1024), 2, PageSize::Size2M, true)),
        Some((512, 1536, Some(PageSize::Size2M)))
    );
    assert_eq!(merged(large, small(1024, 1, true)), None);
    assert_eq!(merged(Span::table(Frame(1), Level::PTE), Span::table(Frame(1), Level::PTE)), None);
    assert_eq!(merged(Span::busy(Frame(1), 1), Span::busy(Frame(2), 1)), None);
}
