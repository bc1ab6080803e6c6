//! Opens the perf events of a recording: several for each CPU, all into the CPU's ring.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_DUMMY, PERF_COUNT_SW_PAGE_FAULTS, PERF_COUNT_SW_PAGE_FAULTS_MAJ,
    PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_FLAG_FD_CLOEXEC, PERF_FLAG_PID_CGROUP, PERF_FORMAT_LOST,
    PERF_REG_X86_DI, PERF_REG_X86_R8, PERF_REG_X86_R9, PERF_REG_X86_R10, PERF_REG_X86_SI, PERF_REG_X86_SP,
    PERF_SAMPLE_ADDR, PERF_SAMPLE_IDENTIFIER, PERF_SAMPLE_RAW, PERF_SAMPLE_REGS_USER, PERF_SAMPLE_STACK_USER,
    PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT, perf_event_attr,
};
use perf_event_open_sys::{ioctls, perf_event_open};

use super::RecordError;
use super::sink::Sink;

/// The kinds of perf events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Nothing by itself; carries the records of mappings, forks, exits and names.
    Records,
    Minor,
    Major,
    FaultUser,
    FaultKernel,
    Enter,
    /// A call whose arguments are in the program's memory, usually on its stack.
    EnterOldMmap,
    Leave,
    MapPages,
    /// Pages leave a file.
    Dropped,
    NewTask,
    Locked,
    Unlocked,
    /// Records nothing: counts nanoseconds on CPUs.
    Time,
    /// Records nothing: counts faults.
    Faults,
}

impl Source {
    /// Whether its records tell of faults.
    pub(super) const fn is_fault(self) -> bool {
        use Source::{FaultKernel, FaultUser, Major, MapPages, Minor};
        matches!(self, Minor | Major | FaultUser | FaultKernel | MapPages)
    }

    const fn only_counts(self) -> bool {
        matches!(self, Source::Time | Source::Faults)
    }
}

/// Registers of the program that are sampled when it enters a call: stack pointer, and arguments of a 64-bit call. In
/// the order in which they are sampled: by these numbers.
const REGISTERS: u64 = 1 << PERF_REG_X86_SI
    | 1 << PERF_REG_X86_DI
    | 1 << PERF_REG_X86_SP
    | 1 << PERF_REG_X86_R8
    | 1 << PERF_REG_X86_R9
    | 1 << PERF_REG_X86_R10;

/// Bytes of the program's stack that are sampled where arguments may be there.
const STACK_BYTES: u32 = 256;

/// An event to open.
pub(super) struct Wanted {
    pub(super) source: Source,
    pub(super) config: Config,
    /// For messages.
    pub(super) what: &'static str,
}

/// The kernel's type of the event.
pub(super) enum Config {
    Software(u64),
    Tracepoint { id: u64, filter: Option<CString> },
}

/// The open events of a recording.
pub(super) struct Events {
    /// One for each CPU.
    pub(super) sinks: Vec<Sink>,
    /// The kernel's number of each event.
    pub(super) sources: HashMap<u64, Source>,
    /// Size of each ring at the start.
    pub(super) ring_bytes: usize,
}

fn software(source: Source, config: u32, what: &'static str) -> Wanted {
    Wanted { source, config: Config::Software(u64::from(config)), what }
}

/// The event that counts how long the program runs.
pub(super) fn counted_time() -> Wanted {
    software(Source::Time, PERF_COUNT_SW_CPU_CLOCK, "the time of the program")
}

/// The event that counts faults, recorded or not.
pub(super) fn counted_faults() -> Wanted {
    software(Source::Faults, PERF_COUNT_SW_PAGE_FAULTS, "the number of faults")
}

/// The event that carries the records of mappings, forks, exits and names.
pub(super) fn records() -> Wanted {
    software(Source::Records, PERF_COUNT_SW_DUMMY, "mappings and forks")
}

/// The events of every tier: records, and resolved faults.
pub(super) fn common() -> Vec<Wanted> {
    vec![
        records(),
        software(Source::Minor, PERF_COUNT_SW_PAGE_FAULTS_MIN, "minor faults"),
        software(Source::Major, PERF_COUNT_SW_PAGE_FAULTS_MAJ, "major faults"),
    ]
}

/// What events follow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Followed<'a> {
    /// A process that waits to become the program, from its exec on.
    Program(i32),
    /// A thread, and what it starts. Its events are disabled at first.
    Thread(i32),
    /// The tasks of a control group. Its events are disabled at first.
    Cgroup(&'a OwnedFd),
    /// All tasks of one CPU.
    Every,
}

