//! The library against Linux.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fastrand::Rng;
use hosted::{HostedConfig, OnViolation};
use oracle::lockstep::{check_seed, in_time, seeds};
use oracle::machine::{MachineShape, Quire};
use oracle::ops::{At, Draw, Left, MapOp, Op, Step, WINDOW, What, draw};
use oracle::space::{Advice, PAGE, Placement, Prot};
use quire::addr::FrameRange;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryRange};

use crate::alone;
use crate::hostile::make_hostile;
use crate::pair::{Bug, Counts, Pair, Which};
use crate::placed::places_file;
use crate::subject::{HEAP_ROOM, Linux, locks_freely};

/// Operations of one run.
const STEPS: usize = 400;
/// Memory of the library's machine.
const MEMORY: u64 = 512 << 20;

/// Makes the calls to Linux and to a machine of this shape.
fn run(drawn: &Drawn, seed: u64, steps: &[Step], bug: Bug) -> Result<Counts, String> {
    let (shape, files) = (&drawn.machine, &drawn.files[..]);
    let heap = steps.iter().any(|step| matches!(step.op, Op::Brk(_)));
    // Before there is a machine, whose memory a child would have too.
    let linux = Linux::new(files, if heap { HEAP_ROOM } else { 0 });
    let machine = HostedConfig { on_violation: OnViolation::Record, ..HostedConfig::new(MEMORY) };
    let machine = machine.with_cpus(shape.cpus).build().map_err(|error| error.to_string())?;
    let ranges: Vec<MemoryRange> = machine
        .ranges()
        .iter()
        .map(|range| MemoryRange {
            frames: FrameRange::new(range.start.frame(), range.bytes / 4096),
            node: range.node,
            zeroed: true,
        })
        .collect();
    let config = Config { folios: shape.policy, fork: shape.fork, zap: shape.zap, ..Config::default() };
    let manager = machine
        .run_on(CpuId(0), || hosted::raw::memory_manager(&machine, &ranges, &config))
        .map_err(|error| error.to_string())?;
    let quire = Quire::new(&machine, &manager, files, linux.heap()).map_err(|error| error.to_string())?;
    let mut pair = Pair::new(linux, quire, shape.cpus, seed).map_err(|error| error.to_string())?;
    pair.break_by(bug);
    pair.run(steps)?;
    let counts = pair.counts.clone();
    pair.into_quire().close();
    Ok(counts)
}

/// What a seed stands for.
struct Drawn {
    machine: MachineShape,
    files: Vec<(u64, u64)>,
    steps: Vec<Step>,
}

fn drawn(seed: u64) -> Drawn {
    let mut rng = Rng::with_seed(seed);
    let machine = MachineShape::new(&mut rng);
    let mut shape = Draw::new(&mut rng, STEPS, 4);
    if !locks_freely() {
        shape.without(&[Left::Locks]);
    }
    shape.narrow(600);
    let mut steps = draw(&mut rng, &shape);
    make_hostile(&mut rng, &mut steps);
    Drawn { machine, files: shape.files, steps }
}

/// Calls that the test makes at least, if it was told.
fn calls() -> Option<u64> {
    std::env::var("QUIRE_CALLS").ok().and_then(|text| text.parse().ok())
}

#[test]
fn the_library_agrees_with_this_kernel() {
    let _alone = alone();
    let (start, mut sum, mut runs) = (Instant::now(), Counts::default(), 0_u64);
    let mut numbered = 1..;
    let mut timed = seeds(Duration::from_secs(3));
    let mut next = |made: u64| match calls() {
        Some(calls) => numbered.next().filter(|_| made < calls),
        None => timed.next(),
    };
    while let Some(seed) = next(sum.made) {
        let drawn = drawn(seed);
        let counted = RefCell::new(Counts::default());
        let checked = in_time(&format!("QUIRE_SEED={seed}"), || {
            check_seed(seed, &drawn.steps, &|steps| {
                run(&drawn, seed, steps, Bug::None).map(|counts| *counted.borrow_mut() = counts)
            })
        });
        if let Err(report) = checked {
            panic!("{:?}, files {:?}\n{report}", drawn.machine, drawn.files);
        }
        add(&mut sum, &counted.into_inner());
        runs += 1;
    }
    println!(
        "{} calls in {runs} runs agreed, {} of them refused, in {:?}; Linux placed {} elsewhere; left out: {:?}",
        sum.made,
        sum.refused,
        start.elapsed(),
        sum.elsewhere,
        sum.left_out
    );
    assert!(sum.elsewhere * 1000 < sum.made + 1000, "Linux places too many mappings elsewhere");
}

