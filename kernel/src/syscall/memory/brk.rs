//! `brk`

use crate::syscall::{Answer, Call};

impl Call<'_> {
    /// `brk`, which cannot fail: it returns where the heap ends.
    pub(in crate::syscall) fn brk(&self) -> Answer {
        Ok(self.space.brk(self.addr(0)).0)
    }
}