fn attributes(wanted: &Wanted, kernel: bool, followed: Followed<'_>) -> perf_event_attr {
    let mut attr = perf_event_attr::default();
    attr.size = size_of::<perf_event_attr>() as u32;
    let sample = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME;
    match &wanted.config {
        Config::Software(config) => {
            attr.type_ = PERF_TYPE_SOFTWARE;
            attr.config = *config;
            attr.sample_type = u64::from(sample | PERF_SAMPLE_ADDR);
        }
        Config::Tracepoint { id, .. } => {
            attr.type_ = PERF_TYPE_TRACEPOINT;
            attr.config = *id;
            attr.sample_type = u64::from(sample | PERF_SAMPLE_RAW);
        }
    }
    if matches!(wanted.source, Source::Enter | Source::EnterOldMmap) {
        attr.sample_type |= u64::from(PERF_SAMPLE_REGS_USER);
        attr.sample_regs_user = REGISTERS;
    }
    if wanted.source == Source::EnterOldMmap {
        attr.sample_type |= u64::from(PERF_SAMPLE_STACK_USER);
        attr.sample_stack_user = STACK_BYTES;
    }
    attr.__bindgen_anon_1.sample_period = u64::from(!wanted.source.only_counts());
    attr.set_disabled(1);
    attr.set_enable_on_exec(u64::from(matches!(followed, Followed::Program(_))));
    attr.set_inherit(u64::from(!matches!(followed, Followed::Cgroup(_) | Followed::Every)));
    attr.set_exclude_hv(1);
    attr.set_exclude_kernel(u64::from(!kernel));
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
    attr.read_format = u64::from(PERF_FORMAT_LOST);
    if wanted.source == Source::Records {
        attr.sample_type = u64::from(sample);
        attr.set_mmap(1);
        attr.set_mmap2(1);
        attr.set_mmap_data(1);
        attr.set_comm(1);
        attr.set_comm_exec(1);
        attr.set_task(1);
    }
    attr
}

/// The event that owns a ring: an event of the calling thread that records nothing and wakes the ring's
/// reader.
pub(super) fn open_owner(cpu: i32, kernel: bool, ring_bytes: usize) -> Result<OwnedFd, RecordError> {
    let config = Config::Software(u64::from(PERF_COUNT_SW_DUMMY));
    let wanted = Wanted { source: Source::Minor, config, what: "a ring" };
    let mut attr = attributes(&wanted, kernel, Followed::Thread(0));
    attr.set_inherit(0);
    attr.__bindgen_anon_2.wakeup_watermark = (ring_bytes / 8) as u32;
    attr.set_watermark(1);
    open_one(&mut attr, Followed::Thread(0), cpu).map_err(|source| refused("a ring", source))
}

/// A tracepoint of one thread, on every CPU, with a ring of its own.
pub(super) fn open_tracepoint(id: u64, thread: i32) -> Result<OwnedFd, RecordError> {
    let config = Config::Tracepoint { id, filter: None };
    let wanted = Wanted { source: Source::Minor, config, what: "reports of a thread" };
    let mut attr = attributes(&wanted, true, Followed::Thread(thread));
    attr.set_inherit(0);
    attr.set_disabled(0);
    open_one(&mut attr, Followed::Thread(thread), EVERY_CPU).map_err(|source| refused(wanted.what, source))
}

/// Runs a program at each resolved fault of a CPU, of any process: those that waited for a device, or others.
pub(super) fn open_for_program(major: bool, cpu: i32, program: &OwnedFd) -> Result<OwnedFd, RecordError> {
    let config = if major { PERF_COUNT_SW_PAGE_FAULTS_MAJ } else { PERF_COUNT_SW_PAGE_FAULTS_MIN };
    let mut attr = attributes(&software(Source::Minor, config, RESOLVED), true, Followed::Every);
    attr.sample_type = u64::from(PERF_SAMPLE_ADDR);
    attr.read_format = 0;
    let event = open_one(&mut attr, Followed::Every, cpu).map_err(|source| refused(RESOLVED, source))?;
    control("programs at faults", || {
        // SAFETY: C3: both descriptors are open, and the request takes no memory.
        unsafe { ioctls::SET_BPF(event.as_raw_fd(), program.as_raw_fd().cast_unsigned()) }
    })?;
    control("enabling an event", || {
        // SAFETY: C3: the event is open, and the request takes no memory.
        unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) }
    })?;
    Ok(event)
}

const RESOLVED: &str = "resolved faults";

/// A thread is followed wherever it runs.
const EVERY_CPU: i32 = -1;

fn refused(what: &'static str, source: io::Error) -> RecordError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RecordError::NotPermitted { what, source },
        _ => RecordError::System { what: "perf_event_open", source },
    }
}

/// Makes a ring for each CPU.
///
/// Without a size, rings that the kernel refuses to lock are halved down to 64 KiB, and grow as far as the
/// kernel permits.
pub(super) fn rings(
    kernel: bool,
    ring_bytes: Option<usize>,
    default_bytes: usize,
) -> Result<Events, RecordError> {
    let adapts = ring_bytes.is_none();
    let mut ring_bytes = ring_bytes.unwrap_or(default_bytes);
    loop {
        let sinks = online_cpus()?.into_iter().map(|cpu| Sink::open(cpu, kernel, ring_bytes, adapts));
        match sinks.collect() {
            Err(RecordError::Ring { .. }) if adapts && ring_bytes > 64 * 1024 => ring_bytes /= 2,
            outcome => return Ok(Events { sinks: outcome?, sources: HashMap::new(), ring_bytes }),
        }
    }
}

