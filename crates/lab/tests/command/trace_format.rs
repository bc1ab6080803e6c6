//! The trace format: what is written is read back, and damage of any kind is an error, never a panic.

use std::path::Path;

use lab::trace::{
    Access, Accesses, Call, Clock, Event, EventKind, FaultKinds, FileId, ForkKind, Header, Limits, MapCause,
    Overcommit, PathId, PopulateCause, Program, Region, Syscall, Tier, Totals, TraceError, TraceReader,
    TraceWriter, VERSION,
};
use proptest::prelude::*;
use proptest::sample::select;

const PATHS: [&str; 4] = ["/usr/bin/true", "", "/tmp/a b\u{fc}", "[heap]"];
const TOTALS: Totals = Totals { lost: 3, wall_ns: 99, kernel_faults: 12 };

const LIMITS: Limits = Limits {
    mappings: 65_530,
    overcommit: Overcommit::Never,
    overcommit_ratio: 50,
    overcommit_bytes: 1 << 30,
    address_space: Limits::NONE,
    data: 0,
    stack: 8 << 20,
    locked: 64 << 10,
};

fn header() -> Header {
    Header {
        version: VERSION,
        clock: Clock::Monotonic,
        page_size: 4096,
        kernel: "6.18.0".into(),
        cpus: 2,
        cpu: "one".into(),
        command: vec!["/bin/true".into(), "--x=\u{e9}".into(), String::new()],
        program: Program { name: "true".into(), version: "9.1".into() },
        tier: Tier::Privileged,
        thp_disabled: true,
        faults: FaultKinds::of(Tier::Privileged),
        ring_bytes: 16 << 20,
        limits: Some(LIMITS),
        attached: true,
        totals: Totals::default(),
        events: 0,
    }
}

fn write(path: &Path, events: &[Event]) -> Result<u64, TraceError> {
    let mut writer = TraceWriter::create(path, &header())?;
    for name in PATHS {
        writer.path(name);
    }
    for event in events {
        writer.write(event)?;
    }
    writer.finish(TOTALS)
}

fn bytes_of(events: &[Event]) -> Vec<u8> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("t.qtrace");
    let size = write(&path, events).expect("a trace is written");
    let bytes = std::fs::read(&path).expect("the trace is there");
    assert_eq!(bytes.len() as u64, size);
    bytes
}

fn read(bytes: &[u8]) -> Result<(Header, Vec<Event>), TraceError> {
    let mut reader = TraceReader::new(bytes)?;
    let events = reader.by_ref().collect::<Result<Vec<_>, _>>()?;
    assert!(reader.next().is_none(), "nothing comes after the end");
    assert_eq!(reader.events_read(), events.len() as u64);
    Ok((reader.header().clone(), events))
}

/// Where the compressed stream starts.
fn stream_start(bytes: &[u8]) -> usize {
    18 + u32::from_le_bytes(bytes[10..14].try_into().expect("four bytes")) as usize
}

fn path_id() -> impl Strategy<Value = PathId> {
    (0..PATHS.len() as u32).prop_map(PathId)
}

fn file() -> impl Strategy<Value = Option<FileId>> {
    let file = (any::<u64>(), any::<u64>(), path_id());
    prop::option::of(file.prop_map(|(device, inode, path)| FileId { device, inode, path }))
}

/// Mostly numbers of the size that addresses, lengths and times have, some of any size.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..256u64, (0..1u64 << 35).prop_map(|page| page << 12), any::<u64>(), Just(u64::MAX)]
}

fn fault() -> impl Strategy<Value = EventKind> {
    let access = select(vec![Access::Read, Access::Write, Access::Execute, Access::Unknown]);
    (number(), access, any::<[bool; 3]>(), any::<Option<u64>>()).prop_map(
        |(addr, access, [protection, kernel_mode, major], duration_ns)| EventKind::Fault {
            addr,
            access,
            protection,
            kernel_mode,
            major,
            duration_ns,
        },
    )
}

