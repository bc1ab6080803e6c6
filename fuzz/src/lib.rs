//! What the fuzz targets have in common.

use lab::trace::{Clock, FaultKinds, Header, Program, Tier, Totals, VERSION, forge};

/// A header as the recorder writes it.
pub fn header(tier: Tier, events: u64) -> Header {
    Header {
        version: VERSION,
        clock: Clock::Monotonic,
        page_size: 4096,
        kernel: "6.18.0".into(),
        cpus: 2,
        command: vec!["small".into()],
        program: Program { name: "small".into(), version: "1".into() },
        tier,
        thp_disabled: true,
        faults: FaultKinds::of(tier),
        ring_bytes: 1 << 20,
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
