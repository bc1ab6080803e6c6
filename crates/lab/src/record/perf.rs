//! Opens the perf events of a recording: several per CPU, all into one ring per CPU.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_DUMMY, PERF_COUNT_SW_PAGE_FAULTS_MAJ, PERF_COUNT_SW_PAGE_FAULTS_MIN, PERF_FLAG_FD_CLOEXEC,
    PERF_SAMPLE_ADDR, PERF_SAMPLE_IDENTIFIER, PERF_SAMPLE_RAW, PERF_SAMPLE_TID, PERF_SAMPLE_TIME,
    PERF_TYPE_SOFTWARE, PERF_TYPE_TRACEPOINT, perf_event_attr,
};
use perf_event_open_sys::{ioctls, perf_event_open};

use super::RecordError;
use super::ring::Ring;

/// What a perf event tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Nothing by itself; carries the records of mappings, forks, exits and names.
    Records,
    Minor,
    Major,
    FaultUser,
    FaultKernel,
    Enter,
    Leave,
    MapPages,
    NewTask,
}

/// An event to open.
pub(super) struct Wanted {
    pub(super) source: Source,
    pub(super) config: Config,
    /// For messages.
    pub(super) what: &'static str,
}

/// Which event the kernel knows it as.
pub(super) enum Config {
    Software(u64),
    Tracepoint { id: u64, filter: Option<CString> },
}

/// The open events of a recording.
pub(super) struct Events {
    pub(super) rings: Vec<Ring>,
    /// Event of each ring that wakes up its reader.
    pub(super) leaders: Vec<OwnedFd>,
    _others: Vec<OwnedFd>,
    /// The kernel's number of each event.
    pub(super) sources: HashMap<u64, Source>,
    pub(super) ring_bytes: usize,
}

/// What every tier has: records, and faults when they are resolved.
pub(super) fn common() -> Vec<Wanted> {
    let software =
        |source, config, what| Wanted { source, config: Config::Software(u64::from(config)), what };
    vec![
        software(Source::Records, PERF_COUNT_SW_DUMMY, "mappings and forks"),
        software(Source::Minor, PERF_COUNT_SW_PAGE_FAULTS_MIN, "minor faults"),
        software(Source::Major, PERF_COUNT_SW_PAGE_FAULTS_MAJ, "major faults"),
    ]
}

fn attributes(wanted: &Wanted, kernel: bool, ring_bytes: usize) -> perf_event_attr {
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
    attr.__bindgen_anon_1.sample_period = 1;
    attr.__bindgen_anon_2.wakeup_watermark = (ring_bytes / 8) as u32;
    attr.set_watermark(1);
    attr.set_disabled(1);
    attr.set_enable_on_exec(1);
    attr.set_inherit(1);
    attr.set_exclude_hv(1);
    attr.set_exclude_kernel(u64::from(!kernel));
    attr.set_sample_id_all(1);
    attr.set_use_clockid(1);
    attr.clockid = libc::CLOCK_MONOTONIC;
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

/// Opens the wanted events for a process that has not begun its program yet, and for all its children to come.
///
/// With `shrink`, rings that the kernel refuses to lock are tried at half the size, down to 64 KiB.
pub(super) fn open(
    wanted: &[Wanted],
    pid: i32,
    kernel: bool,
    ring_bytes: usize,
    shrink: bool,
) -> Result<Events, RecordError> {
    let mut ring_bytes = ring_bytes;
    loop {
        match open_sized(wanted, pid, kernel, ring_bytes) {
            Err(RecordError::Ring { .. }) if shrink && ring_bytes > 64 * 1024 => ring_bytes /= 2,
            outcome => return outcome,
        }
    }
}

fn open_sized(wanted: &[Wanted], pid: i32, kernel: bool, ring_bytes: usize) -> Result<Events, RecordError> {
    let mut events =
        Events { rings: vec![], leaders: vec![], _others: vec![], sources: HashMap::new(), ring_bytes };
    for cpu in online_cpus()? {
        let mut leader: Option<OwnedFd> = None;
        for event in wanted {
            let mut attr = attributes(event, kernel, ring_bytes);
            let fd = open_one(&mut attr, pid, cpu).map_err(|source| match source.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => RecordError::NotPermitted { what: event.what, source },
                _ => RecordError::System { what: "perf_event_open", source },
            })?;
            if let Config::Tracepoint { filter: Some(filter), .. } = &event.config {
                control("filter", || {
                    // SAFETY: the event is open, and the filter is a C string that outlives the call, which only reads it.
                    unsafe { ioctls::SET_FILTER(fd.as_raw_fd(), filter.as_ptr().cast_mut()) }
                })?;
            }
            let mut id = 0;
            control("event number", || {
                // SAFETY: the event is open, and the kernel writes one u64 to `id`.
                unsafe { ioctls::ID(fd.as_raw_fd(), &raw mut id) }
            })?;
            events.sources.insert(id, event.source);
            match &leader {
                None => {
                    let ring = Ring::map(&fd, ring_bytes)
                        .map_err(|source| RecordError::Ring { bytes: ring_bytes, source })?;
                    events.rings.push(ring);
                    leader = Some(fd);
                }
                Some(leader) => {
                    control("shared ring", || {
                        // SAFETY: both events are open.
                        unsafe { ioctls::SET_OUTPUT(fd.as_raw_fd(), leader.as_raw_fd()) }
                    })?;
                    events._others.push(fd);
                }
            }
        }
        events.leaders.extend(leader);
    }
    Ok(events)
}

fn open_one(attr: &mut perf_event_attr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is initialised and says its own size; the kernel reads it and writes at most its size field.
    let fd = unsafe { perf_event_open(attr, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to this process; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
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
        cpus.extend(first.parse::<i32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

/// Waits until a ring has much in it, or the time is over.
pub(super) fn wait(leaders: &[OwnedFd], timeout_ms: u8) {
    use nix::poll::{PollFd, PollFlags, poll};
    let mut polled: Vec<_> = leaders.iter().map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
    match poll(&mut polled, timeout_ms) {
        // Events whose process is gone stay ready for ever; don't spin on them.
        Ok(ready) if ready > 0 && polled.iter().any(gone) => {
            std::thread::sleep(std::time::Duration::from_millis(timeout_ms.into()));
        }
        _ => {}
    }
}

fn gone(polled: &nix::poll::PollFd<'_>) -> bool {
    polled.revents().is_some_and(|events| events.contains(nix::poll::PollFlags::POLLHUP))
}

#[cfg(test)]
mod tests;
