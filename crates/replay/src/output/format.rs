//! The option `--format`, the same for all commands whose output can be data.

use std::path::Path;

use clap::ValueEnum;

use super::Target;

/// A form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For readers.
    #[default]
    Text,
    /// JSON alone on standard output. Everything else goes to standard error.
    Json,
}

impl Format {
    /// Where figures go as JSON: to `file` if it was given, or to standard output; `None` for readers alone.
    ///
    /// # Errors
    /// As [`Target::named`].
    pub fn target(self, file: Option<&Path>) -> anyhow::Result<Option<Target>> {
        let standard = (self == Self::Json).then_some(Path::new("-"));
        file.or(standard).map(Target::named).transpose()
    }
}
