//! Open files on their way through a unix socket (`SCM_RIGHTS`).
//!
//! A queue that contains a socket whose own queue contains the first one would keep both alive for ever. So a
//! connection that carries sockets is not carried itself, and the other way round. Linux allows four levels and
//! searches for such circles.

use alloc::sync::Arc;
use alloc::vec::Vec;

use spin::Mutex;

use super::open::OpenFile;
use crate::errno::Errno;

/// How many unix sockets a connection carries, and how often it is carried as a socket.
#[derive(Default)]
pub struct Traffic {
    counts: Mutex<(usize, usize)>,
}

/// Held while counts of several connections change.
static TRAFFIC: Mutex<()> = Mutex::new(());

/// Files that are carried, until they arrive or are dropped.
pub struct Rights {
    files: Vec<Arc<OpenFile>>,
    carrier: Arc<Traffic>,
    carried: Vec<Arc<Traffic>>,
}

impl Rights {
    /// Puts files on their way through the connection `carrier`. `carried` are the connections of unix sockets among
    /// them.
    ///
    /// # Errors
    /// [`Errno::ETOOMANYREFS`] if sockets would be nested.
    pub fn new(
        files: Vec<Arc<OpenFile>>,
        carrier: &Arc<Traffic>,
        carried: Vec<Arc<Traffic>>,
    ) -> Result<Self, Errno> {
        let _all = TRAFFIC.lock();
        let nests = |inner: &Arc<Traffic>| Arc::ptr_eq(inner, carrier) || inner.counts.lock().0 > 0;
        if !carried.is_empty() && (carrier.counts.lock().1 > 0 || carried.iter().any(nests)) {
            return Err(Errno::ETOOMANYREFS);
        }
        carrier.counts.lock().0 += carried.len();
        carried.iter().for_each(|inner| inner.counts.lock().1 += 1);
        Ok(Self { files, carrier: carrier.clone(), carried })
    }

    /// They have arrived.
    pub fn into_files(mut self) -> Vec<Arc<OpenFile>> {
        core::mem::take(&mut self.files)
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        let _all = TRAFFIC.lock();
        self.carrier.counts.lock().0 -= self.carried.len();
        self.carried.iter().for_each(|inner| inner.counts.lock().1 -= 1);
    }
}
