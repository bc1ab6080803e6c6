//! Claims on regular files: while one is open to be written, it cannot be executed, and the other way round.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicI32, Ordering};

use super::node::Node;
use crate::errno::Errno;

/// How many write a file, or as a negative number how many run it.
#[derive(Default)]
pub struct Claims(AtomicI32);

/// A claim on a node until this is dropped. Nodes without claims take all: those that are no regular files of a file
/// system in memory or on a disk.
pub struct Claim {
    node: Arc<dyn Node>,
    step: i32,
}

impl Claim {
    /// The file is written.
    ///
    /// # Errors
    /// [`Errno::ETXTBSY`] if a process runs it.
    pub fn to_write(node: &Arc<dyn Node>) -> Result<Self, Errno> {
        Self::take(node, 1)
    }

    /// The file is executed.
    ///
    /// # Errors
    /// [`Errno::ETXTBSY`] if it is open to be written.
    pub fn to_run(node: &Arc<dyn Node>) -> Result<Self, Errno> {
        Self::take(node, -1)
    }

    fn take(node: &Arc<dyn Node>, step: i32) -> Result<Self, Errno> {
        let add = |count: i32| (count.signum() * step >= 0).then_some(count + step);
        if let Some(claims) = node.claims() {
            let taken = claims.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
            taken.map_err(|_| Errno::ETXTBSY)?;
        }
        Ok(Self { node: node.clone(), step })
    }
}

impl Clone for Claim {
    fn clone(&self) -> Self {
        Self::take(&self.node, self.step).expect("there is one already")
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(claims) = self.node.claims() {
            claims.0.fetch_sub(self.step, Ordering::AcqRel);
        }
    }
}
