//! What several of these tests need.

use hosted::{Hosted, HostedConfig};

/// A machine of 4 MiB.
pub(crate) fn machine(cpus: usize) -> Hosted {
    HostedConfig::new(4 << 20).with_cpus(cpus).build().expect("the host has 4 MiB")
}
