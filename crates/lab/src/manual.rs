//! `quire completions` and `quire man`: generated from the command line itself.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

use crate::output::{Target, cannot_write, quoted};

const EXAMPLES: &str = "\
Examples:
  quire completions bash >~/.local/share/bash-completion/completions/quire
  quire completions fish >~/.config/fish/completions/quire.fish";

const MAN_EXAMPLES: &str = "\
Example:
  mkdir -p ~/.local/share/man/man1 && quire man ~/.local/share/man/man1; man quire-advise";

/// Write to standard output a script that lets a shell complete the options of this command.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Completions {
    /// The shell that reads the script.
    shell: Shell,
}

/// Write the man pages of this command and of its subcommands: quire.1, quire-replay.1 and so on.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
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
        let directory = quoted(&self.directory);
        fs::read_dir(&self.directory).with_context(|| {
            format!("cannot write man pages to {directory}: give a directory that exists")
        })?;
        clap_mangen::generate_to(command, &self.directory)
            .map_err(|error| cannot_write(&self.directory, error))
    }
}
