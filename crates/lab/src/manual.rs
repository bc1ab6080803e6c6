//! `quire completions` and `quire man`: generated from the command line itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

use crate::output::{Target, quoted};

/// Write a script that completes the options of this command to standard output.
///
/// bash: quire completions bash > ~/.local/share/bash-completion/completions/quire
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell that reads the script.
    shell: Shell,
}

/// Write the man pages of this command and of its subcommands: quire.1, quire-replay.1 and so on.
#[derive(Debug, clap::Args)]
pub struct Man {
    /// An existing directory for the pages, such as ~/.local/share/man/man1.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Completions {
    /// Runs `quire completions` for `command`.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn run(&self, command: &mut Command) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, "quire", &mut script);
        Target::named(Path::new("-"))?.write(&script)
    }
}

impl Man {
    /// Runs `quire man` for `command`.
    ///
    /// # Errors
    /// A directory that does not exist or that this user may not write.
    pub fn run(&self, command: Command) -> Result<()> {
        let wrong =
            || format!("cannot write man pages to {}: give a directory that exists", quoted(&self.directory));
        fs::read_dir(&self.directory).with_context(wrong)?;
        clap_mangen::generate_to(command, &self.directory).with_context(wrong)
    }
}