impl Events {
    /// The events without their rings.
    pub(super) fn into_descriptors(self) -> Vec<OwnedFd> {
        let of_sink = |mut sink: Sink| sink.take_events().into_iter().map(|(_, event)| event);
        self.sinks.into_iter().flat_map(of_sink).collect()
    }

    /// Opens the wanted events on every CPU.
    pub(super) fn follow(
        &mut self,
        wanted: &[Wanted],
        followed: Followed<'_>,
        kernel: bool,
    ) -> Result<(), RecordError> {
        for sink in &mut self.sinks {
            for event in wanted {
                let mut attr = attributes(event, kernel, followed);
                let fd = open_one(&mut attr, followed, sink.cpu())
                    .map_err(|source| refused(event.what, source))?;
                if let Config::Tracepoint { filter: Some(filter), .. } = &event.config {
                    control("filter", || {
                        // SAFETY: C3: the event is open, and the filter is a C string that outlives the call, which
                        // only reads it.
                        unsafe { ioctls::SET_FILTER(fd.as_raw_fd(), filter.as_ptr().cast_mut()) }
                    })?;
                }
                let mut id = 0;
                control("event number", || {
                    // SAFETY: C3: the event is open, and the kernel writes one u64 to `id`.
                    unsafe { ioctls::ID(fd.as_raw_fd(), &raw mut id) }
                })?;
                self.sources.insert(id, event.source);
                sink.add(event.source, fd)?;
            }
        }
        Ok(())
    }
}

/// Opens an event; on a kernel before Linux 6.0 without its count of lost records.
fn open_one(attr: &mut perf_event_attr, followed: Followed<'_>, cpu: i32) -> io::Result<OwnedFd> {
    let (pid, of) = match followed {
        Followed::Program(pid) | Followed::Thread(pid) => (pid, 0),
        Followed::Cgroup(group) => (group.as_raw_fd(), PERF_FLAG_PID_CGROUP),
        Followed::Every => (-1, 0),
    };
    // SAFETY: C3: `attr` is initialised and says its own size; the kernel reads it and writes at most its size
    // field.
    let fd = unsafe { perf_event_open(attr, pid, cpu, -1, (PERF_FLAG_FD_CLOEXEC | of).into()) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EINVAL) && std::mem::take(&mut attr.read_format) != 0 {
            return open_one(attr, followed, cpu);
        }
        return Err(error);
    }
    // SAFETY: C3: the kernel has just given this descriptor to this process; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Records of an event and its children that the kernel has lost; `None` where it does not count them.
pub(super) fn lost(event: &OwnedFd) -> Option<u64> {
    counts_of(event)[1]
}

/// The count of an event and its children.
pub(super) fn value(event: &OwnedFd) -> Option<u64> {
    counts_of(event)[0]
}

/// The event's value, then the lost records.
fn counts_of(event: &OwnedFd) -> [Option<u64>; 2] {
    let mut bytes = [0; 16];
    let read = nix::unistd::read(event, &mut bytes).unwrap_or(0);
    let word = |at: usize| Some(u64::from_le_bytes(*bytes[..read].get(at * 8..)?.first_chunk()?));
    [word(0), word(1)]
}

fn control(what: &'static str, call: impl FnOnce() -> i32) -> Result<(), RecordError> {
    match call() {
        0 => Ok(()),
        _ => Err(RecordError::System { what, source: io::Error::last_os_error() }),
    }
}

/// The CPUs that are online, from a list such as `0-3,8`.
pub(super) fn online_cpus() -> Result<Vec<i32>, RecordError> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .map_err(RecordError::system("reading the list of CPUs"))?;
    parse_cpus(list.trim()).ok_or_else(|| RecordError::System {
        what: "reading the list of CPUs",
        source: io::Error::from(io::ErrorKind::InvalidData),
    })
}

pub(super) fn parse_cpus(list: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        // No Linux is built for more CPUs than this.
        let last = last.parse::<u16>().ok()?;
        cpus.extend(first.parse::<i32>().ok()?..=i32::from(last));
    }
    Some(cpus)
}

/// Waits until a ring is well filled, or for at most the timeout.
pub(super) fn wait(sinks: &[Sink], timeout_ms: u8) {
    use nix::poll::{PollFd, PollFlags, poll};
    let mut polled: Vec<_> = sinks.iter().map(|sink| PollFd::new(sink.as_fd(), PollFlags::POLLIN)).collect();
    // Interrupted or not, the rings are read next.
    let _ = poll(&mut polled, timeout_ms);
}

#[cfg(test)]
mod tests;
