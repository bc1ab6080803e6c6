//! `brk`

use crate::observe::commit_allows;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    /// `brk`, which cannot fail: it returns where the heap ends.
    pub(in crate::syscall) fn brk(&self) -> Answer {
        let (end, wanted) = (self.space.heap().end, self.addr(0));
        let more = wanted.0.saturating_sub(end.0);
        let is_locked_too_much = self.space.locks_future() && self.check_more_locked(more).is_err();
        if more > 0 && (is_locked_too_much || !commit_allows(more)) {
            return Ok(end.0);
        }
        Ok(self.space.brk(wanted).0)
    }
}
