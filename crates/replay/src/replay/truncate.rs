//! Files that lose pages while programs map them (`ftruncate`, `fallocate`).

use quire::vm::Advice;
use quire::vm::vma::VmaFlags;

use super::error::ReplayError;
use super::plan::Answer;
use super::replayer::Replayer;
use super::verb::{PAGE, Verb};

impl Replayer<'_> {
    /// Takes pages `pages.0..pages.1` of a file from every mapping of it that is not locked. They stay in the replay's page cache, which has no
    /// holes. Private copies go too, which Linux takes only where the file ends before them: both are rare.
    pub(super) fn cut(&mut self, file: u64, pages: (u64, u64)) -> Result<(), ReplayError> {
        // The survey has numbered every file, so the trace has changed since.
        let Some(number) = self.files.get(file as usize).map(|file| file.number()) else { return Ok(()) };
        for key in self.processes.keys() {
            let mut gone = Vec::new();
            self.processes.get(key).mm.vmas(|vma| {
                let is_its = vma.file_number == number && !vma.flags.contains(VmaFlags::LOCKED);
                let Some((_, offset)) = vma.file.filter(|_| is_its) else { return };
                let len = vma.range.len() / PAGE;
                let from = pages.0.max(offset);
                let until = pages.1.min(offset + len);
                if from < until {
                    gone.push((vma.range.start.0 + (from - offset) * PAGE, (until - from) * PAGE));
                }
            });
            for (addr, len) in gone {
                let verb = Verb::Madvise { addr, len, advice: Advice::DontNeed };
                self.verb(key, &verb, Answer::Done, None)?;
            }
        }
        Ok(())
    }
}
