use super::*;

const FILE: FileId = FileId(7);

fn files(bytes: u64) -> SyntheticFiles {
    let files = SyntheticFiles::new();
    files.set_size(FILE, bytes);
    files
}

#[test]
fn contents_are_a_function_of_file_and_offset_and_end_in_zeroes() {
    let (one, two) = (files(10_000), files(10_000));
    for page in 0..3 {
        let (mut a, mut b) = ([1; PAGE], [2; PAGE]);
        one.read(FILE, page, &mut a).unwrap();
        two.read(FILE, page, &mut b).unwrap();
        assert_eq!(a, b);
        for (at, &byte) in a.iter().enumerate() {
            let offset = page * FRAME_SIZE + at as u64;
            let expected = if offset < 10_000 { SyntheticFiles::pristine_byte(FILE, offset) } else { 0 };
            assert_eq!(byte, expected, "offset {offset}");
        }
    }
    assert_eq!(one.counters(), FileCounters { reads: 3, writes: 0 });
    let (mut a, mut b) = ([0; PAGE], [0; PAGE]);
    one.set_size(FileId(8), 4096);
    one.read(FILE, 0, &mut a).unwrap();
    one.read(FileId(8), 0, &mut b).unwrap();
    assert_ne!(a, b);
}

#[test]
fn what_lies_behind_the_end_is_refused() {
    let files = files(4097);
    let mut page = [0; PAGE];
    assert_eq!(files.read(FILE, 2, &mut page), Err(PagerError::BeyondEnd));
    assert_eq!(files.read(FILE, u64::MAX, &mut page), Err(PagerError::BeyondEnd));
    assert_eq!(files.read(FileId(1), 0, &mut page), Err(PagerError::BeyondEnd));
    assert_eq!(files.write(FILE, 2, &page), Err(PagerError::Io));
    assert_eq!(files.counters(), FileCounters::default());
}

#[test]
fn what_was_written_back_is_read_again_until_the_file_is_cut() {
    let files = files(8192);
    let mut page = [0; PAGE];
    files.write(FILE, 1, &[9; PAGE]).unwrap();
    files.read(FILE, 1, &mut page).unwrap();
    assert_eq!(page, [9; PAGE]);
    assert_eq!(files.written_pages(FILE), [(1, vec![9; PAGE])]);
    assert_eq!(files.written_page(FILE, 1), Some([9; PAGE]));
    assert_eq!(files.written_page(FILE, 0), None);
    files.set_size(FILE, 4100);
    files.read(FILE, 1, &mut page).unwrap();
    assert_eq!((&page[..4], &page[4..]), (&[9; 4][..], &[0; PAGE - 4][..]));
    files.set_size(FILE, 4096);
    assert!(files.written_pages(FILE).is_empty());
}

#[test]
fn failures_come_as_planned() {
    let files = files(8192);
    let mut page = [0; PAGE];
    files.set_read_failures(FailurePlan::Nth(1));
    let reads = [(); 3].map(|()| files.read(FILE, 0, &mut page));
    assert_eq!(reads, [Ok(()), Err(PagerError::Io), Ok(())]);
    files.set_write_failures(FailurePlan::From(0));
    assert_eq!(files.write(FILE, 0, &page), Err(PagerError::Io));
    assert!(files.written_pages(FILE).is_empty());
}

#[test]
fn a_read_asks_for_no_size() {
    let files = files(4096);
    let asked = std::sync::Arc::new(AtomicU64::new(0));
    let hook = asked.clone();
    files.set_slow_sizes(move || {
        hook.fetch_add(1, Ordering::Relaxed);
    });
    files.read(FILE, 0, &mut [0; PAGE]).unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert_eq!((files.size(FILE), asked.load(Ordering::Relaxed)), (4096, 1));
}
