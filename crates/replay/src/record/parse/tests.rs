use super::*;

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut record = kind.to_le_bytes().to_vec();
    record.extend(misc.to_le_bytes());
    record.extend((body.len() as u16 + 8).to_le_bytes());
    record.extend(body);
    record
}

fn trailer() -> Vec<u8> {
    [&7u32.to_le_bytes()[..], &8u32.to_le_bytes(), &900u64.to_le_bytes(), &1u64.to_le_bytes()].concat()
}

#[test]
fn a_mapping_of_a_file() {
    let words: [u64; 2] = [0x1000, 0x2000];
    let mut body = [7u32, 8].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    body.extend(0x3000u64.to_le_bytes());
    body.extend([8u32, 1].iter().flat_map(|word| word.to_le_bytes()));
    body.extend([55u64, 0].iter().flat_map(|word| word.to_le_bytes()));
    body.extend([5u32, 2].iter().flat_map(|word| word.to_le_bytes()));
    body.extend(*b"/lib/x\0\0");
    body.extend(trailer());
    let parser = Parser::new(HashMap::new(), None);
    let raw = parser.record(&record(PERF_RECORD_MMAP2, 0, &body)).expect("a mapping");
    assert_eq!((raw.pid, raw.tid, raw.time_ns), (7, 8, 900));
    let RawKind::Mapping(mapping) = raw.kind else { panic!("{raw:?}") };
    assert_eq!((mapping.start, mapping.len, mapping.offset), (0x1000, 0x2000, 0x3000));
    assert_eq!((mapping.device, mapping.inode), (8 << 32 | 1, 55));
    assert_eq!((mapping.prot, mapping.flags, mapping.name.as_str()), (5, 2, "/lib/x"));
}

#[test]
fn a_resolved_fault_by_its_event_number() {
    let parser = Parser::new(HashMap::from([(3, Source::Major)]), None);
    let body = [3u64, 8 << 32 | 7, 900, 0xabc].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let raw = parser.record(&record(PERF_RECORD_SAMPLE, 0, &body)).expect("a sample");
    assert!(matches!(raw.kind, RawKind::Resolved { addr: 0xabc, major: true }), "{raw:?}");
    assert_eq!((raw.pid, raw.tid, raw.time_ns), (7, 8, 900));
}

#[test]
fn a_lock_by_its_address_space() {
    let fields = Fields { locked_mm: Field { offset: 8, size: 8 }, ..Fields::default() };
    let parser = Parser::new(HashMap::from([(3, Source::Locked)]), Some(fields));
    let mut body = [3u64, 8 << 32 | 7, 900].iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    body.extend(24u32.to_le_bytes());
    body.extend([0, 0xffff_8880_0000_1000u64, 0x0100].iter().flat_map(|word| word.to_le_bytes()));
    let raw = parser.record(&record(PERF_RECORD_SAMPLE, 0, &body)).expect("a sample");
    assert!(matches!(raw.kind, RawKind::Locked { mm: 0xffff_8880_0000_1000 }), "{raw:?}");
}

#[test]
fn short_and_unknown_records_are_left_out() {
    let parser = Parser::new(HashMap::new(), None);
    assert!(parser.record(&record(PERF_RECORD_COMM, 0, &[0; 4])).is_none());
    assert!(parser.record(&record(4711, 0, &trailer())).is_none());
    assert!(parser.record(&[0; 3]).is_none());
}
