//! The trace format: what is written is read back, and damage of any kind is an error, never a panic.

use std::path::Path;

use fastrand::Rng;
use lab::trace::{
    Access, Accesses, Call, Clock, Event, EventKind, FaultKinds, FileId, ForkKind, Header, Limits, MapCause,
    Overcommit, PathId, PopulateCause, Program, Region, Syscall, Tier, Totals, TraceError, TraceReader,
    TraceWriter, VERSION,
};

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

/// Runs `test` with the same seeds each time, or with `QUIRE_SEED`; the last one that is told has failed.
fn drawn(runs: u64, test: impl Fn(&mut Rng)) {
    let given = std::env::var("QUIRE_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    for seed in given.map_or(1..runs + 1, |seed| seed..seed + 1) {
        println!("QUIRE_SEED={seed}");
        test(&mut Rng::with_seed(seed));
    }
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    *rng.choice(all).expect("there are some")
}

fn path_id(rng: &mut Rng) -> PathId {
    PathId(rng.u32(..PATHS.len() as u32))
}

fn file(rng: &mut Rng) -> Option<FileId> {
    rng.bool().then(|| FileId { device: rng.u64(..), inode: rng.u64(..), path: path_id(rng) })
}

/// Mostly numbers of the size that addresses, lengths and times have, some of any size.
fn number(rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 => rng.u64(..256),
        1 => rng.u64(..1 << 35) << 12,
        2 => rng.u64(..),
        _ => u64::MAX,
    }
}

/// Any number, or none.
fn told(rng: &mut Rng) -> Option<u64> {
    rng.bool().then(|| rng.u64(..))
}

fn fault(rng: &mut Rng) -> EventKind {
    let access = one_of(rng, &[Access::Read, Access::Write, Access::Execute, Access::Unknown]);
    let (addr, [protection, kernel_mode, major]) = (number(rng), [(); 3].map(|()| rng.bool()));
    EventKind::Fault { addr, access, protection, kernel_mode, major, duration_ns: told(rng) }
}

fn map(rng: &mut Rng) -> EventKind {
    use MapCause::{Before, ExecAnonymous, ExecImage, Other, Stack, StackGrowth, Vdso};
    let cause = one_of(rng, &[ExecImage, ExecAnonymous, Stack, StackGrowth, Vdso, Other, Before]);
    let [start, len, file_offset] = [(); 3].map(|()| number(rng));
    let [prot, flags] = [(); 2].map(|()| rng.u32(..));
    EventKind::Map { cause, start, len, prot, flags, file: file(rng), file_offset }
}

fn syscall(rng: &mut Rng, time_ns: u64) -> EventKind {
    let [enter, duration_ns] = [(); 2].map(|()| number(rng));
    EventKind::Syscall(Syscall {
        call: one_of(rng, Call::ALL),
        args: [(); 6].map(|()| number(rng)),
        result: rng.i64(..),
        enter_ns: if enter.is_multiple_of(2) { time_ns } else { enter },
        duration_ns,
        file: file(rng),
        unordered: rng.bool(),
    })
}

/// Regions with gaps between them.
fn accesses(rng: &mut Rng) -> EventKind {
    let mut end = rng.u64(..1 << 47);
    let regions = (0..rng.usize(..40)).map(|_| {
        let (start, len) = (end + rng.u64(..1 << 20), rng.u64(..1 << 30));
        end = start + len;
        Region { start, len, accessed: rng.u32(..) }
    });
    let regions = regions.collect();
    let (sample_ns, samples, cost_ns) = (number(rng), rng.u32(..), told(rng));
    EventKind::Accesses(Accesses { sample_ns, samples, cost_ns, regions })
}

/// Calls are three times as frequent as other kinds, and faults five times.
fn kind(rng: &mut Rng, time_ns: u64) -> EventKind {
    use PopulateCause::{
        BeforeRead, BeforeWritten, MapLocked, MapPopulate, Mlock, PopulateRead, PopulateWrite,
    };
    let populates = [MapPopulate, MapLocked, Mlock, PopulateRead, PopulateWrite, BeforeRead, BeforeWritten];
    match rng.u8(..18) {
        0 => EventKind::Exec { name: path_id(rng) },
        1 => {
            let ([child_pid, child_tid], flags) = ([(); 2].map(|()| rng.u32(..)), number(rng));
            let kind = one_of(rng, &[ForkKind::Copy, ForkKind::SharedMemory]);
            EventKind::Fork { child_pid, child_tid, flags, kind }
        }
        2 => EventKind::ThreadStart { creator_tid: rng.u32(..), flags: number(rng) },
        3 => EventKind::ThreadExit,
        4 => {
            let [minor_faults, major_faults] = [(); 2].map(|()| told(rng));
            EventKind::ProcessExit { minor_faults, major_faults, recorded_faults: rng.u64(..) }
        }
        5 => map(rng),
        6 => EventKind::FaultAround { start: number(rng), len: number(rng) },
        7 => EventKind::Populate { start: number(rng), len: number(rng), cause: one_of(rng, &populates) },
        8 => accesses(rng),
        9 => EventKind::Lost { records: rng.u64(..) },
        10..13 => syscall(rng, time_ns),
        _ => fault(rng),
    }
}

fn event(rng: &mut Rng) -> Event {
    let (time_ns, pid, tid) = (u64::from(rng.u32(..)), rng.u32(1..6), rng.u32(1..9));
    Event { time_ns, pid, tid, kind: kind(rng, time_ns) }
}

fn garbage(rng: &mut Rng, least: usize) -> Vec<u8> {
    (0..rng.usize(least..400)).map(|_| rng.u8(..)).collect()
}

#[test]
fn what_is_written_is_read_back() {
    drawn(32, |rng| {
        let mut events: Vec<Event> = (0..rng.usize(..600)).map(|_| event(rng)).collect();
        events.sort_by_key(|event| event.time_ns);
        let (read_header, read_events) = read(&bytes_of(&events)).expect("a whole trace is readable");
        assert_eq!(read_header, Header { totals: TOTALS, events: events.len() as u64, ..header() });
        assert_eq!(read_events, events);
    });
}

#[test]
fn garbage_behind_the_header_is_an_error() {
    drawn(32, |rng| {
        let whole = bytes_of(&[]);
        let bytes = [&whole[..stream_start(&whole)], &garbage(rng, 0)].concat();
        assert!(read(&bytes).is_err());
    });
}

/// Chunks whose checksum is right but whose entries are nonsense.
#[test]
fn garbage_with_a_right_checksum_is_an_error() {
    drawn(32, |rng| {
        let (whole, garbage) = (bytes_of(&[]), garbage(rng, 1));
        let mut stream = (garbage.len() as u32).to_le_bytes().to_vec();
        stream.extend(crc32fast::hash(&garbage).to_le_bytes());
        stream.extend(&garbage);
        let stream = zstd::encode_all(&stream[..], 1).expect("compressing works");
        let bytes = [&whole[..stream_start(&whole)], &stream[..]].concat();
        assert!(read(&bytes).is_err());
    });
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
    let mut rng = Rng::with_seed(7);
    let path = |_| {
        let mut bytes = vec![0; 8000];
        for eight in bytes.chunks_exact_mut(8) {
            // Bytes from `0` on, 64 different ones.
            let drawn = (rng.u64(..) & 0x3f3f_3f3f_3f3f_3f3f) + 0x3030_3030_3030_3030;
            eight.copy_from_slice(&drawn.to_ne_bytes());
        }
        String::from_utf8(bytes).expect("ASCII")
    };
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
