//! `rseq`

use super::{Answer, Call};
use crate::errno::Errno;
use crate::task::rseq::{self, ALIGNMENT, FIRST_BYTES, Registration};

/// `RSEQ_FLAG_UNREGISTER`
const UNREGISTER: u32 = 1;

impl Call<'_> {
    pub(super) fn rseq(&self) -> Answer {
        let [at, bytes, flags, signature, ..] = self.arguments;
        let wanted = Registration { at, bytes: bytes as u32, signature: signature as u32 };
        match flags as u32 {
            0 => self.register_rseq(wanted)?,
            UNREGISTER => self.unregister_rseq(wanted)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(0)
    }

    fn register_rseq(&self, new: Registration) -> Result<(), Errno> {
        if let Some(old) = self.task.rseq.get() {
            compare(old, new)?;
            return Err(Errno::EBUSY);
        }
        let alignment = if new.bytes == FIRST_BYTES { u64::from(FIRST_BYTES) } else { ALIGNMENT.into() };
        let is_sound = new.bytes >= FIRST_BYTES && new.at.is_multiple_of(alignment);
        if !is_sound {
            return Err(Errno::EINVAL);
        }
        let end = new.at.checked_add(new.bytes.into());
        if end.is_none_or(|end| end > self.memory.end().0) {
            return Err(Errno::EFAULT);
        }
        if new.at == 0 {
            // Linux takes it for no registration.
            return Ok(());
        }
        self.task.rseq.set(Some(new));
        // The structure is filled on the way back.
        self.task.set_rseq_flag();
        Ok(())
    }

    fn unregister_rseq(&self, named: Registration) -> Result<(), Errno> {
        compare(self.task.rseq.get().ok_or(Errno::EINVAL)?, named)?;
        rseq::reset(self.task, named.at)?;
        self.task.rseq.set(None);
        Ok(())
    }
}

/// # Errors
/// [`Errno::EINVAL`] for another structure, [`Errno::EPERM`] for another signature.
fn compare(old: Registration, named: Registration) -> Result<(), Errno> {
    if (old.at, old.bytes) != (named.at, named.bytes) {
        return Err(Errno::EINVAL);
    }
    if old.signature == named.signature { Ok(()) } else { Err(Errno::EPERM) }
}
