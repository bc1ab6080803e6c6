//! Barriers on every processor that runs a thread of this process: the host's way to interrupt them.

use rustix::thread::{MembarrierCommand, membarrier};

use crate::error::HostedError;

/// Tells the host that this process will ask for expedited barriers.
pub(crate) fn register() -> Result<(), HostedError> {
    membarrier(MembarrierCommand::RegisterPrivateExpedited)
        .map_err(|errno| HostedError::NoMembarrier { errno })
}

/// Interrupts the processors that run threads of this process, and returns when each has executed a full barrier.
pub(crate) fn interrupt_processors() {
    membarrier(MembarrierCommand::PrivateExpedited).expect("registered when the machine was built");
}
