//! The running kernel cannot be measured: it took its memory over long ago.

use super::Boot;
use crate::bench::experiment::{Arm, Prepared, Skip};

pub(super) struct Linux;

impl Arm<Boot> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "not measured: a kernel takes its memory over once, at boot. Its page descriptors take 64 bytes for \
         each 4 KiB, 1.56 % of memory."
    }

    fn setup(&mut self, _case: &Boot) -> Result<Box<dyn Prepared + '_>, Skip> {
        Err(Skip("a running kernel cannot be made to take its memory over again".to_owned()))
    }
}