fn map() -> impl Strategy<Value = EventKind> {
    use MapCause::{Before, ExecAnonymous, ExecImage, Other, Stack, StackGrowth, Vdso};
    let causes = select(vec![ExecImage, ExecAnonymous, Stack, StackGrowth, Vdso, Other, Before]);
    (causes, number(), number(), any::<[u32; 2]>(), file(), number()).prop_map(
        |(cause, start, len, [prot, flags], file, file_offset)| EventKind::Map {
            cause,
            start,
            len,
            prot,
            flags,
            file,
            file_offset,
        },
    )
}

fn syscall(time_ns: u64) -> impl Strategy<Value = EventKind> {
    let args = prop::array::uniform6(number());
    (select(Call::ALL), args, any::<i64>(), number(), number(), file(), any::<bool>()).prop_map(
        move |(call, args, result, enter, duration_ns, file, unordered)| {
            let enter_ns = if enter % 2 == 0 { time_ns } else { enter };
            EventKind::Syscall(Syscall { call, args, result, enter_ns, duration_ns, file, unordered })
        },
    )
}

/// Regions with gaps between them.
fn accesses() -> impl Strategy<Value = Accesses> {
    let regions = prop::collection::vec((0..1u64 << 20, 0..1u64 << 30, any::<u32>()), 0..40);
    let rest = (0..1u64 << 47, number(), any::<u32>(), any::<Option<u64>>());
    (regions, rest).prop_map(|(regions, (first, sample_ns, samples, cost_ns))| {
        let after = |end: &mut u64, (gap, len, accessed): (u64, u64, u32)| {
            let start = *end + gap;
            *end = start + len;
            Some(Region { start, len, accessed })
        };
        let regions = regions.into_iter().scan(first, after).collect();
        Accesses { sample_ns, samples, cost_ns, regions }
    })
}

