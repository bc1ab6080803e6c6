//! Address spaces in lockstep with the naive model, which is itself checked against Linux: drawn operations, every folio
//! size, several CPUs, contents read back through the software MMU, and the machine's own checks on.

mod subject;

#[path = "../common/mod.rs"]
mod common;

use std::time::Duration;

use fastrand::Rng;
use hosted::{FailurePlan, HostedConfig};
use oracle::lockstep::{Lockstep, check_seed, in_time, seeds};
use oracle::ops::{Draw, Op, Step, To, What, draw};
use oracle::space::Rules;
use quire::addr::Order;
use quire::cpu::CpuId;
use quire::manager::{Config, MemoryManager};
use quire::vm::{FolioPolicy, OrderPolicy};

use common::ranges_of;
use subject::{Library, STACK_LIMIT};

const MIB: u64 = 1 << 20;
const CPUS: usize = 3;

/// How a machine is made for a run.
#[derive(Clone, Copy, Debug)]
struct Setting {
    bytes: u64,
    folios: FolioPolicy,
    single_pages: bool,
    failures: FailurePlan,
}

impl Setting {
    fn is_scarce(&self) -> bool {
        !matches!(self.failures, FailurePlan::Off) || self.bytes < 64 * MIB
    }
}

/// Some things stay half done when memory is out, as on Linux, and the model, which leaves the operation out then, would
/// not know: a stack that was extended for an access; the target of a fixed `mremap`, which was unmapped; private file
/// pages that a populating verb did not copy, which shows when somebody else stores to the file.
fn without_half_done(steps: &mut [Step]) {
    for step in steps {
        match &mut step.op {
            Op::Mmap(map) => {
                map.grows_down = false;
                if let What::File { shared, .. } = &mut map.what {
                    *shared = false;
                }
            }
            Op::Mremap(.., to @ To::FixedTo(_)) => *to = To::MayMove,
            Op::Mremap(.., to @ To::FixedDontUnmap(_)) => *to = To::DontUnmap,
            _ => {}
        }
    }
}

/// The model takes a second view of a mapping in the mapping's own place for a change of size.
fn without_views_in_place(steps: &mut [Step]) {
    for step in steps {
        if let Op::Mremap(_, 0, _, to @ To::FixedTo(_)) = &mut step.op {
            *to = To::MayMove;
        }
    }
}

fn run(setting: Setting, files: &[(u64, u64)], seed: u64, steps: &[Step]) -> Result<(), String> {
    let machine =
        HostedConfig::new(setting.bytes).with_cpus(CPUS).build().map_err(|error| error.to_string())?;
    let config = Config { folios: setting.folios, ..Config::default() };
    let manager = machine
        .run_on(CpuId(0), || MemoryManager::new(&machine, &ranges_of(&machine), &config))
        .map_err(|error| error.to_string())?;
    let used = |manager: &MemoryManager<'_, _>| {
        for cpu in 0..CPUS {
            machine.run_on(CpuId(cpu as u32), || manager.pages().drain_local());
        }
        machine.run_on(CpuId(0), || manager.meminfo().frames.used)
    };
    let before = used(&manager);
    let library = Library::new(&machine, &manager, files, setting.single_pages, setting.is_scarce());
    library.set_failures(setting.failures);
    let rules = Rules { stack_limit: STACK_LIMIT, ..Rules::default() };
    let mut lockstep = Lockstep::new(library, rules, CPUS, files, seed);
    lockstep.run(steps).map_err(|divergence| format!("{divergence:?}"))?;
    lockstep.subject.set_failures(FailurePlan::Off);
    machine.run_on(CpuId(0), || drop(lockstep));
    let after = used(&manager);
    machine.assert_clean();
    if after == before { Ok(()) } else { Err(format!("{before} frames used before, {after} after")) }
}

/// Any combination of folio sizes.
fn drawn_policy(rng: &mut Rng) -> FolioPolicy {
    let choices = [OrderPolicy::Never, OrderPolicy::Never, OrderPolicy::Madvise, OrderPolicy::Always];
    (1..=9)
        .filter_map(Order::new)
        .fold(FolioPolicy::FRAMES, |policy, order| {
            policy.with(order, *rng.choice(&choices).expect("not empty"))
        })
        .with_pmd_mapped(rng.bool())
}

fn lockstep(time: Duration, length: usize, setting: impl Fn(&mut Rng) -> Setting) {
    let mut done = 0;
    for seed in seeds(time) {
        let mut rng = Rng::with_seed(seed);
        let setting = setting(&mut rng);
        let shape = Draw::new(&mut rng, length, CPUS as u8);
        let mut steps = draw(&mut rng, &shape);
        without_views_in_place(&mut steps);
        if setting.is_scarce() {
            without_half_done(&mut steps);
        }
        let checked = in_time(&format!("QUIRE_SEED={seed}"), || {
            check_seed(seed, &steps, &|steps| run(setting, &shape.files, seed, steps))
        });
        if let Err(report) = checked {
            panic!("{setting:?}\n{report}");
        }
        done += 1;
    }
    println!("{done} runs of {length} operations agreed");
}

#[test]
fn single_pages_agree_with_the_model() {
    lockstep(Duration::from_secs(5), 300, |_| Setting {
        bytes: 512 * MIB,
        folios: FolioPolicy::FRAMES,
        single_pages: true,
        failures: FailurePlan::Off,
    });
}

#[test]
fn every_folio_size_agrees_with_the_model() {
    lockstep(Duration::from_secs(5), 300, |rng| Setting {
        bytes: 512 * MIB,
        folios: drawn_policy(rng),
        single_pages: false,
        failures: FailurePlan::Off,
    });
}

#[test]
fn failing_allocations_change_nothing() {
    lockstep(Duration::from_secs(5), 150, |rng| Setting {
        bytes: 512 * MIB,
        folios: drawn_policy(rng),
        single_pages: false,
        failures: FailurePlan::Seeded {
            seed: rng.u64(..),
            one_in: *rng.choice(&[3, 20, 200]).expect("not empty"),
        },
    });
}

#[test]
fn a_machine_that_is_too_small_says_so() {
    lockstep(Duration::from_secs(5), 200, |rng| Setting {
        bytes: rng.u64(2..16) * MIB,
        folios: drawn_policy(rng),
        single_pages: false,
        failures: FailurePlan::Off,
    });
}
