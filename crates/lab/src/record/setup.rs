//! What has to be in place before the program may start.

use std::ffi::{CString, OsString};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::utsname::uname;

use super::child::{self, Gated};
use super::locks::{self, LockTracepoints};
use super::parse::{Fields, Parser};
use super::perf::{self, Config, Events, Source, Wanted};
use super::tracefs::{Tracefs, Tracepoint};
use super::{Options, RecordError, calls_by_ptrace};
use crate::trace::{Call, Clock, FaultKinds, Header, Program, Tier, Totals, VERSION};

/// Nothing was lost with this much at over a million faults a second.
const PRIVILEGED_RING: usize = 32 << 20;

/// What an ordinary user may lock on most machines.
const USER_RING: usize = 4 << 20;

/// Addresses of user memory are below this, whatever the number of page-table levels; the kernel's are far above.
const USER_END: u64 = 1 << 56;

/// A recording that is ready to start.
pub(super) struct Setup {
    pub(super) tier: Tier,
    pub(super) gated: Gated,
    pub(super) events: Events,
    pub(super) parser: Parser,
    /// Can this kernel tell what it maps around a fault?
    pub(super) fault_around: bool,
}

impl Setup {
    /// Makes the process and opens the events of a tier.
    pub(super) fn of(tier: Tier, options: &Options) -> Result<Setup, RecordError> {
        match tier {
            Tier::Privileged => privileged(options),
            Tier::User => user(options),
        }
    }
}

fn privileged(options: &Options) -> Result<Setup, RecordError> {
    let tracefs = Tracefs::find()?;
    let mut wanted = perf::common();
    let (fields, fault_around) = tracepoints(&tracefs, &mut wanted)?;
    let gated = child::prepare(&options.command, None)?;
    raise_open_files()?;
    let ring_bytes = options.ring_bytes.unwrap_or(PRIVILEGED_RING);
    let events = perf::open(&wanted, gated.pid.as_raw(), true, ring_bytes, options.ring_bytes.is_none())?;
    let parser = Parser::new(events.sources.clone(), Some(fields));
    Ok(Setup { tier: Tier::Privileged, gated, events, parser, fault_around })
}

fn user(options: &Options) -> Result<Setup, RecordError> {
    let filter = calls_by_ptrace::filter()?;
    let gated = child::prepare(&options.command, Some(&filter))?;
    raise_open_files()?;
    let ring_bytes = options.ring_bytes.unwrap_or(USER_RING);
    let shrink = options.ring_bytes.is_none();
    let events = perf::open(&perf::common(), gated.pid.as_raw(), false, ring_bytes, shrink)?;
    calls_by_ptrace::attach(gated.pid)?;
    let parser = Parser::new(events.sources.clone(), None);
    Ok(Setup { tier: Tier::User, gated, events, parser, fault_around: false })
}

/// Adds the tracepoints of the privileged tier. Gives where their fields are, and whether fault-around is among them.
fn tracepoints(tracefs: &Tracefs, wanted: &mut Vec<Wanted>) -> Result<(Fields, bool), RecordError> {
    let fault_user = tracefs.tracepoint("exceptions/page_fault_user")?;
    let fault_kernel = tracefs.tracepoint("exceptions/page_fault_kernel")?;
    let enter = tracefs.tracepoint("raw_syscalls/sys_enter")?;
    let leave = tracefs.tracepoint("raw_syscalls/sys_exit")?;
    let new_task = tracefs.tracepoint("task/task_newtask")?;
    // Newer than the others; a kernel without it still tells everything else.
    let map_pages = tracefs.tracepoint("filemap/mm_filemap_map_pages").ok();
    let locks = LockTracepoints::find(tracefs);
    let addresses = format!("address < {USER_END}");
    let calls: Vec<String> = Call::ALL.iter().map(|call| format!("id == {}", call.x86_64())).collect();
    let calls = calls.join(" || ");
    let mut add = |source, tracepoint: &Tracepoint, filter: Option<&str>, what| {
        let filter = filter.map(|filter| CString::new(filter).expect("filters have no zero bytes"));
        wanted.push(Wanted { source, config: Config::Tracepoint { id: tracepoint.id, filter }, what });
    };
    add(Source::FaultUser, &fault_user, Some(&addresses), "faults of the program");
    add(Source::FaultKernel, &fault_kernel, Some(&addresses), "faults from kernel mode");
    add(Source::Enter, &enter, Some(&calls), "system calls");
    add(Source::Leave, &leave, Some(&calls), "system calls");
    add(Source::NewTask, &new_task, None, "clone flags");
    if let Some(map_pages) = &map_pages {
        add(Source::MapPages, map_pages, None, "fault-around");
    }
    if let Some(locks) = &locks {
        add(Source::Locked, &locks.taken, Some(locks::TAKEN), locks::WHAT);
        add(Source::Unlocked, &locks.released, Some(locks::RELEASED), locks::WHAT);
    }
    let map_field = |name: &str| map_pages.as_ref().map(|tracepoint| tracepoint.field(name)).transpose();
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
        task_tid: new_task.field("pid")?,
        task_flags: new_task.field("clone_flags")?,
        locked_mm: locks.as_ref().map(LockTracepoints::taken_mm).transpose()?.unwrap_or_default(),
        locked_write: locks.as_ref().map(LockTracepoints::taken_write).transpose()?.unwrap_or_default(),
        unlocked_mm: locks.as_ref().map(LockTracepoints::released_mm).transpose()?.unwrap_or_default(),
    };
    Ok((fields, map_pages.is_some()))
}

/// There are several events per CPU, and each is an open file. Called after the program's process has been
/// made, so that its own limit stays as it was.
fn raise_open_files() -> Result<(), RecordError> {
    let (_, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).map_err(RecordError::system("reading the file limit"))?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(RecordError::system("raising the file limit"))
}

/// The header of a recording on this machine.
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
        command: command.iter().map(|argument| argument.to_string_lossy().into_owned()).collect(),
        program: Program::default(),
        tier,
        thp_disabled: true,
        faults: FaultKinds { fault_around, ..FaultKinds::of(tier) },
        ring_bytes: 0,
        totals: Totals::default(),
        events: 0,
    })
}
