//! Sets up everything that must exist before the program starts.

use std::ffi::OsString;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::utsname::uname;

use super::child::{self, Gated};
use super::feed::Feed;
use super::options::{Interface, Options};
use super::overhead::{self, Governor};
use super::perf::{self, Followed};
use super::signals::Inherited;
use super::tracer::{self, Tracer};
use super::{RecordError, calls_by_ptrace};
use crate::host::machine;
use crate::trace::{Clock, FaultKinds, Header, Limits, Overcommit, Program, Tier, Totals, VERSION};

/// A recording that is ready to start.
pub(super) struct Setup {
    pub(super) tier: Tier,
    pub(super) gated: Gated,
    /// The tracer of the user tier.
    pub(super) tracer: Option<Tracer>,
    pub(super) feed: Feed,
    /// Bounds what the recording costs.
    pub(super) governor: Option<Governor>,
}

impl Setup {
    /// Makes the process and opens the events of a tier.
    pub(super) fn of(tier: Tier, options: &Options, inherited: &Inherited) -> Result<Setup, RecordError> {
        match tier {
            Tier::Privileged => privileged(options, inherited),
            Tier::User => user(options, inherited),
        }
    }
}

fn privileged(options: &Options, inherited: &Inherited) -> Result<Setup, RecordError> {
    let folios = options.thp.into();
    let gated = child::prepare(&options.command, folios, options.ends_with_recorder, inherited)?;
    raise_open_files()?;
    let pid = gated.pid.as_raw();
    let bound = options.max_overhead.map(|bound| (bound, overhead::alone()));
    let mut feed = Feed::privileged(options.interface, options.ring_bytes, bound.is_some())?;
    let measured = bound.map(|(bound, alone)| {
        overhead::measure(&mut feed, &alone).map(|(costs, held)| (Governor::new(costs, bound), held))
    });
    let (governor, held) = measured.transpose()?.unzip();
    feed.follow(Followed::Program(pid))?;
    drop(held);
    Ok(Setup { tier: Tier::Privileged, gated, tracer: None, feed, governor })
}

fn user(options: &Options, inherited: &Inherited) -> Result<Setup, RecordError> {
    if options.max_overhead.is_some() {
        return Err(RecordError::NoBound);
    }
    if options.interface == Interface::Bpf {
        return Err(RecordError::ProgramsNeedRoot);
    }
    let filter = calls_by_ptrace::filter();
    let (gated, tracer) = tracer::start(&options.command, options.thp.into(), &filter, inherited)?;
    raise_open_files()?;
    let pid = gated.pid.as_raw();
    let mut feed = Feed::user(options.ring_bytes)?;
    feed.follow(Followed::Program(pid))?;
    let tracer = Some(tracer);
    Ok(Setup { tier: Tier::User, gated, tracer, feed, governor: None })
}

/// Raises the limit of open files, since each CPU has several events. Called after the program's process was
/// made, whose limit stays as it was.
pub(super) fn raise_open_files() -> Result<(), RecordError> {
    let (_, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).map_err(RecordError::system("reading the file limit"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(RecordError::system("raising the file limit"))
}

/// The limits of this process, which the program inherits.
fn own_limit(resource: Resource) -> Option<u64> {
    getrlimit(resource).ok().map(|(soft, _)| soft)
}

/// The memory limits of a program, by its soft limits. `None` where /proc does not show them.
pub(super) fn limits(soft: impl Fn(Resource) -> Option<u64>) -> Option<Limits> {
    let setting =
        |name: &str| std::fs::read_to_string(format!("/proc/sys/vm/{name}")).ok()?.trim().parse::<u64>().ok();
    Some(Limits {
        mappings: setting("max_map_count")?,
        overcommit: match setting("overcommit_memory")? {
            1 => Overcommit::Always,
            2 => Overcommit::Never,
            _ => Overcommit::Guess,
        },
        overcommit_ratio: setting("overcommit_ratio")?,
        overcommit_bytes: setting("overcommit_kbytes")?.saturating_mul(1024),
        address_space: soft(Resource::RLIMIT_AS)?,
        data: soft(Resource::RLIMIT_DATA)?,
        stack: soft(Resource::RLIMIT_STACK)?,
        locked: soft(Resource::RLIMIT_MEMLOCK)?,
    })
}

/// The header of a recording on this machine, of a program without transparent huge pages.
pub(super) fn header(tier: Tier, command: &[OsString], fault_around: bool) -> Result<Header, RecordError> {
    let kernel = uname().map_err(RecordError::system("uname"))?.release().to_string_lossy().into_owned();
    let page_size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .map_err(RecordError::system("reading the page size"))?;
    Ok(Header {
        version: VERSION,
        clock: Clock::Monotonic,
        page_size: page_size.unwrap_or(4096) as u32,
        kernel,
        cpus: perf::online_cpus()?.len() as u32,
        cpu: machine::processor(),
        command: command.iter().map(|argument| argument.to_string_lossy().into_owned()).collect(),
        program: Program::default(),
        tier,
        thp_disabled: true,
        faults: FaultKinds { fault_around, ..FaultKinds::of(tier) },
        ring_bytes: 0,
        limits: limits(own_limit),
        attached: false,
        totals: Totals::default(),
        events: 0,
    })
}
