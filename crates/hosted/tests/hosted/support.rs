//! What several of these tests need.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hosted::{Hosted, HostedConfig};

/// A machine of 4 MiB.
pub(crate) fn machine(cpus: usize) -> Hosted {
    HostedConfig::new(4 << 20).with_cpus(cpus).build().expect("the host has 4 MiB")
}

/// What a panic of `action` says.
pub(crate) fn panic_message<R>(action: impl FnOnce() -> R) -> String {
    let payload = catch_unwind(AssertUnwindSafe(action)).err().expect("nothing panicked");
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).expect("panics carry text")
}
