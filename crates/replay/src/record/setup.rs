//! Sets up everything that must exist before the program starts.

use std::ffi::{CString, OsString};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::utsname::uname;
use rustix::fs::MemfdFlags;

use super::child::{self, Gated};
use super::feed::Feed;
use super::locks::{self, LockTracepoints};
use super::options::{Interface, Options};
use super::overhead::{self, Governor};
use super::parse::Fields;
use super::perf::{self, Config, Followed, Source, Wanted};
use super::signals::Inherited;
use super::tracefs::{Tracefs, Tracepoint};
use super::tracer::{self, Tracer};
use super::{RecordError, abi, calls_by_ptrace, filters};
use crate::host::machine;
use crate::trace::{Clock, FaultKinds, Header, Limits, Overcommit, Program, Tier, Totals, VERSION};

/// No record was lost with this size at over a million faults a second.
pub(super) const PRIVILEGED_RING: usize = 32 << 20;

/// The size that an ordinary user may lock on most machines.
pub(super) const USER_RING: usize = 4 << 20;

/// Addresses of user memory are below this, whatever the number of page-table levels; the kernel's are far above.
pub(super) const USER_END: u64 = 1 << 56;

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

/// The device of files that no path leads to, as the kernel has it: each `memfd` and each shared anonymous mapping is one of it.
pub(super) fn nameless_device() -> Option<u32> {
    let file = rustix::fs::memfd_create("quire", MemfdFlags::CLOEXEC).ok()?;
    let device = rustix::fs::fstat(file).ok()?.st_dev;
    // The kernel's own device number has 20 bits of minor number.
    Some(rustix::fs::major(device) << 20 | rustix::fs::minor(device))
}

/// Adds the tracepoints of the privileged tier. Returns their fields, and whether fault-around is among them.
pub(super) fn tracepoints(
    tracefs: &Tracefs,
    wanted: &mut Vec<Wanted>,
) -> Result<(Fields, bool), RecordError> {
    let fault_user = tracefs.tracepoint("exceptions/page_fault_user")?;
    let fault_kernel = tracefs.tracepoint("exceptions/page_fault_kernel")?;
    let enter = tracefs.tracepoint("raw_syscalls/sys_enter")?;
    let leave = tracefs.tracepoint("raw_syscalls/sys_exit")?;
    let new_task = tracefs.tracepoint("task/task_newtask")?;
    // This tracepoint is newer; a kernel without it still reports everything else.
    let map_pages = tracefs.tracepoint("filemap/mm_filemap_map_pages").ok();
    let dropped = tracefs.tracepoint("filemap/mm_filemap_delete_from_page_cache").ok();
    let dropped = dropped.zip(nameless_device().map(|device| format!("s_dev == {device}")));
    let locks = LockTracepoints::find(tracefs);
    let addresses = format!("address < {USER_END}");
    let (entries, exits) = filters::of_calls();
    let old_mmap = format!("id == {}", abi::OLD_MMAP);
    let mut add = |source, tracepoint: &Tracepoint, filter: Option<&str>, what| {
        let filter = filter.map(|filter| CString::new(filter).expect("filters have no zero bytes"));
        wanted.push(Wanted { source, config: Config::Tracepoint { id: tracepoint.id, filter }, what });
    };
    add(Source::FaultUser, &fault_user, Some(&addresses), "faults of the program");
    add(Source::FaultKernel, &fault_kernel, Some(&addresses), "faults from kernel mode");
    add(Source::Enter, &enter, Some(&entries), "system calls");
    add(Source::EnterOldMmap, &enter, Some(&old_mmap), "system calls");
    add(Source::Leave, &leave, Some(&exits), "system calls");
    add(Source::NewTask, &new_task, None, "clone flags");
    if let Some(map_pages) = &map_pages {
        add(Source::MapPages, map_pages, None, "fault-around");
    }
    if let Some((dropped, filter)) = &dropped {
        add(Source::Dropped, dropped, Some(filter), "pages that leave files");
    }
    if let Some(locks) = &locks {
        add(Source::Locked, &locks.taken, Some(locks::TAKEN), locks::WHAT);
        add(Source::Unlocked, &locks.released, Some(locks::RELEASED), locks::WHAT);
    }
    let map_field = |name: &str| map_pages.as_ref().map(|tracepoint| tracepoint.field(name)).transpose();
    let dropped_field =
        |name: &str| dropped.as_ref().map(|(tracepoint, _)| tracepoint.field(name)).transpose();
    let fields = Fields {
        fault_address: fault_user.field("address")?,
        fault_error_code: fault_user.field("error_code")?,
        enter_id: enter.field("id")?,
        enter_args: enter.field("args")?,
        leave_id: leave.field("id")?,
        leave_result: leave.field("ret")?,
        map_device: map_field("s_dev")?.unwrap_or_default(),
        map_inode: map_field("i_ino")?.unwrap_or_default(),
        map_first: map_field("index")?.unwrap_or_default(),
        map_last: map_field("last_index")?.unwrap_or_default(),
        dropped_device: dropped_field("s_dev")?.unwrap_or_default(),
        dropped_inode: dropped_field("i_ino")?.unwrap_or_default(),
        task_flags: new_task.field("clone_flags")?,
        locked_mm: locks.as_ref().map(LockTracepoints::taken_mm).transpose()?.unwrap_or_default(),
        unlocked_mm: locks.as_ref().map(LockTracepoints::released_mm).transpose()?.unwrap_or_default(),
    };
    Ok((fields, map_pages.is_some()))
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

#[cfg(test)]
mod tests;
