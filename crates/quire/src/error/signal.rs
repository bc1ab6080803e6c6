//! The signal that a program gets for a fault that could not be resolved.

use super::{FaultError, PageFaultError};

/// A signal and its code: `si_signo` and `si_code` of a `siginfo_t` (sigaction(2)), as Linux numbers them on
/// x86-64, AArch64 and RISC-V. A kernel adds the faulting address as `si_addr`, and for [`Self::POISONED`] the
/// size of the lost memory as `si_addr_lsb`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// `si_signo`.
    pub number: i32,
    /// `si_code`.
    pub code: i32,
}

const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

impl Signal {
    /// `SIGSEGV`, `SEGV_MAPERR`: nothing is mapped at the address.
    pub const NOT_MAPPED: Self = Self { number: SIGSEGV, code: 1 };
    /// `SIGSEGV`, `SEGV_ACCERR`: the mapping does not allow the access.
    pub const NOT_ALLOWED: Self = Self { number: SIGSEGV, code: 2 };
    /// `SIGSEGV`, `SEGV_PKUERR`: the protection key of the page does not allow the access.
    pub const PROTECTION_KEY: Self = Self { number: SIGSEGV, code: 4 };
    /// `SIGBUS`, `BUS_ADRERR`: there is no memory behind the mapping at the address.
    pub const NO_MEMORY_BEHIND: Self = Self { number: SIGBUS, code: 2 };
    /// `SIGBUS`, `BUS_MCEERR_AR`: the memory went bad, and the program must act on it.
    pub const POISONED: Self = Self { number: SIGBUS, code: 4 };
}

impl FaultError {
    /// The signal for the program. `None` where the kernel must do something else: tell a handler
    /// ([`Self::Marked`]), find memory ([`Self::OutOfMemory`]), end the task ([`Self::Dying`]).
    pub const fn signal(self) -> Option<Signal> {
        match self {
            Self::NotMapped => Some(Signal::NOT_MAPPED),
            Self::Protection => Some(Signal::NOT_ALLOWED),
            Self::BeyondEnd | Self::Io | Self::NoHandler | Self::NoHugePage => Some(Signal::NO_MEMORY_BEHIND),
            Self::Poisoned => Some(Signal::POISONED),
            Self::Marked | Self::OutOfMemory | Self::Dying => None,
        }
    }
}

impl PageFaultError {
    /// The signal for a program whose access faulted so. `None` where the kernel or the machine is at fault:
    /// the kernel stops.
    pub const fn signal(self) -> Option<Signal> {
        match self {
            Self::ProtectionKey => Some(Signal::PROTECTION_KEY),
            Self::ShadowStack => Some(Signal::NOT_ALLOWED),
            Self::ReservedBit | Self::KernelFetch | Self::Unknown => None,
        }
    }
}
