//! The running kernel took its memory over long ago.

use super::Boot;
use crate::bench::experiment::{Arm, Prepared, Skip};

/// Says why it cannot be measured from here.
pub(super) struct Linux;

impl Arm<Boot> for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn about(&self) -> &'static str {
        "not measured: a kernel takes its memory over once, before there are programs. Its page descriptors are 64 bytes \
         for each 4 KiB, 1.56 % of memory, whatever it is used for."
    }

    fn setup(&mut self, _case: &Boot) -> Result<Box<dyn Prepared + '_>, Skip> {
        Err(Skip("a running kernel cannot be made to take its memory over again".to_owned()))
    }
}