/// A comparison that a broken verb does not disturb would prove nothing.
#[test]
fn a_verb_that_does_nothing_is_noticed() {
    let _alone = alone();
    let verbs: [(&str, Which); 9] = [
        ("mmap", |op| matches!(op, Op::Mmap(_))),
        ("munmap", |op| matches!(op, Op::Munmap(..))),
        ("mprotect", |op| matches!(op, Op::Mprotect(..))),
        ("mremap", |op| matches!(op, Op::Mremap(..))),
        ("madvise", |op| matches!(op, Op::Madvise(_, _, Advice::DontNeed))),
        ("brk", |op| matches!(op, Op::Brk(_))),
        ("mlock", |op| matches!(op, Op::Mlock(..))),
        ("munlock", |op| matches!(op, Op::Munlock(..))),
        ("store", |op| matches!(op, Op::Store(..))),
    ];
    for (verb, lost) in verbs {
        if verb.ends_with("lock") && !locks_freely() {
            continue;
        }
        let noticed = (1..=60).any(|seed| {
            let drawn = drawn(seed);
            let has = drawn.steps.iter().any(|step| lost(&step.op));
            has && run(&drawn, seed, &drawn.steps, Bug::Lost(lost)).is_err()
        });
        assert!(noticed, "nothing was compared that {verb} changes");
    }
}

#[test]
fn a_file_in_a_wrong_place_is_noticed() {
    let _alone = alone();
    let noticed = (1..=60).any(|seed| {
        let drawn = drawn(seed);
        let has = drawn.steps.iter().any(|step| places_file(&step.op));
        has && run(&drawn, seed, &drawn.steps, Bug::Misplaced(places_file)).is_err()
    });
    assert!(noticed, "no placement of a file was compared");
}

/// A page that was given back may be dropped; it may not come back in a new mapping, nor lose what is stored later.
#[test]
fn a_page_that_was_given_back_hides_no_old_contents_and_no_lost_store() {
    let _alone = alone();
    let at = At::Absolute(WINDOW);
    let map = |populate| {
        Op::Mmap(MapOp {
            at,
            len: PAGE,
            prot: Prot::Rw,
            placement: Placement::Fixed,
            what: What::Anonymous,
            grows_down: false,
            populate,
            locked: false,
        })
    };
    let given_back = [map(false), Op::Store(at, 0), Op::Madvise(at, PAGE, Advice::Free)];
    let remapped = [&given_back[..], &[map(true), Op::Load(at, 0)]].concat();
    let stored = [&given_back[..], &[Op::Store(at, 1), Op::Load(at, 1)]].concat();
    let cases: [(Vec<Op>, Which); 2] = [
        (remapped, |op| matches!(op, Op::Mmap(map) if map.populate)),
        (stored, |op| matches!(op, Op::Store(_, 1))),
    ];
    for (ops, lost) in cases {
        let steps: Vec<Step> = ops.iter().map(|&op| Step { cpu: 0, space: 0, op }).collect();
        let drawn = Drawn { files: Vec::new(), ..drawn(1) };
        run(&drawn, 1, &steps, Bug::None).expect("nothing is wrong");
        assert!(run(&drawn, 1, &steps, Bug::Lost(lost)).is_err(), "{steps:x?}");
    }
}

fn add(sum: &mut Counts, more: &Counts) {
    sum.made += more.made;
    sum.refused += more.refused;
    sum.elsewhere += more.elsewhere;
    let left: &BTreeMap<_, _> = &more.left_out;
    left.iter().for_each(|(&why, count)| *sum.left_out.entry(why).or_default() += count);
}
