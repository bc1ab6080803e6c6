//! What a processor's state lacks.

use core::fmt;

/// A part of a processor's state that the library relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requirement {
    /// The bit, by the processor manual's name, and its value: `EFER.NXE set`.
    pub name: &'static str,
    /// What goes wrong without it.
    pub otherwise: &'static str,
}

/// The processor is not set up as the library needs it, and what is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorError {
    all: &'static [Requirement],
    /// Bit `i` stands for the `i`-th requirement.
    missing: u32,
}

impl ProcessorError {
    /// An error if `missing` names one of these requirements, bit `i` the `i`-th.
    pub(crate) const fn unless_none(all: &'static [Requirement], missing: u32) -> Result<(), Self> {
        if missing == 0 { Ok(()) } else { Err(Self { all, missing }) }
    }

    /// The requirements that are missing, at least one.
    pub fn missing(&self) -> impl Iterator<Item = &'static Requirement> + use<> {
        let missing = self.missing;
        self.all.iter().enumerate().filter(move |(index, _)| missing >> index & 1 == 1).map(|(_, one)| one)
    }
}

impl fmt::Display for ProcessorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the processor is not set up: ")?;
        for (index, one) in self.missing().enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{} is missing, without which {}", one.name, one.otherwise)?;
        }
        Ok(())
    }
}

impl core::error::Error for ProcessorError {}
