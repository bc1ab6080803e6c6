//! How a CPU flushes its own translations.

use quire::addr::VirtAddr;
use quire::limits::FLUSH_PAGES_CEILING;
use quire::platform::{FlushExtent, FlushRequest};

/// The running CPU's cache of translations.
pub trait LocalTlb {
    /// Removes the translation of the page with this address, and all entries of paging-structure caches
    /// (Intel SDM volume 3A, section 4.10.4.1).
    fn invlpg(&self, addr: VirtAddr);

    /// Removes all translations of the loaded root that are not global, by loading it again.
    fn reload(&self);

    /// One turn of a loop that waits for another CPU.
    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Removes the translations that `request` names: one by one up to [`FLUSH_PAGES_CEILING`], all of them
    /// beyond it. Ignores the root: what the CPU may have of others needs no flush
    /// ([`TablePlatform::load_kept_root`](quire::platform::TablePlatform::load_kept_root)).
    #[inline(always)]
    fn flush(&self, request: &FlushRequest) {
        let FlushExtent::Range { range, stride } = request.extent else { return self.reload() };
        // A stride is a power of two.
        let first = range.start.0 & !(stride - 1);
        if range.end.0.saturating_sub(first) > FLUSH_PAGES_CEILING * stride {
            return self.reload();
        }
        let mut addr = first;
        while addr < range.end.0 {
            self.invlpg(VirtAddr(addr));
            addr += stride;
        }
    }
}
