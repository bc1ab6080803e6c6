//! Steps library and model together for as many operations as are asked for:
//! `cargo run --release -p quire-oracle --example campaign -- --operations 1e8 --seed 1`.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use mimalloc::MiMalloc;
use oracle::campaign::{Run, STEPS};
use oracle::lockstep::{Tally, within};
use rustix::time::{ClockId, clock_gettime};

/// The models' small maps come and go with each operation; the system's allocator takes a fifth of the time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Steps the library and the model of address spaces together, run after run.
#[derive(Parser)]
struct Arguments {
    /// Operations to do, as 1e8; whole runs are done.
    #[arg(long, default_value_t = 1e6)]
    operations: f64,
    /// The seed of the first run; each further run has the next. One failing seed is done again with `--operations 1`.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seeds of failing runs are appended to this file.
    #[arg(long, default_value = "campaign-failures.txt")]
    failures: PathBuf,
    /// Stop after so many failing runs.
    #[arg(long, default_value_t = 5)]
    most_failures: u32,
    /// Seconds between two lines of progress.
    #[arg(long, default_value_t = 10)]
    progress: u64,
}

/// Time after which a run that goes on, shortening included, is taken for one that never ends.
const HANG: Duration = Duration::from_secs(900);

/// Processor time that this process has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn keep(arguments: &Arguments, seed: u64, what: &str) {
    let file = OpenOptions::new().create(true).append(true).open(&arguments.failures);
    let line = format!("{seed} {}\n", what.lines().next().unwrap_or_default());
    if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
        eprintln!("{}: {error}; the seed is {seed}", arguments.failures.display());
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A failing run is done many times over while it is shortened; each time it may panic.
    std::panic::set_hook(Box::new(|_| {}));
    let (start, mut shown) = (Instant::now(), Instant::now());
    let (mut tally, mut failures, mut seed) = (Tally::default(), 0, arguments.seed);
    let line = |tally: &Tally, failures: u32, seed: u64| {
        let (done, used) = (tally.operations() as f64, processor_time().as_secs_f64());
        let wall = start.elapsed().as_secs_f64();
        println!(
            "seeds {}..{seed}: {done} operations, {failures} failing runs, {:.0} a second of processor time, {:.0} a second",
            arguments.seed,
            done / used,
            done / wall
        );
    };
    while (tally.operations() as f64) < arguments.operations && failures < arguments.most_failures {
        match within(HANG, &format!("seed {seed}"), || Run::draw(seed, STEPS).check()) {
            Ok(done) => tally.merge(&done),
            Err(failure) => {
                failures += 1;
                keep(&arguments, seed, &failure.what);
                println!("{failure}");
            }
        }
        seed += 1;
        if shown.elapsed().as_secs() >= arguments.progress {
            shown = Instant::now();
            line(&tally, failures, seed);
        }
    }
    print!("{tally}");
    line(&tally, failures, seed);
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
