use super::*;

fn leaves(frame: u64, count: u64, size: PageSize, anon: bool) -> Leaves {
    let frames = FrameRange::new(Frame(frame), count * size.frames());
    Leaves { frames, size, anon, contents: Contents::Unknown }
}

fn shown(span: Span) -> (u64, u64, Option<PageSize>) {
    match span.content() {
        Content::Leaves(Leaves { frames, size, .. }) => (frames.start.0, frames.count, Some(size)),
        Content::Table { frame, level } => (frame.0, level.get().into(), None),
        Content::Busy { table, index } => (table.0, index as u64, None),
    }
}

#[test]
fn spans_keep_what_they_were_made_of() {
    let top = Frame((1 << 34) - 1);
    for size in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
        for anon in [false, true] {
            for contents in [Contents::Unknown, Contents::Zeroed] {
                let run = Leaves { contents, ..leaves(1 << 33, 512, size, anon) };
                assert!(matches!(Span::leaves(run).content(), Content::Leaves(found) if found == run));
            }
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
    let small = |frame, count, anon| Span::leaves(leaves(frame, count, PageSize::Size4K, anon));
    let merged = |one: Span, other| one.merged(other).map(shown);
    assert_eq!(merged(small(100, 8, true), small(108, 4, true)), Some((100, 12, Some(PageSize::Size4K))));
    assert_eq!(merged(small(100, 8, true), small(108, 4, false)), None);
    assert_eq!(merged(small(100, 8, true), small(109, 4, true)), None);
    assert_eq!(
        merged(small(100, COUNT_MAX, true), small(100 + COUNT_MAX, 1, true)),
        None,
        "the count is full"
    );
    let large = Span::leaves(leaves(512, 1, PageSize::Size2M, true));
    assert_eq!(
        merged(large, Span::leaves(leaves(1024, 2, PageSize::Size2M, true))),
        Some((512, 1536, Some(PageSize::Size2M)))
    );
    assert_eq!(merged(large, small(1024, 1, true)), None);
    let zeroed = Leaves { contents: Contents::Zeroed, ..leaves(1024, 1, PageSize::Size2M, true) };
    assert_eq!(merged(large, Span::leaves(zeroed)), None, "one is known to be zero, the other is not");
    assert_eq!(merged(Span::table(Frame(1), Level::PTE), Span::table(Frame(1), Level::PTE)), None);
    assert_eq!(merged(Span::busy(Frame(1), 1), Span::busy(Frame(2), 1)), None);
}
