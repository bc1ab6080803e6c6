//! Output: standard output and standard error are the serial port.

use quire::addr::VirtAddr;

use super::{Answer, Call};
use crate::device::serial::Serial;
use crate::errno::Errno;

/// How many bytes are copied from the program at a time.
const CHUNK: usize = 256;
/// The most buffers of one `writev` (`IOV_MAX`).
const MOST_BUFFERS: u64 = 1024;
/// The size of `struct iovec`: an address and a length.
const BUFFER_BYTES: u64 = 16;

impl Call<'_> {
    pub(super) fn write(&self) -> Answer {
        self.check_stream()?;
        self.send(self.addr(1), self.arguments[2])
    }

    pub(super) fn writev(&self) -> Answer {
        self.check_stream()?;
        let [_, buffers, count, ..] = self.arguments;
        if count > MOST_BUFFERS {
            return Err(Errno::EINVAL);
        }
        let mut sent = 0;
        for index in 0..count {
            let mut words = [[0; 8]; 2];
            let at = buffers.checked_add(index * BUFFER_BYTES).ok_or(Errno::EFAULT)?;
            self.memory.read(VirtAddr(at), words.as_flattened_mut())?;
            let [start, bytes] = words.map(u64::from_le_bytes);
            sent += self.send(VirtAddr(start), bytes)?;
        }
        Ok(sent)
    }

    fn check_stream(&self) -> Result<(), Errno> {
        matches!(self.arguments[0], 1 | 2).then_some(()).ok_or(Errno::EBADF)
    }

    fn send(&self, start: VirtAddr, bytes: u64) -> Answer {
        let mut chunk = [0; CHUNK];
        let mut done = 0;
        while done < bytes {
            let part = &mut chunk[..CHUNK.min((bytes - done) as usize)];
            let at = start.0.checked_add(done).ok_or(Errno::EFAULT)?;
            match self.memory.read(VirtAddr(at), part) {
                Ok(()) => Serial.send(part),
                // What was sent is sent: as in Linux, the call says how much.
                Err(_) if done > 0 => return Ok(done),
                Err(errno) => return Err(errno),
            }
            done += part.len() as u64;
        }
        Ok(done)
    }
}
