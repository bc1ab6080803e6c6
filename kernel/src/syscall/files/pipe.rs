//! Making pipes.

use linux_raw_sys::general as abi;
use quire::addr::VirtAddr;

use super::check_flags;
use crate::errno::Errno;
use crate::files::pipe;
use crate::syscall::{Answer, Call};

impl Call<'_> {
    pub(in crate::syscall) fn pipe(&self) -> Answer {
        self.make_pipe(0)
    }

    pub(in crate::syscall) fn pipe2(&self) -> Answer {
        let flags = self.arguments[1];
        check_flags(flags, abi::O_CLOEXEC | abi::O_NONBLOCK | abi::O_DIRECT)?;
        if flags as u32 & abi::O_DIRECT != 0 {
            // Packets.
            return Err(Errno::EINVAL);
        }
        self.make_pipe(flags as u32)
    }

    fn make_pipe(&self, flags: u32) -> Answer {
        let (table, close_on_exec) = (self.table(), flags & abi::O_CLOEXEC != 0);
        let (reader, writer) = pipe::open_pair(flags & abi::O_NONBLOCK);
        let reader = table.add(reader, close_on_exec)?;
        let writer = table.add(writer, close_on_exec).inspect_err(|_| _ = table.close(reader))?;
        let image = [reader as u32, writer as u32].map(u32::to_le_bytes);
        let stored = self.memory.write(VirtAddr(self.arguments[0]), image.as_flattened());
        if stored.is_err() {
            // They were opened just now.
            let _ = (table.close(reader), table.close(writer));
        }
        stored.map(|()| 0)
    }
}
