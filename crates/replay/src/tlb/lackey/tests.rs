use super::*;
use crate::tlb::Leaves;
use crate::tlb::backing::Kind;

/// All that is read from a line.
fn parse(line: &[u8]) -> Option<(Access, u64, u64)> {
    let (access, (addr, bytes)) = kind(line).zip(place(line))?;
    Some((access, addr, bytes))
}

#[test]
fn lines_are_read_and_all_else_is_left() {
    assert_eq!(parse(b"I  0401ab73,5"), Some((Access::Fetch, 0x0401_ab73, 5)));
    assert_eq!(parse(b" S 1fff000748,8"), Some((Access::Store, 0x1f_ff00_0748, 8)));
    assert_eq!(parse(b" L 04032e40,16"), Some((Access::Load, 0x0403_2e40, 16)));
    assert_eq!(parse(b" M 04033e06,1"), Some((Access::Load, 0x0403_3e06, 1)));
    let others: [&[u8]; 8] =
        [b"", b"I", b"I  ", b"==12== Lackey", b" L xyz,8", b" L 10", b" X 10,8", b" L 11112222333344445,8"];
    for other in others {
        assert_eq!(parse(other), None, "{}", String::from_utf8_lossy(other));
    }
}

#[test]
fn lines_may_be_cut_anywhere() {
    let text = b"==1== x\nI  1000,4\n L 1ffc,8\nI  1004,4\n S 5000,4\n";
    let processor = Processor::assumed("GenuineIntel");
    let anonymous = Leaves { large: true, grouped: true };
    let large = Backing { anonymous, ..Backing::default() };
    let backings = [Backing::default(), large, Backing::default()];
    let run = |cuts: &[usize]| {
        let mut models = Models::new(&processor, &backings, std::process::id());
        assert_eq!(models.models.len(), 2, "the same backings have one model");
        let (mut buffer, mut kept, mut from) = ([0; 40], 0, 0);
        for to in cuts.iter().copied().chain([text.len()]) {
            for piece in text[from..to].chunks(20) {
                buffer[kept..kept + piece.len()].copy_from_slice(piece);
                kept = models.lines(&mut buffer, kept + piece.len());
            }
            from = to;
        }
        assert_eq!(kept, 0);
        models.end(false)
    };
    let whole = run(&[]);
    // The load crosses into a second page. No mapping is there, so that no page is large. What is loaded where
    // instructions were fetched hits the second level.
    let counts = Counts { second: 1, walks: 2, fetch_second: 0, fetch_walks: 1 };
    assert_eq!(whole, Run { accesses: 3, fetches: 2, counts: vec![counts; 3], cut: false, sampled: None });
    for cut in 1..text.len() {
        assert_eq!(run(&[cut]), whole, "cut at {cut}");
    }
}

#[test]
fn the_counts_of_windows_stand_for_all() {
    let processor = Processor::assumed("GenuineIntel");
    let mut models = Models::new(&processor, &[Backing::default()], std::process::id());
    models.windows = Windows::of(64, 4);
    // Each load is of another page, and each fetch of the same one.
    let mut lines = String::new();
    for load in 0..4000_u64 {
        lines += &format!("I  1000,4\n L {:x},8\n", (1 << 32) + load * 4096);
    }
    let mut bytes = lines.into_bytes();
    let filled = bytes.len();
    assert_eq!(models.lines(&mut bytes, filled), 0);
    let run = models.end(false);
    assert_eq!((run.accesses, run.fetches), (4000, 4000), "all are counted");
    assert_eq!(run.counts[0].walks, 4000, "{run:?}");
    let sampled = run.sampled.expect("not all went through");
    assert!((2..=5).contains(&sampled.windows) && sampled.share < 0.1, "{sampled:?}");
    assert_eq!(sampled.walks_per_thousand, [(1000.0, 1000.0)]);
}

/// A fault decides by what is mapped then, also where its access goes through no model.
#[test]
fn a_range_that_is_first_accessed_between_windows_has_its_kind_from_then_on() {
    let processor = Processor::assumed("GenuineIntel");
    let mut models = Models::new(&processor, &[Backing::default()], std::process::id());
    models.windows = Windows::of(64, 4);
    let load = |models: &mut Models<'_>, addr: u64| {
        let mut line = format!(" L {addr:x},8\n").into_bytes();
        let (filled, through) = (line.len(), models.through.0);
        models.lines(&mut line, filled);
        models.through.0 > through
    };
    // All of the first windows goes through. Then there is a gap, longer than one access.
    (0..2000).for_each(|_| _ = load(&mut models, 1 << 32));
    assert!((0..10_000).any(|_| !load(&mut models, 1 << 32)), "there is a gap");
    let memory = memmap2::MmapMut::map_anon(6 << 20).expect("memory");
    let inside = (memory.as_ptr() as u64).next_multiple_of(2 << 20);
    assert!(!load(&mut models, inside));
    drop(memory);
    assert!(models.ranges.kind(inside) != Kind::Other);
}