fn kind(time_ns: u64) -> impl Strategy<Value = EventKind> {
    use PopulateCause::{
        BeforeRead, BeforeWritten, MapLocked, MapPopulate, Mlock, PopulateRead, PopulateWrite,
    };
    let populates =
        select(vec![MapPopulate, MapLocked, Mlock, PopulateRead, PopulateWrite, BeforeRead, BeforeWritten]);
    let forks = select(vec![ForkKind::Copy, ForkKind::SharedMemory]);
    let exits = (any::<Option<u64>>(), any::<Option<u64>>(), any::<u64>());
    prop_oneof![
        1 => path_id().prop_map(|name| EventKind::Exec { name }),
        1 => (any::<[u32; 2]>(), number(), forks).prop_map(|([child_pid, child_tid], flags, kind)| EventKind::Fork {
            child_pid,
            child_tid,
            flags,
            kind
        }),
        1 => (any::<u32>(), number()).prop_map(|(creator_tid, flags)| EventKind::ThreadStart { creator_tid, flags }),
        1 => Just(EventKind::ThreadExit),
        1 => exits.prop_map(|(minor_faults, major_faults, recorded_faults)| EventKind::ProcessExit {
            minor_faults,
            major_faults,
            recorded_faults
        }),
        1 => map(),
        3 => syscall(time_ns),
        5 => fault(),
        1 => (number(), number()).prop_map(|(start, len)| EventKind::FaultAround { start, len }),
        1 => (number(), number(), populates).prop_map(|(start, len, cause)| EventKind::Populate { start, len, cause }),
        1 => accesses().prop_map(EventKind::Accesses),
        1 => any::<u64>().prop_map(|records| EventKind::Lost { records }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    (any::<u32>(), 1..6u32, 1..9u32)
        .prop_flat_map(|(time, pid, tid)| (Just((time, pid, tid)), kind(u64::from(time))))
        .prop_map(|((time, pid, tid), kind)| Event { time_ns: u64::from(time), pid, tid, kind })
}

fn events(most: usize) -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(), 0..most).prop_map(|mut events| {
        events.sort_by_key(|event| event.time_ns);
        events
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_written_is_read_back(events in events(600)) {
        let (read_header, read_events) = read(&bytes_of(&events)).expect("a whole trace is readable");
        prop_assert_eq!(read_header, Header { totals: TOTALS, events: events.len() as u64, ..header() });
        prop_assert_eq!(read_events, events);
    }

    #[test]
    fn garbage_behind_the_header_is_an_error(garbage in prop::collection::vec(any::<u8>(), 0..400)) {
        let whole = bytes_of(&[]);
        let bytes = [&whole[..stream_start(&whole)], &garbage[..]].concat();
        prop_assert!(read(&bytes).is_err());
    }

    /// Chunks whose checksum is right but whose entries are nonsense.
    #[test]
    fn garbage_with_a_right_checksum_is_an_error(garbage in prop::collection::vec(any::<u8>(), 1..400)) {
        let whole = bytes_of(&[]);
        let mut stream = (garbage.len() as u32).to_le_bytes().to_vec();
        stream.extend(crc32fast::hash(&garbage).to_le_bytes());
        stream.extend(&garbage);
        let stream = zstd::encode_all(&stream[..], 1).expect("compressing works");
        let bytes = [&whole[..stream_start(&whole)], &stream[..]].concat();
        prop_assert!(read(&bytes).is_err());
    }
}

/// One event of each kind, so that every encoding is met by the damage below.
fn small() -> Vec<Event> {
    let file = Some(FileId { device: 8 << 32 | 1, inode: 77, path: PathId(0) });
    let (start, len) = (0x40_0000, 8192);
    let call = Syscall {
        call: Call::Mmap,
        args: [0, len, 3, 2, 4, 0],
        result: 0x7f00_0000_0000,
        enter_ns: 90,
        duration_ns: 30,
        file,
        unordered: true,
    };
    let (protection, kernel_mode, major, access) = (false, false, true, Access::Execute);
    let kinds = [
        EventKind::Exec { name: PathId(0) },
        EventKind::Map { cause: MapCause::ExecImage, start, len, prot: 5, flags: 2, file, file_offset: 4096 },
        EventKind::Fault { addr: start + 3, access, protection, kernel_mode, major, duration_ns: Some(700) },
        EventKind::FaultAround { start, len },
        EventKind::Syscall(call),
        EventKind::Populate { start, len, cause: PopulateCause::MapPopulate },
        EventKind::Fork { child_pid: 2, child_tid: 2, flags: 17, kind: ForkKind::Copy },
        EventKind::ThreadStart { creator_tid: 1, flags: 0x1_0000 },
        EventKind::ThreadExit,
        EventKind::Lost { records: 1 },
        EventKind::Accesses(Accesses {
            sample_ns: 5_000_000,
            samples: 20,
            cost_ns: Some(70_000),
            regions: vec![
                Region { start, len, accessed: 20 },
                Region { start: start + 3 * len, len: 1 << 30, accessed: 1 },
            ],
        }),
        EventKind::ProcessExit { minor_faults: Some(3), major_faults: Some(1), recorded_faults: 1 },
    ];
    (0u64..)
        .zip(kinds)
        .map(|(index, kind)| Event { time_ns: 100 + index * 10, pid: 1, tid: 1 + index as u32 % 2, kind })
        .collect()
}

#[test]
fn a_trace_cut_anywhere_is_truncated() {
    let whole = bytes_of(&small());
    for length in 0..whole.len() {
        match read(&whole[..length]) {
            Err(TraceError::Truncated) => {}
            Err(TraceError::NotATrace) if length == 0 => {}
            other => panic!("cut to {length} of {} bytes: {other:?}", whole.len()),
        }
    }
}

#[test]
fn a_flipped_byte_is_an_error_or_changes_nothing() {
    let whole = bytes_of(&small());
    let expected = read(&whole).expect("the undamaged trace is readable");
    let mut refused = 0;
    for index in 0..whole.len() {
        for mask in [0x01, 0x10, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[index] ^= mask;
            match read(&damaged) {
                Err(_) => refused += 1,
                Ok(same) => assert_eq!(same, expected, "byte {index} xor {mask:#x} went unnoticed"),
            }
        }
    }
    assert!(refused > whole.len() * 3, "only {refused} of {} damages were noticed", whole.len() * 4);
}

#[test]
fn a_wrong_version_and_a_foreign_file_are_named() {
    let mut other = bytes_of(&small());
    other[8] = 200;
    let error = read(&other).expect_err("another version is refused");
    assert!(matches!(error, TraceError::WrongVersion { found: 200, supported: VERSION }), "{error}");
    assert!(error.to_string().contains("record the program again"), "{error}");
    let error = read(b"#!/bin/sh\n").expect_err("a script is no trace");
    assert!(matches!(error, TraceError::NotATrace), "{error}");
    let error = TraceReader::open("/nowhere/at/all").err().expect("a missing file is refused");
    assert!(matches!(error, TraceError::Io(_)), "{error}");
    for error in [TraceError::Truncated, TraceError::Corrupt { at: 1 }, TraceError::NotATrace] {
        assert_eq!(error.to_string().lines().count(), 1);
    }
}

/// What an older version would have written of these events, whose header lacks the last bytes.
fn of_version(version: u8, missing: usize, events: &[Event]) -> Vec<u8> {
    let mut old = bytes_of(events);
    let length = u32::from_le_bytes(old[10..14].try_into().expect("four bytes")) as usize;
    let end = 18 + length;
    old.drain(end - missing..end);
    old[8] = version;
    old[10..14].copy_from_slice(&((length - missing) as u32).to_le_bytes());
    let checksum = crc32fast::hash(&old[18..end - missing]);
    old[14..18].copy_from_slice(&checksum.to_le_bytes());
    old
}

#[test]
fn a_header_of_version_1_ends_without_limits_and_one_of_version_2_with_them() {
    // A flag, and what the limits above take; then the flag of a recording that attached.
    let limits = 1 + 3 + 1 + 1 + 5 + 10 + 1 + 4 + 3;
    let cpu = 1 + header().cpu.len();
    for (version, missing, known) in [
        (1, limits + 1 + cpu, None),
        (2, 1 + cpu, Some(LIMITS)),
        (3, cpu, Some(LIMITS)),
        (4, 0, Some(LIMITS)),
        (5, 0, Some(LIMITS)),
    ] {
        // An older version has no accesses, and a reader takes none for its own.
        let is_new = |event: &Event| matches!(event.kind, EventKind::Accesses(_));
        let events: Vec<Event> = small().into_iter().filter(|event| version >= 5 || !is_new(event)).collect();
        let with_accesses = of_version(version, missing, &small());
        assert_eq!(read(&with_accesses).is_ok(), version >= 5, "version {version}");
        let old = of_version(version, missing, &events);
        let reader = TraceReader::new(&old[..]).expect("an old version is read");
        assert_eq!((reader.header().version, reader.header().limits), (u16::from(version), known));
        assert_eq!(reader.header().attached, version >= 3);
        assert_eq!(reader.header().cpu, if version >= 4 { header().cpu } else { String::new() });
        assert_eq!(reader.map(|event| event.expect("whole")).collect::<Vec<_>>(), events);
    }
}

/// A region may neither go beyond the last address nor be one of more than an event has.
#[test]
fn regions_that_no_recording_has_are_refused() {
    let of = |regions: Vec<Region>| {
        let accesses = Accesses { sample_ns: 1, samples: 20, cost_ns: None, regions };
        let events =
            [small()[0].clone(), Event { kind: EventKind::Accesses(accesses), ..small()[1].clone() }];
        read(&bytes_of(&events))
    };
    let region = |start| Region { start, len: 4096, accessed: 1 };
    assert!(of(vec![region(0), region(u64::MAX - 4096)]).is_ok());
    assert!(of(vec![region(u64::MAX - 4095)]).is_err());
    assert!(of((0..4096).map(|at| region(at << 13)).collect()).is_ok());
    assert!(of((0..4097).map(|at| region(at << 13)).collect()).is_err());
}

#[test]
fn bytes_after_the_end_are_an_error() {
    let mut longer = bytes_of(&small());
    longer.push(0);
    assert!(read(&longer).is_err());
}

/// A length field that promises more than a chunk may have must not make the reader reserve it.
#[test]
fn a_stream_that_promises_much_is_refused_early() {
    let whole = bytes_of(&[]);
    let stream = zstd::encode_all(&[0xff; 1 << 20][..], 1).expect("compressing works");
    let bytes = [&whole[..stream_start(&whole)], &stream[..]].concat();
    assert!(matches!(read(&bytes), Err(TraceError::Corrupt { at: 0 })));
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("t.qtrace");
    std::fs::write(&path, "before").expect("the old file is written");
    let mut writer = TraceWriter::create(&path, &header()).expect("a writer starts");
    writer.path(PATHS[0]);
    writer.write(&small()[0]).expect("an event is taken");
    let late = Event { time_ns: 1, ..small()[0].clone() };
    let error = writer.write(&late).expect_err("time does not run backwards");
    assert!(matches!(error, TraceError::OutOfOrder { time_ns: 1, last_ns: 100 }), "{error}");
    drop(writer);
    assert_eq!(std::fs::read(&path).expect("the old file is there"), b"before");
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory is readable").count(), 1);
}

/// What the trace of these paths has: its events, and how many were lost.
fn with_paths(paths: impl Iterator<Item = String>) -> (Vec<Event>, Totals) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("t.qtrace");
    let mut writer = TraceWriter::create(&path, &header()).expect("a writer starts");
    for (name, time_ns) in paths.zip(1..) {
        let kind = EventKind::Exec { name: writer.path(&name) };
        writer.write(&Event { time_ns, kind, ..small()[0].clone() }).expect("an event is taken");
    }
    writer.finish(Totals::default()).expect("the trace is written");
    let mut reader = TraceReader::open(&path).expect("it opens");
    let events = reader.by_ref().collect::<Result<Vec<_>, _>>().expect("it is whole");
    (events, reader.header().totals)
}

#[test]
fn more_paths_than_a_trace_takes_end_it_there() {
    // A reader refuses what compresses as no recording does.
    let mut rng = fastrand::Rng::with_seed(7);
    let path = |_| (0..8000).map(|_| rng.alphanumeric()).collect();
    let (events, totals) = with_paths((0..9000).map(path));
    assert_eq!(events.len() as u64 + totals.lost, 9000);
    assert!((8000..8400).contains(&events.len()), "{}", events.len());
}

#[test]
fn a_path_that_is_too_long_is_shortened() {
    let (events, totals) = with_paths(["\u{fffd}".repeat(4096), "short".into()].into_iter());
    assert_eq!((events.len(), totals.lost), (2, 0));
}

#[test]
fn an_unwritable_target_is_an_error() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for target in [directory.path().join("no/such/t.qtrace"), directory.path().to_owned()] {
        assert!(matches!(TraceWriter::create(&target, &header()), Err(TraceError::Io(_))), "{target:?}");
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("the directory is readable").count(), 0);
}

#[test]
fn codes_and_numbers_of_calls_are_their_own_inverse() {
    for (index, &call) in Call::ALL.iter().enumerate() {
        assert_eq!(call.code() as usize, index);
        assert_eq!(Call::from_code(call.code()), Some(call));
        assert_eq!(Call::from_x86_64(call.x86_64()), Some(call));
    }
}
