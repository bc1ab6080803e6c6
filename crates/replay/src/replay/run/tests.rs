use hosted::FailurePlan;
use quire::addr::Order;
use quire::arch::{ClearKernel, CopyKernel, Feature};
use quire::error::InitError;
use quire::page_alloc::Gfp;

use super::*;
use crate::replay::need::Bounds;
use crate::replay::policy::{FolioChoice, parse_folio};
use crate::trace::{Access, Event, EventKind, Header, PathId, PopulateCause, forge};

fn trace(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name)
}

fn size(name: &str) -> FolioSet {
    match parse_folio(name) {
        Ok(FolioChoice::One(size)) => size,
        other => panic!("{other:?}"),
    }
}

fn replay(world: &mut World, name: &str, folio: &str) -> Result<Outcome, ReplayError> {
    let path = trace(name);
    let mut progress = Progress::new(name.into());
    let survey = Survey::of(&path, Bounds::NONE, &mut progress)?;
    world.replay(&path, &survey, size(folio), &Stopwatch::new(), &mut progress)
}

/// The canary (invariant 2): a check that a lost flush does not disturb would prove nothing.
#[test]
fn a_lost_flush_is_a_divergence() {
    for plan in [FailurePlan::From(0), FailurePlan::Every(2)] {
        let mut world = World::new(256 << 20, 2, Purpose::Check).expect("a machine");
        world.machine.lose_flushes(plan);
        match replay(&mut world, "java.qtrace", "4K") {
            Err(ReplayError::Divergence { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("the divergence went unnoticed"),
        }
    }
}

/// Found by the fuzzer: pages that were present before a recording could be anywhere.
#[test]
fn pages_where_no_processor_translates_are_refused() {
    const HOLE: u64 = 1 << 47;
    let fault = |addr| EventKind::Fault {
        addr,
        access: Access::Read,
        protection: false,
        kernel_mode: false,
        major: false,
        duration_ns: Some(1000),
    };
    let populate = |start, len| EventKind::Populate { start, len, cause: PopulateCause::BeforeRead };
    let wrong = [
        fault(HOLE),
        EventKind::FaultAround { start: HOLE - 4096, len: 8192 },
        populate(0x64de_0625_2187_3087, 1),
        populate(HOLE - 4096, 4097),
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("forged.qtrace");
    for kind in wrong {
        let event = |time_ns, kind| Event { time_ns, pid: 10, tid: 10, kind };
        let events = [event(1000, EventKind::Exec { name: PathId(0) }), event(2000, kind)];
        let recorded = TraceReader::open(trace("gcc.qtrace")).expect("a trace").header().clone();
        let header = forge::header(&Header { events: 2, ..recorded });
        let bytes = forge::around(&header, &forge::stream(&["small"], &events), 2);
        std::fs::write(&path, bytes).expect("it is written");
        let mut world = World::new(64 << 20, 2, Purpose::Check).expect("a machine");
        match replay(&mut world, path.to_str().expect("a path"), "4K") {
            Err(ReplayError::Impossible { event: 1, what }) => {
                assert!(what.ends_with("an address that no processor translates"), "{what}");
            }
            other => panic!("{:?}", other.map(drop)),
        }
    }
}

#[test]
fn what_the_library_is_asked_does_not_depend_on_the_round_or_on_the_purpose() {
    let counted = |world: &mut World| {
        let outcome = replay(world, "gcc.qtrace", "64K").expect("it is replayed");
        let faults: Vec<_> = outcome
            .faults
            .iter()
            .map(|(kind, pair)| (kind, pair.quire.count(), pair.linux.count()))
            .collect();
        assert_eq!(outcome.leaked, 0);
        (faults, outcome.counts.folios, outcome.peak, outcome.machine.bytes_cleared)
    };
    let mut world = World::new(256 << 20, 2, Purpose::Time).expect("a machine");
    let first = counted(&mut world);
    assert_eq!(first, counted(&mut world), "memory that was used before");
    for purpose in [Purpose::Check, Purpose::Contents, Purpose::Counts] {
        let mut world = World::new(256 << 20, 2, purpose).expect("a machine");
        assert_eq!(first, counted(&mut world), "{purpose:?}");
        if purpose != Purpose::Check {
            assert_eq!(first, counted(&mut world), "{purpose:?}, memory that was used before");
        }
    }
}

/// A policy that the machine cannot run fails, which shows that it is used.
#[test]
fn the_policy_that_was_chosen_is_the_one_that_clears() {
    let policy = ClearPolicy::only(ClearKernel::Nt16, CopyKernel::String);
    let plain = HostedConfig::bench(256 << 20).with_cpus(2).without(Feature::Sse2);
    let world = World::new(256 << 20, 2, Purpose::Time).expect("a machine");
    let mut world = World { machine: plain.build().expect("a machine"), ..world }.clearing_by(Some(policy));
    match replay(&mut world, "gcc.qtrace", "4K") {
        Err(ReplayError::TooSmall { source: InitError::BadKernel(_), .. }) => {}
        other => panic!("it was not used: {:?}", other.map(|_| ())),
    }
}

/// A frame that is lost below the peak is missed soon, not at the end alone.
#[test]
fn a_frame_without_an_owner_is_a_divergence_soon() {
    const LOST: u64 = 10_000;
    let path = trace("make.qtrace");
    let mut progress = Progress::new("make".into());
    let survey = Survey::of(&path, Bounds::NONE, &mut progress).expect("it is whole");
    let world = World::new(256 << 20, 2, Purpose::Check).expect("a machine");
    let (machine, watch) = (&world.machine, Stopwatch::new());
    let ranges: Vec<MemoryRange> = machine
        .ranges()
        .iter()
        .map(|range| MemoryRange {
            frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
            node: range.node,
            zeroed: true,
        })
        .collect();
    let config = Config { folios: size("4K").policy(), ..Config::default() };
    let on_first = CpuId(0);
    let manager = machine.run_on(on_first, || hosted::raw::memory_manager(machine, &ranges, &config));
    let manager = manager.expect("it starts");
    let files = machine.run_on(on_first, || files::open(machine, &manager, &survey.files)).expect("memory");
    let mut replayer = Replayer::new(machine, &manager, &watch, &survey, files, true, size("4K"));
    let mut settled = Settled::default();
    let mut found = None;
    let mut lost = None;
    for event in TraceReader::open(&path).expect("it opens") {
        settled.push(event.expect("it is whole"));
        while let Some(placed) = settled.pop() {
            if replayer.event == LOST {
                let page = machine.run_on(on_first, || manager.pages().alloc(Gfp::KERNEL, Order::FRAME));
                lost = Some(page.expect("a frame is free"));
            }
            if let Err(error) = replayer.step(&placed) {
                found.get_or_insert((replayer.event, error.to_string()));
            }
        }
        if found.is_some() {
            break;
        }
    }
    machine.run_on(on_first, || {
        assert!(lost.is_some_and(|lost| manager.pages().free(lost).is_ok()));
        replayer.processes.release_all();
        drop(replayer);
    });
    let (event, error) = found.expect("it is missed");
    assert!(event < LOST + 4096 && error.contains("frames are in use"), "{event}: {error}");
}
