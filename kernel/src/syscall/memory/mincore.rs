//! `mincore`

use quire::addr::VirtAddr;
use quire::limits::FRAME_SIZE;

use super::page_range;
use crate::errno::Errno;
use crate::syscall::{Answer, Call};

/// How many pages are looked at before their bytes are stored.
const CHUNK: usize = 512;

impl Call<'_> {
    /// `mincore`: a byte for each page, 1 if it is in memory.
    pub(in crate::syscall) fn mincore(&self) -> Answer {
        let [start, len, vector, ..] = self.arguments;
        if !start.is_multiple_of(FRAME_SIZE) {
            return Err(Errno::EINVAL);
        }
        let end = self.space.layout().user.end;
        let range = page_range(VirtAddr(start), len).filter(|range| range.end <= end).ok_or(Errno::ENOMEM)?;
        let pages = range.len() / FRAME_SIZE;
        if vector.checked_add(pages).is_none_or(|stop| stop > end.0) {
            return Err(Errno::EFAULT);
        }
        let mut done = 0;
        while done < pages {
            let mut found = [false; CHUNK];
            let found = &mut found[..CHUNK.min((pages - done) as usize)];
            self.space.mincore(range.start.add(done * FRAME_SIZE), found)?;
            let mut bytes = [0; CHUNK];
            bytes.iter_mut().zip(found.iter()).for_each(|(byte, &found)| *byte = u8::from(found));
            self.memory.write(VirtAddr(vector + done), &bytes[..found.len()])?;
            done += found.len() as u64;
        }
        Ok(0)
    }
}
