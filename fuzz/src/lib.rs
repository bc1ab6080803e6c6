//! What the fuzz targets have in common.

use std::time::Duration;

use lab::trace::{Clock, FaultKinds, Header, Program, Tier, Totals, VERSION, forge};

/// A header as the recorder writes it.
pub fn header(tier: Tier, events: u64) -> Header {
    Header {
        version: VERSION,
        clock: Clock::Monotonic,
        page_size: 4096,
        kernel: "6.18.0".into(),
        cpus: 2,
        cpu: "one".into(),
        command: vec!["small".into()],
        program: Program { name: "small".into(), version: "1".into() },
        tier,
        thp_disabled: true,
        faults: FaultKinds::of(tier),
        ring_bytes: 1 << 20,
        limits: None,
        attached: false,
        totals: Totals::default(),
        events,
    }
}

/// The payload of a header with no events.
pub fn header_payload() -> Vec<u8> {
    forge::header(&header(Tier::Privileged, 0))
}

/// A file in memory, which a path in `/proc/self/fd` opens again.
pub fn memory_file() -> std::fs::File {
    rustix::fs::memfd_create("trace", rustix::fs::MemfdFlags::CLOEXEC).expect("the host has memory").into()
}

/// Runs what an input asks for. Inputs have some KiB, so a second of this thread's own time is too long for any; how long
/// others keep the processor does not count.
pub fn within_a_second<R>(run: impl FnOnce() -> R) -> R {
    let before = thread_time();
    let result = run();
    let spent = thread_time() - before;
    assert!(spent < Duration::from_secs(1), "the input took {spent:?}");
    result
}

fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
